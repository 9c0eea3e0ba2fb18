//! Test harness: replays a conversation against a session whole, byte by byte, and cut at seeded
//! random places, in both directions.
//!
//! A protocol that is right only when a request arrives in one piece is wrong. So every transcript
//! is replayed many times with different cuts, and all must give the same replies.
//!
//! ```
//! use weftwork_session::{Echo, replay::{replay, Script}};
//!
//! replay(|| Echo, &Script::new().send("ping\n").expect("ping\n"));
//! ```

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::file::FileRange;
use crate::outbox::{Chunk, Outbox};
use crate::session::{Next, Now, Phase, Received, Session, WORKS_MAX, Work as _};

/// Bytes that a peer sends, and the replies that it must get.
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

    /// Appends bytes that the peer sends.
    pub fn send(mut self, bytes: impl AsRef<[u8]>) -> Script {
        self.sent.extend_from_slice(bytes.as_ref());
        self
    }

    /// Appends bytes to the expected replies.
    pub fn expect(mut self, bytes: impl AsRef<[u8]>) -> Script {
        self.expected.get_or_insert_default().extend_from_slice(bytes.as_ref());
        self
    }

    /// The session must close at the end.
    pub fn closed(mut self) -> Script {
        self.closed = true;
        self
    }

    /// All that the peer sends.
    pub fn sent(&self) -> &[u8] {
        &self.sent
    }

    /// The expected replies, if the script has any.
    pub fn expected(&self) -> Option<&[u8]> {
        self.expected.as_deref()
    }

    /// True if the session must close at the end.
    pub fn closes(&self) -> bool {
        self.closed
    }
}

/// Result of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Every byte that the session replied, files read out.
    pub replied: Vec<u8>,
    /// True if the session closed.
    pub closed: bool,
}

/// Number of random cuttings that [`replay`] tries.
const CUTTINGS: u64 = 32;

/// Replays `script` against a new session each time: whole, byte by byte, and cut at seeded random
/// places. Returns the result for further checks.
///
/// # Panics
/// If two cuttings differ, or the replies are not what the script expects. The message names the
/// cutting (and so its seed).
pub fn replay<S: Session>(open: impl Fn() -> S, script: &Script) -> Replayed {
    replay_sorted(open, script, <[u8]>::to_vec)
}

/// Replays as [`replay`], for replies whose order is not promised (streams of one connection):
/// `sort` puts them in order before they are compared.
///
/// # Panics
/// Like [`replay`].
pub fn replay_sorted<S: Session>(
    open: impl Fn() -> S,
    script: &Script,
    sort: impl Fn(&[u8]) -> Vec<u8>,
) -> Replayed {
    let whole = run(open(), &script.sent, Cutting::Whole);
    let replied = sort(&whole.replied);
    if let Some(expected) = &script.expected {
        assert_same("whole", &replied, expected);
    }
    assert_eq!(whole.closed, script.closed, "closed (whole); replies: {}", show(&whole.replied));
    let bytewise = std::iter::once(Cutting::EveryByte);
    for cutting in bytewise.chain((1..=CUTTINGS).map(Cutting::Seeded)) {
        let replayed = run(open(), &script.sent, cutting);
        assert_same(&format!("{cutting:?}"), &sort(&replayed.replied), &replied);
        assert_eq!(replayed.closed, whole.closed, "closed, cut {cutting:?}");
    }
    whole
}

/// Way of cutting a conversation.
#[derive(Clone, Copy, Debug)]
pub enum Cutting {
    /// Everything arrives at once.
    Whole,
    /// Each byte arrives alone.
    EveryByte,
    /// Pieces of random length from this seed, an outbox with a random watermark, a peer that often
    /// takes only the beginning of the output, so that the session receives more while output
    /// waits, and work that comes back late and in any order.
    Seeded(u64),
}

