//! TCP segments. RFC 9293 3.1
//!
//! ```text
//!    0                   1                   2                   3
//!    0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!   +-------------------------------+-------------------------------+
//!   |          source port          |       destination port        |  0
//!   +-------------------------------+-------------------------------+
//!   |                        sequence number                        |  4
//!   +---------------------------------------------------------------+
//!   |                     acknowledgment number                     |  8
//!   +-------+-------+-+-+-+-+-+-+-+-+-------------------------------+
//!   | words |   0   |C|E|U|A|P|R|S|F|            window             | 12
//!   +-------+-------+-+-+-+-+-+-+-+-+-------------------------------+
//!   |           checksum            |        urgent pointer         | 16
//!   +-------------------------------+-------------------------------+
//!   |          options: 0 to 40 bytes, filled up to words           | 20
//!   +---------------------------------------------------------------+
//! ```
//!
//! Options that are understood, as `kind length …`: MSS `2 4`, window scale `3 3`, SACK permitted
//! `4 2` (all three in a SYN only), SACK `5 2+8n`, timestamps `8 10`.

use std::ops::{Add, AddAssign, BitOr, BitOrAssign, Sub};

use super::checksum::Sum;
use super::{Malformed, be16, be32, put16, put32};

/// A header without options.
pub const HEADER_LEN_MIN: usize = 20;

/// A header with as many options as its length field allows.
pub const HEADER_LEN_MAX: usize = 60;

/// The largest shift that the window scale option may ask for. RFC 7323 2.3
pub const WINDOW_SCALE_MAX: u8 = 14;

const CHECKSUM_AT: usize = 16;

/// A sequence number: a position in a stream, modulo 2^32. RFC 9293 3.4
///
/// Only numbers that are less than 2^31 apart can be compared. That order is not transitive, so
/// there are methods in place of `PartialOrd`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SeqNumber(pub u32);

impl SeqNumber {
    /// True if `self < other`.
    pub const fn before(self, other: SeqNumber) -> bool {
        self.since(other) < 0
    }

    /// True if `self > other`.
    pub const fn after(self, other: SeqNumber) -> bool {
        self.since(other) > 0
    }

    /// Distance of `self` from `other`; negative if it comes before.
    pub const fn since(self, other: SeqNumber) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// True if `self` is one of the `len` numbers from `first` on.
    pub const fn within(self, first: SeqNumber, len: u32) -> bool {
        self.0.wrapping_sub(first.0) < len
    }
}

impl Add<u32> for SeqNumber {
    type Output = SeqNumber;

    fn add(self, len: u32) -> SeqNumber {
        SeqNumber(self.0.wrapping_add(len))
    }
}

impl AddAssign<u32> for SeqNumber {
    fn add_assign(&mut self, len: u32) {
        *self = *self + len;
    }
}

impl Sub<u32> for SeqNumber {
    type Output = SeqNumber;

    fn sub(self, len: u32) -> SeqNumber {
        SeqNumber(self.0.wrapping_sub(len))
    }
}

/// Signed distance, as [`SeqNumber::since`].
impl Sub for SeqNumber {
    type Output = i32;

    fn sub(self, other: SeqNumber) -> i32 {
        self.since(other)
    }
}

/// The control bits without ACK, which [`Segment::ack`] stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u8);

impl Flags {
    /// No bit.
    pub const NONE: Flags = Flags(0);
    /// The stream ends here.
    pub const FIN: Flags = Flags(0x01);
    /// A connection begins here.
    pub const SYN: Flags = Flags(0x02);
    /// The connection is gone.
    pub const RST: Flags = Flags(0x04);
    /// Push: received data should be handed on.
    pub const PSH: Flags = Flags(0x08);
    /// The urgent pointer counts.
    pub const URG: Flags = Flags(0x20);
    /// Congestion was seen on the way. RFC 3168
    pub const ECE: Flags = Flags(0x40);
    /// The congestion window was reduced. RFC 3168
    pub const CWR: Flags = Flags(0x80);

    const ACK_BIT: u8 = 0x10;

    /// True if all bits of `other` are set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits that `other` has not.
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Flags) {
        *self = *self | other;
    }
}

/// Bytes that have arrived out of order: from `left` to before `right`. RFC 2018 3
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlock {
    /// The first byte.
    pub left: SeqNumber,
    /// The byte after the last.
    pub right: SeqNumber,
}

/// Up to four blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [SackBlock; SackBlocks::COUNT_MAX],
    count: u8,
}

impl SackBlocks {
    /// Blocks that fit into the options. RFC 2018 3
    pub const COUNT_MAX: usize = 4;

    /// Beside timestamps there is room for one less. RFC 2018 3
    pub const COUNT_MAX_WITH_TIMESTAMPS: usize = 3;

    /// No block.
    pub const NONE: SackBlocks = SackBlocks {
        blocks: [SackBlock { left: SeqNumber(0), right: SeqNumber(0) }; Self::COUNT_MAX],
        count: 0,
    };

    /// Adds a block; a fifth one is left out, and `false` returned.
    pub fn push(&mut self, block: SackBlock) -> bool {
        let Some(place) = self.blocks.get_mut(usize::from(self.count)) else {
            return false;
        };
        *place = block;
        self.count += 1;
        true
    }

