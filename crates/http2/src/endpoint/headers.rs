//! Header blocks of the peer: requests and trailers.

use super::{CLOSED, CLOSED_TEXT, Call, Draining, Endpoint, OpenBlock, Outcome, Past, StreamEvent};
use super::{WINDOW, protocol};
use crate::abuse::Abuse;
use crate::error::{ErrorCode, Fault, malformed};
use crate::frame::{self, FrameHead, flag};
use crate::priority::Priority;
use crate::request::check_trailers;
use crate::streams::{Stream, StreamKey};

impl Endpoint {
    /// RFC 9113 6.2.
    pub(super) fn take_headers(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        call: &mut Call<'_>,
    ) -> Outcome {
        let mut fragment = frame::without_padding(head, payload)?;
        let mut is_own_parent = false;
        if head.has(flag::PRIORITY) {
            let (parent, rest) = fragment.split_at_checked(5).ok_or(frame::no_priority())?;
            is_own_parent = frame::u31(parent) == head.stream;
            fragment = rest;
        }
        if head.stream.is_multiple_of(2) {
            return Err(protocol("a stream that no client opens"));
        }
        let block = OpenBlock {
            id: head.stream,
            ends: head.has(flag::END_STREAM),
            is_own_parent,
            continuations: 0,
        };
        if head.has(flag::END_HEADERS) {
            return self.take_block(block, fragment, call);
        }
        self.open_block = Some(block);
        self.extend_block(fragment)?;
        Ok(None)
    }

    /// RFC 9113 6.10.
    pub(super) fn take_continuation(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        call: &mut Call<'_>,
    ) -> Outcome {
        let Some(mut block) = self.open_block.take() else {
            return Err(protocol("CONTINUATION without HEADERS"));
        };
        block.continuations += 1;
        if block.continuations > self.limits.continuations_max {
            return Err(NO_END);
        }
        self.extend_block(payload)?;
        if !head.has(flag::END_HEADERS) {
            self.open_block = Some(block);
            return Ok(None);
        }
        // Frees the memory with the block: few blocks are so long.
        let whole = std::mem::take(&mut self.block);
        self.take_block(block, &whole, call)
    }

    fn extend_block(&mut self, fragment: &[u8]) -> Result<(), Fault> {
        if self.block.len() + fragment.len() > self.limits.block_len_max {
            return Err(NO_END);
        }
        self.block.extend_from_slice(fragment);
        Ok(())
    }

    /// Takes a whole header block. It is decoded whatever becomes of its stream, so that the tables
    /// agree. RFC 9113 4.3
    fn take_block(&mut self, block: OpenBlock, bytes: &[u8], call: &mut Call<'_>) -> Outcome {
        call.head.clear();
        if let Err(error) = self.decoder.decode(bytes, &mut call.head.list) {
            let why = error.text();
            return Err(Fault::Connection(ErrorCode::COMPRESSION_ERROR, why));
        }
        if block.id <= self.history.last_id
            && let Some(key) = self.streams.find(block.id)
        {
            return self.take_trailers(key, block.ends, call);
        }
        let past = match self.history.of(block.id) {
            // Trailers of a stream that this end has reset may still come. RFC 9113 5.1
            Past::Forgotten if !call.head.list.has_pseudo_fields() => Past::LocalReset,
            past => past,
        };
        match past {
            Past::Idle => self.take_request(block, call),
            Past::LocalReset => {
                self.counters.late_frames += 1;
                self.charge(Abuse::LateFrames, call.now)?;
                Ok(None)
            }
            Past::Ended => Err(CLOSED),
            // RFC 9113 5.1.1.
            Past::Skipped | Past::Forgotten => Err(protocol("a stream identifier that goes back")),
        }
    }

    fn take_request(&mut self, block: OpenBlock, call: &mut Call<'_>) -> Outcome {
        let OpenBlock { id, ends, .. } = block;
        self.history.open(id);
        if matches!(self.drain, Draining::Final(_)) {
            // RFC 9113 6.8: the client knows that it was not served.
            self.history.note_reset(id);
            self.counters.refused += 1;
            self.charge(Abuse::LateFrames, call.now)?;
            return Ok(None);
        }
        if block.is_own_parent {
            return Err(malformed("a stream that depends on itself")); // RFC 7540 5.3.1
        }
        if self.streams.len() >= usize::from(self.limits.streams_max) {
            self.counters.refused += 1;
            let why = "more streams than SETTINGS_MAX_CONCURRENT_STREAMS";
            return Err(Fault::Stream(ErrorCode::REFUSED_STREAM, why));
        }
        let is_cut = call.head.list.is_cut();
        if !is_cut {
            call.head.check()?;
            if ends && call.head.content_length.is_some_and(|len| len > 0) {
                return Err(malformed("a content-length without content"));
            }
        }
        let mut stream = Stream::new(self.initial_window, WINDOW);
        stream.is_remote_ended = ends;
        stream.received_max = self.limits.body_len_max;
        stream.content_length = call.head.content_length;
        stream.priority = self.initial_priority(id, call.head.priority);
        let stream = self.streams.add(id, stream);
        self.counters.requests += 1;
        // Allows the priority frames that a client may send beside each request.
        self.abuse.give_back(Abuse::Priorities, 4);
        self.abuse.give_back(Abuse::Windows, 2);
        self.abuse.give_back(Abuse::OtherFrames, 2);
        Ok(Some(if is_cut {
            StreamEvent::HeadTooLong { stream }
        } else {
            let has_body = !ends;
            StreamEvent::Request { stream, has_body }
        }))
    }

    /// An earlier PRIORITY_UPDATE overrides the field. RFC 9218 7
    fn initial_priority(&mut self, id: u32, field: Option<Priority>) -> Priority {
        if self.early_priorities.is_empty() {
            return field.unwrap_or_default();
        }
        let early = self.early_priorities.iter().find(|(of, _)| *of == id);
        let priority = early.map(|(_, priority)| *priority);
        self.early_priorities.retain(|(of, _)| *of > id);
        priority.or(field).unwrap_or_default()
    }

    /// Trailers are checked and dropped. RFC 9113 8.1
    fn take_trailers(&mut self, key: StreamKey, ends: bool, call: &mut Call<'_>) -> Outcome {
        let Some(stream) = self.streams.get(key) else {
            return Ok(None);
        };
        if stream.is_remote_ended {
            return Err(Fault::Stream(ErrorCode::STREAM_CLOSED, CLOSED_TEXT));
        }
        if !ends {
            return Err(malformed("trailers without the end of the stream"));
        }
        check_trailers(&call.head.list)?;
        stream.check_length(true)?;
        Ok(self.end_body(key.id()))
    }
}

const NO_END: Fault =
    Fault::Connection(ErrorCode::ENHANCE_YOUR_CALM, "a header block without an end");
