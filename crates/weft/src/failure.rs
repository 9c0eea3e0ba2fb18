//! Error of a command: its message and its exit code.

use std::io;

/// Unsuccessful end of a command. The help lists the exit codes.
pub(crate) enum Failure {
    /// Failed while running: exit code 1.
    Running(String),
    /// Wrong command line or configuration: exit code 2.
    Usage(String),
    /// The message was printed already; only the exit code is left.
    Shown(u8),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            // The reader of the output has closed it (`weft man | head`). That is not a failure.
            io::ErrorKind::BrokenPipe => Failure::Shown(0),
            _ => Failure::Running(error.to_string()),
        }
    }
}
