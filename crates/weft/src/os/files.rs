//! Files that are written whole or stay as they were: a disk that is full costs no older report.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::process;

/// Writes a file, under another name beside it first. What is no regular file (a pipe, a device) is
/// written as it is; so is a file in a folder where none can be made. A file that no other can take
/// the place of, such as one that is mounted by itself, gets the bytes when they are all there.
///
/// # Errors
/// What the kernel says. A regular file is then as it was.
pub(crate) fn write(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let Some((path, old)) = replaceable(path) else {
        return written(File::create(path)?, write).map(drop);
    };
    let beside = beside(&path);
    let file = match create(&beside, old.as_ref()) {
        Err(error) if is_no_place(&error) => {
            return written(File::create(path)?, write).map(drop);
        }
        created => created?,
    };
    let put = written(file, write)
        // Some file systems tell only now that they are full.
        .and_then(|file| file.sync_data())
        .and_then(|()| put_in_place(&beside, &path, old.is_some()));
    if put.is_err() {
        // What is half written is of no use.
        let _ = fs::remove_file(&beside);
    }
    put
}

fn put_in_place(beside: &Path, path: &Path, is_there: bool) -> io::Result<()> {
    use io::ErrorKind::{PermissionDenied, ResourceBusy};
    match fs::rename(beside, path) {
        // A mount point, or another user's file in a folder such as /tmp.
        Err(error) if is_there && matches!(error.kind(), ResourceBusy | PermissionDenied) => {
            fs::copy(beside, path)?;
            fs::remove_file(beside)
        }
        renamed => renamed,
    }
}

/// As [`write()`], with these bytes.
pub(crate) fn write_bytes(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    write(path, |out| out.write_all(bytes.as_ref()))
}

/// The file that another may take the place of, behind all links; and what it is, if it is there.
fn replaceable(path: &Path) -> Option<(PathBuf, Option<Metadata>)> {
    match fs::metadata(path) {
        Ok(old) if old.is_file() && !leads_to_open_file(path) => {
            Some((fs::canonicalize(path).ok()?, Some(old)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            Some((path.to_owned(), None))
        }
        _ => None,
    }
}

/// Whether a file that is open is reached this way, by links too: `/dev/stdout` and
/// `/proc/self/fd/1` are files that others write as well.
fn leads_to_open_file(path: &Path) -> bool {
    const LINKS_MAX: usize = 40;
    let mut at = path.to_owned();
    for _ in 0..LINKS_MAX {
        if at.starts_with("/proc") || at.starts_with("/dev") && !at.starts_with("/dev/shm") {
            return true;
        }
        let Ok(target) = fs::read_link(&at) else {
            return false;
        };
        at = at.parent().unwrap_or(Path::new("")).join(target);
    }
    false
}

/// A name that no other program uses: `.report.1234.new` beside `report`.
fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.new", process::id()));
    path.with_file_name(name)
}

/// Makes the new file, with the rights of the old one.
fn create(beside: &Path, old: Option<&Metadata>) -> io::Result<File> {
    let mode = old.map_or(0o666, |old| old.permissions().mode() & 0o7777);
    let mut options = File::options();
    let file = options
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(beside)?;
    if let Some(old) = old {
        // Only root may give a file away; the file of another user is the new owner's.
        let _ = fchown(&file, Some(old.uid()), Some(old.gid()));
        file.set_permissions(old.permissions())?;
    }
    Ok(file)
}

/// Whether no file can be made in this folder, so that the old one must be written itself.
fn is_no_place(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, PermissionDenied, ReadOnlyFilesystem};
    matches!(
        error.kind(),
        PermissionDenied | ReadOnlyFilesystem | InvalidFilename
    )
}

fn written(file: File, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<File> {
    let mut out = BufWriter::new(file);
    write(&mut out)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)
}

/// The bytes of the file at `path`, which may also be a pipe.
///
/// # Errors
/// When it cannot be read, or is longer than `bytes_max`, as a device is that never ends.
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
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn fails(out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&[b'x'; 100_000])?;
        Err(io::ErrorKind::StorageFull.into())
    }

    /// Seen: a run whose result did not fit on the disk emptied the file of the run before. Cause:
    /// a file is empty as soon as it is opened to be written anew.
    #[test]
    fn a_file_that_cannot_be_written_is_as_it_was() {
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

    /// Seen (in review): a user's own `report.new` was removed, because it was the name beside.
    #[test]
    fn other_files_of_the_folder_stay() {
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
    /// so what stdout was for got nothing.
    #[test]
    fn a_file_that_is_open_elsewhere_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        let open = File::create(&file).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&open);
        symlink(format!("/proc/self/fd/{number}"), &link).unwrap();
        write_bytes(&link, "new").unwrap();
        assert_eq!(open.metadata().unwrap().len(), 3);
        assert!(!leads_to_open_file(Path::new("/dev/shm/report")));
        assert!(leads_to_open_file(Path::new("/dev/stdout")));
    }

    #[test]
    fn rights_and_links_stay() {
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
        // A link to nothing makes what it names.
        let dangling = folder.path().join("dangling");
        symlink("made", &dangling).unwrap();
        write_bytes(&dangling, "content").unwrap();
        assert_eq!(
            fs::read_to_string(folder.path().join("made")).unwrap(),
            "content"
        );
        assert_eq!(names(folder.path()), ["dangling", "file", "link", "made"]);
    }

    #[test]
    fn a_device_stays_a_device() {
        write_bytes(Path::new("/dev/null"), "nothing").unwrap();
        let error = write_bytes(Path::new("/dev/full"), "much").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn what_never_ends_is_refused_at_the_limit() {
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
