//! The mechanisms by name.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use crate::dispatcher::{Dispatcher, Trigger};
use crate::epoll::Epoll;
use crate::fdm::Fdm;
use crate::lap::Lap;
use crate::poll::Poll;
use crate::rtsig::{Overflow, RtSig};
use crate::select::Select;
use crate::uring::Uring;

/// Mechanism by name, as a command line offers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// [`Select`].
    Select,
    /// [`Poll`].
    Poll,
    /// [`Fdm`].
    Fdm {
        /// N of the paper, from 3 to 10.
        live: u32,
        /// Length of a sleep.
        nap: Duration,
    },
    /// [`Lap`] with a delay of 10 ms.
    Lap,
    /// [`RtSig`].
    RtSig(Overflow),
    /// [`Epoll`], level-triggered.
    Epoll,
    /// [`Epoll`], edge-triggered.
    EpollEdge,
    /// [`Epoll`], one-shot.
    EpollOneShot,
    /// [`Uring`].
    Uring,
}

impl Mechanism {
    /// All of them.
    pub const ALL: [Mechanism; 12] = [
        Mechanism::Select,
        Mechanism::Poll,
        Mechanism::FDM,
        Mechanism::Lap,
        Mechanism::RtSig(Overflow::Poll),
        Mechanism::RtSig(Overflow::KeptPoll),
        Mechanism::RtSig(Overflow::Select),
        Mechanism::RtSig(Overflow::Signalfd),
        Mechanism::Epoll,
        Mechanism::EpollEdge,
        Mechanism::EpollOneShot,
        Mechanism::Uring,
    ];

    /// [`Fdm`] as published: N = 3, and sleeps of 500 µs.
    pub const FDM: Mechanism = Mechanism::Fdm { live: Fdm::LIVE, nap: Fdm::NAP };

    /// A dispatcher of this mechanism that watches nothing yet.
    ///
    /// # Errors
    ///
    /// Errors of the kernel: `EMFILE`, `ENOMEM`, and `EPERM` or `ENOSYS` where io_uring is denied;
    /// `EBUSY` for a second [`RtSig`] on one thread.
    pub fn open(self) -> io::Result<Box<dyn Dispatcher>> {
        Ok(match self {
            Mechanism::Select => Box::new(Select::new()),
            Mechanism::Poll => Box::new(Poll::new()),
            Mechanism::Fdm { live, nap } => Box::new(Fdm::new(live).with_nap(nap)),
            Mechanism::Lap => Box::new(Lap::new(Lap::DELAY)),
            Mechanism::RtSig(overflow) => Box::new(RtSig::new(overflow)?),
            Mechanism::Epoll => Box::new(Epoll::new(Trigger::Level)?),
            Mechanism::EpollEdge => Box::new(Epoll::new(Trigger::Edge)?),
            Mechanism::EpollOneShot => Box::new(Epoll::new(Trigger::OneShot)?),
            Mechanism::Uring => Box::new(Uring::new()?),
        })
    }

    fn name(self) -> &'static str {
        match self {
            Mechanism::Select => "select",
            Mechanism::Poll => "poll",
            Mechanism::Fdm { .. } => "fdm",
            Mechanism::Lap => "lap",
            Mechanism::RtSig(Overflow::Poll) => "rtsig",
            Mechanism::RtSig(Overflow::KeptPoll) => "rtsig-kept-poll",
            Mechanism::RtSig(Overflow::Select) => "rtsig-select",
            Mechanism::RtSig(Overflow::Signalfd) => "rtsig-signalfd",
            Mechanism::Epoll => "epoll",
            Mechanism::EpollEdge => "epoll-edge",
            Mechanism::EpollOneShot => "epoll-oneshot",
            Mechanism::Uring => "uring",
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

/// The name is not that of a mechanism.
#[derive(Debug)]
pub struct UnknownMechanism(String);

impl fmt::Display for UnknownMechanism {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Mechanism::ALL.map(Mechanism::name).join(", ");
        write!(out, "{:?} is not a dispatcher; there are {names}", self.0)
    }
}

impl std::error::Error for UnknownMechanism {}

impl FromStr for Mechanism {
    type Err = UnknownMechanism;

    fn from_str(name: &str) -> Result<Mechanism, UnknownMechanism> {
        let named = Mechanism::ALL.into_iter().find(|it| it.name() == name);
        named.ok_or_else(|| UnknownMechanism(name.to_owned()))
    }
}
