use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};

use crate::file::FileRange;
use crate::log::Log;
use crate::page::SharedPage;

/// Queue of replies: the session appends, the driver sends, in order.
///
/// ```text
///  put(b"HTTP/1.1 200 ...")  put_shared(page)     put_file(range)     put(b"HTTP/1.1 304 ...")
///  ┌──────────────────────┬──────────────────┬───────────────────┬──────────────────────┐
///  │ Bytes, written here  │ Shared, counted  │ File, a range     │ Bytes                │
///  └──────────────────────┴──────────────────┴───────────────────┴──────────────────────┘
///  ▲ consumed: forgotten, because the receiver has a copy
/// ```
///
/// Small bytes are copied: a header and a small body become one piece of memory, sent by one
/// `send`. Above about 16 KB a shared piece costs less CPU, and far above that a file range.
#[derive(Debug)]
pub struct Outbox {
    /// Small bytes of all `Part::Bytes`, in order, from `consumed` on.
    bytes: Vec<u8>,
    consumed: usize,
    parts: VecDeque<Part>,
    /// INVARIANT: the sum of the lengths of the parts.
    queued_len: u64,
    watermark: u64,
    /// Whole replies queued since the driver last asked.
    replies: usize,
    /// Ends of replies that are timed one by one.
    ends: VecDeque<ReplyEnd>,
    /// Bytes that were consumed in all.
    consumed_len: u64,
    log: Option<Log>,
}

#[derive(Debug)]
enum Part {
    Bytes { len: usize },
    Shared(Bytes, Option<Arc<SharedPage>>),
    File(FileRange),
}

/// End of a reply, by its distance from the beginning of all output.
#[derive(Clone, Copy, Debug)]
struct ReplyEnd {
    at: u64,
    asked: Instant,
}

