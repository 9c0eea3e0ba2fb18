//! Replays a conversation against a session: whole, byte by byte, and cut at seeded random places.
//!
//! A protocol that is right only when a request arrives in one piece is wrong, and the network will
//! find out. So every transcript is replayed many times with different cuts, and all must give the
//! same replies.
//!
//! ```
//! use session::{Echo, replay::{replay, Script}};
//!
//! replay(|| Echo, &Script::new().send("ping\n").expect("ping\n"));
//! ```

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::{Chunk, FileRange, Next, Now, Outbox, Phase, Received, Session};

/// What a peer sends, and what it must get back.
#[derive(Clone, Debug, Default)]
pub struct Script {
    sent: Vec<u8>,
    expected: Option<Vec<u8>>,
    closed: bool,
}

impl Script {
    /// An empty conversation.
    pub fn new() -> Script {
        Script::default()
    }

    /// The peer sends this next.
    pub fn send(mut self, bytes: impl AsRef<[u8]>) -> Script {
        self.sent.extend_from_slice(bytes.as_ref());
        self
    }

    /// The replies, one after the other, must be exactly this.
    pub fn expect(mut self, bytes: impl AsRef<[u8]>) -> Script {
        self.expected
            .get_or_insert_default()
            .extend_from_slice(bytes.as_ref());
        self
    }

    /// The session must close at the end.
    pub fn closed(mut self) -> Script {
        self.closed = true;
        self
    }
}

/// What came of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Every byte that the session replied, files read out.
    pub replied: Vec<u8>,
    /// Whether the session closed.
    pub closed: bool,
}

/// How many random cuttings [`replay`] tries.
const CUTTINGS: u64 = 32;

/// Replays `script` against a new session each time: whole, byte by byte, and cut at seeded random
/// places. Returns what came of it, so that a test can look closer.
///
/// # Panics
/// If two cuttings differ, or the outcome is not what the script expects. The message names the
/// cutting (and so its seed).
pub fn replay<S: Session>(open: impl Fn() -> S, script: &Script) -> Outcome {
    let whole = run(open(), &script.sent, Cutting::Whole);
    if let Some(expected) = &script.expected {
        assert_same("whole", &whole.replied, expected);
    }
    assert_eq!(
        whole.closed,
        script.closed,
        "closed (whole); replies: {}",
        show(&whole.replied)
    );
    let bytewise = std::iter::once(Cutting::EveryByte);
    for cutting in bytewise.chain((1..=CUTTINGS).map(Cutting::Seeded)) {
        let outcome = run(open(), &script.sent, cutting);
        assert_same(&format!("{cutting:?}"), &outcome.replied, &whole.replied);
        assert_eq!(outcome.closed, whole.closed, "closed, cut {cutting:?}");
    }
    whole
}

/// How a conversation is cut.
#[derive(Clone, Copy, Debug)]
pub enum Cutting {
    /// Everything arrives at once.
    Whole,
    /// Each byte arrives alone.
    EveryByte,
    /// Pieces of random length, and an outbox with a random watermark, from this seed.
    Seeded(u64),
}

/// Plays one conversation with one cutting.
pub fn run<S: Session>(mut session: S, sent: &[u8], cutting: Cutting) -> Outcome {
    let mut random = match cutting {
        Cutting::Seeded(seed) => Random(seed),
        _ => Random(1),
    };
    let mut out = match cutting {
        Cutting::Seeded(_) => Outbox::with_watermark(1 + random.below(70_000)),
        _ => Outbox::new(),
    };
    let mut outcome = Outcome {
        replied: Vec::new(),
        closed: false,
    };
    let mut held = Vec::new();
    let mut rest = sent;
    let mut phase = Phase::Idle;
    while !rest.is_empty() && !outcome.closed {
        let len = match cutting {
            Cutting::Whole => rest.len(),
            Cutting::EveryByte => 1,
            Cutting::Seeded(_) => 1 + random.below(rest.len().min(300) as u64) as usize,
        };
        let (piece, after) = rest.split_at(len);
        rest = after;
        let piece = fill_body_room(&mut session, piece, &mut phase, &mut out, &mut outcome);
        if !piece.is_empty() {
            held.extend_from_slice(piece);
            phase = deliver(&mut session, &mut held, &mut out, &mut outcome);
        }
    }
    outcome
}

