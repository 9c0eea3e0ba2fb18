//! Files that an operator names, such as configurations and certificates, read as a whole and up to
//! a limit.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The bytes of the file at `path`, which may also be a pipe.
///
/// # Errors
/// When it cannot be read, or is longer than `bytes_max`, as a device is that never ends.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
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
    use super::*;

    #[test]
    fn what_never_ends_is_refused_at_the_limit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "four").unwrap();
        assert_eq!(read(file.path(), 4).unwrap(), b"four");
        for (path, bytes_max) in [(file.path(), 3), (Path::new("/dev/zero"), 4)] {
            let error = read(path, bytes_max).unwrap_err();
            let said = format!("longer than {bytes_max} bytes");
            assert!(error.to_string().contains(&said), "{error}");
        }
    }
}
