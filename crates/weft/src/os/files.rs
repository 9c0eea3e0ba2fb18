//! Reading and replacing of whole files: a full disk leaves the old file intact.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::process;

/// Replaces a file by a new one, which is first written beside it. A pipe or a device is written
/// in place; so is a file in a directory where no file can be created. A file that cannot be
/// replaced, such as a mount point, gets the bytes once all of them are on the disk.
///
/// # Errors
/// The kernel's error. A regular file is then unchanged.
pub(crate) fn write(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    use io::ErrorKind::{InvalidFilename, PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    let Some((path, old)) = replaceable(path) else {
        return written(File::create(path)?, write).map(drop);
    };
    let beside = beside(&path);
    let file = match create(&beside, old.as_ref()) {
        Err(error)
            if matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | InvalidFilename) =>
        {
            return written(File::create(path)?, write).map(drop);
        }
        created => created?,
    };
    let put = written(file, write)
        // Some file systems report only here that they are full.
        .and_then(|file| file.sync_data())
        .and_then(|()| match fs::rename(&beside, &path) {
            // A mount point, or another user's file in a directory such as /tmp.
            Err(error)
                if old.is_some() && matches!(error.kind(), ResourceBusy | PermissionDenied) =>
            {
                fs::copy(&beside, &path)?;
                fs::remove_file(&beside)
            }
            renamed => renamed,
        });
    if put.is_err() {
        let _ = fs::remove_file(&beside);
    }
    put
}

/// Replaces a file by one with these bytes; see [`write()`].
pub(crate) fn write_bytes(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    write(path, |out| out.write_all(bytes.as_ref()))
}

/// The regular file to replace, with links resolved, and its metadata if it exists.
fn replaceable(path: &Path) -> Option<(PathBuf, Option<Metadata>)> {
    match fs::metadata(path) {
        Ok(old) if old.is_file() && !is_descriptor(path) => {
            Some((fs::canonicalize(path).ok()?, Some(old)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            Some((path.to_owned(), None))
        }
        _ => None,
    }
}

/// True if the path names an open descriptor, such as `/dev/stdout`, directly or by one link.
/// Others may also write to a file behind it.
fn is_descriptor(path: &Path) -> bool {
    let target = fs::read_link(path).unwrap_or_default();
    let descriptors = ["/dev/std", "/dev/fd/", "/proc/"];
    let mut names = [path, &target].into_iter().map(|name| name.to_string_lossy());
    names.any(|name| descriptors.iter().any(|start| name.starts_with(start)))
}

/// Name of the new file: `.report.1234.new` beside `report`, with the process id.
fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.new", process::id()));
    path.with_file_name(name)
}

/// Creates the new file with the owner and mode of the old one.
fn create(beside: &Path, old: Option<&Metadata>) -> io::Result<File> {
    let mode = old.map_or(0o666, |old| old.permissions().mode() & 0o7777);
    let mut options = File::options();
    let file = options.write(true).create_new(true).mode(mode).open(beside)?;
    if let Some(old) = old {
        // Only root may change the owner; otherwise the file is this user's.
        let _ = fchown(&file, Some(old.uid()), Some(old.gid()));
        file.set_permissions(old.permissions())?;
    }
    Ok(file)
}

fn written(file: File, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<File> {
    let mut out = BufWriter::new(file);
    write(&mut out)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)
}

/// Reads the file or pipe at `path` to its end.
///
/// # Errors
/// If it cannot be read, or is longer than `bytes_max`, such as an endless device.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let what = format!("it is longer than {bytes_max} bytes, the most that is read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn fails(out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&[b'x'; 100_000])?;
        Err(io::ErrorKind::StorageFull.into())
    }

    /// Seen: a run whose result did not fit on the disk emptied the file of the previous run.
    /// Cause: opening a file for writing truncates it.
    #[test]
    fn failed_write_keeps_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("report");
        write(&file, fails).unwrap_err();
        assert_eq!(names(folder.path()), [""; 0]);
        write_bytes(&file, "old").unwrap();
        write(&file, fails).unwrap_err();
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        assert_eq!(names(folder.path()), ["report"]);
        write_bytes(&file, "new").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(names(folder.path()), ["report"]);
    }

    /// Seen (in review): a user's own `report.new` was removed, because it was the temporary name.
    #[test]
    fn other_files_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["report", "report.new"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        write_bytes(&folder.path().join("report"), "new").unwrap();
        let other = fs::read_to_string(folder.path().join("report.new")).unwrap();
        assert_eq!(other, "report.new");
        assert_eq!(names(folder.path()), ["report", "report.new"]);
    }

    /// Seen (in review): a link to `/dev/stdout` was followed, and the file behind it was replaced,
    /// so the reader of standard output got nothing.
    #[test]
    fn file_behind_a_descriptor_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        let open = File::create(&file).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&open);
        symlink(format!("/proc/self/fd/{number}"), &link).unwrap();
        write_bytes(&link, "new").unwrap();
        assert_eq!(open.metadata().unwrap().len(), 3);
        assert!(!is_descriptor(Path::new("/dev/shm/report")));
        assert!(is_descriptor(Path::new("/dev/stdout")));
    }

    #[test]
    fn mode_and_links_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();
        write_bytes(&link, "new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
        // A dangling link creates its target.
        let dangling = folder.path().join("dangling");
        symlink("made", &dangling).unwrap();
        write_bytes(&dangling, "content").unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("made")).unwrap(), "content");
        assert_eq!(names(folder.path()), ["dangling", "file", "link", "made"]);
    }

    #[test]
    fn device_is_written_in_place() {
        write_bytes(Path::new("/dev/null"), "nothing").unwrap();
        let error = write_bytes(Path::new("/dev/full"), "much").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn endless_file_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "four").unwrap();
        assert_eq!(read(file.path(), 4).unwrap(), b"four");
        for (path, bytes_max) in [(file.path(), 3), (Path::new("/dev/zero"), 4)] {
            let error = read(path, bytes_max).unwrap_err();
            let said = format!("longer than {bytes_max} bytes");
            assert!(error.to_string().contains(&said), "{error}");
        }
    }
}