/// Plays one conversation with one cutting.
pub fn run<S: Session>(session: S, sent: &[u8], cutting: Cutting) -> Replayed {
    let mut random = match cutting {
        Cutting::Seeded(seed) => Random(seed),
        _ => Random(1),
    };
    let out = match cutting {
        Cutting::Seeded(_) => Outbox::with_watermark(1 + random.below(70_000)),
        _ => Outbox::new(),
    };
    let peer = Peer {
        replayed: Replayed { replied: Vec::new(), closed: false },
        partial: match cutting {
            Cutting::Seeded(seed) => Some(Random(!seed)),
            _ => None,
        },
    };
    let away = Away {
        works: VecDeque::new(),
        order: match cutting {
            Cutting::Seeded(seed) => Some(Random(seed.rotate_left(32))),
            _ => None,
        },
    };
    let mut replay = Replay { session, held: Vec::new(), out, peer, away, has_more: false };
    let mut rest = sent;
    let mut phase = Phase::Idle;
    while !rest.is_empty() && !replay.is_closed() {
        let len = match cutting {
            Cutting::Whole => rest.len(),
            Cutting::EveryByte => 1,
            Cutting::Seeded(_) => 1 + random.below(rest.len().min(300) as u64) as usize,
        };
        let (piece, after) = rest.split_at(len);
        rest = after;
        let piece = replay.fill_body_buffer(piece, &mut phase);
        if !piece.is_empty() {
            replay.held.extend_from_slice(piece);
            let next = replay.show();
            phase = replay.drive(next);
        }
    }
    while !replay.is_closed() {
        let next = if let Some(work) = replay.away.take() {
            replay.bring_back(work)
        } else if replay.has_more {
            replay.peer.take_all(&mut replay.out);
            replay.show()
        } else {
            break;
        };
        replay.drive(next);
    }
    replay.peer.take_all(&mut replay.out);
    replay.peer.replayed
}

/// The bytes in an outbox, files read out.
pub fn queued(out: &Outbox) -> Vec<u8> {
    let mut queued = Vec::new();
    for chunk in out.chunks() {
        match chunk {
            Chunk::Bytes(bytes) => queued.extend_from_slice(bytes),
            Chunk::Shared(bytes, _) => queued.extend_from_slice(bytes),
            Chunk::File(range) => drop(read(range, range.len(), &mut queued)),
        }
    }
    queued
}

/// The fixed time of every replay: 2026-11-20 12:00:00 UTC.
pub fn test_now() -> Now {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    Now { monotonic: *START, since_epoch: Duration::from_secs(1_795_176_000) }
}

/// One conversation that is played.
struct Replay<S: Session> {
    session: S,
    held: Vec<u8>,
    out: Outbox,
    peer: Peer,
    away: Away<S::Work>,
    /// True if the session has more output and the outbox was too full.
    has_more: bool,
}

impl<S: Session> Replay<S> {
    fn is_closed(&self) -> bool {
        self.peer.replayed.closed
    }

    /// Shows the session the input held so far.
    fn show(&mut self) -> Next {
        let received = (self.session).receive(&self.held, test_now(), &mut self.out);
        let Received { used, next } = received;
        let len = self.held.len();
        assert!(used <= len, "used {used} of {len} bytes");
        self.held.drain(..used);
        next
    }

    /// Drives the session until it waits for more; returns the phase it waits in.
    fn drive(&mut self, mut next: Next) -> Phase {
        // Each round uses input, sends output or does work; a session that only spins is broken.
        for _ in 0..1_000_000 {
            if let Next::Close | Next::Linger = next {
                self.peer.take_all(&mut self.out);
                self.peer.replayed.closed = true;
                return Phase::Idle;
            }
            self.peer.take(&mut self.out);
            self.has_more = matches!(next, Next::Duplex { has_more: true, .. });
            next = match next {
                Next::Receive(phase) => return phase,
                Next::Duplex { phase, has_more } => {
                    self.take_works();
                    match self.away.take_some() {
                        Some(work) => self.bring_back(work),
                        None if !has_more || self.out.is_overfull() => return phase,
                        None => self.show(),
                    }
                }
                Next::Work => {
                    let work = self.session.take_work();
                    let work = work.expect("a session that waits for work has handed out some");
                    self.away.works.push_back(work);
                    let back = self.away.take().expect("work is out");
                    match self.bring_back(back) {
                        Next::Receive(_) | Next::Duplex { .. } if !self.held.is_empty() => {
                            self.show()
                        }
                        next => next,
                    }
                }
                _ => self.show(),
            };
        }
        panic!("the session neither waits nor closes; it holds {} bytes", self.held.len());
    }

