//! `select(2)`: three bitmaps, from descriptor 0 to the highest, with every call.
//!
//! The 1,024 of `FD_SETSIZE` are a limit of the C library's type. The kernel takes bitmaps of any
//! length.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use crate::table::Table;
use crate::{Dispatcher, Interest, Readiness, Ready, Token, Trigger, sys};

/// `select(2)`, also beyond 1,024 descriptors.
///
/// It has no bit for a hang-up. With [`Interest::READ`] that shows as readable; with
/// [`Interest::WRITE`] alone and a full send buffer it does not show at all (Unix sockets; a TCP
/// connection without a peer is writable).
#[derive(Default)]
pub struct Select {
    tokens: Table<Token>,
    wanted: Bitmaps,
    found: Bitmaps,
}

/// One bit for each descriptor from 0 on. Each as long as the highest descriptor needs.
#[derive(Clone, Default)]
struct Bitmaps {
    reads: Vec<u64>,
    writes: Vec<u64>,
}

impl Select {
    /// A dispatcher that watches nothing yet.
    #[must_use]
    pub fn new() -> Select {
        Select::default()
    }

    /// One of the descriptors was closed while it was watched: `select` fails without saying which.
    fn forget_closed(&mut self, ready: &mut Vec<Ready>) {
        let closed: Vec<_> = self
            .tokens
            .iter()
            .filter(|(fd, _)| !sys::is_open(*fd))
            .collect();
        let closed: Vec<_> = closed.into_iter().map(|(fd, token)| (fd, *token)).collect();
        for (fd, token) in closed {
            ready.push(Ready {
                token,
                readiness: Readiness::ERROR,
            });
            self.wanted.clear(fd);
            self.tokens
                .remove(fd)
                .expect("it was just found in the table");
        }
    }
}

impl Bitmaps {
    fn set(&mut self, fd: RawFd, interest: Interest) {
        let (word, bit) = place(fd);
        if word >= self.reads.len() {
            self.reads.resize(word + 1, 0);
            self.writes.resize(word + 1, 0);
        }
        self.clear(fd);
        self.reads[word] |= if interest.reads() { bit } else { 0 };
        self.writes[word] |= if interest.writes() { bit } else { 0 };
    }

    fn clear(&mut self, fd: RawFd) {
        let (word, bit) = place(fd);
        self.reads[word] &= !bit;
        self.writes[word] &= !bit;
    }

    /// The words up to the last with a bit in it.
    fn words(&self) -> usize {
        let either = self
            .reads
            .iter()
            .zip(&self.writes)
            .rposition(|(r, w)| r | w != 0);
        either.map_or(0, |last| last + 1)
    }
}

fn place(fd: RawFd) -> (usize, u64) {
    (fd as usize / 64, 1 << (fd % 64))
}

impl Dispatcher for Select {
    fn add(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        self.tokens.insert(fd.as_raw_fd(), token)?;
        self.wanted.set(fd.as_raw_fd(), interest);
        Ok(())
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, token: Token, interest: Interest) -> io::Result<()> {
        *self.tokens.get_mut(fd.as_raw_fd())? = token;
        self.wanted.set(fd.as_raw_fd(), interest);
        Ok(())
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.tokens.remove(fd.as_raw_fd())?;
        self.wanted.clear(fd.as_raw_fd());
        Ok(())
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> io::Result<()> {
        ready.clear();
        let words = self.wanted.words();
        // The kernel answers in place, so it gets copies.
        self.found.reads.clone_from(&self.wanted.reads);
        self.found.writes.clone_from(&self.wanted.writes);
        let found = &mut self.found;
        match sys::select(
            &mut found.reads[..words],
            &mut found.writes[..words],
            timeout,
        ) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => {
                self.forget_closed(ready);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        for word in 0..words {
            let (reads, writes) = (self.found.reads[word], self.found.writes[word]);
            let mut either = reads | writes;
            while either != 0 {
                let bit = either & either.wrapping_neg();
                either ^= bit;
                let fd = (word * 64) as RawFd + bit.trailing_zeros() as RawFd;
                let mut readiness = Readiness::default();
                if reads & bit != 0 {
                    readiness |= Readiness::READABLE;
                }
                if writes & bit != 0 {
                    readiness |= Readiness::WRITABLE;
                }
                ready.push(Ready {
                    token: *self.tokens.get_mut(fd)?,
                    readiness,
                });
            }
        }
        Ok(())
    }

    fn trigger(&self) -> Trigger {
        Trigger::Level
    }

    fn tells_end(&self) -> bool {
        false
    }
}