    /// The blocks, in their order in the option.
    pub fn as_slice(&self) -> &[SackBlock] {
        &self.blocks[..usize::from(self.count)]
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// The options of a segment that are understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// The largest segment that the sender takes, in bytes of payload and options.
    /// RFC 9293 3.7.1
    pub mss: Option<u16>,
    /// Shift of the sender's windows; at most [`WINDOW_SCALE_MAX`]. RFC 7323 2.2
    pub window_scale: Option<u8>,
    /// The sender understands SACK blocks. RFC 2018 2
    pub sack_permitted: bool,
    /// RFC 2018 3; the first may be a duplicate, RFC 2883 4.
    pub sacks: SackBlocks,
    /// The sender's clock, and its echo of the receiver's: `(TSval, TSecr)`. RFC 7323 3.2
    pub timestamps: Option<(u32, u32)>,
    /// An option had an invalid length, so those behind it are unknown. Not emitted. RFC 9293 3.1,
    /// MUST-7, suggests to reset the connection.
    pub has_illegal_length: bool,
}

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// The options of nearly every segment after the SYN: two NOPs, then timestamps, which are aligned
/// by that. RFC 7323 appendix A
const ALIGNED_TIMESTAMPS: u32 = 0x0101_080a;
const ALIGNED_TIMESTAMPS_LEN: usize = 12;

impl TcpOptions {
    /// No option.
    pub const NONE: TcpOptions = TcpOptions {
        mss: None,
        window_scale: None,
        sack_permitted: false,
        sacks: SackBlocks::NONE,
        timestamps: None,
        has_illegal_length: false,
    };

    fn parse(bytes: &[u8], is_syn: bool) -> TcpOptions {
        let mut options = TcpOptions::NONE;
        if bytes.len() == ALIGNED_TIMESTAMPS_LEN && be32(bytes, 0) == ALIGNED_TIMESTAMPS {
            options.timestamps = Some((be32(bytes, 4), be32(bytes, 8)));
            return options;
        }
        let mut rest = bytes;
        while let Some(&kind) = rest.first() {
            if kind == END {
                break;
            }
            if kind == NO_OPERATION {
                rest = &rest[1..];
                continue;
            }
            // Every other option has a length, which counts kind and length as well. RFC 9293
            // 3.1, MUST-68
            let len = rest.get(1).map_or(0, |&len| usize::from(len));
            if len < 2 || len > rest.len() {
                options.has_illegal_length = true;
                break;
            }
            options.take(kind, &rest[2..len], is_syn);
            rest = &rest[len..];
        }
        options
    }

    /// Reads one option. Unknown ones, and those of a wrong length, are skipped: RFC 9293 3.1,
    /// MUST-6.
    fn take(&mut self, kind: u8, value: &[u8], is_syn: bool) {
        match (kind, value.len()) {
            (MSS, 2) if is_syn => self.mss = Some(be16(value, 0)),
            // A larger shift is taken for the largest. RFC 7323 2.3
            (WINDOW_SCALE, 1) if is_syn => self.window_scale = Some(value[0].min(WINDOW_SCALE_MAX)),
            (SACK_PERMITTED, 0) if is_syn => self.sack_permitted = true,
            (SACK, 8 | 16 | 24 | 32) if !is_syn => {
                self.sacks = SackBlocks::NONE;
                for block in value.chunks_exact(8) {
                    self.sacks.push(SackBlock {
                        left: SeqNumber(be32(block, 0)),
                        right: SeqNumber(be32(block, 4)),
                    });
                }
            }
            (TIMESTAMPS, 8) => self.timestamps = Some((be32(value, 0), be32(value, 4))),
            _ => {}
        }
    }

