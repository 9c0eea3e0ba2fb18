//! Settings shared by `weft serve` and `weft cache`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use ::serve::listen::Address;

use crate::engine::EngineChoice;
use crate::failure::Failure;
use crate::os::machine::cpus;
use crate::os::pid_file::PidFile;
use crate::os::sandbox::{Right, SandboxMode};
use crate::settings::{Choices, Setting};
use crate::value::{self, Account};

/// Values of the shared settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Common {
    pub(crate) admin: Vec<Address>,
    pub(crate) engine: EngineChoice,
    /// `None`: as many as there are CPUs.
    pub(crate) workers: Option<NonZeroUsize>,
    pub(crate) handshake_timeout: Duration,
    pub(crate) drain_timeout: Duration,
    pub(crate) user: Option<Account>,
    pub(crate) pid_file: Option<PathBuf>,
    pub(crate) sandbox: SandboxMode,
}

impl Common {
    /// Number of processors, loops or shards.
    pub(crate) fn workers(&self) -> usize {
        self.workers.map_or_else(cpus, usize::from)
    }

    /// Writes the pid file, if one is configured.
    ///
    /// # Errors
    /// A sentence with the path.
    pub(crate) fn write_pid_file(&self) -> Result<Option<PidFile>, Failure> {
        self.pid_file.as_deref().map(PidFile::write).transpose()
    }

    /// Files to remove at the end, for the sandbox: the pid file, and sockets of the admin
    /// endpoint.
    pub(crate) fn files_to_remove(&self) -> Vec<(Right, PathBuf)> {
        let sockets = sockets(&self.admin);
        let pid_file = self.pid_file.iter().map(|file| (Right::Remove, file.clone()));
        pid_file.chain(sockets).collect()
    }

    /// A note that `flag`, the number of workers, has no effect, if it was given in vain.
    pub(crate) fn note_workers(&self, flag: &str) -> Option<String> {
        self.workers.and_then(|_| self.engine.note_workers(flag))
    }

    /// Engine with this number of workers.
    pub(crate) fn engine(&self) -> ::serve::Engine {
        self.engine.engine(self.workers())
    }
}

/// Files of Unix sockets, to remove at the end, for the sandbox.
pub(crate) fn sockets(addresses: &[Address]) -> impl Iterator<Item = (Right, PathBuf)> {
    addresses.iter().filter_map(|address| match address {
        Address::Unix { path, .. } => Some((Right::Remove, path.clone())),
        _ => None,
    })
}

const SANDBOX_MODES: Choices = &[
    ("try", "as much of it as the kernel has"),
    ("require", "all of it, or no start"),
    ("off", "none"),
];

impl<C: AsMut<Common> + 'static> Setting<C> {
    pub(crate) const SANDBOX: Setting<C> = Setting::new("sandbox")
        .chooses(SANDBOX_MODES, |config: &mut C, text| {
            config.as_mut().sandbox = match text {
                "require" => SandboxMode::Require,
                "off" => SandboxMode::Off,
                _ => SandboxMode::Try,
            };
            Ok(())
        })
        .starts_as("try")
        .rare()
        .help("Give up rights that are not needed after the start")
        .more(
            "Landlock for files and TCP, seccomp for system calls: the process reads its \
             directories and those around its other files, writes its own files, and starts, \
             connects to and signals nothing. require does not start where the kernel lacks \
             either.",
        );

    pub(crate) const HANDSHAKE_TIMEOUT: Setting<C> = Setting::new("tls-handshake-timeout")
        .takes("TIME", |config: &mut C, text| {
            config.as_mut().handshake_timeout = value::timeout(text)?;
            Ok(())
        })
        .starts_as("20s")
        .help("Time limit of a TLS handshake, from the accept");
}

pub(crate) fn address(text: &str) -> Result<Address, String> {
    text.parse().map_err(|error: std::io::Error| error.to_string())
}

pub(crate) fn as_typed<T: for<'a> From<&'a str>>(text: &str) -> Result<T, String> {
    Ok(text.into())
}