/// One piece of output, as the driver sees it.
#[derive(Clone, Copy, Debug)]
pub enum Chunk<'a> {
    /// Bytes that the session wrote in place.
    Bytes(&'a [u8]),
    /// Immutable bytes that others share: a cached file, a big value. The page that they are a part
    /// of, if it has a place for a table.
    Shared(&'a Bytes, Option<&'a Arc<SharedPage>>),
    /// A range of an open file.
    File(&'a FileRange),
}

/// Queue length in bytes from which [`Outbox::is_full`]: enough for a window of replies in one
/// send, little enough for ten thousand slow readers in memory.
const WATERMARK: u64 = 64 * 1024;

/// Number of parts from which the outbox is full, whatever their length (`IOV_MAX` is 1024).
const PARTS_MAX: usize = 64;

/// Watermark while memory is short: about one reply per connection in memory.
const WATERMARK_LEAN: u64 = 1024;

/// Capacity in bytes that an empty outbox keeps allocated.
const KEPT_CAPACITY: usize = 64 * 1024;

/// Number of ends of replies for which it keeps space.
const KEPT_ENDS: usize = 128;

impl Outbox {
    /// An empty outbox with the usual watermark (64 KiB).
    pub fn new() -> Outbox {
        Outbox::with_watermark(WATERMARK)
    }

    /// An empty outbox that is full from `watermark` bytes on.
    pub(crate) fn with_watermark(watermark: u64) -> Outbox {
        Outbox {
            bytes: Vec::new(),
            consumed: 0,
            parts: VecDeque::new(),
            queued_len: 0,
            watermark,
            replies: 0,
            ends: VecDeque::new(),
            consumed_len: 0,
            log: None,
        }
    }

    // ---- the session's side

    /// True if the session should stop and return [`Next::Flush`](crate::Next::Flush).
    pub fn is_full(&self) -> bool {
        self.fill_len() >= self.watermark || self.parts.len() >= PARTS_MAX
    }

    /// True if at most half of the outbox is in use: a session with more replies may continue.
    pub fn is_half_empty(&self) -> bool {
        self.fill_len() <= self.watermark / 2 && self.parts.len() <= PARTS_MAX / 2
    }

    /// True at twice the limits of a full outbox. Then no more input is taken.
    pub fn is_overfull(&self) -> bool {
        self.fill_len() >= 2 * self.watermark || self.parts.len() >= 2 * PARTS_MAX
    }

    /// Bytes left to send, or bytes of queued log lines, whichever is more.
    #[inline]
    fn fill_len(&self) -> u64 {
        self.queued_len.max(self.log.as_ref().map_or(0, Log::len) as u64)
    }

    /// True while memory is short: then bytes that can be shared should not be copied.
    pub fn is_lean(&self) -> bool {
        self.watermark < WATERMARK
    }

    /// Copies small bytes behind the queued ones.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.grow_bytes(bytes.len());
    }

    /// Lets `write` append small bytes in place, and queues them.
    ///
    /// # Panics
    /// If `write` shortens the vector.
    #[inline]
    pub fn put_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.len();
        write(&mut self.bytes);
        let after = self.bytes.len();
        assert!(after >= before, "put_with shortened the outbox: {after} below {before}");
        self.grow_bytes(after - before);
    }

    /// Queues shared bytes without copying them.
    pub fn put_shared(&mut self, bytes: Bytes) {
        self.put_part(bytes, None);
    }

    /// Queues a part of a page without copying it, and with the page's table.
    ///
    /// # Panics
    /// If the page is shorter.
    pub fn put_page(&mut self, page: &Arc<SharedPage>, range: Range<usize>) {
        self.put_part(page.bytes().slice(range), Some(Arc::clone(page)));
    }

    fn put_part(&mut self, bytes: Bytes, page: Option<Arc<SharedPage>>) {
        if !bytes.is_empty() {
            self.queued_len += bytes.len() as u64;
            self.parts.push_back(Part::Shared(bytes, page));
        }
    }

    /// Queues a range of an open file.
    pub fn put_file(&mut self, range: FileRange) {
        if !range.is_empty() {
            self.queued_len += range.len();
            self.parts.push_back(Part::File(range));
        }
    }

    /// Marks the end of a reply; the driver measures the time until it is sent.
    #[inline]
    pub fn end_reply(&mut self) {
        self.replies += 1;
    }

    /// Marks the end of a reply to a request of time `asked`. For sessions in
    /// [`Next::Duplex`](crate::Next::Duplex), whose outbox may never run empty: each reply is timed
    /// until its own last byte is sent.
    pub fn end_reply_since(&mut self, asked: Instant) {
        let at = self.consumed_len + self.queued_len;
        self.ends.push_back(ReplyEnd { at, asked });
    }

    /// The access log, with one line for each reply, or `None` if it is off.
    pub fn log(&mut self) -> Option<&mut Log> {
        let log = self.log.as_mut()?;
        log.note_put(self.consumed_len + self.queued_len);
        Some(log)
    }

    // ---- the driver's side

    /// Turns the access log on or off, before the first call of the session.
    pub fn set_logged(&mut self, logged: bool) {
        match (logged, &self.log) {
            (true, None) => self.log = Some(Log::default()),
            (false, _) => self.log = None,
            (true, Some(_)) => {}
        }
    }

    /// Sets whether memory is short: then the outbox is full from one kibibyte.
    #[inline]
    pub fn set_lean(&mut self, is_lean: bool) {
        self.watermark = if is_lean { WATERMARK_LEAN } else { WATERMARK };
    }

    /// Bytes of memory that the outbox has allocated, without shared bytes and files.
    #[inline]
    pub fn allocated_len(&self) -> usize {
        self.bytes.capacity()
            + self.parts.capacity() * size_of::<Part>()
            + self.ends.capacity() * size_of::<ReplyEnd>()
            + self.log.as_ref().map_or(0, Log::allocated_len)
    }

    /// True if nothing is left to send.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Bytes left to send, files included.
    pub fn queued_len(&self) -> u64 {
        self.queued_len
    }

    /// The chunk to send next.
    pub fn front(&self) -> Option<Chunk<'_>> {
        self.chunks().next()
    }

    /// All chunks, in order.
    #[inline]
    pub fn chunks(&self) -> impl Iterator<Item = Chunk<'_>> {
        let mut at = self.consumed;
        self.parts.iter().map(move |part| match part {
            Part::Bytes { len } => {
                at += len;
                Chunk::Bytes(&self.bytes[at - len..at])
            }
            Part::Shared(bytes, page) => Chunk::Shared(bytes, page.as_ref()),
            Part::File(range) => Chunk::File(range),
        })
    }

    /// Removes the first `len` bytes, which have been sent.
    ///
    /// # Panics
    /// If fewer than `len` bytes were queued.
    pub fn consume(&mut self, len: u64) {
        assert!(len <= self.queued_len, "consumed {len} of {} queued", self.queued_len);
        self.queued_len -= len;
        self.consumed_len += len;
        let mut left = len;
        while left > 0 {
            let part = self.parts.front_mut().expect("queued_len is the sum of the parts");
            left -= part.consume(left, &mut self.consumed);
            if part.is_empty() {
                self.parts.pop_front();
            }
        }
        self.reclaim();
    }

    /// Removes everything: the connection has ended.
    pub fn clear(&mut self) {
        self.parts.clear();
        self.queued_len = 0;
        self.replies = 0;
        self.ends.clear();
        self.ends.shrink_to(KEPT_ENDS);
        if let Some(log) = &mut self.log {
            log.clear();
        }
        self.reset_bytes();
    }

    /// Number of whole replies since they were last taken.
    #[inline]
    pub fn replies(&self) -> usize {
        self.replies
    }

    /// True if the time of a send is asked for: the end of a reply is queued.
    #[inline]
    pub fn is_timed(&self) -> bool {
        self.replies > 0 || !self.ends.is_empty()
    }

    /// True if a reply that is timed by itself was sent and not [taken](Outbox::take_sent).
    #[inline]
    pub fn has_sent(&self) -> bool {
        (self.ends.front()).is_some_and(|end| end.at <= self.consumed_len)
    }

    /// Takes the replies that are timed one by one and were sent, or all of them, and passes the
    /// time of each to `replied` and the lines of the access log to `read`.
    pub fn take_sent(
        &mut self,
        now: Instant,
        takes_all: bool,
        mut replied: impl FnMut(Duration),
        read: impl FnOnce(&[u8]),
    ) {
        let is_sent = |end: &&ReplyEnd| takes_all || end.at <= self.consumed_len;
        let count = self.ends.iter().take_while(is_sent).count();
        let took = |nth: usize| now.saturating_duration_since(self.ends[nth].asked);
        (0..count).for_each(|nth| replied(took(nth)));
        if let Some(log) = &mut self.log {
            log.note_sent(self.consumed_len);
            log.take_first(count, took, read);
        }
        self.ends.drain(..count);
        if self.ends.is_empty() {
            self.ends.shrink_to(KEPT_ENDS);
        }
    }

    /// Takes the number of whole replies since the last call.
    #[inline]
    pub fn take_replies(&mut self) -> usize {
        std::mem::take(&mut self.replies)
    }

    /// Passes the access-log lines to `read` and clears them. `took(n)` is the time that the nth
    /// reply took.
    pub fn take_log(&mut self, took: impl Fn(usize) -> Duration, read: impl FnOnce(&[u8])) {
        if let Some(log) = &mut self.log {
            log.note_sent(self.consumed_len);
            log.take(took, read);
        }
    }

    fn grow_bytes(&mut self, len: usize) {
        if len == 0 {
            return;
        }
        self.queued_len += len as u64;
        match self.parts.back_mut() {
            Some(Part::Bytes { len: part_len }) => *part_len += len,
            _ => self.parts.push_back(Part::Bytes { len }),
        }
    }

    /// Frees small bytes that were sent, so that a peer which never lets the outbox run empty does
    /// not make it grow. Moves no more bytes than it frees.
    #[inline]
    fn reclaim(&mut self) {
        if self.parts.is_empty() {
            self.reset_bytes();
        } else if self.consumed * 2 >= self.bytes.len() {
            self.bytes.drain(..self.consumed);
            self.consumed = 0;
        }
    }

    fn reset_bytes(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_CAPACITY);
        self.consumed = 0;
    }
}

