//! A scripted peer in virtual time: no socket, no sleep, no clock.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use session::replay::test_now;
use session::{Chunk, FileRange, GiveUp, Next, Now, Outbox, Phase, Received, Session, SharedFile};

use std::time::Instant;

use super::super::{Action, Closed, FileProgress, Machine, Shared, TlsConnection, Unacked};
use crate::buffers::PIECE_LEN_MAX;
use crate::connection::Queues;
use crate::connection::action::{FilePiece, UnackedCheck};
use crate::file::COPIED_PIECE_LEN;
use crate::jobs::tests::Call;
use crate::limits::Limits;

/// A session with a command for each result that a session can return. Lines, answered in order:
/// `say TEXT`, `big LEN`, `file LEN`, `fresh LEN` (of a file that may still change), `flood LINES`,
/// `body LEN` (that many bytes follow), `work`, `duplex PIECES` (input is taken while these wait,
/// and lines are echoed, except `work`, and `stuck`: a request that waits for its peer from then
/// on), `hold LEN` (bytes of memory), `late` (a reply ends with the connection), `refuse`, `bye`.
#[derive(Clone, Debug)]
pub(super) struct Toy {
    state: ToyState,
    /// Works to hand out in Duplex.
    wanted: usize,
    /// In Duplex, a request waits for its peer.
    is_stuck: bool,
    drains: bool,
    /// True if it sends something when drained.
    has_last_words: bool,
    held_len: usize,
    /// Arrival of a request whose reply ends with the connection.
    late: Option<Instant>,
    pub(super) life: Arc<Life>,
}

/// Events that a session received, for inspection by tests.
#[derive(Debug, Default)]
pub(super) struct Life {
    pub(super) drained: AtomicUsize,
    pub(super) closed: AtomicUsize,
}

#[derive(Clone, Debug)]
enum ToyState {
    Lines,
    Flood(usize),
    Body { space: Vec<u8>, filled: usize },
    Work { waits: bool },
    Worked,
    Duplex(usize),
}

/// Length from which a body is received into the session's own space.
const SPACE_LEN_MIN: usize = 100;

pub(super) const FILE_LEN: u64 = 3_000_000;

pub(super) static FILE: LazyLock<Arc<SharedFile>> = LazyLock::new(|| {
    let file = tempfile::tempfile().unwrap();
    let bytes: Vec<u8> = (0..FILE_LEN).map(|at| (at % 251) as u8).collect();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
    Arc::new(SharedFile::try_from(file).unwrap())
});

impl Toy {
    pub(super) fn new() -> Toy {
        Toy {
            state: ToyState::Lines,
            wanted: 0,
            is_stuck: false,
            drains: false,
            has_last_words: false,
            held_len: 0,
            late: None,
            life: Arc::default(),
        }
    }

    /// Answers one line, or returns `None` to wait.
    fn line(&mut self, line: &str, now: Now, out: &mut Outbox) -> Option<Next> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let number = || rest.parse::<usize>().unwrap();
        match word {
            "say" => out.put(format!("{rest}\n").as_bytes()),
            "big" => out.put_shared(Bytes::from(vec![b'b'; number()])),
            "file" | "fresh" => out.put_file(FileRange {
                file: Arc::clone(&FILE),
                range: 0..number() as u64,
                keep: true,
                settled: word == "file",
            }),
            "flood" => self.state = ToyState::Flood(number()),
            "body" => {
                let space = vec![0; number()];
                self.state = ToyState::Body { space, filled: 0 };
            }
            "hold" => self.held_len = number(),
            "late" => self.late = Some(now.monotonic),
            "words" => self.has_last_words = true,
            "duplex" => self.state = ToyState::Duplex(number()),
            "work" => self.state = ToyState::Work { waits: false },
            "wait" => self.state = ToyState::Work { waits: true },
            "refuse" => {
                out.put(b"refused\n");
                return Some(Next::Linger);
            }
            "bye" => return Some(Next::Close),
            word => panic!("no command '{word}'"),
        }
        if matches!(self.state, ToyState::Lines) && !matches!(word, "hold" | "late" | "words") {
            out.end_reply();
        }
        if self.drains && matches!(self.state, ToyState::Lines) {
            return Some(Next::Close);
        }
        None
    }

    /// Answers lines at once, and sends further pieces as space allows.
    fn go_on(&mut self, mut left: usize, input: &[u8], now: Now, out: &mut Outbox) -> Received {
        let mut used = 0;
        while let Some(len) = input[used..].iter().position(|&byte| byte == b'\n') {
            match &input[used..used + len + 1] {
                b"work\n" => self.wanted += 1,
                b"stuck\n" => self.is_stuck = true,
                line => {
                    out.put(line);
                    out.end_reply_since(now.monotonic);
                }
            }
            used += len + 1;
        }
        while left > 0 && !out.is_full() {
            left -= 1;
            out.put(&[b'd'; 100]);
        }
        let has_more = left > 0;
        self.state = if has_more { ToyState::Duplex(left) } else { ToyState::Lines };
        let waits = self.wanted > 0 || self.is_stuck;
        let phase = if waits { Phase::Body } else { Phase::Idle };
        let next = Next::Duplex { phase, has_more };
        Received { used, next }
    }

    /// Answers a complete body.
    fn end_body(&mut self, out: &mut Outbox) {
        if let ToyState::Body { space, filled } = &self.state
            && *filled == space.len()
        {
            let sum: u64 = space.iter().map(|&byte| u64::from(byte)).sum();
            out.put(format!("{} bytes, sum {sum}\n", space.len()).as_bytes());
            self.state = ToyState::Lines;
        }
    }
}

