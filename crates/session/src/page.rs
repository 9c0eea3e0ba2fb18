use std::ops::Range;
use std::sync::OnceLock;

use bytes::Bytes;

/// Bytes in memory that many replies share, with a place for a table that the driver makes of them
/// at the first reply, and finds there at each later one. The session does not know what is in it.
///
/// ```text
///   a file in memory    ├──────────────────────────────┤ table: at most a 32nd of it
///   parts of replies       ├──────┤ ├────────────────┤   place_of(part)
/// ```
#[derive(Debug)]
pub struct SharedPage {
    bytes: Bytes,
    table: OnceLock<Box<[u16]>>,
}

impl SharedPage {
    /// Length in bytes above which bytes are better not made a page: to make a table takes some
    /// 0.2 ms for each MiB, and other connections wait meanwhile.
    pub const LEN_MAX: u64 = 4 << 20;

    /// A page without its table.
    pub fn new(bytes: Bytes) -> SharedPage {
        SharedPage { bytes, table: OnceLock::new() }
    }

    /// All its bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Limit in bytes on the table of a page of `len` bytes.
    pub const fn table_len_max(len: u64) -> u64 {
        2 + len / 32
    }

    /// The table, which `make` makes of the bytes if there is none.
    ///
    /// # Panics
    /// If it makes one above the [limit](SharedPage::table_len_max).
    #[inline]
    pub fn table(&self, make: impl FnOnce(&[u8]) -> Box<[u16]>) -> &[u16] {
        self.table.get_or_init(|| {
            let table = make(&self.bytes);
            let len = size_of_val(&*table) as u64;
            let len_max = SharedPage::table_len_max(self.bytes.len() as u64);
            assert!(len <= len_max, "a table of {len} bytes, above {len_max}");
            table
        })
    }

    /// Place of `part`, a slice of these bytes, among them.
    ///
    /// # Panics
    /// If it is no slice of them.
    #[inline]
    pub fn place_of(&self, part: &[u8]) -> Range<usize> {
        let start = part.as_ptr().addr().wrapping_sub(self.bytes.as_ptr().addr());
        let end = start.saturating_add(part.len());
        assert!(end <= self.bytes.len(), "bytes of another page");
        start..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_made_once() {
        let page = SharedPage::new(Bytes::from_static(b"abc"));
        assert_eq!(page.table(|bytes| [bytes.len() as u16].into()), [3]);
        assert_eq!(page.table(|_| panic!("made twice")), [3]);
    }

    #[test]
    #[should_panic(expected = "a table of 6 bytes, above 4")]
    fn table_has_a_limit() {
        let page = SharedPage::new(vec![0; 64].into());
        page.table(|_| [0u16; 3].into());
    }

    #[test]
    fn place_of_a_part() {
        let page = SharedPage::new(vec![0; 1000].into());
        for range in [0..1000, 0..1, 7..700, 999..1000] {
            assert_eq!(page.place_of(&page.bytes()[range.clone()]), range);
            let part = page.bytes().slice(range.clone());
            assert_eq!(page.place_of(&part), range);
        }
    }

    #[test]
    #[should_panic(expected = "bytes of another page")]
    fn other_bytes_have_no_place() {
        let page = SharedPage::new(vec![0; 1000].into());
        page.place_of(&[0; 1000]);
    }
}
