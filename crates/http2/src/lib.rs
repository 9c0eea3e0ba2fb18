//! HTTP/2.
#![forbid(unsafe_code)]
mod field;
mod hpack;
pub use field::FieldList;
pub use hpack::{CompressionError, Decoder, Encoder, Indexing, RepeatedField, encode_literals};
