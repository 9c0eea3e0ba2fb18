//! The static and the dynamic table, RFC 7541 2.3 and Appendix A.

use std::collections::VecDeque;

/// The static table; its first index is 1.
pub(super) const STATIC: [(&[u8], &[u8]); 61] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

/// First index of the dynamic table.
pub(super) const DYNAMIC_FIRST: usize = STATIC.len() + 1;

/// Overhead that each entry counts with. RFC 7541 4.1
pub(super) const ENTRY_OVERHEAD: usize = 32;

/// Bytes by which a table's text grows.
const TEXT_STEP: usize = 512;

/// The dynamic table: newest entries first, within a limit.
///
/// ```text
///  bytes   ···evicted···│ oldest name, value │ ··· │ newest name, value │
///          0            ▲ evicted                                        ▲ len
/// ```
///
/// Text is appended, and moved to the front once half of it is evicted: so every name and value is
/// one slice, and the table never takes more than twice its limit.
#[derive(Debug, Default)]
pub(super) struct Table {
    bytes: Vec<u8>,
    evicted: usize,
    /// Number of bytes removed from the front of `bytes` so far.
    removed: u32,
    /// Oldest first.
    entries: VecDeque<TableEntry>,
    /// Sum of the sizes of the entries. RFC 7541 4.1
    pub(super) size: usize,
    limit: usize,
}

#[derive(Clone, Copy, Debug)]
struct TableEntry {
    /// Number of bytes that were appended before the entry, modulo 2^32.
    start: u32,
    name_len: u32,
    value_len: u32,
    tag: u32,
}

impl TableEntry {
    fn size(&self) -> usize {
        (self.name_len + self.value_len) as usize + ENTRY_OVERHEAD
    }
}

/// An entry of the dynamic table, with the tag that its owner gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row<'a> {
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
    pub(super) tag: u32,
}

impl Table {
    pub(super) fn new(limit: usize) -> Table {
        Table { limit, ..Table::default() }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes of memory that it has allocated.
    pub(super) fn allocated_len(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<TableEntry>()
    }

    /// The entry with this index, from 0 for the newest.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<Row<'_>> {
        let at = self.entries.len().checked_sub(index + 1)?;
        let entry = self.entries[at];
        let start = entry.start.wrapping_sub(self.removed) as usize;
        let name_end = start + entry.name_len as usize;
        Some(Row {
            name: &self.bytes[start..name_end],
            value: &self.bytes[name_end..name_end + entry.value_len as usize],
            tag: entry.tag,
        })
    }

    /// Index from 0 of the newest entry that has this tag and this text.
    pub(super) fn find(&self, tag: u32, name: &[u8], value: &[u8]) -> Option<usize> {
        let is_it = |index: &usize| {
            let row = self.get(*index);
            row.is_some_and(|row| row.name == name && row.value == value)
        };
        let newest_first = self.entries.iter().rev().enumerate();
        let mut tagged = newest_first.filter(|(_, entry)| entry.tag == tag);
        tagged.find_map(|(index, _)| Some(index).filter(is_it))
    }

    /// Adds an entry, evicting as needed. One larger than the table empties it. RFC 7541 4.4
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8], tag: u32) {
        let size = name.len() + value.len() + ENTRY_OVERHEAD;
        self.evict_to(self.limit.saturating_sub(size));
        if size > self.limit {
            return;
        }
        if self.evicted * 2 >= self.bytes.len() {
            self.bytes.drain(..self.evicted);
            self.removed = self.removed.wrapping_add(self.evicted as u32);
            self.evicted = 0;
        }
        let len = self.bytes.len() + name.len() + value.len();
        if len > self.bytes.capacity() {
            // Grows by steps: doubling would leave a half-empty buffer in each of many connections.
            self.bytes.reserve_exact(len.next_multiple_of(TEXT_STEP) - self.bytes.len());
        }
        self.entries.push_back(TableEntry {
            start: self.removed.wrapping_add(self.bytes.len() as u32),
            name_len: name.len() as u32,
            value_len: value.len() as u32,
            tag,
        });
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.size += size;
    }

    /// Changes the limit, evicting entries as needed. RFC 7541 4.3
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.evict_to(limit);
    }

    fn evict_to(&mut self, size_max: usize) {
        while self.size > size_max {
            let Some(entry) = self.entries.pop_front() else {
                break;
            };
            self.size -= entry.size();
            self.evicted += (entry.name_len + entry.value_len) as usize;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn newest_entry_is_first() {
        let mut table = Table::new(100);
        assert_eq!(table.get(0), None);
        table.insert(b"a", b"1", 7);
        table.insert(b"b", b"2", 8);
        let [name, value] = [b"b", b"2"];
        let tag = 8;
        assert_eq!(table.get(0), Some(Row { name, value, tag }));
        assert_eq!(table.get(1).unwrap().name, b"a");
        assert_eq!((table.get(2), table.entries.len(), table.size), (None, 2, 68));
        assert_eq!(table.find(7, b"a", b"1"), Some(1));
        assert_eq!(table.find(8, b"a", b"1"), None);
        assert_eq!(table.find(7, b"a", b"2"), None);
    }

    #[test]
    fn oldest_entry_is_evicted() {
        let mut table = Table::new(68);
        for name in [b"a", b"b", b"c"] {
            table.insert(name, b"x", 0);
        }
        assert_eq!((table.entries.len(), table.get(1).unwrap().name), (2, &b"b"[..]));
        table.set_limit(67);
        assert_eq!((table.entries.len(), table.get(0).unwrap().name), (1, &b"c"[..]));
        table.insert(b"name", &[b'x'; 32], 0);
        assert_eq!((table.entries.len(), table.size), (0, 0), "larger than the table");
        table.set_limit(0);
        table.insert(b"", b"", 0);
        assert_eq!(table.entries.len(), 0);
    }

    proptest! {
        /// Compares the table with a list of strings.
        #[test]
        fn entries_are_those_of_a_model(
            operations in prop::collection::vec((0_usize..40, 0_usize..90, 0_usize..400), 1..300),
        ) {
            let mut table = Table::new(200);
            let mut model: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            let mut limit = 200;
            for (at, (name_len, value_len, new_limit)) in operations.into_iter().enumerate() {
                if new_limit > 350 {
                    limit = new_limit;
                    table.set_limit(limit);
                } else {
                    let name = vec![at as u8; name_len];
                    let value = vec![!(at as u8); value_len];
                    table.insert(&name, &value, at as u32);
                    model.insert(0, (name, value));
                }
                let size = |model: &[(Vec<u8>, Vec<u8>)]| -> usize {
                    model.iter().map(|(name, value)| name.len() + value.len() + 32).sum()
                };
                while size(&model) > limit {
                    model.pop();
                }
                prop_assert_eq!(table.size, size(&model));
                prop_assert_eq!(table.entries.len(), model.len());
                for (index, (name, value)) in model.iter().enumerate() {
                    let row = table.get(index).unwrap();
                    prop_assert_eq!((row.name, row.value), (&name[..], &value[..]));
                }
                prop_assert!(table.bytes.len() <= 2 * 400);
                prop_assert!(table.allocated_len() <= 4 * 400);
            }
        }
    }
}