    /// The bytes that these options take in a header, filled up to words.
    pub fn len(&self) -> usize {
        let mut len = 0;
        if self.mss.is_some() {
            len += 4;
        }
        if self.window_scale.is_some() {
            len += 4;
        }
        match (self.sack_permitted, self.timestamps.is_some()) {
            (_, true) => len += ALIGNED_TIMESTAMPS_LEN,
            (true, false) => len += 4,
            (false, false) => {}
        }
        let sacks = self.sacks.as_slice().len();
        if sacks > 0 {
            len += 4 + 8 * sacks;
        }
        len
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the options, aligned as the RFCs advise.
    fn emit(&self, buffer: &mut [u8]) {
        let mut at = 0;
        let mut put = |word: u32| {
            put32(buffer, at, word);
            at += 4;
        };
        let word = |a, b, c, d| u32::from_be_bytes([a, b, c, d]);
        if let Some(mss) = self.mss {
            let [high, low] = mss.to_be_bytes();
            put(word(MSS, 4, high, low));
        }
        if let Some(shift) = self.window_scale {
            put(word(NO_OPERATION, WINDOW_SCALE, 3, shift));
        }
        if let Some((value, echo)) = self.timestamps {
            put(if self.sack_permitted {
                word(SACK_PERMITTED, 2, TIMESTAMPS, 10)
            } else {
                ALIGNED_TIMESTAMPS
            });
            put(value);
            put(echo);
        } else if self.sack_permitted {
            put(word(NO_OPERATION, NO_OPERATION, SACK_PERMITTED, 2));
        }
        let sacks = self.sacks.as_slice();
        if !sacks.is_empty() {
            let len = 2 + 8 * sacks.len() as u8;
            put(word(NO_OPERATION, NO_OPERATION, SACK, len));
        }
        for block in sacks {
            put(block.left.0);
            put(block.right.0);
        }
    }
}

/// A segment as `tcp` works on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// The sender's port.
    pub src_port: u16,
    /// The receiver's port.
    pub dst_port: u16,
    /// Sequence number of the SYN, or else of the first byte of the payload.
    pub seq: SeqNumber,
    /// The next byte that the sender waits for; `None` without the ACK bit.
    pub ack: Option<SeqNumber>,
    /// The other control bits.
    pub flags: Flags,
    /// Window as in the header: not scaled yet.
    pub window: u16,
    /// Distance from `seq` to the end of urgent data; meaningful with [`Flags::URG`] only.
    pub urgent: u16,
    /// The options.
    pub options: TcpOptions,
    /// Payload behind the header.
    pub payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Reads a segment: `bytes` are all of what IP carries. The checksum is not looked at:
    /// [`checksum_fits`].
    ///
    /// # Errors
    ///
    /// [`Malformed::Truncated`] or [`Malformed::Header`].
    pub fn parse(bytes: &'a [u8]) -> Result<Segment<'a>, Malformed> {
        if bytes.len() < HEADER_LEN_MIN {
            return Err(Malformed::Truncated);
        }
        let header_len = usize::from(bytes[12] >> 4) * 4;
        if header_len < HEADER_LEN_MIN {
            return Err(Malformed::Header);
        }
        if header_len > bytes.len() {
            return Err(Malformed::Truncated);
        }
        let (header, payload) = bytes.split_at(header_len);
        let has_ack = header[13] & Flags::ACK_BIT != 0;
        let flags = Flags(header[13] & !Flags::ACK_BIT);
        let is_syn = flags.contains(Flags::SYN);
        Ok(Segment {
            src_port: be16(header, 0),
            dst_port: be16(header, 2),
            seq: SeqNumber(be32(header, 4)),
            ack: has_ack.then(|| SeqNumber(be32(header, 8))),
            flags,
            window: be16(header, 14),
            urgent: be16(header, 18),
            options: TcpOptions::parse(&header[HEADER_LEN_MIN..], is_syn),
            payload,
        })
    }

    /// The length of the header that [`Segment::emit`] writes.
    pub fn header_len(&self) -> usize {
        HEADER_LEN_MIN + self.options.len()
    }

    /// Length in sequence space: payload, SYN and FIN. RFC 9293 3.4
    pub fn seq_len(&self) -> u32 {
        let controls =
            u32::from(self.flags.contains(Flags::SYN)) + u32::from(self.flags.contains(Flags::FIN));
        self.payload.len() as u32 + controls
    }

    /// Writes the header to the beginning of `buffer` and returns its length. The payload is not
    /// written. The checksum is left zero: see [`write_checksum`] and [`write_partial_checksum`].
    ///
    /// # Panics
    ///
    /// If `buffer` is shorter than [`Segment::header_len`], or the options take more than 40 bytes.
    pub fn emit(&self, buffer: &mut [u8]) -> usize {
        let len = self.header_len();
        assert!(len <= HEADER_LEN_MAX, "options of {} bytes", len - 20);
        let header = &mut buffer[..len];
        put16(header, 0, self.src_port);
        put16(header, 2, self.dst_port);
        put32(header, 4, self.seq.0);
        put32(header, 8, self.ack.unwrap_or_default().0);
        header[12] = (len as u8 / 4) << 4;
        header[13] = self.flags.0 | if self.ack.is_some() { Flags::ACK_BIT } else { 0 };
        put16(header, 14, self.window);
        put16(header, CHECKSUM_AT, 0);
        put16(header, 18, self.urgent);
        self.options.emit(&mut header[HEADER_LEN_MIN..]);
        len
    }
}

/// True if the checksum of a whole segment is right. `pseudo_header` is the sum of the IP header.
pub fn checksum_fits(pseudo_header: Sum, bytes: &[u8]) -> bool {
    (pseudo_header + Sum::of(bytes)).is_right()
}

/// Puts the checksum into a header whose checksum is zero. `payload` is the sum of what follows.
pub fn write_checksum(header: &mut [u8], pseudo_header: Sum, payload: Sum) {
    let sum = pseudo_header + Sum::of(header) + payload;
    put16(header, CHECKSUM_AT, sum.checksum());
}

/// Writes the sum of the pseudo header alone, not complemented, for a device that completes the
/// checksum.
pub fn write_partial_checksum(header: &mut [u8], pseudo_header: Sum) {
    put16(header, CHECKSUM_AT, pseudo_header.folded());
}

/// Offset of the checksum in the header: for a device that completes it.
pub const CHECKSUM_OFFSET: u16 = CHECKSUM_AT as u16;