impl Session for Toy {
    type Work = Call;

    fn receive(&mut self, input: &[u8], now: Now, out: &mut Outbox) -> Received {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            if let ToyState::Duplex(left) = self.state {
                let received = self.go_on(left, rest, now, out);
                used += received.used;
                return Received { used, ..received };
            }
            let more = !rest.is_empty() || matches!(self.state, ToyState::Flood(_));
            if out.is_full() && more {
                let next = Next::Flush;
                return Received { used, next };
            }
            match &mut self.state {
                ToyState::Duplex(_) => unreachable!("`Turn` is handled above"),
                ToyState::Flood(0) => self.state = ToyState::Lines,
                ToyState::Flood(left) => {
                    *left -= 1;
                    out.put(&[b'f'; 100]);
                }
                ToyState::Work { .. } => {
                    let next = Next::Work;
                    return Received { used, next };
                }
                ToyState::Worked => {
                    out.put(b"worked\n");
                    self.state = ToyState::Lines;
                }
                ToyState::Body { space, filled } => {
                    let len = rest.len().min(space.len() - *filled);
                    space[*filled..*filled + len].copy_from_slice(&rest[..len]);
                    *filled += len;
                    used += len;
                    self.end_body(out);
                    if matches!(self.state, ToyState::Body { .. }) {
                        let next = Next::Receive(Phase::Body);
                        return Received { used, next };
                    }
                }
                ToyState::Lines => {
                    let Some(len) = rest.iter().position(|&byte| byte == b'\n') else {
                        let phase = if rest.is_empty() { Phase::Idle } else { Phase::Head };
                        let next = Next::Receive(phase);
                        return Received { used, next };
                    };
                    used += len + 1;
                    let line = std::str::from_utf8(&rest[..len]).unwrap();
                    if let Some(next) = self.line(line, now, out) {
                        return Received { used, next };
                    }
                }
            }
        }
    }

    fn take_work(&mut self) -> Option<Call> {
        match self.state {
            ToyState::Work { waits } => Some(Call(|| (), waits)),
            _ => {
                self.wanted = self.wanted.checked_sub(1)?;
                Some(Call(|| (), false))
            }
        }
    }

    fn handle_worked(&mut self, _: Call, now: Now, out: &mut Outbox) -> Next {
        let left = match self.state {
            ToyState::Work { .. } => {
                self.state = ToyState::Worked;
                return Next::Flush;
            }
            ToyState::Duplex(left) => left,
            _ => 0,
        };
        out.put(b"worked\n");
        self.go_on(left, &[], now, out).next
    }

    fn handle_refused(&mut self, _: Call, now: Now, out: &mut Outbox) -> Next {
        out.put(b"refused\n");
        self.go_on(0, &[], now, out).next
    }

    fn body_buffer(&mut self) -> &mut [u8] {
        match &mut self.state {
            ToyState::Body { space, filled } if space.len() - *filled >= SPACE_LEN_MIN => {
                &mut space[*filled..]
            }
            _ => &mut [],
        }
    }

    fn body_filled(&mut self, len: usize, _: Now, out: &mut Outbox) -> Next {
        if let ToyState::Body { filled, .. } = &mut self.state {
            *filled += len;
        }
        self.end_body(out);
        Next::Receive(match self.state {
            ToyState::Body { .. } => Phase::Body,
            _ => Phase::Idle,
        })
    }

    fn give_up(&mut self, reason: GiveUp, _: Now, out: &mut Outbox) {
        if reason != GiveUp::Drained || self.has_last_words {
            out.put(format!("gave up: {reason:?}\n").as_bytes());
        }
    }

    fn drain(&mut self, _: Now, out: &mut Outbox) {
        self.drains = true;
        self.life.drained.fetch_add(1, Ordering::Relaxed);
        out.put(b"draining\n");
    }

    fn held_len(&self) -> usize {
        self.held_len
    }

    fn closed(&mut self, _: Now, out: &mut Outbox) {
        self.late.into_iter().for_each(|asked| out.end_reply_since(asked));
        self.life.closed.fetch_add(1, Ordering::Relaxed);
    }
}

