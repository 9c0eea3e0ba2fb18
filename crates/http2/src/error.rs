use std::fmt;

/// Reason of a reset or of the end of a connection, as it is sent. RFC 9113 7
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

#[allow(missing_docs, reason = "the names of RFC 9113 7")]
impl ErrorCode {
    pub const NO_ERROR: ErrorCode = ErrorCode(0);
    pub const PROTOCOL_ERROR: ErrorCode = ErrorCode(1);
    pub const INTERNAL_ERROR: ErrorCode = ErrorCode(2);
    pub const FLOW_CONTROL_ERROR: ErrorCode = ErrorCode(3);
    pub const SETTINGS_TIMEOUT: ErrorCode = ErrorCode(4);
    pub const STREAM_CLOSED: ErrorCode = ErrorCode(5);
    pub const FRAME_SIZE_ERROR: ErrorCode = ErrorCode(6);
    pub const REFUSED_STREAM: ErrorCode = ErrorCode(7);
    pub const CANCEL: ErrorCode = ErrorCode(8);
    pub const COMPRESSION_ERROR: ErrorCode = ErrorCode(9);
    pub const CONNECT_ERROR: ErrorCode = ErrorCode(10);
    pub const ENHANCE_YOUR_CALM: ErrorCode = ErrorCode(11);
    pub const INADEQUATE_SECURITY: ErrorCode = ErrorCode(12);
    pub const HTTP_1_1_REQUIRED: ErrorCode = ErrorCode(13);
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 14] = [
            "NO_ERROR",
            "PROTOCOL_ERROR",
            "INTERNAL_ERROR",
            "FLOW_CONTROL_ERROR",
            "SETTINGS_TIMEOUT",
            "STREAM_CLOSED",
            "FRAME_SIZE_ERROR",
            "REFUSED_STREAM",
            "CANCEL",
            "COMPRESSION_ERROR",
            "CONNECT_ERROR",
            "ENHANCE_YOUR_CALM",
            "INADEQUATE_SECURITY",
            "HTTP_1_1_REQUIRED",
        ];
        match NAMES.get(self.0 as usize) {
            Some(name) => f.write_str(name),
            None => write!(f, "error {:#x}", self.0),
        }
    }
}

/// A peer's fault and how far it reaches. RFC 9113 5.4
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection is over.
    Connection(ErrorCode, &'static str),
    /// One stream is over.
    Stream(ErrorCode, &'static str),
}

/// A `PROTOCOL_ERROR` of the connection.
pub(crate) const fn protocol(why: &'static str) -> Fault {
    Fault::Connection(ErrorCode::PROTOCOL_ERROR, why)
}

/// A `FRAME_SIZE_ERROR` of the connection.
pub(crate) const fn frame_size(why: &'static str) -> Fault {
    Fault::Connection(ErrorCode::FRAME_SIZE_ERROR, why)
}

/// A `PROTOCOL_ERROR` of the stream: its request is malformed. RFC 9113 8.1.1
pub(crate) const fn malformed(why: &'static str) -> Fault {
    Fault::Stream(ErrorCode::PROTOCOL_ERROR, why)
}
