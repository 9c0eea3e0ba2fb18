//! Connections: states, retransmission, congestion control.
