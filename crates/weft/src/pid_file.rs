//! The pid file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Failure;

/// The pid file. It is deleted when the server ends.
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
        // The new user may not be allowed to delete it; the next start overwrites it.
        let _ = fs::remove_file(&self.0);
    }
}
