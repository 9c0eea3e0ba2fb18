//! Child processes, as [`std::process`] has them: starting one never blocks a processor, and a
//! fiber waits for its end and talks through its pipes while others run.
//!
//! ```
//! use weftwork_fiber::process::{Command, Stdio};
//! use std::io::{Read, Write};
//!
//! weftwork_fiber::run(|| {
//!     let mut command = Command::new("cat");
//!     let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
//!     child.stdin.take().unwrap().write_all(b"through a child").unwrap();
//!     let mut answer = String::new();
//!     child.stdout.take().unwrap().read_to_string(&mut answer).unwrap();
//!     assert_eq!(answer, "through a child");
//!     assert!(child.wait().unwrap().success());
//! });
//! ```
//!
//! # Fork and exec
//!
//! All descriptors of the runtime close on exec: rings, epoll instances, eventfds, sockets, pipes.
//! `Command` starts children with `posix_spawn` or fork-and-exec, which is always safe. A bare
//! `fork(2)` copies the calling thread only: see the notes at [`Runtime`](crate::Runtime).

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

pub use std::process::{ExitStatus, Output, Stdio};

use crate::io::cancel::checkpoint;
use crate::io::offload::{keep_thread, offload};
use crate::io::op::sleep;
use crate::net::socket::SocketKind;
use crate::net::{PipeReader, PipeWriter, Socket};
use crate::sched::block::suspendable;

/// Pause between two checks of a child without a pidfd, and the longest: each further one is twice
/// as long.
const LOOK_PAUSE: Duration = Duration::from_millis(1);
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(64);

/// A program to start, as [`std::process::Command`].
#[derive(Debug)]
pub struct Command {
    inner: std::process::Command,
    is_set: StreamsSet,
}

/// Standard streams that have been set, as far as is known.
#[derive(Clone, Copy, Debug, Default)]
struct StreamsSet {
    stdin: bool,
    stdout: bool,
    stderr: bool,
}

/// A child process, as [`std::process::Child`]. Dropping it neither kills it nor waits for it.
pub struct Child {
    /// Pipe to its standard input, if that is [`Stdio::piped`].
    pub stdin: Option<PipeWriter>,
    /// Pipe from its standard output, if that is [`Stdio::piped`].
    pub stdout: Option<PipeReader>,
    /// Pipe from its standard error, if that is [`Stdio::piped`].
    pub stderr: Option<PipeReader>,
    inner: std::process::Child,
    /// Readable once it has ended (pidfd_open(2)).
    ended: Option<Socket>,
}

impl Command {
    /// Starts `program`, which is looked up in `PATH`.
    pub fn new(program: impl AsRef<OsStr>) -> Command {
        let inner = std::process::Command::new(program);
        Command { inner, is_set: StreamsSet::default() }
    }

    /// Adds an argument.
    pub fn arg(&mut self, argument: impl AsRef<OsStr>) -> &mut Command {
        self.inner.arg(argument);
        self
    }

