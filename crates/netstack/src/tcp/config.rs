//! Settings of a connection. Each limit is documented with its effect; its counter is in
//! [`super::TcpCounters`].

use std::time::Duration;

use super::rtt::RtoLimits;

/// Congestion control algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// RFC 5681 and 6582.
    NewReno,
    /// RFC 9438.
    #[default]
    Cubic,
}

/// Probes of a connection on which nothing happens. RFC 9293 3.8.4
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence before the first probe. The RFC asks for two hours or more by default.
    pub idle: Duration,
    /// Between probes.
    pub interval: Duration,
    /// Number of unanswered probes that ends the connection.
    pub probes_max: u8,
}

impl Default for KeepAlive {
    fn default() -> KeepAlive {
        KeepAlive {
            idle: Duration::from_secs(7200),
            interval: Duration::from_secs(75),
            probes_max: 9,
        }
    }
}

/// Shared by the connections of a shard.
#[derive(Clone, Copy, Debug)]
pub struct TcpConfig {
    /// MSS that is offered to the peer: the MTU less the IP and TCP headers. RFC 9293 3.7.1
    pub mss: u16,
    /// MSS of a peer that offers none: 536 over IPv4, 1220 over IPv6. RFC 9293 3.7.1, MUST-15
    pub mss_default: u16,
    /// Bytes that a connection holds until they are read: the window that is offered at first.
    pub receive_capacity: u32,
    /// Limit to which the window grows if the application reads as fast as data arrives. Without
    /// effect unless it is more than `receive_capacity`.
    pub receive_capacity_max: u32,
    /// Offer window scaling. RFC 7323 2
    pub has_window_scale: bool,
    /// Offer timestamps. RFC 7323 3
    pub has_timestamps: bool,
    /// Offer SACK. RFC 2018
    pub has_sack: bool,
    /// Offer ECN (congestion marks instead of losses), and accept it from a peer. RFC 3168
    pub has_ecn: bool,
    /// Congestion control algorithm.
    pub congestion: CongestionControl,
    /// Initial window in segments. RFC 6928: ten.
    pub initial_window_segments: u16,
    /// Hold a short segment back while data is unacknowledged. RFC 9293 3.7.4
    pub has_nagle: bool,
    /// Time for which an acknowledgement waits for data to travel with: less than 0.5 s. RFC 9293
    /// 3.8.6.3, MUST-40
    pub ack_delay: Duration,
    /// Number of first acknowledgements that are not delayed, so that the peer's window grows.
    pub quick_acks: u8,
    /// Limits of the retransmission time-out.
    pub rto: RtoLimits,
    /// Time after which unacknowledged data ends the connection. RFC 9293 3.8.3 (R2): at least 100
    /// seconds.
    pub user_timeout: Duration,
    /// The same for the SYN of an active open. RFC 9293 3.8.3, MUST-23: at least three minutes.
    pub connect_timeout: Duration,
    /// The same for the answer to a SYN.
    pub accept_timeout: Duration,
    /// Duration of FIN-WAIT-2 once the application has closed. No RFC has it; it is in common use
    /// against peers that never close.
    pub fin_wait_2_timeout: Duration,
    /// Twice the maximum segment lifetime. RFC 9293 3.4.2: four minutes; one is in common use.
    pub time_wait: Duration,
    /// Off unless asked for. RFC 9293 3.8.4, MUST-25
    pub keep_alive: Option<KeepAlive>,
    /// Challenge acknowledgements in [`CHALLENGE_PERIOD`]; beyond it they are left out and counted.
    /// RFC 5961 7
    pub challenge_acks_max: u8,
    /// Interval between acknowledgements of empty segments outside of the window; without it two
    /// confused ends can answer each other forever.
    pub out_of_window_ack_interval: Duration,
}

/// See [`TcpConfig::challenge_acks_max`].
pub const CHALLENGE_PERIOD: Duration = Duration::from_secs(5);

impl Default for TcpConfig {
    fn default() -> TcpConfig {
        TcpConfig {
            mss: 1460,
            mss_default: 536,
            receive_capacity: 64 << 10,
            receive_capacity_max: 4 << 20,
            has_window_scale: true,
            has_timestamps: true,
            has_sack: true,
            has_ecn: true,
            congestion: CongestionControl::default(),
            initial_window_segments: 10,
            has_nagle: true,
            ack_delay: Duration::from_millis(40),
            quick_acks: 16,
            rto: RtoLimits {
                initial: Duration::from_secs(1),
                min: Duration::from_millis(200),
                max: Duration::from_secs(60),
            },
            user_timeout: Duration::from_secs(300),
            connect_timeout: Duration::from_secs(180),
            accept_timeout: Duration::from_secs(60),
            fin_wait_2_timeout: Duration::from_secs(60),
            time_wait: Duration::from_secs(60),
            keep_alive: None,
            challenge_acks_max: 10,
            out_of_window_ack_interval: Duration::from_millis(500),
        }
    }
}

impl TcpConfig {
    /// The largest window of a connection.
    pub(crate) fn receive_limit(&self) -> u32 {
        self.receive_capacity.max(self.receive_capacity_max)
    }

    /// The shift with which the largest window fits into 16 bits. RFC 7323 2.3
    pub(crate) fn receive_shift(&self) -> u8 {
        let bits = u32::BITS - self.receive_limit().leading_zeros();
        bits.saturating_sub(16).min(14) as u8
    }
}
