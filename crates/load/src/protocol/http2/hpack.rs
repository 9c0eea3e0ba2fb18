//! HPACK (RFC 7541): a decoder of replies, and an encoder that renders requests before the run.

use std::collections::VecDeque;
use std::sync::LazyLock;

use super::huffman;

/// Size of the dynamic tables in both directions: the initial SETTINGS_HEADER_TABLE_SIZE.
pub(super) const TABLE_SIZE_MAX: usize = 4096;
/// Most bytes of a block when decoded, counted as in a table; one octet may stand for 4 KiB.
pub(super) const DECODED_BYTES_MAX: usize = 256 * 1024;
/// Size of a table entry beside its name and value (RFC 7541 4.1).
const ENTRY_SIZE: usize = 32;
/// Index of the newest entry of the dynamic table.
pub(super) const NEWEST: usize = 62;

/// Static table (RFC 7541 Appendix A).
const STATIC: &str = "\
:authority|:method=GET|:method=POST|:path=/|:path=/index.html|:scheme=http|:scheme=https|\
:status=200|:status=204|:status=206|:status=304|:status=400|:status=404|:status=500|\
accept-charset|accept-encoding=gzip, deflate|accept-language|accept-ranges|accept|\
access-control-allow-origin|age|allow|authorization|cache-control|content-disposition|\
content-encoding|content-language|content-length|content-location|content-range|content-type|\
cookie|date|etag|expect|expires|from|host|if-match|if-modified-since|if-none-match|if-range|\
if-unmodified-since|last-modified|link|location|max-forwards|proxy-authenticate|\
proxy-authorization|range|referer|refresh|retry-after|server|set-cookie|\
strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate";

type Field = (&'static [u8], &'static [u8]);

static STATIC_FIELDS: LazyLock<Vec<Field>> = LazyLock::new(|| {
    let field = |text: &'static str| text.split_once('=').unwrap_or((text, ""));
    let fields = STATIC.split('|').map(field);
    fields.map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect()
});

/// Error: a block that is not HPACK.
#[derive(Debug)]
pub(super) struct BadBlock;

/// Decoder of the field blocks of one connection.
#[derive(Default)]
pub(super) struct Decoder {
    table: Table,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Decoder {
    /// Decodes a whole block and shows each field to `see`. Returns its decoded size.
    pub(super) fn decode(
        &mut self,
        mut block: &[u8],
        mut see: impl FnMut(&[u8], &[u8]),
    ) -> Result<usize, BadBlock> {
        let mut decoded = 0;
        let mut count = |name: &[u8], value: &[u8]| {
            decoded += name.len() + value.len() + ENTRY_SIZE;
            if decoded > DECODED_BYTES_MAX { Err(BadBlock) } else { Ok(()) }
        };
        let mut has_field = false;
        while let Some(&first) = block.first() {
            match first {
                0x80.. => {
                    let (name, value) = self.table.get(integer(&mut block, 7)?)?;
                    count(name, value)?;
                    see(name, value);
                }
                // Size updates stand before the fields (RFC 7541 4.2).
                0x20..0x40 if has_field => return Err(BadBlock),
                0x20..0x40 => {
                    self.table.resize(integer(&mut block, 5)?)?;
                    continue;
                }
                _ => {
                    let is_kept = first & 0x40 != 0;
                    self.literal(&mut block, if is_kept { 6 } else { 4 })?;
                    count(&self.name, &self.value)?;
                    see(&self.name, &self.value);
                    if is_kept {
                        self.table.insert(&self.name, &self.value);
                    }
                }
            }
            has_field = true;
        }
        Ok(decoded)
    }

    fn literal(&mut self, block: &mut &[u8], prefix_bits: u32) -> Result<(), BadBlock> {
        self.name.clear();
        match integer(block, prefix_bits)? {
            0 => string(block, &mut self.name)?,
            index => self.name.extend_from_slice(self.table.get(index)?.0),
        }
        self.value.clear();
        string(block, &mut self.value)
    }
}

/// Static table, and a dynamic one behind it.
struct Table {
    /// Names and values of the entries, one behind the other, the oldest first.
    bytes: Vec<u8>,
    /// Entries, the oldest first.
    entries: VecDeque<TableEntry>,
    size: usize,
    size_max: usize,
}

struct TableEntry {
    /// Start in the bytes of the table.
    start: usize,
    name_len: usize,
    value_len: usize,
}

impl Default for Table {
    fn default() -> Table {
        Table { bytes: Vec::new(), entries: VecDeque::new(), size: 0, size_max: TABLE_SIZE_MAX }
    }
}

impl Table {
    fn get(&self, index: usize) -> Result<(&[u8], &[u8]), BadBlock> {
        let index = index.checked_sub(1).ok_or(BadBlock)?;
        if let Some(&field) = STATIC_FIELDS.get(index) {
            return Ok(field);
        }
        let age = index - STATIC_FIELDS.len() + 1;
        let at = self.entries.len().checked_sub(age).ok_or(BadBlock)?;
        let entry = &self.entries[at];
        let field = &self.bytes[entry.start..][..entry.name_len + entry.value_len];
        Ok(field.split_at(entry.name_len))
    }

