//! Input files named on the command line, read whole.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Limit on an input file; a longer one is a mistake, such as an endless device.
pub const INPUT_BYTES_MAX: u64 = 1 << 30;

/// Reads the file at `path`, which may also be a pipe.
///
/// # Errors
/// When it cannot be read, or is longer than [`INPUT_BYTES_MAX`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    up_to(INPUT_BYTES_MAX, &mut File::open(path)?)
}

fn up_to(bytes_max: u64, source: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let what = format!("it is longer than {bytes_max} bytes, the most that is read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen: `--sessions /dev/zero` read without an end.
    #[test]
    fn endless_file_is_refused() {
        assert_eq!(up_to(4, &mut &b"four"[..]).unwrap(), b"four");
        let error = up_to(4, &mut io::repeat(0)).unwrap_err();
        assert!(error.to_string().contains("longer than 4 bytes"), "{error}");
    }
}