/// A machine, its time, and the bytes that its peer has received.
pub(super) struct World {
    pub(super) machine: Machine<Toy>,
    pub(super) now: Now,
    pub(super) life: Arc<Life>,
    /// Address that the machine gave to the session.
    pub(super) client: Option<SocketAddr>,
    pub(super) got: Vec<u8>,
    /// Most bytes that a send takes. 0: the peer's window is closed.
    pub(super) window: usize,
    /// The file is on the disk; number of bytes read at a time.
    pub(super) is_on_disk: bool,
    pub(super) reads: Vec<u64>,
    /// Length of the file that exists.
    pub(super) file_len: u64,
    /// The file was written after it was announced.
    pub(super) has_changed: bool,
    /// Sent bytes that the peer has not acknowledged.
    pub(super) unacked: Unacked,
    /// Bytes left in the socket's queues.
    pub(super) queues: Queues,
    /// Actions by which the file's bytes were requested.
    pub(super) asked: Vec<OutputAction>,
    /// Number of sends that were marked as the last one.
    pub(super) ends: u32,
}

/// Action by which bytes of the file were requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputAction {
    Pages { len: u64, check: bool },
    Copy(u64),
    Unacked(UnackedCheck),
}

/// The address of the socket, if a setting needs it.
pub(super) const PEER: Option<SocketAddr> =
    Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 40_000));

impl World {
    /// An open connection.
    pub(super) fn new() -> World {
        let mut world = World::accepted(None);
        assert_eq!(world.run(), Blocked::Receive);
        world
    }

    /// A newly accepted connection.
    pub(super) fn accepted(secure: Option<Box<TlsConnection>>) -> World {
        World::of(Arc::new(Shared::new(Limits::default(), None)), secure)
    }

    /// One of several connections of a server, newly accepted.
    pub(super) fn of(shared: Arc<Shared>, secure: Option<Box<TlsConnection>>) -> World {
        World {
            machine: Machine::new(shared, secure, || PEER, test_now()),
            now: test_now(),
            life: Arc::default(),
            client: None,
            got: Vec::new(),
            window: usize::MAX,
            is_on_disk: false,
            reads: Vec::new(),
            file_len: FILE_LEN,
            has_changed: false,
            unacked: Unacked::NONE,
            queues: Queues::default(),
            asked: Vec::new(),
            ends: 0,
        }
    }

    pub(super) fn limits(&self) -> Limits {
        self.machine.shared.limits.clone()
    }

    pub(super) fn pass(&mut self, duration: Duration) {
        self.now.monotonic += duration;
        self.now.since_epoch += duration;
    }

    /// Sends `input` as the peer, then runs the machine.
    pub(super) fn say(&mut self, input: &str) -> Blocked {
        if !input.is_empty() {
            self.machine.handle_input(input.as_bytes(), self.now);
        }
        self.run()
    }

