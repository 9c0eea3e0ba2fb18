//! The types of `tls` in a build without the feature; they have no values.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use session::{Outbox, TlsFacts};

use crate::memory::Memory;
use crate::tls::Tls;

/// State of TLS on a connection, which cannot exist.
pub(crate) struct TlsConnection {
    never: Infallible,
    pub(super) has_ended: bool,
}

impl TlsConnection {
    pub(crate) fn new(tls: &Arc<Tls>) -> Box<TlsConnection> {
        match **tls {}
    }

    pub(super) fn has_begun(&self) -> bool {
        match self.never {}
    }

    pub(super) fn begin(&mut self, _memory: &Arc<Memory>) -> io::Result<()> {
        match self.never {}
    }

    pub(super) fn charge(&mut self, _memory: &Arc<Memory>) -> bool {
        match self.never {}
    }

    pub(super) fn buffer_len(&self) -> usize {
        match self.never {}
    }

    pub(super) fn is_handshaking(&self) -> bool {
        match self.never {}
    }

    pub(super) fn facts(&self) -> TlsFacts<'_> {
        match self.never {}
    }

    pub(super) fn open(&mut self, _input: &[u8], _show: impl FnMut(&[u8])) -> io::Result<bool> {
        match self.never {}
    }

    pub(super) fn in_the_clear(&self, _error: &io::Error) -> Option<&'static [u8]> {
        match self.never {}
    }

    pub(super) fn seal(&mut self, _out: &mut Outbox, _sealed: &mut Outbox) -> usize {
        match self.never {}
    }

    pub(super) fn end(&mut self, _sealed: &mut Outbox) {
        match self.never {}
    }

    pub(super) fn take_records(&mut self, _sealed: &mut Outbox) {
        match self.never {}
    }
}

pub(crate) fn is_record_whole(_bytes: &[u8]) -> bool {
    false
}
