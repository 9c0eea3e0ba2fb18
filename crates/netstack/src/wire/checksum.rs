//! The Internet checksum: the complement of the one's-complement sum of 16-bit words. RFC 1071
//!
//! Pieces may be summed in any order, in any width, in either byte order and at different times,
//! and known sums are reused: that makes it cheap.
//!
//! ```text
//!   Sum::of(bytes)              8 bytes at a time, of many 64
//!   a + b                       pieces that lie behind one another at even offsets
//!   a + b.swapped()             b begins at an odd offset: its bytes have changed places
//!   update(checksum, old, new)  a field has changed: RFC 1624, equation 3
//!   Sum::of_slice(…)            a slice of bytes that stay: from two entries of their table
//! ```

use std::iter;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::{Add, AddAssign, Range};

/// A one's-complement sum of 16-bit words in network order, folded to 16 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u16);

impl Sum {
    /// The sum of nothing.
    pub const ZERO: Sum = Sum(0);

    /// The sum of `bytes`; an odd one is filled up with a zero.
    #[inline]
    pub fn of(bytes: &[u8]) -> Sum {
        // Words are added as this machine reads them, and the result is brought into network order
        // in the end: RFC 1071 2 (B).
        let (mut sum, bytes) =
            if bytes.len() < BLOCKS_LEN_MIN { (0, bytes) } else { sum_of_blocks(bytes) };
        let (words, rest) = bytes.as_chunks();
        for word in words {
            sum = with_carry(sum, u64::from_ne_bytes(*word));
        }
        let (words, rest) = rest.as_chunks();
        for word in words {
            sum = with_carry(sum, u64::from(u32::from_ne_bytes(*word)));
        }
        let (words, rest) = rest.as_chunks();
        for word in words {
            sum = with_carry(sum, u64::from(u16::from_ne_bytes(*word)));
        }
        if let &[last] = rest {
            sum = with_carry(sum, u64::from(u16::from_ne_bytes([last, 0])));
        }
        Sum(u16::from_be(fold(sum)))
    }

    /// The sum of pieces that lie behind one another, from the length and the sum of each.
    pub fn joined(pieces: impl Iterator<Item = (usize, Sum)>) -> Sum {
        let mut sum = Sum::ZERO;
        let mut is_odd = false;
        for (len, own) in pieces {
            sum += if is_odd { own.swapped() } else { own };
            is_odd ^= len % 2 == 1;
        }
        sum
    }

    /// The sum of `bytes[slice]`. `table` is the [`table_of`] these bytes.
    ///
    /// # Panics
    ///
    /// If the table is that of another length, or the slice is not within the bytes.
    // A function of its own, so that profiles have it under its name.
    #[inline(never)]
    pub fn of_slice(bytes: &[u8], table: &[u16], slice: Range<usize>) -> Sum {
        assert_eq!(table.len(), 1 + bytes.len() / TABLE_STRIDE, "a table of other bytes");
        let upto = |end: usize| {
            let entry = end / TABLE_STRIDE;
            Sum(table[entry]) + Sum::of(&bytes[entry * TABLE_STRIDE..end])
        };
        // One's complement: to add the complement is to subtract.
        let sum = upto(slice.end) + Sum(!upto(slice.start).0);
        if slice.start.is_multiple_of(2) { sum } else { sum.swapped() }
    }

    /// The sum of the fields of IPv4 that TCP's and UDP's checksums include. RFC 9293 3.1
    pub fn pseudo_header_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: u32) -> Sum {
        let addresses = u64::from(src.to_bits()) + u64::from(dst.to_bits());
        Sum(fold(addresses + u64::from(protocol) + u64::from(len)))
    }

    /// The same of IPv6. RFC 8200 8.1
    pub fn pseudo_header_v6(src: Ipv6Addr, dst: Ipv6Addr, next_header: u8, len: u32) -> Sum {
        let of = |address: Ipv6Addr| {
            let bits = address.to_bits();
            halves(bits as u64) + halves((bits >> 64) as u64)
        };
        Sum(fold(of(src) + of(dst) + u64::from(next_header) + u64::from(len)))
    }

    /// The sum of one word.
    pub const fn of_word(word: u16) -> Sum {
        Sum(word)
    }

    /// The sum of the same bytes, each one place further. RFC 1071 2 (B)
    pub const fn swapped(self) -> Sum {
        Sum(self.0.swap_bytes())
    }

    /// Value for a checksum field that was zero while it was summed.
    pub const fn checksum(self) -> u16 {
        !self.0
    }

    /// The sum as 16 bits: what goes into the field if a device completes it.
    pub const fn folded(self) -> u16 {
        self.0
    }

    /// True if this is the sum of bytes with a correct checksum among them.
    pub const fn is_right(self) -> bool {
        self.0 == 0xffff
    }
}

/// Bytes between two entries of a table. It has a 32nd of their size, so that both entries of a
/// segment are mostly in one cache line, and what is summed anew at its ends is copied anyway.
const TABLE_STRIDE: usize = 64;

/// The sums of all beginnings of `bytes` that are whole strides, for [`Sum::of_slice`]: bytes that
/// are sent often are summed once.
///
/// ```text
///   bytes    |<---- stride ---->|<---- stride ---->|<---- stride ---->|
///   table    0                  1                  2                  3
///                         [start .................... end]
///                    ^^^^^                           ^^^^ summed anew: less than a stride each
/// ```
pub fn table_of(bytes: &[u8]) -> Box<[u16]> {
    let mut sum = Sum::ZERO;
    let ends = bytes.chunks_exact(TABLE_STRIDE).map(|stride| {
        sum += Sum::of(stride);
        sum.0
    });
    iter::once(0).chain(ends).collect()
}

/// 64 bytes a round.
const LANES: usize = 16;

/// Fewer bytes are summed before the lanes are: headers, and short text.
const BLOCKS_LEN_MIN: usize = 256;

/// The sum of as many whole blocks as there are, and the bytes behind them.
// As above: most of the work of a sum.
#[inline(never)]
fn sum_of_blocks(bytes: &[u8]) -> (u64, &[u8]) {
    // Each 32-bit word goes into a 64-bit lane, which so can take 2^32 of them, and lanes have no
    // carries between them, so the compiler uses vectors.
    let mut lanes = [0u64; LANES];
    let (blocks, rest) = bytes.as_chunks::<{ 4 * LANES }>();
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks().0) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    // A lane is below 2^32 times the number of blocks, and a slice is below 2^63 bytes.
    (lanes.into_iter().map(halves).sum(), rest)
}

/// The one's-complement sum of two words: the carry is added to it. RFC 1071 2 (C)
const fn with_carry(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum.wrapping_add(carry as u64)
}

/// The sum of both halves, which is the same sum.
const fn halves(word: u64) -> u64 {
    (word & 0xffff_ffff) + (word >> 32)
}

/// Adds the carries back in. RFC 1071 1
const fn fold(sum: u64) -> u16 {
    let sum = halves(sum);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

impl Add for Sum {
    type Output = Sum;

    fn add(self, other: Sum) -> Sum {
        let (sum, carry) = self.0.overflowing_add(other.0);
        // With a carry the sum is at most 0xfffe.
        Sum(sum + u16::from(carry))
    }
}

impl AddAssign for Sum {
    fn add_assign(&mut self, other: Sum) {
        *self = *self + other;
    }
}

/// The checksum of a message in which words whose sum was `old` were replaced by others whose sum
/// is `new`, at even offsets. RFC 1624 3, equation 3
pub fn update(checksum: u16, old: Sum, new: Sum) -> u16 {
    (Sum(!checksum) + Sum(!old.0) + new).checksum()
}
