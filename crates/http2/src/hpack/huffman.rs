//! The Huffman code of strings, RFC 7541 5.2 and Appendix B.
//!
//! The code is canonical: codes of one length are consecutive, in the order of the symbols. So the
//! lengths define the code, and everything else is computed from them at compile time.
//!
//! Decoding looks at 8 bits at a time. They hold a whole code for every letter and digit, and a
//! table of 512 bytes says which; a state machine over 4 bits needs twice as many steps and 16 KiB.
//! Longer codes are found by their length.

use super::decoder::CompressionError;

/// Length of the code of each octet in bits; the last is that of EOS.
#[rustfmt::skip]
const LENS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

const EOS: u16 = 256;
const LEN_MAX: usize = 30;

/// Codes whose length is at most this are found by one look.
const SHORT_LEN_MAX: usize = 8;

/// The code as the two directions need it.
struct Code {
    /// Code of each octet, in the low bits.
    codes: [u32; 257],
    /// Octet and length of the code with which these 8 bits begin; length 0 if it is longer.
    short: [(u8, u8); 256],
    /// Symbols in the order of their codes.
    sorted: [u16; 257],
    /// For each length: the first code that is longer, as 32 bits from the left.
    end: [u32; LEN_MAX + 1],
    /// For each length: its first code, as 32 bits from the left.
    first: [u32; LEN_MAX + 1],
    /// For each length: position of its first code in `sorted`.
    position: [u16; LEN_MAX + 1],
}

static CODE: Code = build();

const fn build() -> Code {
    let mut code = Code {
        codes: [0; 257],
        short: [(0, 0); 256],
        sorted: [0; 257],
        end: [0; LEN_MAX + 1],
        first: [0; LEN_MAX + 1],
        position: [0; LEN_MAX + 1],
    };
    let mut next: u32 = 0;
    let mut count = 0;
    let mut len = 1;
    while len <= LEN_MAX {
        next <<= 1;
        code.first[len] = next << (32 - len);
        code.position[len] = count as u16;
        let mut symbol = 0;
        while symbol < LENS.len() {
            if LENS[symbol] as usize == len {
                code.codes[symbol] = next;
                code.sorted[count] = symbol as u16;
                if len <= SHORT_LEN_MAX {
                    let free_bits = SHORT_LEN_MAX - len;
                    let mut tail = 0;
                    while tail < 1 << free_bits {
                        code.short[(next as usize) << free_bits | tail] = (symbol as u8, len as u8);
                        tail += 1;
                    }
                }
                next += 1;
                count += 1;
            }
            symbol += 1;
        }
        // The last code of all is that of EOS, 30 ones: its end is beyond 32 bits.
        code.end[len] = if len == LEN_MAX { u32::MAX } else { next << (32 - len) };
        len += 1;
    }
    code
}

/// Appends the octets that `input` stands for.
pub(super) fn decode(mut input: &[u8], out: &mut Vec<u8>) -> Result<(), CompressionError> {
    // No code is shorter than 5 bits.
    out.reserve(input.len() * 8 / 5 + 1);
    // Bits that were taken and not yet used, from the left; the others are 0.
    let mut bits: u64 = 0;
    let mut count: u32 = 0;
    loop {
        if let Some((word, _)) = input.split_first_chunk::<8>() {
            // Bits that do not fit are loaded again the next time.
            bits |= u64::from_be_bytes(*word) >> count;
            let taken = (63 - count) >> 3;
            input = &input[taken as usize..];
            count += taken * 8;
            bits &= u64::MAX << (64 - count);
        } else {
            while count <= 56 {
                let Some((&byte, rest)) = input.split_first() else {
                    break;
                };
                input = rest;
                bits |= u64::from(byte) << (56 - count);
                count += 8;
            }
        }
        loop {
            let (octet, len) = CODE.short[(bits >> 56) as usize];
            let len = u32::from(len);
            if len == 0 || len > count {
                break;
            }
            out.push(octet);
            bits <<= len;
            count -= len;
        }
        if (count as usize) < LEN_MAX && !input.is_empty() {
            continue;
        }
        // RFC 7541 5.2: padding is the start of EOS, and shorter than an octet.
        if count < 8 && bits == !(u64::MAX >> count) {
            return Ok(());
        }
        if CODE.short[(bits >> 56) as usize].1 != 0 {
            return Err(CompressionError::BadHuffman); // The last code is incomplete.
        }
        let (symbol, len) = long((bits >> 32) as u32);
        if symbol == EOS || len > count {
            return Err(CompressionError::BadHuffman);
        }
        out.push(symbol as u8);
        bits <<= len;
        count -= len;
    }
}

