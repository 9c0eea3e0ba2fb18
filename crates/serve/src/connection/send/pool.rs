//! Outboxes that threads keep for their next replies.

use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

use super::Outgoing;

/// Number of outboxes that a thread keeps.
const KEPT_MAX: usize = 64;

/// Boxed, so that a connection takes one by moving a pointer.
type Pool = Vec<Box<Outgoing>>;

thread_local! {
    static KEPT: RefCell<Pool> = const { RefCell::new(Vec::new()) };
}

/// Surplus of some threads, for threads that run out: in a pipeline one thread writes replies and
/// another sends them.
static SPARE: Mutex<Pool> = Mutex::new(Vec::new());

/// Takes an outbox from this thread's pool, or from the surplus.
#[inline]
pub(super) fn take() -> Option<Box<Outgoing>> {
    KEPT.with_borrow_mut(|kept| lend(kept, &SPARE))
}

/// Keeps an outbox for the next replies.
#[inline]
pub(super) fn put_back(one: Box<Outgoing>) {
    KEPT.with_borrow_mut(|kept| keep(kept, &SPARE, one));
}

#[inline]
fn lend(kept: &mut Pool, spare: &Mutex<Pool>) -> Option<Box<Outgoing>> {
    if kept.is_empty() {
        let mut spare = spare.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = spare.len().saturating_sub(KEPT_MAX / 2);
        kept.extend(spare.drain(rest..));
    }
    kept.pop()
}

/// Keeps an outbox. If the thread has too many, half of them go to the surplus.
#[inline]
fn keep(kept: &mut Pool, spare: &Mutex<Pool>, one: Box<Outgoing>) {
    if kept.len() == KEPT_MAX {
        let mut spare = spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.extend(kept.drain(KEPT_MAX / 2..));
        spare.truncate(KEPT_MAX);
    }
    kept.push(one);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Seen: a pipeline allocated an outbox for each reply. Cause: the sending thread kept those
    /// that the writing thread had taken, until it had too many. Cure: the surplus goes back.
    #[test]
    fn one_thread_takes_another_gives_back() {
        let now = Instant::now();
        let spare = Mutex::default();
        let mut writes = Vec::new();
        let mut sends = Vec::new();
        let mut made = 0;
        for _ in 0..100 * KEPT_MAX {
            let one = lend(&mut writes, &spare).unwrap_or_else(|| {
                made += 1;
                Outgoing::new(now)
            });
            keep(&mut sends, &spare, one);
            assert!(sends.len() <= KEPT_MAX && spare.lock().unwrap().len() <= KEPT_MAX);
        }
        assert_eq!(made, KEPT_MAX + 1);
    }
}
