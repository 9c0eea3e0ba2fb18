//! Keeping the items across restarts (`-e FILE`): the store's snapshot from an operator's view.
//!
//! The file exists only between two runs: it is written at an orderly end and deleted after it has
//! been read. A server that dies without saving thus does not return with old items. A file that
//! is damaged, or of another version, is renamed, and the cache begins empty. A file of any other
//! kind is left alone, and the server does not start, because it would overwrite that file at its
//! end.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use cache::store::{RestoreError, Snapshot, SnapshotTime, Store};
use rustix::fs::{Access, AtFlags, CWD};

/// Fate of the items of an earlier run.
#[derive(Debug)]
pub(crate) enum Restored {
    /// There was no file.
    Nothing,
    /// The items were restored.
    Items(Snapshot),
    /// The file was unusable; this is its new name.
    PutAside { why: String, aside: PathBuf },
}

/// Restores the items of a file into an empty store.
///
/// # Errors
/// The reason why the server must not start with this file.
pub(crate) fn restore(store: &Store, file: &Path, time: SnapshotTime) -> Result<Restored, String> {
    check_kind(file)?;
    check_folder(file)?;
    match store.restore(file, time) {
        Ok(restored) => Ok(Restored::Items(restored)),
        Err(RestoreError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
            Ok(Restored::Nothing)
        }
        Err(RestoreError::Io(error)) => Err(format!("-e: cannot read {}: {error}", file.display())),
        Err(RestoreError::Foreign) => {
            Err(format!("-e: {} is not a file of saved items: give another name", file.display()))
        }
        Err(RestoreError::Version(version)) => {
            put_aside(file, format!("it is of version {version} of the format"))
        }
        Err(RestoreError::Torn(at)) => {
            put_aside(file, format!("it is damaged or cut off near byte {at}"))
        }
    }
}

/// Checks the directory now. If it is missing or not writable, the items would be lost at the end.
fn check_folder(file: &Path) -> Result<(), String> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // For the effective user, who will create the file: faccessat(2).
    let may_make = Access::WRITE_OK | Access::EXEC_OK;
    let may = rustix::fs::accessat(CWD, folder, may_make, AtFlags::EACCESS);
    may.map_err(|error| {
        format!(
            "-e: cannot write to {}, where the items are to be kept: {}",
            folder.display(),
            io::Error::from(error)
        )
    })
}

/// Refuses anything but a regular file, which the items would replace at the end, and a path
/// without a file name, where they could not be saved.
fn check_kind(file: &Path) -> Result<(), String> {
    let Ok(metadata) = fs::metadata(file) else {
        return match file.as_os_str().as_encoded_bytes() {
            [] => Err("-e: the name is empty: give that of a file".to_owned()),
            [.., b'/'] => {
                let file = file.display();
                Err(format!("-e: {file} ends with a slash, as no file does: give another name"))
            }
            _ => Ok(()),
        };
    };
    let kind = metadata.file_type();
    let kind = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    let file = file.display();
    Err(format!("-e: {file} is {kind}, not a file: give another name"))
}

