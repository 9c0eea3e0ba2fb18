//! From fields to header blocks.

use super::table::{DYNAMIC_FIRST, STATIC, Table};
use super::{huffman, integer};

/// The encoding side of a connection.
///
/// Fields that repeat ([`RepeatedField`]) go into the dynamic table, and are one byte from then on.
/// Everything else is a literal that leaves the table alone: the literals of an entity can be
/// encoded once ([`encode_literals`]) and put into the blocks of all connections.
#[derive(Debug)]
pub struct Encoder {
    table: Table,
    /// Own limit, also if the peer allows more.
    limit_max: usize,
    /// Lowest limit since the last block, if the limit has changed. RFC 7541 4.2
    least: Option<usize>,
}

/// Treatment of a literal by intermediaries. RFC 7541 6.2
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// May be indexed.
    Allowed,
    /// Must not be indexed: a secret. RFC 7541 7.1.3
    Never,
}

/// A field that most replies have, such as `server`: computed once for all connections.
#[derive(Clone, Debug)]
pub struct RepeatedField {
    name: Box<[u8]>,
    value: Box<[u8]>,
    hash: u32,
    /// Literal with incremental indexing, or the index of an entry of the static table.
    encoded: Box<[u8]>,
    is_static: bool,
}

/// Initial limit of both tables. RFC 9113 6.5.2
const LIMIT_INITIAL: usize = 4096;

const LITERAL: u8 = 0;
const LITERAL_NEVER: u8 = 0x10;
const LITERAL_INDEXED: u8 = 0x40;
const INDEXED: u8 = 0x80;

impl RepeatedField {
    /// A field with this name, in small letters, and this value.
    pub fn new(name: &[u8], value: &[u8]) -> RepeatedField {
        let mut encoded = Vec::new();
        let whole = STATIC.iter().position(|&row| row == (name, value));
        match whole {
            Some(at) => integer::put(at + 1, 7, INDEXED, &mut encoded),
            None => put_literal(name, value, 6, LITERAL_INDEXED, &mut encoded),
        }
        RepeatedField {
            name: name.into(),
            value: value.into(),
            hash: hash(name, value),
            encoded: encoded.into(),
            is_static: whole.is_some(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Its value.
    pub fn value(&self) -> &[u8] {
        &self.value
    }
}

impl Encoder {
    /// An empty table of up to `limit_max` bytes, or fewer if the peer allows fewer.
    pub fn new(limit_max: usize) -> Encoder {
        let limit = limit_max.min(LIMIT_INITIAL);
        Encoder {
            table: Table::new(limit),
            limit_max,
            // The peer's decoder begins with the initial limit.
            least: (limit < LIMIT_INITIAL).then_some(limit),
        }
    }

    /// Bytes of memory that its table has allocated.
    pub fn allocated_len(&self) -> usize {
        self.table.allocated_len()
    }

    /// Takes the peer's `SETTINGS_HEADER_TABLE_SIZE`.
    pub fn set_limit(&mut self, limit: usize) {
        let limit = limit.min(self.limit_max);
        if limit != self.table.limit() {
            self.least = Some(self.least.map_or(limit, |least| least.min(limit)));
            self.table.set_limit(limit);
        }
    }

    /// Begins a block with the table size updates that are due.
    #[inline]
    pub fn begin(&mut self, block: &mut Vec<u8>) {
        if let Some(least) = self.least.take() {
            let limit = self.table.limit();
            if least < limit {
                integer::put(least, 5, 0x20, block);
            }
            integer::put(limit, 5, 0x20, block);
        }
    }

    /// Appends `:status`.
    #[inline]
    pub fn status(&mut self, status: u16, block: &mut Vec<u8>) {
        let index = match status {
            200 => 8,
            204 => 9,
            206 => 10,
            304 => 11,
            400 => 12,
            404 => 13,
            500 => 14,
            _ => {
                let digits = [status / 100, status / 10 % 10, status % 10];
                block.extend([LITERAL | 8, 3]);
                block.extend(digits.map(|digit| b'0' + digit as u8));
                return;
            }
        };
        block.push(INDEXED | index);
    }

    /// Appends a field: first as a literal that enters the table, later by its index.
    #[inline]
    pub fn repeated(&mut self, field: &RepeatedField, block: &mut Vec<u8>) {
        if field.is_static {
            block.extend_from_slice(&field.encoded);
            return;
        }
        if let Some(index) = self.table.find(field.hash, &field.name, &field.value) {
            integer::put(index + DYNAMIC_FIRST, 7, INDEXED, block);
            return;
        }
        self.table.insert(&field.name, &field.value, field.hash);
        block.extend_from_slice(&field.encoded);
    }

    /// Appends a field as a literal.
    pub fn literal(&mut self, name: &[u8], value: &[u8], indexing: Indexing, block: &mut Vec<u8>) {
        let first = match indexing {
            Indexing::Allowed => LITERAL,
            Indexing::Never => LITERAL_NEVER,
        };
        put_literal(name, value, 4, first, block);
    }
}

/// Encodes fields without a dynamic table, so that the result may stand in any block of any
/// connection.
pub fn encode_literals<'a>(fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Vec<u8> {
    let mut block = Vec::new();
    for field in fields {
        match STATIC.iter().position(|&row| row == field) {
            Some(at) => integer::put(at + 1, 7, INDEXED, &mut block),
            None => put_literal(field.0, field.1, 4, LITERAL, &mut block),
        }
    }
    block
}

fn put_literal(name: &[u8], value: &[u8], prefix_bits: u32, first: u8, block: &mut Vec<u8>) {
    let at = STATIC.iter().position(|row| row.0 == name);
    integer::put(at.map_or(0, |at| at + 1), prefix_bits, first, block);
    if at.is_none() {
        put_string(name, block);
    }
    put_string(value, block);
}

fn put_string(text: &[u8], block: &mut Vec<u8>) {
    let coded_len = huffman::encoded_len(text);
    if coded_len < text.len() {
        integer::put(coded_len, 7, 0x80, block);
        huffman::encode(text, block);
    } else {
        integer::put(text.len(), 7, 0, block);
        block.extend_from_slice(text);
    }
}

/// FNV-1a, 32 bits. Collisions are harmless, since the fields are compared as well.
fn hash(name: &[u8], value: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let text = name.iter().chain(b":").chain(value);
    text.fold(0x811c_9dc5, step)
}
