//! Running in the background (`-d`).
//!
//! The process forks while it has only one thread. The parent waits until the child reports that
//! the server is up. So `weft cache -d` fails with the server's message if the server fails, and a
//! script that continues afterwards finds the port open.

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

/// Continues in a new process, and returns there. The old process ends when the new one is up or
/// has ended.
///
/// # Errors
/// Errors of fork(2) and pipe(2).
pub(crate) fn detach() -> Result<Daemon, Failure> {
    let (waiting, ready) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|error| failed("pipe", error.into()))?;
    // SAFETY: this process has one thread (`run` calls this first), so the child may do anything
    // that the parent may. fork(2)
    match unsafe { libc::fork() } {
        -1 => Err(failed("fork", io::Error::last_os_error())),
        0 => {
            drop(waiting);
            // A child of fork(2) is no group leader, so this cannot fail. setsid(2)
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

/// The exit status: 0 after the child's report, else the child's own.
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
    /// Reports that the server is up, and closes the terminal; standard error stays open if it is
    /// still used.
    ///
    /// # Errors
    /// Errors of opening `/dev/null`.
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
