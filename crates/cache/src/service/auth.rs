//! Authentication: `-Y FILE` for the text protocols, SASL PLAIN for the binary one.

use std::sync::{Arc, PoisonError, RwLock};

/// Most users, as in memcached (`MAX_ENTRIES` of its authfile).
pub const USERS_MAX: usize = 8;

/// Names and passwords. A handle: clones share the list.
#[derive(Clone, Default)]
pub struct Users(Arc<RwLock<List>>);

type List = Vec<(Vec<u8>, Vec<u8>)>;

impl Users {
    /// Parses `user:password` lines, as for `-Y`. A password may contain colons.
    ///
    /// # Errors
    /// Describes the change that the file needs.
    pub fn parse(text: &[u8]) -> Result<Users, String> {
        let mut users = Vec::new();
        for (at, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let colon = memchr::memchr(b':', line)
                .ok_or_else(|| format!("line {} has no colon; write user:password", at + 1))?;
            users.push((line[..colon].to_vec(), line[colon + 1..].to_vec()));
        }
        match users.len() {
            0 => Err("no user; write one user:password to a line".to_owned()),
            1..=USERS_MAX => Ok(Users(Arc::new(RwLock::new(users)))),
            _ => Err(format!("more than {USERS_MAX} users; remove some")),
        }
    }

    /// Replaces this list, and all its clones, by `newer`. Authenticated clients stay so.
    pub fn replace_by(&self, newer: Users) {
        let list = newer.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = list;
    }

    /// True if a user has this name and password. The time does not depend on the position of the
    /// first wrong byte.
    pub(crate) fn knows(&self, name: &[u8], password: &[u8]) -> bool {
        let list = self.0.read().unwrap_or_else(PoisonError::into_inner);
        list.iter()
            .fold(false, |known, user| known | (same(&user.0, name) & same(&user.1, password)))
    }

    /// Checks `user password`, as sent in the text protocol.
    pub(crate) fn knows_text(&self, text: &[u8]) -> bool {
        memchr::memchr(b' ', text).is_some_and(|at| self.knows(&text[..at], &text[at + 1..]))
    }

    /// Checks `[authorize-as] NUL user NUL password`, as sent by SASL PLAIN. RFC 4616
    pub(crate) fn knows_plain(&self, text: &[u8]) -> bool {
        let mut parts = text.splitn(3, |&byte| byte == 0);
        let (Some(_), Some(name), Some(password)) = (parts.next(), parts.next(), parts.next())
        else {
            return false;
        };
        self.knows(name, password)
    }
}

fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// Passwords stay out of logs and panics.
impl std::fmt::Debug for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} users", self.0.read().unwrap_or_else(PoisonError::into_inner).len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_read_and_known() {
        let users = Users::parse(b"joe:secret\r\n\nann:p:w\n").unwrap();
        assert!(users.knows_text(b"joe secret") && users.knows_text(b"ann p:w"));
        assert!(!users.knows_text(b"joe secre") && !users.knows_text(b"joesecret"));
        assert!(users.knows_plain(b"\0joe\0secret") && users.knows_plain(b"x\0ann\0p:w"));
        assert!(!users.knows_plain(b"joe\0secret") && !users.knows_plain(b""));
        assert_eq!(format!("{users:?}"), "2 users");
    }

    #[test]
    fn bad_list_says_why() {
        for (text, why) in [
            (&b"a:b\njoe"[..], "line 2 has no colon"),
            (&b"\n"[..], "no user"),
            (&b"a:b\n".repeat(9)[..], "more than 8 users"),
        ] {
            let error = Users::parse(text).unwrap_err();
            assert!(error.starts_with(why), "{error}");
        }
    }
}
