//! Requests: the head with its fields and target, and the body.

pub(crate) mod body;
pub(crate) mod fields;
pub(crate) mod head;
pub(crate) mod stream;
pub(crate) mod target;

pub(crate) use body::{BodyReader, Framing};
pub(crate) use fields::{Fields, Name};
pub(crate) use head::{Head, Method, Version, has_control, is_host, parse, parse_stream};
pub(crate) use target::Target;

use crate::status::Status;

macro_rules! refusals {
    ($($kind:ident $name:literal)*) => {
        /// Reason for a refusal after which nothing more can be read: the start of the next request
        /// is unknown, or the request is unwanted. The reply is [`status`](Refusal::status), and
        /// the connection closes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Refusal {
            $($kind),*
        }

        impl Refusal {
            /// Every kind, in the order of their numbers.
            pub(crate) const ALL: [Refusal; [$($name),*].len()] = [$(Refusal::$kind),*];

            /// One word for the log.
            pub(crate) fn name(self) -> &'static str {
                [$($name),*][self as usize]
            }

            /// Label of the counter, as Prometheus text.
            pub(crate) fn label(self) -> &'static str {
                [$(concat!("kind=\"", $name, "\"")),*][self as usize]
            }
        }
    };
}

refusals! {
    BlankLines "blank_lines"
    BareLineFeed "bare_line_feed"
    ControlByte "control_byte"
    RequestLine "request_line"
    RequestLineTooLong "request_line_too_long"
    Version "version"
    VersionUnsupported "version_unsupported"
    Target "target"
    FieldName "field_name"
    FieldFolded "field_folded"
    FieldCount "field_count"
    HeadTooLong "head_too_long"
    HostMissing "host_missing"
    HostRepeated "host_repeated"
    HostInvalid "host_invalid"
    ContentLength "content_length"
    TransferEncoding "transfer_encoding"
    TransferEncodingUnknown "transfer_encoding_unknown"
    LengthAndEncoding "length_and_encoding"
    BodyTooLong "body_too_long"
    Chunk "chunk"
    ChunkExtensions "chunk_extensions"
    Trailer "trailer"
    TrailersTooLong "trailers_too_long"
}

impl Refusal {
    /// Status of the reply.
    pub(crate) fn status(self) -> Status {
        match self {
            Refusal::RequestLineTooLong => Status::UriTooLong,
            Refusal::VersionUnsupported => Status::VersionNotSupported,
            Refusal::FieldCount | Refusal::HeadTooLong | Refusal::TrailersTooLong => {
                Status::FieldsTooLarge
            }
            Refusal::TransferEncodingUnknown => Status::NotImplemented,
            Refusal::BodyTooLong => Status::ContentTooLarge,
            _ => Status::BadRequest,
        }
    }
}

/// Parses a request with these fields and passes them to `read`.
#[cfg(test)]
pub(crate) fn with_fields<R>(fields: &str, read: impl FnOnce(&Fields<'_>) -> R) -> R {
    let head = format!("GET / HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n");
    match parse(head.as_bytes(), &crate::config::RequestLimits::default()) {
        Ok(Some(head)) => read(&head.fields),
        other => panic!("{other:?}"),
    }
}
