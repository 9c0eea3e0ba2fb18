//! Header fields: bytes that they may contain, and a list of them within limits.

/// Fields of one header block, in order, within limits.
///
/// A list is used again for the next block, so that a request allocates nothing.
#[derive(Debug)]
pub struct FieldList {
    pub(crate) text: Vec<u8>,
    fields: Vec<FieldSpan>,
    /// Size of all fields, dropped ones included. RFC 9113 6.5.2
    size: usize,
    size_max: usize,
    count_max: usize,
    is_cut: bool,
}

/// Position of a field in the text of its list.
#[derive(Clone, Copy, Debug)]
struct FieldSpan {
    start: u32,
    value_start: u32,
    end: u32,
    /// Index of an entry of the static table with this name, or 0.
    name_index: u8,
    is_valid: bool,
}

/// A field as it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
    /// Index of an entry of the static table with this name, or 0.
    pub(crate) name_index: u8,
    pub(crate) is_valid: bool,
}

/// Overhead that each field counts with. RFC 9113 6.5.2
const FIELD_OVERHEAD: usize = 32;

impl FieldList {
    /// An empty list with limits: `size_max` bytes in all, counting 32 more for each field (RFC
    /// 9113 6.5.2), and `count_max` fields.
    pub fn new(size_max: usize, count_max: usize) -> FieldList {
        FieldList {
            text: Vec::new(),
            fields: Vec::new(),
            size: 0,
            size_max,
            count_max,
            is_cut: false,
        }
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        self.fields().map(|field| (field.name, field.value))
    }

    /// True if fields were dropped because a limit was reached.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// True if there are no fields.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Bytes of memory that the list has allocated.
    pub fn allocated_len(&self) -> usize {
        self.text.capacity() + self.fields.capacity() * size_of::<FieldSpan>()
    }

    /// Removes all fields.
    pub fn clear(&mut self) {
        self.text.clear();
        self.fields.clear();
        self.size = 0;
        self.is_cut = false;
    }

    /// True if the list begins with pseudo-fields: a request's fields, not trailers.
    pub(crate) fn has_pseudo_fields(&self) -> bool {
        let first = self.iter().next();
        first.is_some_and(|(name, _)| name.starts_with(b":"))
    }

    pub(crate) fn fields(&self) -> impl DoubleEndedIterator<Item = Field<'_>> {
        (0..self.fields.len()).map(|at| self.field(at))
    }

    #[inline]
    pub(crate) fn field(&self, at: usize) -> Field<'_> {
        let span = self.fields[at];
        Field {
            name: &self.text[span.start as usize..span.value_start as usize],
            value: &self.text[span.value_start as usize..span.end as usize],
            name_index: span.name_index,
            is_valid: span.is_valid,
        }
    }

    /// Appends a field.
    #[inline]
    pub(crate) fn push(&mut self, name: &[u8], value: &[u8], name_index: u8, is_valid: bool) {
        if self.is_cut {
            return; // One byte of a block can stand for 4,096.
        }
        let start = self.text.len();
        self.text.extend_from_slice(name);
        let value_start = self.text.len();
        self.text.extend_from_slice(value);
        self.keep(start, value_start, name_index, is_valid);
    }

    /// Makes the end of the text a field, or drops it if the list is full.
    #[inline]
    pub(crate) fn keep(&mut self, start: usize, value_start: usize, name_index: u8, valid: bool) {
        let end = self.text.len();
        self.size = self.size.saturating_add(end - start + FIELD_OVERHEAD);
        self.is_cut |= self.size > self.size_max || self.fields.len() >= self.count_max;
        if self.is_cut {
            self.text.truncate(start);
            return;
        }
        self.fields.push(FieldSpan {
            start: start as u32,
            value_start: value_start as u32,
            end: end as u32,
            name_index,
            is_valid: valid,
        });
    }
}

/// Bytes of a name: those of a token (RFC 9110 5.6.2) without upper case (RFC 9113 8.2.1).
const NAME: u8 = 1;
/// Bytes of a value. RFC 9110 5.5: other control characters than a tab are invalid.
const VALUE: u8 = 2;

const CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let octet = byte as u8;
        let is_token = octet.is_ascii_lowercase()
            || octet.is_ascii_digit()
            || matches!(octet, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`')
            || matches!(octet, b'|' | b'~');
        let is_text = (octet >= b' ' && octet != 127) || octet == b'\t';
        classes[byte] = (is_token as u8 * NAME) | (is_text as u8 * VALUE);
        byte += 1;
    }
    classes
};

/// True if a name has only allowed bytes. RFC 9113 8.2.1
pub(crate) fn is_valid_name(name: &[u8]) -> bool {
    let token = name.strip_prefix(b":").unwrap_or(name);
    !token.is_empty() && token.iter().all(|&byte| has_class(byte, NAME))
}

/// True if a value has only allowed bytes, and no space at its ends. RFC 9113 8.2.1
pub(crate) fn is_valid_value(value: &[u8]) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let is_text = value.iter().all(|&byte| has_class(byte, VALUE));
    is_text && !is_space(value.first()) && !is_space(value.last())
}

fn has_class(byte: u8, class: u8) -> bool {
    CLASSES[usize::from(byte)] & class != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9113 8.2.1.
    #[test]
    fn names_are_tokens_in_small_letters() {
        for name in ["a", "content-type", ":path", "x!#$%&'*+-.^_`|~9"] {
            assert!(is_valid_name(name.as_bytes()), "{name}");
        }
        for name in ["", ":", "A", "content-Type", "a:b", "::a", "a b", "a\0", "a\x7f", "\u{e9}"] {
            assert!(!is_valid_name(name.as_bytes()), "{name}");
        }
        for byte in b"\"(),/;<=>?@[\\]{}" {
            assert!(!is_valid_name(&[b'a', *byte]), "{byte}");
        }
    }

    #[test]
    fn values_have_no_control_characters() {
        for value in ["", "a", "a b", "a\tb", "\u{e9}"] {
            assert!(is_valid_value(value.as_bytes()), "{value}");
        }
        for value in [" a", "a ", "\ta", "a\t", "a\rb", "a\nb", "a\0b", "a\x1bb", "a\x7f", " "] {
            assert!(!is_valid_value(value.as_bytes()), "{value:?}");
        }
    }

    #[test]
    fn list_is_cut_at_its_limits() {
        let mut list = FieldList::new(2 * 34, 10);
        list.push(b"a", b"1", 0, true);
        list.push(b"b", b"2", 0, true);
        assert!(!list.is_cut());
        list.push(b"", b"", 0, true);
        list.push(b"c", b"3", 0, true);
        let kept: Vec<_> = list.iter().collect();
        assert_eq!(kept, [(&b"a"[..], &b"1"[..]), (b"b", b"2")]);
        assert!(list.is_cut());
        list.clear();
        assert!(list.is_empty() && !list.is_cut());
        let mut list = FieldList::new(1000, 1);
        list.push(b"a", b"1", 0, true);
        list.push(b"b", b"2", 0, true);
        assert!(list.is_cut() && list.len() == 1);
    }
}
