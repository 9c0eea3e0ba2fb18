//! The Internet checksum: the complement of the one's-complement sum of 16-bit words. RFC 1071
//!
//! What makes it cheap is that the sum is a sum: pieces may be summed in any order, in any width,
//! in either byte order, at different times, and what is known need not be summed again.
//!
//! ```text
//!   Sum::of(bytes)              64 bytes at a time
//!   a + b                       pieces that lie behind one another at even offsets
//!   a + b.swapped()             b begins at an odd offset: its bytes have changed places
//!   update(checksum, old, new)  a field has changed: RFC 1624, equation 3
//!   PrefixSums                  a slice of bytes that stay: the difference of two entries
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::{Add, AddAssign, Range};

/// A one's-complement sum of 16-bit words in network order, folded to 16 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u16);

impl Sum {
    /// The sum of nothing.
    pub const ZERO: Sum = Sum(0);

    /// The sum of `bytes`; an odd one is filled up with a zero.
    pub fn of(bytes: &[u8]) -> Sum {
        // Words are added as this machine reads them, and the result is brought into network order
        // in the end: RFC 1071 2 (B). Each 32-bit word goes into a 64-bit lane, which so can take
        // 2^32 of them, and lanes have no carries between them, so the compiler uses vectors.
        let mut lanes = [0u64; LANES];
        let mut blocks = bytes.chunks_exact(4 * LANES);
        for block in &mut blocks {
            for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(4)) {
                *lane += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
            }
        }
        let mut words = blocks.remainder().chunks_exact(4);
        let mut sum = 0;
        for word in &mut words {
            sum += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        }
        let mut last = [0; 4];
        let rest = words.remainder();
        last[..rest.len()].copy_from_slice(rest);
        sum += u64::from(u32::from_ne_bytes(last));
        // A lane is below 2^32 times the number of blocks, and a slice is below 2^63 bytes.
        let halves = lanes.iter().map(|lane| (lane & 0xffff_ffff) + (lane >> 32));
        Sum(u16::from_be(fold(sum + halves.sum::<u64>())))
    }

    /// The sum of pieces that lie behind one another, each of any length.
    pub fn of_pieces(pieces: &[&[u8]]) -> Sum {
        let mut sum = Sum::ZERO;
        let mut is_odd = false;
        for piece in pieces {
            let own = Sum::of(piece);
            sum += if is_odd { own.swapped() } else { own };
            is_odd ^= piece.len() % 2 == 1;
        }
        sum
    }

    /// The sum of the fields of IPv4 that TCP's and UDP's checksums include. RFC 9293 3.1
    pub fn pseudo_header_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: u16) -> Sum {
        Sum::of(&src.octets()) + Sum::of(&dst.octets()) + Sum(u16::from(protocol)) + Sum(len)
    }

    /// The same of IPv6. RFC 8200 8.1
    pub fn pseudo_header_v6(src: Ipv6Addr, dst: Ipv6Addr, next_header: u8, len: u32) -> Sum {
        let len = Sum::of(&len.to_be_bytes());
        Sum::of(&src.octets()) + Sum::of(&dst.octets()) + Sum(u16::from(next_header)) + len
    }

    /// The sum of one word.
    pub const fn of_word(word: u16) -> Sum {
        Sum(word)
    }

    /// The sum of the same bytes, each one place further. RFC 1071 2 (B)
    pub const fn swapped(self) -> Sum {
        Sum(self.0.swap_bytes())
    }

    /// The sum without that of a part that it includes.
    pub fn without(self, part: Sum) -> Sum {
        self + Sum(!part.0)
    }

    /// What goes into a checksum field that was zero while it was summed.
    pub const fn checksum(self) -> u16 {
        !self.0
    }

    /// The sum as 16 bits: what goes into the field if a device completes it.
    pub const fn folded(self) -> u16 {
        self.0
    }

    /// Whether this is the sum of bytes that include their checksum.
    pub const fn is_right(self) -> bool {
        self.0 == 0xffff
    }
}

/// 64 bytes a round.
const LANES: usize = 16;

/// Adds the carries back in. RFC 1071 1
const fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
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

/// The sums of all beginnings of bytes that stay as they are, so that the sum of any slice of them
/// is the difference of two: a file that is sent often is summed once.
///
/// ```text
///   bytes    |<---- stride ---->|<---- stride ---->|<---- stride ---->|
///   sums     0                  1                  2                  3
///                         [start .................... end]
///                         ^^^^^^                     ^^^^ summed anew: less than a stride each
/// ```
///
/// With a stride of 2 the table is as large as the bytes and a slice costs two loads, and two bytes
/// if it begins and ends at odd places. With 64 it has a thirty-second of their size, so both
/// entries of a segment often lie in one cache line, and up to 63 bytes at each end, which are to
/// be copied into a frame anyway, are summed.
#[derive(Clone, Debug)]
pub struct PrefixSums {
    /// `sums[i]` is the sum of the bytes before `i << stride_log2`.
    sums: Box<[Sum]>,
    stride_log2: u32,
    len: usize,
}

impl PrefixSums {
    /// Sums `bytes`, with an entry for every `stride` of them.
    ///
    /// # Panics
    ///
    /// If `stride` is not a power of two from 2 on.
    pub fn of(bytes: &[u8], stride: usize) -> PrefixSums {
        assert!(
            stride >= 2 && stride.is_power_of_two(),
            "a stride of {stride}"
        );
        let mut sum = Sum::ZERO;
        let ends = bytes.chunks_exact(stride).map(|chunk| {
            sum += Sum::of(chunk);
            sum
        });
        PrefixSums {
            sums: [Sum::ZERO].into_iter().chain(ends).collect(),
            stride_log2: stride.trailing_zeros(),
            len: bytes.len(),
        }
    }

    /// The sum of `bytes[slice]`, as [`Sum::of`] would give it. `bytes` are those that the table
    /// was made of.
    ///
    /// # Panics
    ///
    /// If `bytes` have another length, or the slice is not within them.
    pub fn of_slice(&self, bytes: &[u8], slice: Range<usize>) -> Sum {
        assert_eq!(bytes.len(), self.len, "a table of other bytes");
        let upto_end = self.upto(bytes, slice.end);
        let sum = upto_end.without(self.upto(bytes, slice.start));
        match slice.start % 2 {
            0 => sum,
            _ => sum.swapped(),
        }
    }

    /// The sum of the bytes before `end`.
    fn upto(&self, bytes: &[u8], end: usize) -> Sum {
        let entry = end >> self.stride_log2;
        let rest = &bytes[entry << self.stride_log2..end];
        self.sums[entry] + Sum::of(rest)
    }
}
