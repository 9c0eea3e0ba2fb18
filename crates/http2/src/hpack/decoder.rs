//! From header blocks to fields.

use std::fmt;

use super::table::{DYNAMIC_FIRST, STATIC, Table};
use super::{huffman, integer};
use crate::field::{FieldList, is_valid_name, is_valid_value};

/// The decoding side of a connection.
#[derive(Debug)]
pub struct Decoder {
    pub(super) table: Table,
    /// Largest limit that the peer has acknowledged.
    limit_max: usize,
    /// True if the limit fell below the table's size: the next block must update it. RFC 7541 4.2
    must_shrink: bool,
}

/// Fault in a header block. The tables of the two sides may differ after it, so the connection is
/// over: `COMPRESSION_ERROR`, RFC 9113 4.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressionError {
    /// The block ends inside of a field.
    Truncated,
    /// An integer of more than 32 bits.
    IntegerTooLong,
    /// A code that stands for EOS or is padded wrongly.
    BadHuffman,
    /// An index without an entry.
    BadIndex,
    /// A table size above the limit, behind a field, or missing where the limit demands it.
    BadTableSize,
}

impl CompressionError {
    pub(crate) fn text(self) -> &'static str {
        match self {
            CompressionError::Truncated => "a header block ends inside of a field",
            CompressionError::IntegerTooLong => "an integer of more than 32 bits",
            CompressionError::BadHuffman => "a string with a wrong Huffman code",
            CompressionError::BadIndex => "an index without an entry",
            CompressionError::BadTableSize => "a table size that is not allowed",
        }
    }
}

impl fmt::Display for CompressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for CompressionError {}

/// Notes on an entry of the dynamic table, above the index of its name in the static table: its
/// bytes are those of a valid field; those of its name are.
const VALID: u32 = 1 << 8;
const NAME_VALID: u32 = 1 << 9;

impl Decoder {
    /// A table that holds entries of up to `limit` bytes. The peer assumes 4,096 until it has seen
    /// another `SETTINGS_HEADER_TABLE_SIZE`.
    pub fn new(limit: usize) -> Decoder {
        Decoder { table: Table::new(limit), limit_max: limit, must_shrink: false }
    }

    /// Bytes of memory that its table has allocated.
    pub fn allocated_len(&self) -> usize {
        self.table.allocated_len()
    }

    /// Changes the limit, once the peer has acknowledged it.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit_max = limit;
        self.must_shrink = limit < self.table.limit();
    }

    /// Decodes a whole header block and appends its fields to `list`. Fields beyond the list's
    /// limits change the table but are dropped.
    ///
    /// # Errors
    /// A fault of the peer, which ends the connection.
    pub fn decode(&mut self, block: &[u8], list: &mut FieldList) -> Result<(), CompressionError> {
        let mut rest = block;
        self.take_table_sizes(&mut rest)?;
        while let Some(&first) = rest.first() {
            match first {
                0x80.. => {
                    let index = integer::take(&mut rest, 7)?;
                    self.push_indexed(index, list)?;
                }
                0x40.. => self.take_literal(&mut rest, 6, list)?,
                0x20.. => return Err(CompressionError::BadTableSize),
                // Never indexed, or not indexed: the same here, since the field is not forwarded.
                _ => self.take_literal(&mut rest, 4, list)?,
            }
        }
        Ok(())
    }

    /// Changes of the table size stand before the first field. RFC 7541 4.2
    fn take_table_sizes(&mut self, rest: &mut &[u8]) -> Result<(), CompressionError> {
        while let Some(0x20..0x40) = rest.first() {
            let limit = integer::take(rest, 5)?;
            if limit > self.limit_max {
                return Err(CompressionError::BadTableSize);
            }
            self.table.set_limit(limit);
            self.must_shrink = false;
        }
        if self.must_shrink && !rest.is_empty() {
            return Err(CompressionError::BadTableSize);
        }
        Ok(())
    }

    #[inline]
    fn push_indexed(&self, index: usize, list: &mut FieldList) -> Result<(), CompressionError> {
        if index < DYNAMIC_FIRST {
            let at = index.checked_sub(1).ok_or(CompressionError::BadIndex)?;
            let (name, value) = STATIC[at];
            list.push(name, value, index as u8, true);
            return Ok(());
        }
        let row = self.table.get(index - DYNAMIC_FIRST);
        let row = row.ok_or(CompressionError::BadIndex)?;
        list.push(row.name, row.value, row.tag as u8, row.tag & VALID != 0);
        Ok(())
    }

    fn take_literal(
        &mut self,
        rest: &mut &[u8],
        prefix_bits: u32,
        list: &mut FieldList,
    ) -> Result<(), CompressionError> {
        let index = integer::take(rest, prefix_bits)?;
        let start = list.text.len();
        let mut name_index = 0;
        // A name of a table is not judged again: two bytes of a block can stand for 4,064.
        let name_is_valid = if index == 0 {
            take_string(rest, &mut list.text)?;
            is_valid_name(&list.text[start..])
        } else if index < DYNAMIC_FIRST {
            name_index = index as u8;
            list.text.extend_from_slice(STATIC[index - 1].0);
            true
        } else {
            let row = self.table.get(index - DYNAMIC_FIRST);
            let row = row.ok_or(CompressionError::BadIndex)?;
            name_index = row.tag as u8;
            list.text.extend_from_slice(row.name);
            row.tag & NAME_VALID != 0
        };
        let value_start = list.text.len();
        take_string(rest, &mut list.text)?;
        let name = &list.text[start..value_start];
        let value = &list.text[value_start..];
        let valid = name_is_valid && is_valid_value(value);
        if prefix_bits == 6 {
            let note = if valid { VALID } else { 0 };
            let note_of_name = if name_is_valid { NAME_VALID } else { 0 };
            self.table.insert(name, value, u32::from(name_index) | note | note_of_name);
        }
        list.keep(start, value_start, name_index, valid);
        Ok(())
    }
}

#[inline]
fn take_string(rest: &mut &[u8], text: &mut Vec<u8>) -> Result<(), CompressionError> {
    let is_coded = rest.first().is_some_and(|&first| first >= 0x80);
    let len = integer::take(rest, 7)?;
    let (string, behind) = rest.split_at_checked(len).ok_or(CompressionError::Truncated)?;
    *rest = behind;
    if is_coded {
        return huffman::decode(string, text);
    }
    text.extend_from_slice(string);
    Ok(())
}
