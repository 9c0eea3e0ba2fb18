//! Signals, as values on a thread of their own.
//!
//! | signal | becomes | the server |
//! |---|---|---|
//! | SIGTERM, SIGINT | [`Signal::Stop`] | drains and exits |
//! | a second one of them | (nothing) | exits at once with status 143 or 130 |
//! | the same one within 200 ms | (nothing: timeout(1) repeats the terminal's signal) | |
//! | SIGHUP | [`Signal::Reload`] | reloads |
//! | SIGHUP, and its terminal is gone | [`Signal::Stop`] | drains and exits |
//! | SIGUSR1 | [`Signal::Dump`] | prints its state |
//! | SIGPIPE | (ignored) | gets `EPIPE` from the call |

use std::fs::{self, File};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::{Handle, Signals as Pending};
use signal_hook::low_level;

/// The request that a signal makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGTERM, SIGINT from Ctrl-C, SIGHUP because the server's terminal was closed: stop, and let
    /// requests finish.
    Stop,
    /// SIGHUP: reload the configuration and reopen the logs.
    Reload,
    /// SIGUSR1: print the state of the server.
    Dump,
}

/// Handlers of signals, and the thread that receives the signals. Dropping it ends the thread.
/// Signals then have no effect, except that a second request to stop still ends the process.
#[derive(Debug)]
pub(crate) struct Signals {
    handle: Handle,
    /// Signals without a receiving thread yet.
    waiting: Option<(Pending, Hangup)>,
    thread: Option<JoinHandle<()>>,
}

impl Signals {
    /// Installs the handlers. Signals are queued until [`start`](Signals::start). Call it once,
    /// before threads start.
    ///
    /// Other threads need no code for signals: the handler only records the signal, and
    /// `SA_RESTART` restarts the interrupted call. Calls that are never restarted, such as poll(2)
    /// and io_uring_enter(2), return `EINTR`. signal(7)
    ///
    /// # Errors
    /// If handlers cannot be installed, or no descriptor can be created.
    pub(crate) fn install() -> io::Result<Signals> {
        let hangup = Hangup::at_start();
        exit_at_second(&[SIGTERM, SIGINT])?;
        let pending = Pending::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
        Ok(Signals { handle: pending.handle(), waiting: Some((pending, hangup)), thread: None })
    }

    /// Calls `act` with each signal, one at a time, on a thread of its own.
    ///
    /// # Errors
    /// If no thread can be created.
    pub(crate) fn start(&mut self, act: impl FnMut(Signal) + Send + 'static) -> io::Result<()> {
        let builder = thread::Builder::new().name("weft-signals".to_owned());
        if let Some((pending, hangup)) = self.waiting.take() {
            self.thread = Some(builder.spawn(move || receive(pending, hangup, act))?);
        }
        Ok(())
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // A panic there has been printed already.
            let _ = thread.join();
        }
    }
}

fn receive(mut pending: Pending, hangup: Hangup, mut act: impl FnMut(Signal)) {
    for number in pending.forever() {
        act(match number {
            SIGTERM | SIGINT => Signal::Stop,
            SIGHUP => hangup.meaning(),
            SIGUSR1 => Signal::Dump,
            other => unreachable!("signal {other} was not asked for"),
        });
    }
}

/// Makes the second of these signals end the process inside the handler, which works even if every
/// thread of the process is stuck. The same signal again within 200 ms does not count.
///
/// # Errors
/// If handlers cannot be installed.
pub(crate) fn exit_at_second(numbers: &[i32]) -> io::Result<()> {
    let first = Arc::new(First::default());
    for &number in numbers {
        let first = Arc::clone(&first);
        let act = move || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let now_ms = now.tv_sec as u64 * 1_000 + now.tv_nsec as u64 / 1_000_000;
            if first.is_before(number, now_ms) {
                // A shell reports a death by signal as 128 + its number.
                low_level::exit(128 + number);
            }
        };
        // SAFETY: the action reads a clock, touches one atomic and calls _exit(2), which are all
        // async-signal-safe, and it neither locks, allocates nor panics. signal-safety(7)
        unsafe { low_level::register(number, act) }?;
    }
    Ok(())
}

/// The first request to stop: the signal's number in the low byte, and above it the time in
/// milliseconds. 0 if there was none.
#[derive(Debug, Default)]
struct First(AtomicU64);

/// Time within which the same signal counts as a repetition. timeout(1) passes each signal on, to
/// its child and to the process group, so one Ctrl-C in a terminal arrives three times.
const REPEAT_MS: u64 = 200;

impl First {
    /// True if an earlier signal has requested a stop, and this one is not its repetition.
    fn is_before(&self, number: i32, now_ms: u64) -> bool {
        let own = now_ms << 8 | number as u64;
        let relaxed = Ordering::Relaxed;
        let Err(first) = self.0.compare_exchange(0, own, relaxed, relaxed) else {
            return false;
        };
        let is_repeated =
            first & 0xFF == number as u64 && now_ms.saturating_sub(first >> 8) < REPEAT_MS;
        !is_repeated
    }
}