impl Part {
    /// Removes up to `len` bytes of this part; returns how many.
    fn consume(&mut self, len: u64, bytes_consumed: &mut usize) -> u64 {
        match self {
            Part::Bytes { len: part_len } => {
                let taken = len.min(*part_len as u64);
                *part_len -= taken as usize;
                *bytes_consumed += taken as usize;
                taken
            }
            Part::Shared(bytes, _) => {
                let taken = len.min(bytes.len() as u64);
                bytes.advance(taken as usize);
                taken
            }
            Part::File(range) => {
                let taken = len.min(range.len());
                range.range.start += taken;
                taken
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Part::Bytes { len } => *len == 0,
            Part::Shared(bytes, _) => bytes.is_empty(),
            Part::File(range) => range.is_empty(),
        }
    }
}

impl Default for Outbox {
    fn default() -> Outbox {
        Outbox::new()
    }
}

/// Formatted text is small bytes: `write!(out, "Content-Length: {len}\r\n")`.
impl io::Write for Outbox {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Display for Chunk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Chunk::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Chunk::Shared(bytes, _) => write!(f, "{} shared bytes", bytes.len()),
            Chunk::File(range) => write!(f, "file bytes {:?}", range.range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SharedFile;
    use crate::replay::Random;

    fn file_range(len: u64) -> FileRange {
        let file = Arc::new(SharedFile::try_from(tempfile::tempfile().unwrap()).unwrap());
        FileRange { file, range: 0..len, keep: true, settled: true }
    }

    /// The bytes in memory before the first file.
    fn text(out: &Outbox) -> String {
        let memory = out.chunks().map_while(|chunk| match chunk {
            Chunk::Bytes(bytes) => Some(bytes),
            Chunk::Shared(bytes, _) => Some(&bytes[..]),
            Chunk::File(_) => None,
        });
        memory.map(String::from_utf8_lossy).collect()
    }

    #[test]
    fn small_bytes_join_into_one_chunk() {
        let mut out = Outbox::new();
        out.put(b"head ");
        out.put(b"body");
        assert_eq!(out.chunks().count(), 1);
        assert_eq!(text(&out), "head body");
    }

    #[test]
    fn consume_crosses_all_chunk_kinds() {
        let mut out = Outbox::new();
        out.put(b"0123");
        out.put_shared(Bytes::from_static(b"456789"));
        out.put_file(file_range(10));
        out.put(b"tail");
        out.consume(6);
        assert_eq!(text(&out), "6789");
        out.consume(4 + 3);
        assert!(matches!(out.front(), Some(Chunk::File(range)) if range.range == (3..10)));
        out.consume(7);
        assert_eq!(text(&out), "tail");
        out.consume(4);
        assert!(out.is_empty() && out.queued_len() == 0);
    }

    #[test]
    fn parts_of_a_page_know_their_place() {
        let page = Arc::new(SharedPage::new(Bytes::from_static(b"0123456789")));
        let mut out = Outbox::new();
        out.put_page(&page, 2..9);
        out.put_page(&page, 9..9);
        out.consume(3);
        assert_eq!(text(&out), "5678");
        match out.front() {
            Some(Chunk::Shared(bytes, Some(page))) => assert_eq!(page.place_of(bytes), 5..9),
            other => panic!("{other:?}"),
        }
        out.consume(4);
        assert!(out.is_empty());
    }

    #[test]
    fn pipelining_does_not_grow_it() {
        // Seen: space was freed only when the outbox was empty, which a pipelining peer never lets
        // it be. Cure: sent bytes are freed once they are as many as the unsent ones.
        let mut out = Outbox::new();
        out.put(&[0; 1000]);
        for _ in 0..10_000 {
            out.put(&[1; 1000]);
            out.consume(1000);
        }
        assert_eq!(out.queued_len(), 1000);
        let capacity = out.bytes.capacity();
        assert!(capacity <= 4 * KEPT_CAPACITY, "{capacity} bytes kept");
    }

    /// The bytes of some chunks; those of a file are its offsets.
    fn flat<'a>(chunks: impl Iterator<Item = Chunk<'a>>) -> Vec<u8> {
        chunks
            .flat_map(|chunk| match chunk {
                Chunk::Bytes(bytes) => bytes.to_vec(),
                Chunk::Shared(bytes, _) => bytes.to_vec(),
                Chunk::File(range) => range.range.clone().map(|at| at as u8).collect(),
            })
            .collect()
    }