    fn take_works(&mut self) {
        while self.away.works.len() < WORKS_MAX
            && let Some(work) = self.session.take_work()
        {
            self.away.works.push_back(work);
        }
    }

    /// Runs work and hands it back.
    fn bring_back(&mut self, mut work: S::Work) -> Next {
        work.run(test_now());
        (self.session).handle_worked(work, test_now(), &mut self.out)
    }

    /// Fills the session's own buffer, as a driver does; returns the bytes that are left.
    fn fill_body_buffer<'a>(&mut self, mut piece: &'a [u8], phase: &mut Phase) -> &'a [u8] {
        while *phase == Phase::Body && !piece.is_empty() {
            let buffer = self.session.body_buffer();
            let len = buffer.len().min(piece.len());
            if len == 0 {
                break;
            }
            buffer[..len].copy_from_slice(&piece[..len]);
            piece = &piece[len..];
            let next = (self.session).body_filled(len, test_now(), &mut self.out);
            *phase = self.drive(next);
        }
        piece
    }
}

/// Work that was handed out and has not come back.
struct Away<W> {
    works: VecDeque<W>,
    /// If set, work comes back in any order, and some of it late.
    order: Option<Random>,
}

impl<W> Away<W> {
    /// Takes one finished work.
    fn take(&mut self) -> Option<W> {
        let len = self.works.len() as u64;
        let at = match &mut self.order {
            Some(random) if len > 0 => random.below(len) as usize,
            _ => 0,
        };
        self.works.remove(at)
    }

    /// Takes one finished work, or none if all of it is late.
    fn take_some(&mut self) -> Option<W> {
        let is_late = self.order.as_mut().is_some_and(|random| random.below(2) == 0);
        if is_late { None } else { self.take() }
    }
}

/// The peer: the bytes it has got, and how it takes output.
struct Peer {
    replayed: Replayed,
    /// If set, the peer half of the time takes only the beginning of the output.
    partial: Option<Random>,
}

impl Peer {
    /// Takes the outbox's output, or the beginning of it.
    fn take(&mut self, out: &mut Outbox) {
        while let Some(chunk) = out.front() {
            let partial = self.partial.as_mut();
            let partial = partial.and_then(|random| (random.below(2) == 0).then_some(random));
            let is_last = partial.is_some();
            let take = |len| partial.map_or(len, |random| 1 + random.below(len));
            let replied = &mut self.replayed.replied;
            let taken = match chunk {
                Chunk::Bytes(bytes) => take_bytes(bytes, take, replied),
                Chunk::Shared(bytes, _) => take_bytes(bytes, take, replied),
                Chunk::File(range) => read(range, take(range.len()), replied),
            };
            out.consume(taken);
            if is_last {
                return;
            }
        }
    }

    fn take_all(&mut self, out: &mut Outbox) {
        self.partial = None;
        self.take(out);
    }
}

fn take_bytes(bytes: &[u8], take: impl FnOnce(u64) -> u64, to: &mut Vec<u8>) -> u64 {
    let len = take(bytes.len() as u64);
    to.extend_from_slice(&bytes[..len as usize]);
    len
}