fn put_aside(file: &Path, why: String) -> Result<Restored, String> {
    let mut aside = file.as_os_str().to_owned();
    aside.push(".refused");
    let aside = PathBuf::from(aside);
    match fs::rename(file, &aside) {
        Ok(()) => Ok(Restored::PutAside { why, aside }),
        Err(error) => {
            Err(format!("-e: {}: {why}, and it cannot be renamed: {error}", file.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use cache::store::{Config, Mode, NEVER};

    const TIME: SnapshotTime = SnapshotTime { now: 1000, unix: 1_700_000_000 };

    fn saved() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("items");
        let store = empty();
        let mut guard = store.access(TIME.now);
        guard.store(b"key", b"value", 0, NEVER, Mode::Set.into()).unwrap();
        drop(guard);
        store.save(&file, TIME).unwrap();
        (folder, file)
    }

    fn empty() -> Store {
        Store::new(Config::default()).unwrap()
    }

    #[test]
    fn items_come_back_once() {
        let (_folder, file) = saved();
        let store = empty();
        let restored = restore(&store, &file, TIME).unwrap();
        assert!(matches!(restored, Restored::Items(Snapshot { items: 1, .. })), "{restored:?}");
        assert!(store.access(TIME.now).peek(b"key").is_some());
        assert!(matches!(restore(&empty(), &file, TIME), Ok(Restored::Nothing)));
    }

    /// Seen: a missing directory was noticed only at the stop, when the items were to be saved, and
    /// they were lost. Cause: a missing file is the usual start of an empty cache. Cure: the start
    /// checks that a file can be created there.
    #[test]
    fn a_folder_that_is_missing_is_found_at_the_start() {
        let (folder, _) = saved();
        let why = restore(&empty(), &folder.path().join("none/items"), TIME).unwrap_err();
        assert!(why.contains("none, where"), "{why}");
        assert!(restore(&empty(), &folder.path().join("new"), TIME).is_ok());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// Seen: `-e items/` (and `-e ''`) served, and the items were lost at the stop: "cannot save
    /// them to items/: No such file or directory". Cause: the parent of such a path is the
    /// directory above. Cure: a path without a file name is refused.
    #[test]
    fn a_name_of_no_file_is_found_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["items/", "items//"] {
            let why = restore(&empty(), &folder.path().join(name), TIME).unwrap_err();
            assert!(why.contains("ends with a slash"), "{why}");
        }
        let why = restore(&empty(), Path::new(""), TIME).unwrap_err();
        assert!(why.contains("-e: the name is empty"), "{why}");
        let why = restore(&empty(), &folder.path().join(""), TIME).unwrap_err();
        assert!(why.contains("is a directory, not a file"), "{why}");
    }

    /// Seen: `-e items` emptied and deleted any existing file items.probe. Cause: that file was
    /// created to check that files can be. Cure: the kernel is asked.
    #[test]
    fn a_look_at_the_folder_leaves_all_files_alone() {
        let (folder, file) = saved();
        let other = folder.path().join("items.probe");
        fs::write(&other, "precious").unwrap();
        restore(&empty(), &file, TIME).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
        assert!(check_folder(Path::new("items")).is_ok());
    }

    /// Seen (in review): a save wrote all items into a file that another user had created under the
    /// temporary name, readable by all, or to a link there. Cure: it creates its own file.
    #[test]
    fn a_save_writes_into_a_file_of_its_own() {
        let (folder, file) = saved();
        let beside = folder.path().join("items.new");
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &beside).unwrap();
        empty().save(&file, TIME).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        fs::write(&beside, "what a killed save left").unwrap();
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o666)).unwrap();
        empty().save(&file, TIME).unwrap();
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    /// Seen: with `-e FIFO` the server listened but answered nothing, and SIGTERM did not end it.
    /// Cause: opening a FIFO waits for its writer. Cure: anything but a file is refused, and no
    /// open waits.
    #[test]
    fn what_is_no_file_is_refused_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name| folder.path().join(name);
        let made = std::process::Command::new("mkfifo").arg(at("fifo")).status();
        assert!(made.unwrap().success());
        fs::create_dir(at("folder")).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        std::os::unix::fs::symlink(at("fifo"), at("link")).unwrap();
        for (file, kind) in [
            (at("fifo"), "a FIFO"),
            (at("link"), "a FIFO"),
            (at("folder"), "a directory"),
            (at("socket"), "a socket"),
            (PathBuf::from("/dev/null"), "a device"),
        ] {
            let why = restore(&empty(), &file, TIME).unwrap_err();
            let expected =
                format!("-e: {} is {kind}, not a file: give another name", file.display());
            assert_eq!(why, expected);
        }
        // The crate checks too, since the file may be replaced after the first check.
        let error = empty().restore(&at("fifo"), TIME).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }

    #[test]
    fn a_file_that_is_not_whole_is_put_aside() {
        let (_folder, file) = saved();
        let whole = fs::read(&file).unwrap();
        fs::write(&file, &whole[..whole.len() - 3]).unwrap();
        let store = empty();
        let Ok(Restored::PutAside { why, aside }) = restore(&store, &file, TIME) else {
            panic!("the file was used")
        };
        assert!(why.contains("cut off") && aside.ends_with("items.refused"), "{why}");
        assert!(aside.exists() && !file.exists());
        assert!(store.access(TIME.now).peek(b"key").is_none());
    }

    #[test]
    fn a_file_of_somebody_else_is_left_alone() {
        let (_folder, file) = saved();
        fs::write(&file, "root:x:0:0:root:/root:/bin/bash\n".repeat(10)).unwrap();
        let why = restore(&empty(), &file, TIME).unwrap_err();
        assert!(why.contains("not a file of saved items") && file.exists(), "{why}");
    }
}
