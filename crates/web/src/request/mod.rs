//! Requests: the head with its fields and target, and the body.

pub(crate) mod body;
pub(crate) mod fields;
pub(crate) mod head;
pub(crate) mod target;

pub(crate) use body::{Body, Framing};
pub(crate) use fields::{Fields, Name};
pub(crate) use head::{Head, Method, Version, has_control, parse};
pub(crate) use target::Target;

use crate::status::Status;

/// Why a request is refused after which nothing more can be read: we no longer know where the next
/// one begins, or do not want to. The reply is [`status`](Refusal::status), and the connection
/// closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Refusal {
    BlankLines,
    BareLineFeed,
    ControlByte,
    RequestLine,
    RequestLineTooLong,
    Version,
    VersionUnsupported,
    Target,
    FieldName,
    FieldFolded,
    FieldCount,
    HeadTooLong,
    HostMissing,
    HostRepeated,
    HostInvalid,
    ContentLength,
    TransferEncoding,
    TransferEncodingUnknown,
    LengthAndEncoding,
    BodyTooLong,
    Chunk,
    ChunkExtensions,
    Trailer,
    TrailersTooLong,
}

impl Refusal {
    /// Every kind, in the order of its number.
    pub(crate) const ALL: [Refusal; 24] = {
        use Refusal::*;
        [
            BlankLines,
            BareLineFeed,
            ControlByte,
            RequestLine,
            RequestLineTooLong,
            Version,
            VersionUnsupported,
            Target,
            FieldName,
            FieldFolded,
            FieldCount,
            HeadTooLong,
            HostMissing,
            HostRepeated,
            HostInvalid,
            ContentLength,
            TransferEncoding,
            TransferEncodingUnknown,
            LengthAndEncoding,
            BodyTooLong,
            Chunk,
            ChunkExtensions,
            Trailer,
            TrailersTooLong,
        ]
    };

    /// The reply.
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

    /// In a word, for the log.
    pub(crate) fn name(self) -> &'static str {
        self.label()
            .trim_start_matches("kind=\"")
            .trim_end_matches('"')
    }

    /// The label of its counter, as Prometheus text.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Refusal::BlankLines => r#"kind="blank_lines""#,
            Refusal::BareLineFeed => r#"kind="bare_line_feed""#,
            Refusal::ControlByte => r#"kind="control_byte""#,
            Refusal::RequestLine => r#"kind="request_line""#,
            Refusal::RequestLineTooLong => r#"kind="request_line_too_long""#,
            Refusal::Version => r#"kind="version""#,
            Refusal::VersionUnsupported => r#"kind="version_unsupported""#,
            Refusal::Target => r#"kind="target""#,
            Refusal::FieldName => r#"kind="field_name""#,
            Refusal::FieldFolded => r#"kind="field_folded""#,
            Refusal::FieldCount => r#"kind="field_count""#,
            Refusal::HeadTooLong => r#"kind="head_too_long""#,
            Refusal::HostMissing => r#"kind="host_missing""#,
            Refusal::HostRepeated => r#"kind="host_repeated""#,
            Refusal::HostInvalid => r#"kind="host_invalid""#,
            Refusal::ContentLength => r#"kind="content_length""#,
            Refusal::TransferEncoding => r#"kind="transfer_encoding""#,
            Refusal::TransferEncodingUnknown => r#"kind="transfer_encoding_unknown""#,
            Refusal::LengthAndEncoding => r#"kind="length_and_encoding""#,
            Refusal::BodyTooLong => r#"kind="body_too_long""#,
            Refusal::Chunk => r#"kind="chunk""#,
            Refusal::ChunkExtensions => r#"kind="chunk_extensions""#,
            Refusal::Trailer => r#"kind="trailer""#,
            Refusal::TrailersTooLong => r#"kind="trailers_too_long""#,
        }
    }
}
