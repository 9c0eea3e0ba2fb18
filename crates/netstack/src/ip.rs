//! Own addresses, routes, ICMP, path MTU.
