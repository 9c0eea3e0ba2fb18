//! Sequence numbers that do not wrap.
//!
//! ```text
//!   wire      32 bits       iss   iss+1 ···                     (modulo 2^32)
//!   inside    64 bits    SYN_AT   DATA_AT ···                    SYN_AT = 2^32
//!   stream    64 bits               0 ···                        offset = position - DATA_AT
//! ```
//!
//! A *position* is the count of sequence numbers since the SYN's, plus 2^32, so that numbers just
//! before the SYN have positions as well. Positions compare with `<`. Only the two functions here
//! deal with the wrap.

use crate::wire::tcp::SeqNumber;

/// Position of a SYN.
pub const SYN_AT: u64 = 1 << 32;

/// Position of the first byte of the stream.
pub const DATA_AT: u64 = SYN_AT + 1;

/// Conversion between positions and sequence numbers, for one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering {
    /// iss or irs: the number of the SYN.
    pub initial: SeqNumber,
}

impl Numbering {
    /// Sequence number of a position.
    pub const fn seq(self, position: u64) -> SeqNumber {
        // The lower half of SYN_AT is zero.
        SeqNumber(self.initial.0.wrapping_add(position as u32))
    }

    /// Position of `seq`: the one nearest to `near`.
    pub const fn position(self, seq: SeqNumber, near: u64) -> u64 {
        let distance = seq.since(self.seq(near));
        near.wrapping_add_signed(distance as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_across_the_wrap() {
        let numbering = Numbering { initial: SeqNumber(0xffff_fff0) };
        for position in [SYN_AT, DATA_AT, SYN_AT + 0xf, SYN_AT + 0x10, 3 << 33] {
            let seq = numbering.seq(position);
            for near in [position - 1_000, position, position + 1_000, position + (1 << 30)] {
                assert_eq!(numbering.position(seq, near), position, "near {near}");
            }
        }
        assert_eq!(numbering.seq(SYN_AT), SeqNumber(0xffff_fff0));
        assert_eq!(numbering.seq(DATA_AT + 0xf), SeqNumber(0));
    }

    #[test]
    fn numbers_before_the_syn() {
        let numbering = Numbering { initial: SeqNumber(5) };
        assert_eq!(numbering.position(SeqNumber(0xffff_ffff), SYN_AT), SYN_AT - 6);
    }
}
