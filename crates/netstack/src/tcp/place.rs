//! Sequence numbers that do not wrap.
//!
//! ```text
//!   wire      32 bits       iss   iss+1 ···                     (modulo 2^32)
//!   inside    64 bits    SYN_AT   DATA_AT ···                    SYN_AT = 2^32
//!   stream    64 bits               0 ···                        offset = place - DATA_AT
//! ```
//!
//! A *place* is the count of sequence numbers since the SYN's, plus 2^32, so that a number which
//! lies a little before the SYN is a place as well. Places compare with `<`; the wrap is met at two
//! points only, here.

use crate::wire::tcp::SeqNumber;

/// The place of a SYN.
pub const SYN_AT: u64 = 1 << 32;

/// The place of the first byte of the stream.
pub const DATA_AT: u64 = SYN_AT + 1;

/// One direction's numbers: what is on the wire for a place, and the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering {
    /// iss or irs: the number of the SYN.
    pub initial: SeqNumber,
}

impl Numbering {
    /// The number on the wire.
    pub const fn seq(self, place: u64) -> SeqNumber {
        // The lower half of SYN_AT is zero.
        SeqNumber(self.initial.0.wrapping_add(place as u32))
    }

    /// The place that `seq` means: the one nearest to `near`.
    pub const fn place(self, seq: SeqNumber, near: u64) -> u64 {
        let distance = seq.since(self.seq(near));
        near.wrapping_add_signed(distance as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_and_back_across_the_wrap() {
        let numbering = Numbering {
            initial: SeqNumber(0xffff_fff0),
        };
        for place in [SYN_AT, DATA_AT, SYN_AT + 0xf, SYN_AT + 0x10, 3 << 33] {
            let seq = numbering.seq(place);
            for near in [place - 1_000, place, place + 1_000, place + (1 << 30)] {
                assert_eq!(numbering.place(seq, near), place, "near {near}");
            }
        }
        assert_eq!(numbering.seq(SYN_AT), SeqNumber(0xffff_fff0));
        assert_eq!(numbering.seq(DATA_AT + 0xf), SeqNumber(0));
    }

    #[test]
    fn a_number_before_the_syn_has_a_place() {
        let numbering = Numbering {
            initial: SeqNumber(5),
        };
        assert_eq!(numbering.place(SeqNumber(0xffff_ffff), SYN_AT), SYN_AT - 6);
    }
}
