//! The limit on open files, which limits the connections.

use ::serve::limits::raise_nofile;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::failure::Failure;

/// Raises the limit for the `connections` requested by `option` and `others` more files; returns
/// the new limit.
///
/// # Errors
/// A sentence that names the limit to raise, if it stays too low.
pub(crate) fn make_room(option: &str, connections: usize, others: u64) -> Result<u64, Failure> {
    let wanted = connections as u64 + others;
    raise_hard_nofile(wanted);
    let (nofile, _) = raise_nofile()?;
    if nofile < wanted {
        return Err(Failure::Running(format!(
            "{option} {connections} needs {wanted} open files, and the limit is {nofile}: raise it (ulimit -n {wanted}, \
             LimitNOFILE= in a systemd unit, or as root with CAP_SYS_RESOURCE), or give a smaller {option}"
        )));
    }
    Ok(nofile)
}

/// Raises the hard limit, which needs CAP_SYS_RESOURCE: root has it, but not in most containers.
fn raise_hard_nofile(wanted: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|maximum| maximum < wanted) {
        let more = Rlimit { current: Some(wanted), maximum: Some(wanted) };
        // The caller reads the limit again.
        let _ = setrlimit(Resource::Nofile, more);
    }
}
