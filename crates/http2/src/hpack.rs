//! Header compression, RFC 7541.
//!
//! `integer` and `huffman` are the codes, `table` is the static and the dynamic table; `decoder`
//! and `encoder` are the two directions of a connection, each with a table of its own.

mod decoder;
mod encoder;
mod huffman;
mod integer;
mod table;

pub use decoder::{CompressionError, Decoder};
pub use encoder::{Encoder, Indexing, RepeatedField, encode_literals};

#[cfg(test)]
mod tests;