/// The time of every replay: sessions have no clock, so tests choose it. 2026-11-20 12:00:00 UTC, and it
/// stands still, so that no reply depends on when it was made.
pub fn test_now() -> Now {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    Now {
        monotonic: *START,
        since_epoch: Duration::from_secs(1_795_176_000),
    }
}

/// Shows the session what is held until it waits for more; returns the phase it waits in.
fn deliver<S: Session>(
    session: &mut S,
    held: &mut Vec<u8>,
    out: &mut Outbox,
    outcome: &mut Outcome,
) -> Phase {
    // Each turn uses input, sends output or does work; a session that only spins is broken.
    for _ in 0..1_000_000 {
        let Received { used, next } = session.receive(held, test_now(), out);
        assert!(used <= held.len(), "used {used} of {} bytes", held.len());
        held.drain(..used);
        match next {
            Next::Receive(phase) => {
                send(out, outcome);
                return phase;
            }
            Next::Flush => send(out, outcome),
            Next::Work => session.work(),
            Next::Close | Next::Linger => {
                send(out, outcome);
                outcome.closed = true;
                return Phase::Idle;
            }
        }
    }
    panic!(
        "the session neither waits nor closes; it holds {} bytes",
        held.len()
    );
}

/// Puts what it can into the session's own room, as a driver does; returns what is left.
fn fill_body_room<'a, S: Session>(
    session: &mut S,
    mut piece: &'a [u8],
    phase: &mut Phase,
    out: &mut Outbox,
    outcome: &mut Outcome,
) -> &'a [u8] {
    while *phase == Phase::Body && !piece.is_empty() {
        let room = session.body_room();
        let len = room.len().min(piece.len());
        if len == 0 {
            break;
        }
        room[..len].copy_from_slice(&piece[..len]);
        piece = &piece[len..];
        match session.body_filled(len, test_now(), out) {
            Next::Receive(next) => *phase = next,
            Next::Close | Next::Linger => outcome.closed = true,
            Next::Flush | Next::Work => *phase = Phase::Idle,
        }
        send(out, outcome);
    }
    piece
}

fn send(out: &mut Outbox, outcome: &mut Outcome) {
    while let Some(chunk) = out.front() {
        let len = match chunk {
            Chunk::File(range) => {
                outcome.replied.extend_from_slice(&read(range));
                range.len()
            }
            Chunk::Bytes(_) | Chunk::Shared(_) => {
                let mut slices = [IoSlice::new(&[]); 16];
                let filled = out.gather(&mut slices);
                slices[..filled]
                    .iter()
                    .for_each(|s| outcome.replied.extend_from_slice(s));
                slices[..filled].iter().map(|s| s.len() as u64).sum()
            }
        };
        out.consume(len);
    }
}

fn read(range: &FileRange) -> Vec<u8> {
    let mut bytes = vec![0; range.len() as usize];
    let mut at = 0;
    while at < bytes.len() {
        let offset = range.range.start + at as u64;
        let len = rustix::io::pread(range.file.as_fd(), &mut bytes[at..], offset).expect("pread");
        assert!(
            len > 0,
            "the file ends at {offset}, inside the range {:?}",
            range.range
        );
        at += len;
    }
    bytes
}

fn assert_same(cut: &str, got: &[u8], expected: &[u8]) {
    if got != expected {
        let at = got.iter().zip(expected).take_while(|(a, b)| a == b).count();
        panic!(
            "replies differ at byte {at} (cut: {cut})\n--- got\n{}\n--- expected\n{}",
            show(got),
            show(expected)
        );
    }
}

fn show(bytes: &[u8]) -> String {
    const SHOWN_MAX: usize = 4096;
    let text = bytes[..bytes.len().min(SHOWN_MAX)]
        .escape_ascii()
        .to_string();
    text.replace("\\r\\n", "\\r\\n\n")
}

/// SplitMix64 (Steele, Lea, Flood 2014): one seed replays a run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}