    /// Adds arguments.
    pub fn args(&mut self, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> &mut Command {
        self.inner.args(arguments);
        self
    }

    /// Sets a variable of its environment.
    pub fn env(&mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Command {
        self.inner.env(key, value);
        self
    }

    /// Removes a variable of its environment.
    pub fn env_remove(&mut self, key: impl AsRef<OsStr>) -> &mut Command {
        self.inner.env_remove(key);
        self
    }

    /// Lets it inherit nothing of the environment.
    pub fn env_clear(&mut self) -> &mut Command {
        self.inner.env_clear();
        self
    }

    /// Its working directory.
    pub fn current_dir(&mut self, directory: impl AsRef<Path>) -> &mut Command {
        self.inner.current_dir(directory);
        self
    }

    /// Sets its standard input.
    pub fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Command {
        self.inner.stdin(stdin);
        self.is_set.stdin = true;
        self
    }

    /// Sets its standard output.
    pub fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Command {
        self.inner.stdout(stdout);
        self.is_set.stdout = true;
        self
    }

    /// Sets its standard error.
    pub fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Command {
        self.inner.stderr(stderr);
        self.is_set.stderr = true;
        self
    }

    /// The command of the standard library, for what this one does not pass on. Standard streams
    /// are set here: [`output`](Command::output) does not see which are set there, takes standard
    /// input to be, and captures the others.
    pub fn as_std_mut(&mut self) -> &mut std::process::Command {
        self.is_set.stdin = true;
        &mut self.inner
    }

    /// Sets the standard streams that the user has not set.
    fn set_others(&mut self, stdin: Stdio, outputs: fn() -> Stdio) {
        let StreamsSet { stdin: has_stdin, stdout: has_stdout, stderr: has_stderr } = self.is_set;
        if !has_stdin {
            self.inner.stdin(stdin);
        }
        if !has_stdout {
            self.inner.stdout(outputs());
        }
        if !has_stderr {
            self.inner.stderr(outputs());
        }
    }

    /// Starts the child, on an offload thread: looking up and loading a program reads from disks.
    /// The thread stays as long as the process, because a child that has asked to die with its
    /// parent (`PR_SET_PDEATHSIG`) dies with the thread that has started it.
    ///
    /// # Errors
    /// Like [`std::process::Command::spawn`].
    pub fn spawn(&mut self) -> io::Result<Child> {
        let mut inner = offload(|| {
            keep_thread();
            self.inner.spawn()
        })?;
        // The child is not reaped before `wait`, so its number is its own.
        let pid = i32::try_from(inner.id()).ok().and_then(Pid::from_raw);
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Ok(Child {
            stdin: inner.stdin.take().map(|pipe| OwnedFd::from(pipe).into()),
            stdout: inner.stdout.take().map(|pipe| OwnedFd::from(pipe).into()),
            stderr: inner.stderr.take().map(|pipe| OwnedFd::from(pipe).into()),
            inner,
            ended: pidfd.map(|pidfd| Socket::new(pidfd, SocketKind::Other)),
        })
    }

    /// Runs the child to its end; it shares this process's standard streams unless they are set.
    ///
    /// # Errors
    /// Like [`spawn`](Command::spawn) and [`Child::wait`].
    pub fn status(&mut self) -> io::Result<ExitStatus> {
        self.spawn()?.wait()
    }

    /// Runs the child to its end and returns what it wrote, unless its streams are set otherwise.
    /// It reads nothing unless `stdin` is set.
    ///
    /// # Errors
    /// Like [`spawn`](Command::spawn) and [`Child::wait_with_output`].
    pub fn output(&mut self) -> io::Result<Output> {
        self.set_others(Stdio::null(), Stdio::piped);
        let spawned = self.spawn();
        // The next child has the streams that it would have had.
        self.set_others(Stdio::inherit(), Stdio::inherit);
        spawned?.wait_with_output()
    }
}

impl From<std::process::Command> for Command {
    /// Its standard streams are as after [`as_std_mut`](Command::as_std_mut).
    fn from(inner: std::process::Command) -> Command {
        Command { inner, is_set: StreamsSet { stdin: true, ..StreamsSet::default() } }
    }
}

impl Child {
    /// Its process number.
    pub fn id(&self) -> u32 {
        self.inner.id()
    }

    /// Waits until it has ended. Closes its standard input first, as `std` does, so that it does
    /// not wait for more.
    ///
    /// # Errors
    /// `TimedOut` past the deadline of [`timeout`](crate::timeout); the child then lives on. Else
    /// what `waitid(2)` reports.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        drop(self.stdin.take());
        let Some(ended) = &self.ended else {
            return self.wait_by_looks();
        };
        loop {
            if let Some(status) = self.inner.try_wait()? {
                return Ok(status);
            }
            ended.wait_readable()?;
        }
    }

    /// Waits without a pidfd: a kernel before Linux 5.3, a container that allows none, or no
    /// descriptor left. Not on an offload thread, which would wait past a deadline.
    fn wait_by_looks(&mut self) -> io::Result<ExitStatus> {
        if suspendable().is_none() {
            return self.inner.wait();
        }
        let mut pause = LOOK_PAUSE;
        loop {
            if let Some(status) = self.inner.try_wait()? {
                return Ok(status);
            }
            checkpoint()?;
            sleep(pause);
            pause = (2 * pause).min(LOOK_PAUSE_MAX);
        }
    }

    /// Exit status; `None` if it has not ended.
    ///
    /// # Errors
    /// Errors of `waitid(2)`.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.inner.try_wait()
    }

    /// Kills it (SIGKILL). It is still to be waited for.
    ///
    /// # Errors
    /// Errors of `kill(2)`.
    pub fn kill(&mut self) -> io::Result<()> {
        self.inner.kill()
    }

    /// Reads all that it writes, both streams at once, and waits until it has ended.
    ///
    /// # Errors
    /// Errors of reading or [`wait`](Child::wait), which both end when the fiber is cancelled
    /// and at the deadline of [`timeout`](crate::timeout).
    pub fn wait_with_output(mut self) -> io::Result<Output> {
        drop(self.stdin.take());
        let (stdout, stderr) = read_both(self.stdout.take(), self.stderr.take());
        let status = self.wait()?;
        Ok(Output { status, stdout: stdout?, stderr: stderr? })
    }
}

/// Reads both to their ends at the same time: a child that has filled one pipe stops writing to the
/// other.
fn read_both(
    stdout: Option<PipeReader>,
    stderr: Option<PipeReader>,
) -> (io::Result<Vec<u8>>, io::Result<Vec<u8>>) {
    let whole = |pipe: Option<PipeReader>| {
        let mut content = Vec::new();
        pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut content))?;
        Ok(content)
    };
    // A panic of the fiber that reads is a bug, and is passed on.
    if suspendable().is_some() {
        crate::scope(|scope| {
            let errors = scope.spawn(move || whole(stderr));
            let output = whole(stdout);
            // That fiber does not see the caller's deadline or cancellation.
            let waited = match &output {
                Ok(_) => errors.wait(),
                Err(_) => Ok(()),
            };
            if output.is_err() || waited.is_err() {
                scope.cancel_all();
            }
            let errors = errors.join().expect("a reader of a pipe");
            (output, waited.and(errors))
        })
    } else {
        std::thread::scope(|scope| {
            let errors = scope.spawn(move || whole(stderr));
            (whole(stdout), errors.join().expect("a reader of a pipe"))
        })
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child").field("id", &self.id()).finish_non_exhaustive()
    }
}