/// Symbol and length of the code with which `bits` begin, which is longer than 8.
#[cold]
fn long(bits: u32) -> (u16, u32) {
    let mut len = SHORT_LEN_MAX + 1;
    while len < LEN_MAX && bits >= CODE.end[len] {
        len += 1;
    }
    let within = (bits - CODE.first[len]) >> (32 - len);
    let position = usize::from(CODE.position[len]) + within as usize;
    (CODE.sorted[position], len as u32)
}

/// Length in octets of the code of `text`.
pub(super) fn encoded_len(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|&octet| LENS[usize::from(octet)] as usize).sum();
    bits.div_ceil(8)
}

/// Appends the code of `text`.
pub(super) fn encode(text: &[u8], out: &mut Vec<u8>) {
    let mut bits: u64 = 0;
    let mut count = 0;
    for &octet in text {
        let len = u32::from(LENS[usize::from(octet)]);
        bits = bits << len | u64::from(CODE.codes[usize::from(octet)]);
        count += len;
        while count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    if count > 0 {
        out.push((bits << (8 - count)) as u8 | 255 >> count);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(code: &[u8]) -> Result<Vec<u8>, CompressionError> {
        let mut out = Vec::new();
        decode(code, &mut out).map(|()| out)
    }

    #[test]
    fn codes_of_appendix_b() {
        for (symbol, code, len) in [
            (0, 0x1ff8, 13),
            (usize::from(b'0'), 0, 5),
            (usize::from(b'~'), 0x1ffd, 13),
            (127, 0x0fff_fffc, 28),
            (255, 0x03ff_ffee, 26),
            (256, 0x3fff_ffff, 30),
        ] {
            assert_eq!((CODE.codes[symbol], LENS[symbol]), (code, len), "{symbol}");
        }
        // A complete code leaves no bits without a meaning.
        let sum: u64 = LENS.iter().map(|&len| 1 << (LEN_MAX - usize::from(len))).sum();
        assert_eq!(sum, 1 << LEN_MAX);
    }

    #[test]
    fn each_octet_comes_back_at_each_offset() {
        for octet in 0..=255_u8 {
            for before in 0..9 {
                let mut text = vec![b'0'; before];
                text.push(octet);
                let mut code = Vec::new();
                encode(&text, &mut code);
                assert_eq!(code.len(), encoded_len(&text));
                assert_eq!(decoded(&code), Ok(text));
            }
        }
    }

    #[test]
    fn padding_is_at_most_7_ones() {
        let bad = Err(CompressionError::BadHuffman);
        assert_eq!(decoded(b""), Ok(Vec::new()));
        // `0` is 00000.
        assert_eq!(decoded(&[0b0000_0111]), Ok(b"0".to_vec()));
        assert_eq!(decoded(&[0b0000_0110]), bad, "padded with a zero");
        assert_eq!(decoded(&[0b0000_0111, 255]), bad, "padded with 11 bits");
        assert_eq!(decoded(&[255]), bad, "padded with 8 bits");
        assert_eq!(decoded(&[255, 255, 255, 255]), bad, "EOS");
        assert_eq!(decoded(&[255, 255, 255, 252]), bad, "EOS and two bits");
        assert_eq!(decoded(&[255, 255, 255, 240]), bad, "a code cut off");
        let long = [&[0b0000_0111_u8; 1][..], &[255; 20]].concat();
        assert_eq!(decoded(&long), bad);
    }

    proptest! {
        #[test]
        fn text_comes_back(text: Vec<u8>) {
            let mut code = Vec::new();
            encode(&text, &mut code);
            prop_assert_eq!(code.len(), encoded_len(&text));
            prop_assert_eq!(decoded(&code), Ok(text));
        }

        /// The code is complete, so any text that decodes is encoded to the same bits.
        #[test]
        fn code_comes_back(code: Vec<u8>) {
            if let Ok(text) = decoded(&code) {
                let mut again = Vec::new();
                encode(&text, &mut again);
                prop_assert_eq!(again, code);
            }
        }
    }
}
