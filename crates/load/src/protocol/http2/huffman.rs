//! Huffman code of strings (RFC 7541 5.2 and Appendix B).
//!
//! The code is canonical: among codes of one length, the symbols ascend. The lengths therefore
//! determine the codes.

use std::sync::LazyLock;

use super::hpack::BadBlock;

/// Length of each octet's code in bits (RFC 7541 Appendix B). EOS is the last code of 30 bits.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5,
    6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23,
    23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22,
    22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26,
    27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25,
    25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];
const LENGTH_MAX: u32 = 30;

static CODE: LazyLock<Code> = LazyLock::new(Code::new);

struct Code {
    /// Code of each octet.
    of: [u32; 256],
    /// Octet and length of the code at the start of eight bits; length 0 if it is longer.
    short: [(u8, u8); 256],
    /// Octets and lengths of the longer codes, with the code left-aligned in 32 bits; ascending.
    long: Vec<(u32, u8, u8)>,
}

impl Code {
    fn new() -> Code {
        let mut code = Code { of: [0; 256], short: [(0, 0); 256], long: Vec::new() };
        let mut next = 0_u32;
        for length in 5..=LENGTH_MAX {
            for octet in 0..=255_u8 {
                if u32::from(LENGTHS[usize::from(octet)]) != length {
                    continue;
                }
                code.of[usize::from(octet)] = next;
                let entry = (octet, length as u8);
                if length <= 8 {
                    let first = (next << (8 - length)) as usize;
                    code.short[first..first + (1 << (8 - length))].fill(entry);
                } else {
                    code.long.push((next << (32 - length), octet, length as u8));
                }
                next += 1;
            }
            next <<= 1;
        }
        code
    }
}

/// Appends the octets of `coded`.
pub(super) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Result<(), BadBlock> {
    let code = &*CODE;
    let mut coded = coded.iter();
    // Bits not decoded yet, left-aligned, and their number.
    let mut bits = 0_u64;
    let mut count = 0_u32;
    loop {
        while count <= 56
            && let Some(&octet) = coded.next()
        {
            bits |= u64::from(octet) << (56 - count);
            count += 8;
        }
        let (octet, length) = match code.short[(bits >> 56) as usize] {
            (_, 0) => {
                let window = (bits >> 32) as u32;
                let behind = code.long.partition_point(|(first, ..)| *first <= window);
                let (_, octet, length) = code.long[behind.saturating_sub(1)];
                (octet, length)
            }
            found => found,
        };
        let length = u32::from(length);
        if length > count {
            break;
        }
        // The last code of 30 bits is EOS, which no string contains.
        if bits >> (64 - LENGTH_MAX) == (1 << LENGTH_MAX) - 1 {
            return Err(BadBlock);
        }
        out.push(octet);
        bits <<= length;
        count -= length;
    }
    // The padding is shorter than an octet and has only ones (RFC 7541 5.2).
    let is_padding = count < 8 && bits == !(u64::MAX >> count);
    is_padding.then_some(()).ok_or(BadBlock)
}

/// Number of octets of the coded form.
pub(super) fn coded_len(plain: &[u8]) -> usize {
    let bits = plain.iter().map(|&octet| usize::from(LENGTHS[usize::from(octet)]));
    bits.sum::<usize>().div_ceil(8)
}

/// Appends the coded form.
pub(super) fn encode(plain: &[u8], out: &mut Vec<u8>) {
    let mut bits = 0_u64;
    let mut count = 0_u32;
    for &octet in plain {
        let length = u32::from(LENGTHS[usize::from(octet)]);
        bits = bits << length | u64::from(CODE.of[usize::from(octet)]);
        count += length;
        while count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    if count > 0 {
        out.push((bits << (8 - count)) as u8 | 0xff >> count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_octet_reads_back() {
        let all: Vec<u8> = (0..=255).collect();
        for plain in [&all[..], b"", b"a", b"\x0a\x0d\x16", b"www.example.com"] {
            let mut coded = Vec::new();
            encode(plain, &mut coded);
            assert_eq!(coded.len(), coded_len(plain));
            let mut read = Vec::new();
            assert!(decode(&coded, &mut read).is_ok());
            assert_eq!(read, plain);
        }
    }

    #[test]
    fn wrong_padding_and_eos_are_refused() {
        // '0' is five zeros.
        for (coded, is_right) in [
            (&b"\x07"[..], true),
            (b"\x00", false),
            (b"\x06", false),
            (b"\x07\xff", false),
            (b"\xff", false),
            (b"\xff\xff\xff\xff", false),
            (b"\xff\xff\xff\xfc", false),
        ] {
            let is_read = decode(coded, &mut Vec::new()).is_ok();
            assert_eq!(is_read, is_right, "{coded:x?}");
        }
    }
}
