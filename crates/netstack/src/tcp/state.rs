//! States of a connection, and reasons of its end.

/// RFC 9293 3.3.2. LISTEN is not among them: a listener is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TcpState {
    /// A SYN was sent.
    SynSent,
    /// A SYN was received, and answered.
    SynReceived,
    /// Data goes both ways.
    Established,
    /// This end has closed; the peer has neither acknowledged that nor closed.
    FinWait1,
    /// The peer has acknowledged the FIN, and has not closed.
    FinWait2,
    /// The peer has closed; this end has not.
    CloseWait,
    /// Both have closed; the own FIN is not acknowledged.
    Closing,
    /// The peer closed first, then this end; the own FIN is not acknowledged.
    LastAck,
    /// Both have closed, this end first: late segments are still answered.
    TimeWait,
    /// There is no connection any more: see [`End`].
    Closed,
}

impl TcpState {
    /// True if both ends know each other's initial sequence number, and may send data.
    pub const fn is_synchronized(self) -> bool {
        !matches!(self, TcpState::SynSent | TcpState::SynReceived | TcpState::Closed)
    }

    /// True if the peer may still send data: it has not sent its FIN.
    pub const fn is_receiving(self) -> bool {
        matches!(self, TcpState::Established | TcpState::FinWait1 | TcpState::FinWait2)
    }

    /// True if this end may still be sending data, or a FIN that is not acknowledged.
    pub const fn is_sending(self) -> bool {
        matches!(
            self,
            TcpState::Established
                | TcpState::CloseWait
                | TcpState::FinWait1
                | TcpState::Closing
                | TcpState::LastAck
        )
    }
}

/// Reason of a connection's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Both ends closed, and all was acknowledged.
    Closed,
    /// The peer sent a RST.
    Reset,
    /// The peer answered the SYN with a RST.
    Refused,
    /// The peer acknowledged nothing for too long. RFC 9293 3.8.3
    TimedOut,
    /// This end aborted the connection.
    Aborted,
    /// The network reported that the peer cannot be reached. RFC 9293 3.9.2.2
    Unreachable,
}
