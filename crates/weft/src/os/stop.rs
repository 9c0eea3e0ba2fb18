//! Early end by a signal, for commands that end by themselves: `weft load`, `weft lab`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::os::signals::exit_at_second;
use signal_hook::consts::signal::{SIGINT, SIGTERM};

/// Request to end early, and the signal that made it.
#[derive(Default)]
pub(crate) struct Stop {
    pub(crate) requested: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// Installs handlers for SIGINT and SIGTERM. A second signal ends the process at once.
    ///
    /// # Errors
    /// If handlers cannot be installed.
    pub(crate) fn listen(&self) -> io::Result<()> {
        exit_at_second(&[SIGINT, SIGTERM])?;
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_usize(signal, Arc::clone(&self.signal), signal as usize)?;
            signal_hook::flag::register(signal, Arc::clone(&self.requested))?;
        }
        Ok(())
    }

    /// Exit code of the signal, if one was received.
    pub(crate) fn code(&self) -> Option<u8> {
        let signal = self.signal.load(Ordering::Acquire);
        (signal != 0).then(|| code_of(signal))
    }
}

/// Exit code that a shell shows for a program ended by a signal: 130 for SIGINT, 143 for SIGTERM.
fn code_of(signal: usize) -> u8 {
    128 + signal as u8
}
