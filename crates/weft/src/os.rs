//! The process and its machine: limits, signals, privileges, sandbox, and reading or replacing of
//! whole files.

pub(crate) mod files;
pub(crate) mod machine;
pub(crate) mod open_files;
pub(crate) mod pid_file;
pub(crate) mod privileges;
pub(crate) mod process;
pub(crate) mod sandbox;
pub(crate) mod signals;
pub(crate) mod stop;
