use std::fmt;

/// Reason of a reset or of the end of a connection, as it is sent. RFC 9113 7
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

macro_rules! codes {
    ($($number:literal $name:ident)*) => {
        #[allow(missing_docs, reason = "the names of RFC 9113 7")]
        impl ErrorCode {
            $(pub const $name: ErrorCode = ErrorCode($number);)*
        }

        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

codes! {
    0 NO_ERROR
    1 PROTOCOL_ERROR
    2 INTERNAL_ERROR
    3 FLOW_CONTROL_ERROR
    4 SETTINGS_TIMEOUT
    5 STREAM_CLOSED
    6 FRAME_SIZE_ERROR
    7 REFUSED_STREAM
    8 CANCEL
    9 COMPRESSION_ERROR
    10 CONNECT_ERROR
    11 ENHANCE_YOUR_CALM
    12 INADEQUATE_SECURITY
    13 HTTP_1_1_REQUIRED
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