/// Meaning of SIGHUP. Daemons take it for "reload". A server in a terminal also gets it when the
/// window is closed, and should end then, unless nohup(1) set the signal to ignored.
#[derive(Clone, Copy, Debug)]
struct Hangup {
    had_terminal: bool,
    was_ignored: bool,
}

impl Hangup {
    fn at_start() -> Hangup {
        Hangup { had_terminal: has_terminal(), was_ignored: is_ignored(SIGHUP) }
    }

    fn meaning(self) -> Signal {
        self.meaning_now(has_terminal())
    }

    fn meaning_now(self, has_terminal: bool) -> Signal {
        if self.had_terminal && !has_terminal && !self.was_ignored {
            Signal::Stop
        } else {
            Signal::Reload
        }
    }
}

/// True with a controlling terminal; without one /dev/tty cannot be opened. tty(4)
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

/// True if this process ignores a signal, by the mask in /proc/self/status. proc(5)
fn is_ignored(number: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0) >> (number - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, Signal as Number, kill_process};
    use signal_hook::consts::SIGPIPE;
    use std::io::{BufRead, BufReader, Lines};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, ChildStdout, Command, Stdio};

    /// A child process with its own signal thread, because signals act on a whole process.
    struct Server {
        child: Child,
        said: Lines<BufReader<ChildStdout>>,
    }

    const CHILD: &str = "WEFT_TEST_SIGNALS_CHILD";

    impl Server {
        fn start() -> Server {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "os::signals::tests::the_child", "--nocapture"])
                .env(CHILD, "1")
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut server =
                Server { said: BufReader::new(child.stdout.take().unwrap()).lines(), child };
            server.expect("ready");
            server
        }

        fn send(&self, number: Number) {
            kill_process(Pid::from_child(&self.child), number).unwrap();
        }

        fn expect(&mut self, word: &str) {
            let line = self.said.find(|line| line.as_ref().is_ok_and(|l| l.contains(word)));
            assert!(line.is_some(), "the child ended before it said {word:?}");
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// Body of the child process of [`Server`]; not a test by itself.
    #[test]
    fn the_child() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let mut signals = Signals::install().unwrap();
        signals.start(|signal| println!("got {signal:?}")).unwrap();
        assert!(is_ignored(SIGPIPE));
        println!("ready");
        // It ends by itself even if the test fails to end it.
        thread::sleep(std::time::Duration::from_secs(20));
    }

    #[test]
    fn each_signal_has_its_meaning() {
        let mut server = Server::start();
        for (number, word) in [
            (Number::USR1, "got Dump"),
            (Number::HUP, "got Reload"),
            (Number::HUP, "got Reload"),
            (Number::TERM, "got Stop"),
        ] {
            server.send(number);
            server.expect(word);
        }
    }

    /// Seen: under timeout(1) Ctrl-C ended a cache at once, without saving its items. Cause: the
    /// terminal sends SIGINT to both processes, and timeout passes its own on. Cure: the same
    /// signal again within 200 ms does not count.
    #[test]
    fn repeated_signal_within_200_ms() {
        let first = First::default();
        assert!(!first.is_before(SIGINT, 5_000), "the first");
        assert!(!first.is_before(SIGINT, 5_000));
        assert!(!first.is_before(SIGINT, 5_199));
        assert!(first.is_before(SIGTERM, 5_001), "another signal");
        assert!(first.is_before(SIGINT, 5_200), "too late for a repetition");
        let first = First::default();
        assert!(!first.is_before(SIGTERM, 0), "right after boot");
        assert!(first.is_before(SIGTERM, 200));
    }

    #[test]
    fn second_request_to_stop_ends_the_process() {
        for (first, second, status) in [
            (Number::TERM, Number::TERM, 143),
            (Number::INT, Number::INT, 130),
            (Number::TERM, Number::INT, 130),
        ] {
            let mut server = Server::start();
            server.send(first);
            server.expect("got Stop");
            // The same signal would not count so soon.
            let ended = loop {
                server.send(second);
                if let Some(ended) = server.child.try_wait().unwrap() {
                    break ended;
                }
                thread::sleep(std::time::Duration::from_millis(20));
            };
            assert_eq!((ended.code(), ended.signal()), (Some(status), None));
        }
    }

    #[test]
    fn closed_terminal_with_and_without_nohup() {
        let meaning = |had_terminal, was_ignored, has_terminal| {
            Hangup { had_terminal, was_ignored }.meaning_now(has_terminal)
        };
        assert_eq!(meaning(true, false, false), Signal::Stop);
        assert_eq!(meaning(true, false, true), Signal::Reload);
        assert_eq!(meaning(true, true, false), Signal::Reload);
        assert_eq!(meaning(false, false, false), Signal::Reload);
    }
}
