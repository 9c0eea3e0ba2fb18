//! Keeping the items over a restart (`-e FILE`): what the store's snapshot means for an operator.
//!
//! The file exists only between two runs: it is written at an orderly end and deleted when it has
//! been read. So a server that dies without saving does not come back with old items. A file that
//! is damaged, or of another version, is renamed, and the cache begins empty. A file of any other
//! kind is left alone, and the server does not start, because it would overwrite that file at its
//! end.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cache::store::{RestoreError, Snapshot, SnapshotTime, Store};

/// What happened to the items of an earlier run.
#[derive(Debug)]
pub(crate) enum Restored {
    /// There was no file.
    Nothing,
    /// They are here.
    Items(Snapshot),
    /// The file could not be used; this is its new name.
    PutAside { why: String, aside: PathBuf },
}

/// Puts the items of a file into an empty store.
///
/// # Errors
/// Why the server must not start with this file.
pub(crate) fn restore(store: &Store, file: &Path, time: SnapshotTime) -> Result<Restored, String> {
    check_folder(file)?;
    match store.restore(file, time) {
        Ok(restored) => Ok(Restored::Items(restored)),
        Err(RestoreError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
            Ok(Restored::Nothing)
        }
        Err(RestoreError::Io(error)) => Err(format!("-e: cannot read {}: {error}", file.display())),
        Err(RestoreError::Foreign) => Err(format!(
            "-e: {} is not a file of saved items: give another name",
            file.display()
        )),
        Err(RestoreError::Version(version)) => {
            put_aside(file, format!("it is of version {version} of the format"))
        }
        Err(RestoreError::Torn(at)) => {
            put_aside(file, format!("it is damaged or cut off near byte {at}"))
        }
    }
}

/// A folder that is missing or not writable is noticed now, and not at the end, when the items
/// would be lost.
fn check_folder(file: &Path) -> Result<(), String> {
    let mut probe = file.as_os_str().to_owned();
    probe.push(".probe");
    let made = fs::File::create(&probe).and_then(|_| fs::remove_file(&probe));
    made.map_err(|error| {
        format!(
            "-e: cannot write to {}, where the items are to be kept: {error}",
            file.parent().unwrap_or(file).display()
        )
    })
}

fn put_aside(file: &Path, why: String) -> Result<Restored, String> {
    let mut aside = file.as_os_str().to_owned();
    aside.push(".refused");
    let aside = PathBuf::from(aside);
    match fs::rename(file, &aside) {
        Ok(()) => Ok(Restored::PutAside { why, aside }),
        Err(error) => Err(format!(
            "-e: {}: {why}, and it cannot be renamed: {error}",
            file.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cache::store::{Config, Mode, NEVER};

    const TIME: SnapshotTime = SnapshotTime {
        now: 1000,
        unix: 1_700_000_000,
    };

    fn saved() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("items");
        let store = empty();
        let mut turn = store.turn(TIME.now);
        turn.store(b"key", b"value", 0, NEVER, Mode::Set.into())
            .unwrap();
        drop(turn);
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
        assert!(
            matches!(restored, Restored::Items(Snapshot { items: 1, .. })),
            "{restored:?}"
        );
        assert!(store.turn(TIME.now).peek(b"key").is_some());
        assert!(matches!(
            restore(&empty(), &file, TIME),
            Ok(Restored::Nothing)
        ));
    }

    /// Seen: a folder that is not there was found at the stop, when the items were to be saved, and
    /// they were lost. Cause: a missing file is the usual start of an empty cache. Cure: a file is
    /// made beside it at the start.
    #[test]
    fn a_folder_that_is_missing_is_found_at_the_start() {
        let (folder, _) = saved();
        let why = restore(&empty(), &folder.path().join("none/items"), TIME).unwrap_err();
        assert!(why.contains("none, where"), "{why}");
        assert!(restore(&empty(), &folder.path().join("new"), TIME).is_ok());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_not_whole_is_put_aside() {
        let (_folder, file) = saved();
        let whole = fs::read(&file).unwrap();
        fs::write(&file, &whole[..whole.len() - 3]).unwrap();
        let store = empty();
        let Ok(Restored::PutAside { why, aside }) = restore(&store, &file, TIME) else {
            panic!("it was used")
        };
        assert!(
            why.contains("cut off") && aside.ends_with("items.refused"),
            "{why}"
        );
        assert!(aside.exists() && !file.exists());
        assert!(store.turn(TIME.now).peek(b"key").is_none());
    }

    #[test]
    fn a_file_of_somebody_else_is_left_alone() {
        let (_folder, file) = saved();
        fs::write(&file, "root:x:0:0:root:/root:/bin/bash\n".repeat(10)).unwrap();
        let why = restore(&empty(), &file, TIME).unwrap_err();
        assert!(
            why.contains("not a file of saved items") && file.exists(),
            "{why}"
        );
    }
}
