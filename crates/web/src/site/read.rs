use std::io::IoSliceMut;
use std::os::fd::AsFd;

use bytes::Bytes;
use rustix::io::{Errno, ReadWriteFlags};
use session::SharedFile;

use super::open::{Blocking, Miss, miss_of, miss_of_io};

/// The result of reading a whole file.
#[derive(Debug)]
pub(super) enum Reading {
    /// The whole file, in the state of its stamp.
    Whole(Bytes),
    /// The file was written since it was opened: the bytes may be a mixture.
    Changed,
    /// Part of the file is not in the page cache.
    WouldBlock,
}

/// Reads a whole file. Its stamp from the opening is compared with a new one after the read, so the
/// bytes belong to that stamp (within the granularity of the file system's clock; see
/// [`is_settled`](super::head::is_settled)).
pub(super) fn read_whole(file: &SharedFile, blocking: Blocking) -> Result<Reading, Miss> {
    let Ok(len) = usize::try_from(file.stamp().len) else {
        return Ok(Reading::WouldBlock);
    };
    let mut bytes = vec![0; len];
    let mut at = 0;
    // RWF_NOWAIT: uncached data gives EAGAIN. preadv2(2). The attempt makes the kernel read ahead
    // (seen on Linux 6.18), so it is only made for files that memory has space for.
    let flags = match blocking {
        Blocking::Never => ReadWriteFlags::NOWAIT,
        Blocking::Allowed => ReadWriteFlags::empty(),
    };
    while at < len {
        let mut rest = [IoSliceMut::new(&mut bytes[at..])];
        match rustix::io::preadv2(file.as_fd(), &mut rest, at as u64, flags) {
            // Linux 5.9 and 5.10 also return this for uncached data. preadv2(2)
            Ok(0) if blocking == Blocking::Never => return Ok(Reading::WouldBlock),
            // Shorter than its stamp says: truncated since.
            Ok(0) => return Ok(Reading::Changed),
            Ok(read) => at += read,
            Err(Errno::INTR) => {}
            // EOPNOTSUPP: the file system cannot read without waiting.
            Err(Errno::AGAIN | Errno::OPNOTSUPP) => return Ok(Reading::WouldBlock),
            Err(errno) => return Err(miss_of(errno)),
        }
    }
    match file.is_unchanged() {
        Ok(true) => Ok(Reading::Whole(bytes.into())),
        Ok(false) => Ok(Reading::Changed),
        Err(error) => Err(miss_of_io(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    fn open(bytes: &[u8]) -> (tempfile::NamedTempFile, SharedFile) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let shared = SharedFile::try_from(File::open(file.path()).unwrap()).unwrap();
        (file, shared)
    }

    #[test]
    fn reads_empty_and_large_files() {
        for len in [0, 1, 4096, 3_000_001] {
            let (_file, shared) = open(&vec![7; len]);
            let reading = read_whole(&shared, Blocking::Allowed).unwrap();
            assert!(matches!(reading, Reading::Whole(bytes) if bytes == vec![7; len]));
        }
    }

    #[test]
    fn write_during_the_read_is_seen() {
        let (file, shared) = open(b"0123456789");
        file.as_file().set_len(4).unwrap();
        assert!(matches!(read_whole(&shared, Blocking::Allowed), Ok(Reading::Changed)));
        let (mut file, shared) = open(b"0123456789");
        file.write_all(b"and more").unwrap();
        assert!(matches!(read_whole(&shared, Blocking::Allowed), Ok(Reading::Changed)));
    }

    /// Seen (in review): on Linux 5.9 and 5.10 an uncached file was taken for one that changes
    /// constantly. Cause: a non-blocking read returns 0 there, as at the end of a file. Cure: a
    /// blocking read decides.
    #[test]
    fn nothing_read_at_once_is_no_change() {
        let (file, shared) = open(b"0123456789");
        file.as_file().set_len(4).unwrap();
        assert!(matches!(read_whole(&shared, Blocking::Never), Ok(Reading::WouldBlock)));
    }

    #[test]
    fn cached_pages_are_read_at_once() {
        let (_file, shared) = open(b"fresh");
        let reading = read_whole(&shared, Blocking::Never).unwrap();
        assert!(matches!(reading, Reading::Whole(_) | Reading::WouldBlock), "{reading:?}");
    }
}
