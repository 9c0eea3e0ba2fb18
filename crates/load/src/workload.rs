//! Contents of the requests: distributions, file sets, session logs, and lists of requests.

pub mod distribution;
pub mod fileset;
pub mod input_file;
pub mod request_list;
pub mod session_log;
pub mod template;
pub mod traces;
