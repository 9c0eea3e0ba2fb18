//! Replies to http-01 challenges of a certificate authority. RFC 8555 8.3

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use crate::request::{Head, Method, Target};

/// Tokens of running validations, and the reply to each. They survive a reload.
#[derive(Debug, Default)]
pub struct Challenges {
    replies: RwLock<HashMap<String, String>>,
    /// False nearly always; requests then skip the lock.
    is_any: AtomicBool,
}

/// Directory of the tokens. Files of the site are served from it as well, for other ACME clients.
pub(crate) const DIRECTORY: &str = "/.well-known/acme-challenge/";

impl Challenges {
    /// Answers requests for a token on every host from now on.
    pub fn insert(&self, token: &str, reply: &str) {
        let mut replies = self.replies();
        replies.insert(token.to_owned(), reply.to_owned());
        self.is_any.store(true, Ordering::Release);
    }

    /// Stops answering requests for a token.
    pub fn remove(&self, token: &str) {
        let mut replies = self.replies();
        replies.remove(token);
        self.is_any.store(!replies.is_empty(), Ordering::Release);
    }

    fn replies(&self) -> RwLockWriteGuard<'_, HashMap<String, String>> {
        self.replies.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reply to a request for a known token.
    #[inline]
    pub(crate) fn find(&self, head: &Head<'_>) -> Option<String> {
        let is_any = self.is_any.load(Ordering::Acquire);
        if is_any { self.look_up(head) } else { None }
    }

    #[cold]
    fn look_up(&self, head: &Head<'_>) -> Option<String> {
        let (Method::Get | Method::Head, Target::Path(raw)) = (head.method, head.target) else {
            return None;
        };
        let token = raw.path.strip_prefix(DIRECTORY.as_bytes())?;
        let replies = self.replies.read().unwrap_or_else(PoisonError::into_inner);
        replies.get(str::from_utf8(token).ok()?).cloned()
    }
}
