//! The state directory: the account's key, certificates, and the attempts of the last hour. Files
//! are replaced atomically, and only the server's user may read them.
//!
//! ```text
//!   /var/lib/weft/acme/               0700
//!   ├── lock                          one process at a time talks to an authority
//!   └── acme-v02.api.letsencrypt.org_directory/
//!       ├── account.pem
//!       ├── example.org.pem           key and chain
//!       └── example.org.attempts      JSON
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};

use super::jose::AccountKey;
use crate::os::privileges::Ids;

/// The files for one authority.
#[derive(Clone, Debug)]
pub(crate) struct State {
    lock: PathBuf,
    dir: PathBuf,
}

/// Attempts at a certificate.
#[derive(Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Attempts {
    /// Times of failed attempts in the last hour, in seconds since the epoch.
    pub(super) failed_s: Vec<u64>,
    /// Time before which the authority wants no attempt.
    pub(super) not_before_s: u64,
    /// Time of the last success.
    pub(super) issued_s: u64,
}

impl State {
    /// The files below `parent` for the authority with this directory URL.
    pub(crate) fn new(parent: &Path, directory: &str) -> State {
        let plain = directory.strip_prefix("https://").unwrap_or(directory);
        let is_plain = |char: char| char.is_ascii_alphanumeric() || char == '.' || char == '-';
        let name = plain.chars();
        let name: String = name.map(|char| if is_plain(char) { char } else { '_' }).collect();
        let acme = parent.join("acme");
        State { lock: acme.join("lock"), dir: acme.join(name.trim_start_matches('.')) }
    }

    /// Creates the directories, for the later user of the server.
    ///
    /// # Errors
    /// A sentence that names the directory.
    pub(crate) fn make(&self, ids: Option<&Ids>) -> Result<(), String> {
        let acme = self.lock.parent().unwrap_or(Path::new("."));
        let mut missing: Vec<_> = self.dir.ancestors().take_while(|dir| !dir.exists()).collect();
        missing.reverse();
        for dir in missing {
            // Other programs may use /var/lib/weft, but not this subdirectory.
            let mode = if dir.starts_with(acme) { 0o700 } else { 0o755 };
            let made = DirBuilder::new().mode(mode).create(dir);
            let given = made.and_then(|()| match ids.filter(|_| dir.starts_with(acme)) {
                Some(ids) => chown(dir, Some(ids.user), Some(ids.group)),
                None => Ok(()),
            });
            given.map_err(|error| {
                format!(
                    "cannot make the directory {} for certificates: {error}; make it, or name \
                     another in `acme_state`",
                    dir.display()
                )
            })?;
        }
        Ok(())
    }

    /// Waits for other processes that request certificates; the lock is released with the file.
    pub(super) fn lock(&self) -> Result<File, String> {
        let options = OpenOptions::new().write(true).create(true).mode(0o600).to_owned();
        let locked = options.open(&self.lock).and_then(|file| file.lock().map(|()| file));
        locked.map_err(|error| unwritable(&self.lock, &error))
    }

    /// The certificate file of a host, by its first name.
    pub(crate) fn certificate(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.pem"))
    }

    fn attempts(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.attempts"))
    }

    /// The account's key, created if there is none. Also tells whether it is new.
    pub(super) fn account(&self) -> Result<(AccountKey, bool), String> {
        let path = self.dir.join("account.pem");
        let is_new = !path.exists();
        if is_new {
            let key = BASE64_STANDARD.encode(AccountKey::generate()?);
            let pem = format!("-----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----\n");
            self.write(&path, pem.as_bytes())?;
        }
        let unreadable = |error: String| format!("cannot read {}: {error}", path.display());
        let bytes = fs::read(&path).map_err(|error| unreadable(error.to_string()))?;
        let der = PrivateKeyDer::from_pem_slice(&bytes);
        let der = der.map_err(|error| unreadable(error.to_string()))?;
        let key = AccountKey::from_pkcs8(der.secret_der()).map_err(unreadable)?;
        Ok((key, is_new))
    }

    /// The certificate of a host, if there is one.
    pub(super) fn read(&self, name: &str) -> Result<Option<String>, String> {
        let path = self.certificate(name);
        match fs::read(&path) {
            // A file that is not UTF-8 is no certificate either, and is ordered again.
            Ok(pem) => Ok(Some(String::from_utf8_lossy(&pem).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("cannot read {}: {error}", path.display())),
        }
    }

    pub(super) fn store(&self, name: &str, pem: &str) -> Result<(), String> {
        self.write(&self.certificate(name), pem.as_bytes())
    }

    /// The attempts at a certificate; none if the file is unreadable.
    pub(super) fn read_attempts(&self, name: &str) -> Attempts {
        let bytes = fs::read(self.attempts(name)).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    pub(super) fn store_attempts(&self, name: &str, attempts: &Attempts) -> Result<(), String> {
        let json = serde_json::to_vec(attempts).map_err(|error| error.to_string())?;
        self.write(&self.attempts(name), &json)
    }

    /// Replaces a file. After a crash either the old or the new one exists, complete.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), String> {
        let beside = self.dir.join("new");
        let written = || -> io::Result<()> {
            let _ = fs::remove_file(&beside);
            let options = OpenOptions::new().write(true).create_new(true).mode(0o600).to_owned();
            let mut file = options.open(&beside)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&beside, path)?;
            File::open(&self.dir)?.sync_all()
        };
        written().map_err(|error| unwritable(path, &error))
    }
}

fn unwritable(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    format!("cannot write {path}: {error}; no certificate is ordered that could not be kept")
}
