//! Sandbox of a server: rights that the process gives up for good once its sockets are open.
//!
//! | layer | holds |
//! |---|---|
//! | [Landlock](files) | files can be read below the roots and beside the files of the configuration, and written in the directories of logs and snapshots; no TCP port can be bound or connected to; no signal and no abstract socket leaves the process |
//! | [seccomp](calls) | system calls that a server does not make fail with `ENOSYS` |
//! | `no_new_privs` | comes with both: no program gains rights |
//!
//! Both are inherited by threads started afterwards, and do not affect others. They cannot be
//! lifted or widened: a reload that needs more requires a restart. Landlock also applies to
//! requests through io_uring, which seccomp does not see.

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
    /// As much as the kernel supports.
    #[default]
    Try,
    /// Both Landlock and seccomp, or no start.
    Require,
}

/// Right to a path. `File` and the rights below it cover everything below the path's directory,
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

/// Needs of a server after its start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needs {
    pub(crate) files: Vec<(Right, PathBuf)>,
    /// True if it looks up names in the DNS and connects to other servers.
    pub(crate) is_client: bool,
    /// True if a thread may use io_uring.
    pub(crate) has_rings: bool,
    /// A network device of its own, whose state is queried at run time.
    pub(crate) has_device: bool,
}

/// The sandbox of this process, as far as it was established.
#[derive(Debug)]
pub(crate) struct Sandbox {
    granted: Option<Granted>,
    description: String,
}

impl Sandbox {
    /// Confines the calling thread and those that it starts afterwards.
    ///
    /// # Errors
    /// A sentence with the missing feature, if `mode` requires it.
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

    /// A short text: active and missing layers.
    pub(crate) fn describe(&self) -> &str {
        &self.description
    }

    /// The first path for which the right was not granted at the start.
    pub(crate) fn first_outside<'a>(&self, files: &'a [(Right, PathBuf)]) -> Option<&'a Path> {
        let granted = self.granted.as_ref()?;
        let mut paths = files.iter().filter(|(right, path)| !granted.covers(*right, path));
        paths.next().map(|(_, path)| &**path)
    }
}
