//! Who has which address on this link: ARP and neighbour discovery.