    #[test]
    fn agrees_with_a_vector() {
        for seed in 0..30 {
            let mut random = Random(seed);
            let mut out = Outbox::new();
            let mut all = Vec::new();
            let mut consumed = 0;
            let file = file_range(0).file;
            for step in 0..150 {
                match random.below(5) {
                    0 | 1 => {
                        let bytes = vec![step as u8; random.below(5000) as usize];
                        out.put(&bytes);
                        all.extend(bytes);
                    }
                    2 => {
                        let bytes = vec![step as u8; random.below(300) as usize];
                        all.extend(&bytes);
                        out.put_shared(bytes.into());
                    }
                    3 => {
                        let range = FileRange {
                            file: Arc::clone(&file),
                            range: 0..random.below(100),
                            keep: true,
                            settled: true,
                        };
                        all.extend(range.range.clone().map(|at| at as u8));
                        out.put_file(range);
                    }
                    _ => {
                        let len = random.below((all.len() - consumed) as u64 + 1);
                        out.consume(len);
                        consumed += len as usize;
                    }
                }
                assert_eq!(out.queued_len(), (all.len() - consumed) as u64, "seed {seed}");
                if step % 10 == 0 {
                    assert!(flat(out.chunks()) == all[consumed..], "seed {seed}, step {step}");
                }
            }
        }
    }