fn read(range: &FileRange, len: u64, to: &mut Vec<u8>) -> u64 {
    let begin = to.len();
    to.resize(begin + len as usize, 0);
    let file = range.file.as_fd().try_clone_to_owned().map(File::from);
    let read = file.and_then(|file| file.read_exact_at(&mut to[begin..], range.range.start));
    read.unwrap_or_else(|error| panic!("{len} bytes of {:?}: {error}", range.range));
    len
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

/// Formats bytes for a test's message: the first 4 KiB, escaped, one line for each line.
pub fn show(bytes: &[u8]) -> String {
    const SHOWN_MAX: usize = 4096;
    let text = bytes[..bytes.len().min(SHOWN_MAX)].escape_ascii().to_string();
    text.replace("\\r\\n", "\\r\\n\n")
}

/// SplitMix64 (Steele, Lea, Flood 2014): one seed replays a run.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use super::*;
    use crate::{Echo, GiveUp, NoWork, SharedFile};

    /// The panic message of a replay that must fail.
    fn complaint<S: Session>(open: impl Fn() -> S, script: &Script) -> String {
        let failed = catch_unwind(AssertUnwindSafe(|| replay(open, script)));
        *failed.expect_err("the script is wrong").downcast().unwrap()
    }

    #[test]
    fn script_holds_both_sides() {
        let script = Script::new().send("a").send("b").expect("c").expect("d");
        assert_eq!(script.sent(), b"ab");
        assert_eq!(script.expected(), Some(&b"cd"[..]));
        assert!(!script.closes() && script.closed().closes());
        assert_eq!(Script::new().expected(), None);
    }

    #[test]
    fn difference_is_shown_with_its_offset() {
        let said = complaint(|| Echo, &Script::new().send("abc\r\n").expect("abx\r\n"));
        let shown = "replies differ at byte 2 (cut: whole)\n--- got\nabc\\r\\n\n\n--- expected\nabx\\r\\n\n";
        assert_eq!(said, shown);
    }

    #[test]
    fn close_must_match_the_script() {
        let said = complaint(|| Echo, &Script::new().send("a\n").closed());
        assert!(said.contains("closed (whole); replies: a"), "{said}");
        let said = complaint(|| Echo, &Script::new().send("bye\n"));
        assert!(said.contains("closed (whole); replies: bye"), "{said}");
        let replayed = replay(|| Echo, &Script::new().send("a\nbye\nb\n").closed());
        assert_eq!((&replayed.replied[..], replayed.closed), (&b"a\nbye\n"[..], true));
    }

    /// Replies to each piece of input with its length.
    struct Lengths;

    impl Session for Lengths {
        type Work = NoWork;

        fn receive(&mut self, input: &[u8], _: Now, out: &mut Outbox) -> Received {
            out.put(format!("{} ", input.len()).as_bytes());
            Received { used: input.len(), next: Next::Receive(Phase::Idle) }
        }
    }

    #[test]
    fn cut_dependence_is_found() {
        let said = complaint(|| Lengths, &Script::new().send("abc"));
        assert!(said.starts_with("replies differ at byte 0 (cut: EveryByte)"), "{said}");
    }

    #[test]
    fn seeds_differ_and_repeat() {
        let sent = [b'x'; 5_000];
        let cut = |seed| run(Lengths, &sent, Cutting::Seeded(seed)).replied;
        let all: BTreeSet<Vec<u8>> = (1..=CUTTINGS).map(cut).collect();
        assert_eq!(all.len(), CUTTINGS as usize);
        assert_eq!(cut(7), cut(7));
        assert_eq!(run(Lengths, b"abc", Cutting::Whole).replied, b"3 ");
        assert_eq!(run(Lengths, b"abc", Cutting::EveryByte).replied, b"1 1 1 ");
    }

    /// Fills the outbox.
    struct Filler;

    impl Session for Filler {
        type Work = NoWork;

        fn receive(&mut self, input: &[u8], _: Now, out: &mut Outbox) -> Received {
            while !out.is_full() {
                out.put(b"x");
            }
            Received { used: input.len(), next: Next::Receive(Phase::Idle) }
        }
    }

    #[test]
    fn seeds_vary_the_watermark() {
        let filled = |cutting| run(Filler, b"x", cutting).replied.len();
        assert_eq!(filled(Cutting::Whole), 65_536);
        let sizes: BTreeSet<usize> =
            (1..=CUTTINGS).map(|seed| filled(Cutting::Seeded(seed))).collect();
        assert_eq!(sizes.len(), CUTTINGS as usize);
        assert!(sizes.iter().all(|size| (1..=70_000).contains(size)), "{sizes:?}");
    }

    /// Replies to each piece whether an earlier reply was still queued.
    struct Waiting;

    impl Session for Waiting {
        type Work = NoWork;

        fn receive(&mut self, input: &[u8], _: Now, out: &mut Outbox) -> Received {
            let said: &[u8] = if out.is_empty() { b"free\n" } else { b"waiting\n" };
            out.put(said);
            Received { used: input.len(), next: Next::Receive(Phase::Idle) }
        }
    }

    /// A driver may show input while output waits; in the end all is sent.
    #[test]
    fn seeds_hold_output_back() {
        let replied = |cutting| run(Waiting, &[b'x'; 2_000], cutting).replied;
        assert_eq!(replied(Cutting::EveryByte), b"free\n".repeat(2_000));
        let mut waited = 0;
        for seed in 1..=CUTTINGS {
            let replied = String::from_utf8(replied(Cutting::Seeded(seed))).unwrap();
            assert!(replied.ends_with('\n'), "seed {seed}: {replied}");
            waited += replied.lines().filter(|line| *line == "waiting").count();
        }
        assert!(waited as u64 > CUTTINGS, "{waited} pieces");
    }

    /// Takes `B` and ten bytes, for which it lends a buffer. Replies how many came into the buffer,
    /// and how many as input.
    #[derive(Default)]
    struct Lender {
        buffer: [u8; 10],
        filled: usize,
        copied: usize,
        has_begun: bool,
    }

    impl Lender {
        fn next(&mut self, out: &mut Outbox) -> Next {
            if self.filled + self.copied < 10 {
                return Next::Receive(Phase::Body);
            }
            let Lender { filled, copied, .. } = *self;
            out.put(format!("{filled} filled, {copied} copied\n").as_bytes());
            *self = Lender::default();
            Next::Close
        }
    }

    impl Session for Lender {
        type Work = NoWork;

        fn receive(&mut self, input: &[u8], _: Now, out: &mut Outbox) -> Received {
            self.copied += input.len() - usize::from(!self.has_begun);
            self.has_begun = true;
            Received { used: input.len(), next: self.next(out) }
        }

        fn body_buffer(&mut self) -> &mut [u8] {
            &mut self.buffer[self.filled..]
        }

        fn body_filled(&mut self, len: usize, _: Now, out: &mut Outbox) -> Next {
            self.filled += len;
            self.next(out)
        }
    }

    #[test]
    fn bodies_go_into_the_lent_buffer() {
        let replayed = |cutting| run(Lender::default(), b"B0123456789", cutting);
        assert_eq!(replayed(Cutting::EveryByte).replied, b"10 filled, 0 copied\n");
        assert_eq!(replayed(Cutting::Whole).replied, b"0 filled, 10 copied\n");
        assert!(replayed(Cutting::EveryByte).closed);
    }

    #[test]
    fn body_buffer_is_empty_by_default() {
        assert!(Echo.body_buffer().is_empty());
        let mut out = Outbox::new();
        Lengths.give_up(GiveUp::TimedOut(Phase::Idle), test_now(), &mut out);
        assert!(out.is_empty());
    }

    /// Replies with a part of a file.
    struct Files(Arc<SharedFile>);

    impl Session for Files {
        type Work = NoWork;

        fn receive(&mut self, input: &[u8], _: Now, out: &mut Outbox) -> Received {
            out.put(b"<");
            out.put_file(FileRange {
                file: Arc::clone(&self.0),
                range: 2..6,
                keep: true,
                settled: true,
            });
            out.put(b">");
            Received { used: input.len(), next: Next::Close }
        }
    }

    #[test]
    fn files_are_read_out() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let file = Arc::new(SharedFile::try_from(file).unwrap());
        let open = || Files(Arc::clone(&file));
        replay(open, &Script::new().send("x").expect("<2345>").closed());
    }

    /// The first numbers of its authors' program from seed 0 (prng.di.unimi.it/splitmix64.c).
    #[test]
    fn random_is_splitmix64() {
        let mut random = Random(0);
        let numbers = [(); 3].map(|()| random.below(u64::MAX));
        let known = [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f];
        assert_eq!(numbers, known);
        assert!((0..1_000).all(|_| random.below(7) < 7));
    }
}