    fn insert(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + ENTRY_SIZE;
        self.evict(self.size_max.saturating_sub(size));
        if size > self.size_max {
            return;
        }
        if self.bytes.len() > 4 * TABLE_SIZE_MAX {
            self.compact();
        }
        self.entries.push_back(TableEntry {
            start: self.bytes.len(),
            name_len: name.len(),
            value_len: value.len(),
        });
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.size += size;
    }

    fn resize(&mut self, size_max: usize) -> Result<(), BadBlock> {
        if size_max > TABLE_SIZE_MAX {
            return Err(BadBlock);
        }
        self.size_max = size_max;
        self.evict(size_max);
        Ok(())
    }

    /// Removes the oldest entries until the others take at most `size`.
    fn evict(&mut self, size: usize) {
        while self.size > size
            && let Some(oldest) = self.entries.pop_front()
        {
            self.size -= oldest.name_len + oldest.value_len + ENTRY_SIZE;
        }
    }

    /// Removes the bytes of evicted entries.
    fn compact(&mut self) {
        let unused = self.entries.front().map_or(self.bytes.len(), |it| it.start);
        self.bytes.drain(..unused);
        for entry in &mut self.entries {
            entry.start -= unused;
        }
    }
}

/// Reads an integer whose first octet has `prefix_bits` of it (RFC 7541 5.1).
fn integer(block: &mut &[u8], prefix_bits: u32) -> Result<usize, BadBlock> {
    let mask = (1 << prefix_bits) - 1;
    let mut next = || {
        let (&first, rest) = block.split_first().ok_or(BadBlock)?;
        *block = rest;
        Ok(usize::from(first))
    };
    let mut value = next()? & mask;
    if value < mask {
        return Ok(value);
    }
    // No length or index is longer than four octets.
    for shift in [0, 7, 14, 21] {
        let octet = next()?;
        value += (octet & 0x7f) << shift;
        if octet < 0x80 {
            return Ok(value);
        }
    }
    Err(BadBlock)
}

/// Reads a string (RFC 7541 5.2).
fn string(block: &mut &[u8], out: &mut Vec<u8>) -> Result<(), BadBlock> {
    let is_coded = block.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(block, 7)?;
    let (text, rest) = block.split_at_checked(length).ok_or(BadBlock)?;
    *block = rest;
    if is_coded {
        return huffman::decode(text, out);
    }
    out.extend_from_slice(text);
    Ok(())
}

/// Appends a field. `adds`: the peer adds it to its dynamic table, unless it is in the static one.
/// Returns its size in the dynamic table, 0 if it was not added.
pub(super) fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8], adds: bool) -> usize {
    let fields = || STATIC_FIELDS.iter().zip(1..);
    if let Some((_, index)) = fields().find(|(field, _)| **field == (name, value)) {
        write_indexed(out, index);
        return 0;
    }
    let by_name = fields().find(|(field, _)| field.0 == name);
    let (pattern, prefix_bits) = if adds { (0x40, 6) } else { (0, 4) };
    write_integer(out, pattern, prefix_bits, by_name.map_or(0, |(_, index)| index));
    if by_name.is_none() {
        write_string(out, name);
    }
    write_string(out, value);
    if adds { name.len() + value.len() + ENTRY_SIZE } else { 0 }
}

/// Appends a field of a table.
pub(super) fn write_indexed(out: &mut Vec<u8>, index: usize) {
    write_integer(out, 0x80, 7, index);
}

fn write_integer(out: &mut Vec<u8>, pattern: u8, prefix_bits: u32, mut value: usize) {
    let mask = (1 << prefix_bits) - 1;
    if value < mask {
        return out.push(pattern | value as u8);
    }
    out.push(pattern | mask as u8);
    value -= mask;
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn write_string(out: &mut Vec<u8>, text: &[u8]) {
    let coded_len = huffman::coded_len(text);
    if coded_len < text.len() {
        write_integer(out, 0x80, 7, coded_len);
        huffman::encode(text, out);
    } else {
        write_integer(out, 0, 7, text.len());
        out.extend_from_slice(text);
    }
}

#[cfg(test)]
mod tests;
