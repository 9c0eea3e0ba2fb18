//! Names of closed connections, kept while late segments of theirs may still be in flight.
//!
//! ```text
//!   oldest ◀─▶ entry ◀─▶ entry ◀─▶ newest        all wait equally long, so the list is in order
//! ```
//!
//! An entry has only the data that an answer needs, since a busy server has many. Beyond their
//! limit the oldest is evicted. [`answer`] decides the reaction to a segment.

use std::time::Duration;

use slab::Slab;

use crate::tcp::secret::FourTuple;
use crate::time::Instant;
use crate::wire::tcp::{Flags, Segment, SeqNumber};

/// One name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lingering {
    /// Addresses and ports.
    pub(super) tuple: FourTuple,
    /// Next sequence number to send.
    pub(super) snd_nxt: SeqNumber,
    /// Next sequence number expected.
    pub(super) rcv_nxt: SeqNumber,
    /// The last timestamp of the peer, and the own offset.
    pub(super) timestamps: Option<(u32, u32)>,
    /// True if a SYN that looks old was answered: a peer that means it replies with a RST.
    is_asked: bool,
    /// True once that RST has come: the next SYN is a new connection's.
    is_given_up: bool,
    expires_at: Instant,
    previous: u32,
    next: u32,
}

/// All of them.
#[derive(Debug)]
pub(super) struct TimeWait {
    entries: Slab<Lingering>,
    oldest: u32,
    newest: u32,
}

/// Reaction to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The segment was expected, or needs no reply.
    Nothing,
    /// Acknowledge all that was received.
    Acknowledge,
    /// Acknowledge and restart the wait: the peer did not see the last acknowledgement.
    AcknowledgeAndWait,
    /// Acknowledge, because of a SYN that looks old: [`TimeWait::ask`].
    Ask,
    /// Take the peer's RST in reply to that: [`TimeWait::give_up`].
    GiveUp,
    /// A SYN of a new connection, which may have the name at once.
    Reopen,
}

const NONE: u32 = u32::MAX;

impl TimeWait {
    /// An empty list.
    pub(super) fn new() -> TimeWait {
        TimeWait { entries: Slab::new(), oldest: NONE, newest: NONE }
    }

    /// Number of names.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// An entry.
    pub(super) fn get(&self, index: u32) -> &Lingering {
        &self.entries[index as usize]
    }

    /// The one that waits longest, and until when.
    pub(super) fn oldest(&self) -> Option<(u32, Instant)> {
        (self.oldest != NONE).then(|| (self.oldest, self.get(self.oldest).expires_at))
    }

    /// Adds a name and returns its number.
    pub(super) fn add(
        &mut self,
        tuple: FourTuple,
        (snd_nxt, rcv_nxt): (SeqNumber, SeqNumber),
        timestamps: Option<(u32, u32)>,
        expires_at: Instant,
    ) -> u32 {
        let entry = Lingering {
            tuple,
            snd_nxt,
            rcv_nxt,
            timestamps,
            is_asked: false,
            is_given_up: false,
            expires_at,
            previous: NONE,
            next: NONE,
        };
        let index = self.entries.insert(entry) as u32;
        self.link(index);
        index
    }

    /// Restarts the wait.
    pub(super) fn restart(&mut self, now: Instant, wait: Duration, index: u32) {
        self.unlink(index);
        self.entries[index as usize].expires_at = now + wait;
        self.link(index);
    }

    /// Notes that a SYN that looks old was answered.
    pub(super) fn ask(&mut self, index: u32) {
        self.entries[index as usize].is_asked = true;
    }

    /// Notes that the peer has forgotten the old connection. The name still waits, against late
    /// segments, but the next SYN may have it.
    pub(super) fn give_up(&mut self, index: u32) {
        self.entries[index as usize].is_given_up = true;
    }

    /// Removes a name.
    pub(super) fn remove(&mut self, index: u32) {
        self.unlink(index);
        self.entries.remove(index as usize);
    }

    fn link(&mut self, index: u32) {
        let newest = self.newest;
        let entry = &mut self.entries[index as usize];
        (entry.previous, entry.next) = (newest, NONE);
        match newest {
            NONE => self.oldest = index,
            newest => self.entries[newest as usize].next = index,
        }
        self.newest = index;
    }

    fn unlink(&mut self, index: u32) {
        let Lingering { previous, next, .. } = *self.get(index);
        match previous {
            NONE => self.oldest = next,
            previous => self.entries[previous as usize].next = next,
        }
        match next {
            NONE => self.newest = previous,
            next => self.entries[next as usize].previous = previous,
        }
    }
}

/// RFC 9293 3.10.7.4 for TIME-WAIT, but for most RSTs; RFC 6191 for the SYN. A new connection has
/// timestamps if its SYN has and `has_timestamps`.
pub(super) fn answer(entry: &Lingering, segment: &Segment<'_>, has_timestamps: bool) -> Answer {
    let is_next = segment.seq == entry.rcv_nxt;
    if segment.flags.contains(Flags::RST) {
        // RFC 1337 3 (F1): an old segment causes an acknowledgement, to which a peer that has
        // forgotten the connection replies with just the RST that would end the wait. A peer that
        // has sent a SYN before wants another connection: its timestamps may begin anew.
        return if is_next && entry.is_asked { Answer::GiveUp } else { Answer::Nothing };
    }
    if segment.flags.contains(Flags::SYN) && segment.ack.is_none() {
        let may_reopen = entry.is_given_up || is_new(entry, segment, has_timestamps);
        return if may_reopen { Answer::Reopen } else { Answer::Ask };
    }
    // The FIN that led to TIME-WAIT. An older one, or one of another connection, is not acceptable.
    if segment.flags.contains(Flags::FIN) && segment.seq + segment.seq_len() == entry.rcv_nxt {
        return Answer::AcknowledgeAndWait;
    }
    if is_next && segment.seq_len() == 0 { Answer::Nothing } else { Answer::Acknowledge }
}

/// RFC 6191 2: by a later timestamp, or with an equal one by a later sequence number. If the old
/// connection had no timestamps, they alone distinguish the segments of the new one.
fn is_new(entry: &Lingering, segment: &Segment<'_>, has_timestamps: bool) -> bool {
    let is_later = segment.seq - entry.rcv_nxt > 0;
    let offered = segment.options.timestamps.filter(|_| has_timestamps);
    match (entry.timestamps, offered) {
        (Some((recent, _)), Some((value, _))) => match value.wrapping_sub(recent) as i32 {
            0 => is_later,
            ahead => ahead > 0,
        },
        (None, Some(_)) => true,
        _ => is_later,
    }
}
