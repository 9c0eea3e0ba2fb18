//! Settings that `weft serve` and `weft cache` share.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use ::serve::listen::{Address, AddressError};

use crate::engine::EngineChoice;
use crate::failure::Failure;
use crate::os::machine::cpus;
use crate::os::pid_file::PidFile;
use crate::settings::Setting;
use crate::value::{self, Account};

/// The values of settings that both commands have.
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
}

impl Common {
    /// Number of processors, loops or shards.
    pub(crate) fn workers(&self) -> usize {
        self.workers.map_or_else(cpus, usize::from)
    }

    /// Writes the pid file, if there is to be one.
    ///
    /// # Errors
    /// A sentence with the path.
    pub(crate) fn write_pid_file(&self) -> Result<Option<PidFile>, Failure> {
        self.pid_file.as_deref().map(PidFile::write).transpose()
    }

    /// Says that `flag`, the number of workers, has no effect, if it was typed and has none.
    pub(crate) fn note_workers(&self, flag: &str) -> Option<String> {
        self.workers.and_then(|_| self.engine.note_workers(flag))
    }

    /// Engine with this number of workers.
    pub(crate) fn engine(&self) -> ::serve::Engine {
        self.engine.engine(self.workers())
    }
}

impl<C: AsMut<Common> + 'static> Setting<C> {
    pub(crate) const HANDSHAKE_TIMEOUT: Setting<C> = Setting::new("tls-handshake-timeout")
        .takes("TIME", |config: &mut C, text| {
            config.as_mut().handshake_timeout = value::timeout(text)?;
            Ok(())
        })
        .starts_as("20s")
        .help("Time for a TLS handshake, from the accept on");
}

pub(crate) fn address(text: &str) -> Result<Address, String> {
    text.parse()
        .map_err(|error: AddressError| error.to_string())
}

pub(crate) fn as_typed<T: for<'a> From<&'a str>>(text: &str) -> Result<T, String> {
    Ok(text.into())
}