    #[test]
    fn lean_outbox_is_full_soon() {
        let mut out = Outbox::new();
        out.set_lean(true);
        assert!(out.is_lean() && out.allocated_len() == 0);
        out.put(&[0; WATERMARK_LEAN as usize]);
        assert!(out.is_full() && out.allocated_len() >= WATERMARK_LEAN as usize);
        out.set_lean(false);
        assert!(!out.is_full() && !out.is_lean());
    }

    #[test]
    fn many_small_parts_fill_it() {
        let mut out = Outbox::new();
        while !out.is_full() {
            out.put_shared(Bytes::from_static(b"x"));
        }
        assert_eq!(out.queued_len(), PARTS_MAX as u64);
    }

    #[test]
    #[should_panic(expected = "consumed 2 of 1 queued")]
    fn consume_beyond_the_end_panics() {
        let mut out = Outbox::new();
        out.put(b"x");
        out.consume(2);
    }

    #[test]
    fn log_is_off_by_default() {
        let mut out = Outbox::new();
        assert!(out.log().is_none());
        out.set_logged(true);
        out.log().unwrap().text().extend_from_slice(b"line\n");
        let mut seen = Vec::new();
        out.take_log(|_| Duration::ZERO, |lines| seen.extend_from_slice(lines));
        assert_eq!(seen, b"line\n");
        out.take_log(|_| Duration::ZERO, |_| panic!("taken twice"));
    }

