//! The terminal of the live view: raw mode, the alternate screen, keys.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};

/// A pressed key, or another reason to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyPress {
    Letter(u8),
    Left,
    Right,
    /// The window has a new size.
    Resized,
    /// A signal, Ctrl-C, or the end of the terminal.
    End,
}

/// The alternate screen. Dropping it restores the terminal.
pub(super) struct AlternateScreen {
    /// Modes of standard input; `None` if it is no terminal, so that there are no keys.
    modes: Option<Termios>,
    is_resized: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
}

impl AlternateScreen {
    /// Switches to it.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(super) fn enter() -> io::Result<AlternateScreen> {
        let screen = AlternateScreen {
            modes: tcgetattr(io::stdin()).ok(),
            is_resized: Arc::default(),
            is_over: Arc::default(),
        };
        signal_hook::flag::register(SIGWINCH, Arc::clone(&screen.is_resized))?;
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&screen.is_over))?;
        }
        if let Some(modes) = &screen.modes {
            let mut raw = modes.clone();
            raw.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
            tcsetattr(io::stdin(), OptionalActions::Flush, &raw)?;
        }
        put("\x1b[?1049h\x1b[?25l")?;
        Ok(screen)
    }

    /// Columns and lines.
    pub(super) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (size.ws_col.into(), size.ws_row.into())
            }
            _ => (80, 24),
        }
    }

    /// Shows these lines in one write, without an empty screen in between.
    ///
    /// # Errors
    /// Errors of standard output.
    pub(super) fn show(&self, lines: &[String]) -> io::Result<()> {
        put(&format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n")))
    }

    /// Waits for a key; `None` at the deadline.
    pub(super) fn key(&self, deadline: Instant) -> Option<KeyPress> {
        loop {
            if self.is_over.load(Ordering::Relaxed) {
                return Some(KeyPress::End);
            }
            if self.is_resized.swap(false, Ordering::Relaxed) {
                return Some(KeyPress::Resized);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            if self.has_input(left) {
                let mut bytes = [0; 16];
                return match rustix::io::read(io::stdin(), &mut bytes) {
                    Ok(0) | Err(_) => Some(KeyPress::End),
                    Ok(len) => Some(key_of(&bytes[..len])),
                };
            }
        }
    }

    /// Waits for input, at most for `patience`. A signal ends the wait: poll(2) is not restarted.
    fn has_input(&self, patience: Duration) -> bool {
        let patience = Timespec::try_from(patience).expect("an interval is short");
        let stdin = io::stdin();
        let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
        let count = usize::from(self.modes.is_some());
        match rustix::event::poll(&mut polled[..count], Some(&patience)) {
            Ok(ready) => ready > 0,
            Err(Errno::INTR) => false,
            Err(_) => true,
        }
    }
}

impl Drop for AlternateScreen {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = put("\x1b[?25h\x1b[?1049l");
        if let Some(modes) = &self.modes {
            let _ = tcsetattr(io::stdin(), OptionalActions::Flush, modes);
        }
    }
}

/// True if there is a terminal that supports escape sequences.
pub(super) fn is_there() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

fn put(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn key_of(bytes: &[u8]) -> KeyPress {
    match bytes {
        // Ctrl-C and Ctrl-D, which have no meaning to the kernel in raw mode.
        [3 | 4, ..] => KeyPress::End,
        b"\x1b[D" | b"\x1bOD" => KeyPress::Left,
        b"\x1b[C" | b"\x1bOC" | b"\t" => KeyPress::Right,
        [b'\x1b', _, ..] => KeyPress::Letter(0),
        [letter, ..] => KeyPress::Letter(letter.to_ascii_lowercase()),
        [] => KeyPress::End,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_terminals() {
        for (bytes, key) in [
            (&b"q"[..], KeyPress::Letter(b'q')),
            (b"P", KeyPress::Letter(b'p')),
            (b"\x1b[C", KeyPress::Right),
            (b"\x1bOD", KeyPress::Left),
            (b"\t", KeyPress::Right),
            (b"\x1b[15~", KeyPress::Letter(0)),
            (b"\x03", KeyPress::End),
            (b"\x1b", KeyPress::Letter(0x1b)),
        ] {
            assert_eq!(key_of(bytes), key, "{bytes:?}");
        }
    }
}
