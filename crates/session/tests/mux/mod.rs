//! The smallest full-duplex session: for tests of this crate and of engines.

// Each test program uses only a part of this module.
#![allow(dead_code)]

use std::collections::VecDeque;

use session::{Next, Now, Outbox, Phase, Received, Session, Work};

/// Streams over one connection.
///
/// A frame is the number of its stream and the length of its bytes, four bytes each, big-endian,
/// then the bytes. Each frame is answered on its stream, in any order among streams:
///
/// | bytes | reply |
/// |---|---|
/// | `slow N` | N × 64 KiB of `x`, taking turns with other streams |
/// | `work` | `worked`, after [work](Work) |
/// | `bye` | nothing: the connection closes when all others are answered |
/// | any other | the same bytes, before all that is slow |
#[derive(Debug, Default)]
pub(crate) struct Mux {
    /// Streams with bytes left to send, and how many.
    slow: VecDeque<(u32, usize)>,
    /// Streams that want work.
    wanted: VecDeque<u32>,
    working: usize,
    is_ending: bool,
}

/// Work of one stream.
#[derive(Debug)]
pub(crate) struct MuxWork {
    stream: u32,
    is_done: bool,
}

impl Work for MuxWork {
    fn run(&mut self, _: Now) {
        self.is_done = true;
    }
}

/// Maximum length of a frame's bytes.
pub(crate) const FRAME_LEN_MAX: usize = 16 * 1024;

/// Bytes of one `slow`.
pub(crate) const SLOW_LEN: usize = 64 * 1024;

pub(crate) const HEADER_LEN: usize = 8;

impl Mux {
    /// A frame, as both sides send it.
    pub(crate) fn frame(stream: u32, bytes: &[u8]) -> Vec<u8> {
        let len = u32::try_from(bytes.len()).expect("frames are short");
        [&stream.to_be_bytes()[..], &len.to_be_bytes(), bytes].concat()
    }

    /// The frame at the start of `input`, if it is whole: its stream and bytes.
    pub(crate) fn parse(input: &[u8]) -> Option<(u32, &[u8])> {
        let (stream, rest) = input.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let bytes = rest.get(..u32::from_be_bytes(*len) as usize)?;
        Some((u32::from_be_bytes(*stream), bytes))
    }

    fn answer(&mut self, stream: u32, bytes: &[u8], out: &mut Outbox) {
        let count = std::str::from_utf8(bytes)
            .ok()
            .and_then(|text| text.strip_prefix("slow ")?.parse::<usize>().ok());
        match (bytes, count) {
            (_, Some(count)) => self.slow.push_back((stream, count * SLOW_LEN)),
            (b"work", _) => self.wanted.push_back(stream),
            (b"bye", _) => self.is_ending = true,
            _ => out.put(&Mux::frame(stream, bytes)),
        }
    }

    /// Writes the frames for which the outbox has space.
    fn write_frames(&mut self, is_inside: bool, out: &mut Outbox) -> Next {
        while !out.is_full()
            && let Some((stream, left)) = self.slow.pop_front()
        {
            let len = left.min(FRAME_LEN_MAX);
            out.put(&Mux::frame(stream, &[b'x'; FRAME_LEN_MAX][..len]));
            if left > len {
                self.slow.push_back((stream, left - len));
            }
        }
        let has_more = !self.slow.is_empty();
        let is_at_rest = !has_more && self.wanted.is_empty() && self.working == 0;
        if self.is_ending && is_at_rest {
            return Next::Close;
        }
        let phase = match (is_at_rest, is_inside) {
            (true, false) => Phase::Idle,
            (true, true) => Phase::Head,
            (false, _) => Phase::Body,
        };
        Next::Duplex { phase, has_more }
    }
}

impl Session for Mux {
    type Work = MuxWork;

    fn receive(&mut self, input: &[u8], _: Now, out: &mut Outbox) -> Received {
        let mut used = 0;
        while let Some((stream, bytes)) = Mux::parse(&input[used..]) {
            used += HEADER_LEN + bytes.len();
            self.answer(stream, bytes, out);
        }
        let next = if input.len() - used > HEADER_LEN + FRAME_LEN_MAX {
            Next::Linger
        } else {
            self.write_frames(used < input.len(), out)
        };
        Received { used, next }
    }

    fn take_work(&mut self) -> Option<MuxWork> {
        let stream = self.wanted.pop_front()?;
        self.working += 1;
        let is_done = false;
        Some(MuxWork { stream, is_done })
    }

    fn handle_worked(&mut self, work: MuxWork, _: Now, out: &mut Outbox) -> Next {
        assert!(work.is_done, "the work has run");
        self.working -= 1;
        out.put(&Mux::frame(work.stream, b"worked"));
        self.write_frames(false, out)
    }
}