    /// Seen (in review): a client of HTTP/2 whose lines are a hundred times longer than its replies
    /// had 16 MB of them wait, which were charged to nothing and never freed.
    #[test]
    fn waiting_log_lines_fill_it() {
        let mut out = Outbox::new();
        out.set_logged(true);
        let now = Instant::now();
        let reply = |out: &mut Outbox| {
            out.put(b"reply");
            out.end_reply_since(now);
            let log = out.log().unwrap();
            log.text().extend_from_slice(&[b'x'; 999]);
            log.put_gap();
            log.text().push(b'\n');
        };
        let mut count = 0;
        while !out.is_overfull() {
            reply(&mut out);
            count += 1;
            assert_eq!(out.is_half_empty(), count <= 32);
            assert_eq!(out.is_full(), count > 65);
        }
        assert_eq!(count, 132);
        assert!(out.allocated_len() >= 132 * (1000 + 5 + size_of::<ReplyEnd>()));
        out.set_lean(true);
        assert!(out.is_overfull());
        out.set_lean(false);
        out.consume(5 * 131);
        out.take_sent(now, false, |_| (), |lines| assert_eq!(lines.len(), 131 * 1008));
        assert!(out.is_half_empty());
        out.consume(5);
        out.take_sent(now, false, |_| (), |lines| assert_eq!(lines.len(), 1008));
        assert!(out.allocated_len() < 200 * 1024, "{} bytes are kept", out.allocated_len());
        (0..100).for_each(|_| reply(&mut out));
        out.clear();
        out.take_log(|_| Duration::ZERO, |_| panic!("the connection has ended"));
        assert!(out.allocated_len() < 200 * 1024, "{} bytes are kept", out.allocated_len());
    }

    #[test]
    fn full_from_64_kib() {
        let mut out = Outbox::default();
        out.put(&[b'x'; 65_535]);
        assert!(!out.is_full());
        out.put(b"x");
        assert!(out.is_full());
        let mut small = Outbox::with_watermark(2);
        small.put(b"x");
        assert!(!small.is_full() && !small.is_empty());
    }

    #[test]
    fn put_with_queues() {
        let mut out = Outbox::new();
        out.put(b"head ");
        out.put_with(|bytes| bytes.extend_from_slice(b"body"));
        out.put_with(|_| {});
        assert_eq!((text(&out), out.queued_len()), ("head body".to_owned(), 9));
        io::Write::write_all(&mut out, b" tail").unwrap();
        io::Write::flush(&mut out).unwrap();
        assert_eq!(text(&out), "head body tail");
        assert_eq!(io::Write::write(&mut out, b"three").unwrap(), 5);
    }

    #[test]
    #[should_panic(expected = "put_with shortened the outbox: 0 below 4")]
    fn put_with_must_not_shorten() {
        let mut out = Outbox::new();
        out.put(b"head");
        out.put_with(Vec::clear);
    }

    #[test]
    fn empty_outbox_keeps_64_kib() {
        let mut out = Outbox::new();
        for _ in 0..2 {
            out.put(&vec![b'x'; 1 << 20]);
            out.put_shared(Bytes::from_static(b"shared"));
            out.clear();
            assert_eq!((out.is_empty(), out.queued_len()), (true, 0));
            assert_eq!((out.bytes.len(), out.bytes.capacity()), (0, 65_536));
            out.put(&vec![b'x'; 1 << 20]);
            out.consume(1 << 19);
            assert!(out.bytes.capacity() >= 1 << 20, "half of it is not sent yet");
            out.consume(1 << 19);
            assert_eq!((out.bytes.len(), out.bytes.capacity()), (0, 65_536));
        }
        out.put(b"next");
        assert_eq!(text(&out), "next");
    }

    #[test]
    fn replies_count_until_taken_or_cleared() {
        let mut out = Outbox::new();
        out.end_reply();
        out.put(b"reply");
        out.end_reply();
        assert_eq!((out.replies(), out.take_replies()), (2, 2));
        assert_eq!((out.replies(), out.take_replies()), (0, 0));
        out.end_reply();
        out.clear();
        assert_eq!(out.take_replies(), 0);
    }

    #[test]
    fn chunks_display() {
        let mut out = Outbox::new();
        out.put(b"head");
        out.put_shared(Bytes::from_static(b"shared"));
        out.put_file(file_range(10));
        let shown: Vec<String> = out.chunks().map(|chunk| chunk.to_string()).collect();
        assert_eq!(shown, ["4 bytes", "6 shared bytes", "file bytes 0..10"]);
    }
}
