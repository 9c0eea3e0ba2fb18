//! The pid file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Failure;

/// The pid file, which goes when the server does.
#[derive(Debug)]
pub(crate) struct PidFile(PathBuf);

impl PidFile {
    /// Writes it.
    ///
    /// # Errors
    /// A sentence with the path.
    pub(crate) fn write(path: &Path) -> Result<PidFile, Failure> {
        fs::write(path, format!("{}\n", std::process::id())).map_err(|error| {
            Failure::Running(format!(
                "cannot write the pid file {}: {error}",
                path.display()
            ))
        })?;
        Ok(PidFile(path.to_owned()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // The user that we became may lack the right; the next start overwrites it.
        let _ = fs::remove_file(&self.0);
    }
}
