//! Change to another user, once, before the server starts.

use std::ffi::{CStr, CString};
use std::io;

use crate::value::Account;

/// User and group by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) user: libc::uid_t,
    pub(crate) group: libc::gid_t,
    /// Name of the user, for its supplementary groups; without it there are none.
    name: Option<CString>,
}

/// Resolves an account in the system's database (nsswitch.conf(5)), or as numbers.
///
/// # Errors
/// A sentence that names the unknown user or group.
pub(crate) fn find(account: &Account) -> Result<Ids, String> {
    let name = c_string(&account.user)?;
    let (user, own_group, name) = match user_by_name(&name)? {
        Some((user, group)) => (user, Some(group), Some(name)),
        None => {
            let number = account.user.parse();
            (number.map_err(|_| format!("there is no user '{}'", account.user))?, None, None)
        }
    };
    let group = match &account.group {
        None => own_group
            .ok_or_else(|| format!("user {user} has no name; give its group too: {user}:GROUP"))?,
        Some(group) => match group_by_name(&c_string(group)?)? {
            Some(group) => group,
            None => group.parse().map_err(|_| format!("there is no group '{group}'"))?,
        },
    };
    Ok(Ids { user, group, name })
}

/// Changes the process's user, group and supplementary groups to `ids`, irrevocably. Does nothing
/// if user and group are these already.
///
/// glibc applies the change to all threads of the process (nptl(7)), but not to the kernel's own
/// threads behind an io_uring: call it before a ring is created.
///
/// # Errors
/// The error of setgroups(2), setgid(2) or setuid(2); or that the old privileges can be regained.
pub(crate) fn drop_to(ids: &Ids) -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if user.as_raw() == ids.user && group.as_raw() == ids.group {
        return Ok(());
    }
    // The groups first, while the process may change them; the user last.
    set_groups(ids)?;
    // SAFETY: plain system calls on numbers, no memory involved. setgid(2), setuid(2)
    check(unsafe { libc::setgid(ids.group) })?;
    // SAFETY: as above.
    check(unsafe { libc::setuid(ids.user) })?;
    // SAFETY: as above. Success would mean that the privileges are only suspended.
    if ids.user != 0 && unsafe { libc::setuid(0) } == 0 {
        return Err(io::Error::other("the old privileges can still be regained"));
    }
    Ok(())
}

fn set_groups(ids: &Ids) -> io::Result<()> {
    match &ids.name {
        // SAFETY: `name` is a zero-terminated string that outlives the call. initgroups(3)
        Some(name) => check(unsafe { libc::initgroups(name.as_ptr(), ids.group) }),
        // SAFETY: the list is one number long and outlives the call. setgroups(2)
        None => check(unsafe { libc::setgroups(1, &ids.group) }),
    }
}

fn check(returned: libc::c_int) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn c_string(name: &str) -> Result<CString, String> {
    CString::new(name).map_err(|_| "a name cannot contain a zero byte".to_owned())
}

fn user_by_name(name: &CStr) -> Result<Option<(libc::uid_t, libc::gid_t)>, String> {
    // SAFETY: `name` is zero-terminated; the result points to memory of libc that stays valid until
    // the next call, and this process has one thread. It is copied at once. getpwnam(3)
    let found = unsafe { libc::getpwnam(name.as_ptr()).as_ref() };
    Ok(found.map(|found| (found.pw_uid, found.pw_gid)))
}

fn group_by_name(name: &CStr) -> Result<Option<libc::gid_t>, String> {
    // SAFETY: as in `user_by_name`. getgrnam(3)
    let found = unsafe { libc::getgrnam(name.as_ptr()).as_ref() };
    Ok(found.map(|found| found.gr_gid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value;

    fn ids(text: &str) -> Result<Ids, String> {
        // libc's database functions keep their result in one place; tests run on many threads.
        static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _guard = ONE_AT_A_TIME.lock();
        find(&value::account(text).unwrap())
    }

    #[test]
    fn accounts_by_name_and_number() {
        let root = ids("root").unwrap();
        assert_eq!((root.user, root.group), (0, 0));
        assert_eq!(ids("root:0"), ids("root"));
        let numbers = ids("12345:54321").unwrap();
        assert_eq!((numbers.user, numbers.group, numbers.name), (12345, 54321, None));
    }

    #[test]
    fn unknown_accounts_are_named() {
        assert!(ids("no-account-of-this-name").unwrap_err().contains("'no-account-of-this-name'"));
        assert!(ids("root:no-such-group").unwrap_err().contains("'no-such-group'"));
        assert!(ids("12345").unwrap_err().contains("12345:GROUP"));
    }

    #[test]
    fn change_to_the_same_user() {
        let user = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        drop_to(&Ids { user, group, name: None }).unwrap();
    }
}
