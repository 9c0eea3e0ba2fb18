//! The wish to stop of commands that end by themselves: `weft load`, `weft lab`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::os::signals::exit_at_second;
use signal_hook::consts::signal::{SIGINT, SIGTERM};

/// The request to end early, and the signal that made it.
#[derive(Default)]
pub(crate) struct Stop {
    pub(crate) wish: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// Takes SIGINT and SIGTERM from now on. A second one ends the process at once.
    ///
    /// # Errors
    /// If handlers cannot be installed.
    pub(crate) fn listen(&self) -> io::Result<()> {
        exit_at_second(&[SIGINT, SIGTERM])?;
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_usize(signal, Arc::clone(&self.signal), signal as usize)?;
            signal_hook::flag::register(signal, Arc::clone(&self.wish))?;
        }
        Ok(())
    }

    pub(crate) fn is_wished(&self) -> bool {
        self.wish.load(Ordering::Relaxed)
    }

    /// The exit code, if a signal came.
    pub(crate) fn code(&self) -> Option<u8> {
        let signal = self.signal.load(Ordering::Acquire);
        (signal != 0).then(|| code_of(signal))
    }
}

/// What a shell says of a program that a signal ended: 130 for SIGINT, 143 for SIGTERM.
fn code_of(signal: usize) -> u8 {
    128 + signal as u8
}
