//! Sandbox of a server: what the process gives up for good once its sockets are open.
//!
//! | layer | holds |
//! |---|---|
//! | [Landlock](files) | files are read beneath the roots and beside the files of the configuration, and written where logs and snapshots lie; no TCP port is bound or connected to; no signal and no abstract socket leaves the process |
//! | [seccomp](calls) | system calls that a server does not make fail with `ENOSYS` |
//! | `no_new_privs` | comes with both: no program gains rights |
//!
//! Both are inherited by the threads that the caller starts afterwards, and bind no others. They
//! cannot be lifted or widened: a reload that needs more has to be a restart. Landlock also holds
//! for requests through io_uring, which seccomp does not see.

mod calls;
mod files;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use files::Granted;

/// Value of `--sandbox`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SandboxMode {
    Off,
    /// As much as the kernel has.
    #[default]
    Try,
    /// Both Landlock and seccomp, or no start.
    Require,
}

/// Right to a path. `File` and the rights below it cover what lies beneath the path's directory,
/// because the file may be replaced by another of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// Read and list a tree.
    Tree,
    /// Read a file.
    File,
    /// Create a file, and write to it.
    Log,
    /// Remove a file.
    Remove,
    /// Read, create, replace and remove a file.
    Replace,
    /// The same in a tree.
    State,
}

/// What a server needs after its start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needs {
    pub(crate) files: Vec<(Right, PathBuf)>,
    /// True if it looks up names in the DNS and connects to other servers.
    pub(crate) is_client: bool,
    /// True if a thread may use io_uring.
    pub(crate) has_rings: bool,
    /// A network device of its own, which is asked for its state while it runs.
    pub(crate) has_device: bool,
}

/// The sandbox of this process, or what is there of one.
#[derive(Debug)]
pub(crate) struct Sandbox {
    granted: Option<Granted>,
    description: String,
}

impl Sandbox {
    /// Confines the calling thread and those that it starts from now on.
    ///
    /// # Errors
    /// A sentence with what is missing, if `mode` requires it.
    pub(crate) fn enter(mode: SandboxMode, needs: &Needs) -> Result<Sandbox, String> {
        if mode == SandboxMode::Off {
            return Ok(Sandbox { granted: None, description: "off".to_owned() });
        }
        let granted = files::restrict(needs);
        let calls = calls::restrict(needs);
        let held = [
            granted.as_ref().ok().map(Granted::describe),
            calls.as_ref().ok().map(|count| format!("{count} system calls (seccomp)")),
        ];
        let held = held.into_iter().flatten();
        let missing = [granted.as_ref().err(), calls.as_ref().err()];
        let missing: Vec<_> = missing.into_iter().flatten().cloned().collect();
        if mode == SandboxMode::Require && !missing.is_empty() {
            return Err(format!(
                "--sandbox require: {}; --sandbox try does without",
                missing.join(", and ")
            ));
        }
        Ok(Sandbox {
            granted: granted.ok(),
            description: held.chain(missing).collect::<Vec<_>>().join("; "),
        })
    }

    /// What holds, and what is missing, in a few words.
    pub(crate) fn describe(&self) -> &str {
        &self.description
    }

    /// The first path to which these rights were not given at the start.
    pub(crate) fn first_outside<'a>(&self, files: &'a [(Right, PathBuf)]) -> Option<&'a Path> {
        let granted = self.granted.as_ref()?;
        let mut paths = files.iter().filter(|(right, path)| !granted.covers(*right, path));
        paths.next().map(|(_, path)| &**path)
    }
}
