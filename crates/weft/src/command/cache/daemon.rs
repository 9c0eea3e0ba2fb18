//! Running in the background (`-d`).
//!
//! The process forks before it has a second thread. The parent waits until the child says that the
//! server is up. So `weft cache -d` fails when the server fails, with its message, and a script
//! that goes on afterwards finds the port open.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, WaitOptions, waitpid};

use crate::failure::Failure;

/// Ends the wait of the parent.
#[derive(Debug)]
pub(crate) struct Daemon {
    ready: File,
}

/// Goes on in a new process, and returns there. The old process ends when the new one is up or has
/// ended.
///
/// # Errors
/// What fork(2) and pipe(2) report.
pub(crate) fn detach() -> Result<Daemon, Failure> {
    let (waiting, ready) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|error| failed("pipe", error.into()))?;
    // SAFETY: this process has one thread (`run` calls this first), so the child may do whatever
    // the parent might. fork(2)
    match unsafe { libc::fork() } {
        -1 => Err(failed("fork", io::Error::last_os_error())),
        0 => {
            drop(waiting);
            // A child of fork(2) leads no group, so this cannot fail. setsid(2)
            let _ = rustix::process::setsid();
            Ok(Daemon { ready: ready.into() })
        }
        child => {
            drop(ready);
            std::process::exit(wait_for(child, waiting))
        }
    }
}

fn failed(what: &str, error: io::Error) -> Failure {
    Failure::Running(format!("cannot go into the background: {what}: {error}"))
}

/// The exit status: 0 when the child said that it is up, else the child's own.
fn wait_for(child: libc::pid_t, waiting: OwnedFd) -> i32 {
    let mut said = [0];
    if File::from(waiting).read(&mut said).is_ok_and(|len| len == 1) {
        return 0;
    }
    match waitpid(Pid::from_raw(child), WaitOptions::empty()) {
        Ok(Some((_, ended))) => ended.exit_status().unwrap_or(1),
        _ => 1,
    }
}

impl Daemon {
    /// Says that the server is up, and closes the terminal; standard error stays open if it is
    /// still used.
    ///
    /// # Errors
    /// What opening `/dev/null` reports.
    pub(crate) fn report_up(mut self, keeps_stderr: bool) -> io::Result<()> {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(null.as_fd())?;
        rustix::stdio::dup2_stdout(null.as_fd())?;
        if !keeps_stderr {
            rustix::stdio::dup2_stderr(null.as_fd())?;
        }
        self.ready.write_all(&[1])
    }
}
