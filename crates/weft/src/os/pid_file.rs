//! The pid file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::os::files;

/// The pid file, deleted when the server ends.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    text: String,
}

impl PidFile {
    /// Writes the process id to `path`.
    ///
    /// # Errors
    /// A sentence that names the path.
    pub(crate) fn write(path: &Path) -> Result<PidFile, Failure> {
        let text = format!("{}\n", std::process::id());
        files::write_bytes(path, &text).map_err(|error| {
            let remedy = match error.kind() {
                io::ErrorKind::NotFound => "; create its directory first",
                _ => "",
            };
            Failure::Running(format!(
                "cannot write the pid file {}: {error}{remedy}",
                path.display()
            ))
        })?;
        Ok(PidFile { path: path.to_owned(), text })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Do not delete a device, or the file of a newer server.
        let is_file = fs::metadata(&self.path).is_ok_and(|there| there.is_file());
        if is_file && fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            // The new user may not be allowed to delete it; the next start overwrites it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path) -> PidFile {
        PidFile::write(path).unwrap_or_else(|_| panic!("{} was not written", path.display()))
    }

    #[test]
    fn deleted_when_the_server_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let pid_file = write(&path);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
        drop(pid_file);
        assert!(!path.exists());
    }

    /// Seen: `--pid-file /dev/null` deleted /dev/null at the end, and an old server deleted the pid
    /// file of the new one that had taken over its sockets. Cause: only the name was checked.
    #[test]
    fn device_and_other_servers_file_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let pid_file = write(&path);
        fs::write(&path, "1\n").unwrap();
        drop(pid_file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
        // A pipe instead of a device.
        let fifo = folder.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let reader = fifo.clone();
        let reader = std::thread::spawn(move || fs::read_to_string(reader));
        drop(write(&fifo));
        reader.join().unwrap().unwrap();
        assert!(fifo.exists());
    }
}