    /// Takes all bytes that the peer has received since the last call.
    pub(super) fn take_got(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.got)).unwrap()
    }

    /// Deadline of the current wait.
    pub(super) fn until(&mut self) -> Instant {
        match self.machine.next_action() {
            Action::Receive { until }
            | Action::Fill { until, .. }
            | Action::Send { until, .. }
            | Action::SendFile(FilePiece { until, .. })
            | Action::ReadFile(FilePiece { until, .. }) => until,
            _ => panic!("the connection does not wait for the peer"),
        }
    }

    /// Checks that nothing happens until a nanosecond before the deadline, then lets it expire.
    pub(super) fn expire(&mut self) -> Blocked {
        let until = self.until();
        let early = until - Duration::from_nanos(1);
        self.pass(early - self.now.monotonic);
        let before = (self.machine.state, self.machine.outgoing.is_some());
        self.machine.handle_timeout(self.now);
        let after = (self.machine.state, self.machine.outgoing.is_some());
        assert_eq!(before, after, "a nanosecond early");
        self.pass(Duration::from_nanos(1));
        let error = io::Error::from(io::ErrorKind::TimedOut);
        self.machine.handle_error(&error, self.now);
        self.run()
    }

    /// Notes that the stream ended together with the last send.
    fn note_end(&mut self) {
        self.ends += 1;
        let action = self.machine.next_action();
        assert!(
            matches!(action, Action::CheckQueues { .. } | Action::Finish | Action::Close(_)),
            "the stream ended"
        );
    }

    /// Does the machine's actions as far as they need nothing from the peer.
    pub(super) fn run(&mut self) -> Blocked {
        for _ in 0..1_000_000 {
            if let Some(blocked) = self.step() {
                return blocked;
            }
        }
        panic!("the connection neither waits nor closes");
    }

    /// Does the next action; returns the reason if that needs the peer.
    pub(super) fn step(&mut self) -> Option<Blocked> {
        let now = self.now;
        match self.machine.next_action() {
            Action::Open(facts) => {
                self.client = facts.client;
                let toy = Toy { life: Arc::clone(&self.life), ..Toy::new() };
                self.machine.handle_opened(toy, now);
            }
            Action::Receive { .. } => return Some(Blocked::Receive),
            Action::Fill { space, .. } => return Some(Blocked::Fill(space.len())),
            Action::Send { .. } | Action::SendFile(_) | Action::ReadFile(_) if self.window == 0 => {
                return Some(Blocked::Send);
            }
            Action::Send { out, is_last, .. } => {
                let mut taken = Vec::new();
                for chunk in out.chunks() {
                    let bytes = match chunk {
                        Chunk::Bytes(bytes) => bytes,
                        Chunk::Shared(bytes, _) => &bytes[..],
                        Chunk::File(_) => break,
                    };
                    taken.extend_from_slice(&bytes[..bytes.len().min(self.window - taken.len())]);
                }
                let ends = is_last && taken.len() as u64 == out.queued_len();
                self.got.extend_from_slice(&taken);
                self.machine.handle_sent(Ok(taken.len() as u64), now);
                if ends {
                    self.note_end();
                }
            }
            Action::SendFile(FilePiece {
                range, len, checks_file: check, share, is_last, ..
            }) => {
                self.asked.push(OutputAction::Pages { len, check });
                let piece_len = len;
                let len = if check && self.has_changed { 0 } else { len };
                let progress = if self.is_on_disk {
                    let bytes = read(range, len.min(share).min(PIECE_LEN_MAX), self.file_len);
                    self.reads.push(bytes.len() as u64);
                    FileProgress::Read(bytes.into())
                } else {
                    let bytes = read(range, len.min(self.window as u64), self.file_len);
                    self.got.extend_from_slice(&bytes);
                    FileProgress::Sent(bytes.len() as u64)
                };
                let is_all = matches!(progress, FileProgress::Sent(len) if len == piece_len);
                self.machine.handle_file_progress(Ok(progress), now);
                if is_last && is_all {
                    self.note_end();
                }
            }
            Action::ReadFile(FilePiece { range, len, share, .. }) => {
                self.asked.push(OutputAction::Copy(len));
                let len_max =
                    if self.is_on_disk { share.min(PIECE_LEN_MAX) } else { COPIED_PIECE_LEN };
                let bytes = read(range, len.min(len_max), self.file_len);
                self.reads.push(bytes.len() as u64);
                if self.has_changed && bytes.len() as u64 == range.len() {
                    let error = io::ErrorKind::InvalidData.into();
                    self.machine.handle_error(&error, now);
                    return None;
                }
                self.machine.handle_read(Ok(bytes.into()), now);
            }
            Action::CheckUnacked(check) => {
                self.asked.push(OutputAction::Unacked(check));
                self.pass(check.after);
                self.machine.handle_unacked(Ok(self.unacked), self.now);
            }
            Action::Turn => self.machine.handle_turn(now),
            Action::Work => {
                if let Some(work) = self.machine.take_work(now) {
                    self.machine.handle_worked(work, now);
                }
            }
            Action::Nothing => return Some(Blocked::Nothing),
            Action::CheckQueues { asks_unsent } => {
                let mut queues = self.queues;
                if !asks_unsent {
                    queues.unsent = 0;
                }
                self.machine.handle_queues(Ok(queues), now);
            }
            Action::Finish => self.machine.handle_finished(Ok(()), now),
            Action::Close(closed) => return Some(Blocked::Closed(closed)),
        }
        None
    }
}

/// Reason why a machine cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocked {
    Receive,
    Fill(usize),
    Send,
    Nothing,
    Closed(Closed),
}

fn read(range: &FileRange, len: u64, file_len: u64) -> Vec<u8> {
    let start = range.range.start;
    let mut bytes = vec![0; len.min(file_len.saturating_sub(start)) as usize];
    let read = rustix::io::pread(range.file.as_fd(), &mut bytes[..], start).unwrap();
    assert_eq!(read, bytes.len());
    bytes
}
