//! Files that are written whole or stay as they were: a disk that is full costs no older report.

use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// Writes a file, under another name beside it first. What is no regular file (a pipe, a device) is
/// written as it is; so is a file in a folder where none can be made.
///
/// # Errors
/// What the kernel says. A regular file is then as it was.
pub(crate) fn write(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let Some((path, old)) = replaceable(path) else {
        return written(File::create(path)?, write).map(|_| ());
    };
    let beside = beside(&path);
    let file = match create(&beside, old.as_ref()) {
        Err(error) if is_no_place(&error) => {
            return written(File::create(path)?, write).map(|_| ());
        }
        created => created?,
    };
    let renamed = written(file, write).and_then(|()| fs::rename(&beside, &path));
    if renamed.is_err() {
        // What is half written is of no use.
        let _ = fs::remove_file(&beside);
    }
    renamed
}

/// As [`write`], with these bytes.
pub(crate) fn write_bytes(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    write(path, |out| out.write_all(bytes.as_ref()))
}

/// The file that another may take the place of, behind all links; and what it is, if it is there.
fn replaceable(path: &Path) -> Option<(PathBuf, Option<Metadata>)> {
    // `/dev/stdout` and `/proc/self/fd/1` are files that others write as well.
    let is_open_elsewhere = |path: &Path| path.starts_with("/dev") || path.starts_with("/proc");
    match fs::metadata(path) {
        Ok(old) if old.is_file() && !is_open_elsewhere(path) => {
            Some((fs::canonicalize(path).ok()?, Some(old)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            Some((path.to_owned(), None))
        }
        _ => None,
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Makes the new file, with the rights of the old one.
fn create(beside: &Path, old: Option<&Metadata>) -> io::Result<File> {
    // What a run that was killed has left goes; it may be a link to somewhere else.
    match fs::remove_file(beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
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
    use io::ErrorKind::{InvalidFilename, PermissionDenied};
    matches!(error.kind(), PermissionDenied | InvalidFilename)
}

fn written(file: File, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    write(&mut out)?;
    out.flush()
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
}
