//! The token of `park` and `unpark`: an unpark that comes first is remembered, once.
//!
//! ```text
//!             park                       unpark: make it ready
//!  RUNNING ──────────▶ PARKED ───────────────────────────────▶ RUNNING
//!     │ unpark                                                    ▲
//!     └───────▶ NOTIFIED ─────────────────────────────────────────┘
//!                          park: returns at once
//! ```
//!
//! Parking takes two steps, because a fiber must have left its stack before another processor may
//! run it: the fiber switches away, and then its processor tries to park it. An unpark between the
//! two finds RUNNING, and the processor finds NOTIFIED.

use crate::base::atomic::{AtomicU8, Ordering};

/// Running or ready.
const RUNNING: u8 = 0;
const PARKED: u8 = 1;
const NOTIFIED: u8 = 2;

/// Token of one fiber.
#[derive(Debug)]
pub(crate) struct Token(AtomicU8);

impl Token {
    pub(crate) fn new() -> Token {
        Token(AtomicU8::new(RUNNING))
    }

    /// Uses up an unpark that came first; `false` if there was none.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        self.0.load(Ordering::Relaxed) == NOTIFIED
            && self
                .0
                .compare_exchange(NOTIFIED, RUNNING, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    /// Parks a fiber that has switched away. `false` if it was unparked in the meantime and is
    /// ready.
    #[inline]
    pub(crate) fn park(&self) -> bool {
        let parked = self.0.compare_exchange(RUNNING, PARKED, Ordering::AcqRel, Ordering::Acquire);
        if parked.is_ok() {
            return true;
        }
        // A swap and not a store: it acquires what the latest unpark published.
        self.0.swap(RUNNING, Ordering::AcqRel);
        false
    }

    /// Gives the token. `true` if the fiber was parked: the caller makes it ready, and nothing else
    /// does.
    #[inline]
    pub(crate) fn unpark(&self) -> bool {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let next = if seen == PARKED { RUNNING } else { NOTIFIED };
            match self.0.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(before) => return before == PARKED,
                Err(now) => seen = now,
            }
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::base::atomic::{AtomicBool, AtomicUsize};
    use loom::sync::Arc;
    use loom::thread;

    /// A fiber's life in miniature: it waits for `flag` by parking; the thread that makes it ready
    /// runs it again.
    struct World {
        token: Token,
        flag: AtomicBool,
        runs: AtomicUsize,
        done: AtomicUsize,
    }

    /// One run of the fiber and its processor: check, and park unless the condition holds.
    fn run(world: &World) {
        world.runs.fetch_add(1, Ordering::Relaxed);
        loop {
            if world.flag.load(Ordering::Relaxed) {
                world.done.fetch_add(1, Ordering::Relaxed);
                return;
            }
            if !world.token.take() && world.token.park() {
                return; // The unparking thread runs it.
            }
        }
    }

    fn unpark(world: &World) {
        if world.token.unpark() {
            run(world);
        }
    }

    fn finishes_with(unparkers: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let world = Arc::new(World {
                token: Token::new(),
                flag: AtomicBool::new(false),
                runs: AtomicUsize::new(0),
                done: AtomicUsize::new(0),
            });
            let threads: Vec<_> = (0..unparkers)
                .map(|_| {
                    let world = Arc::clone(&world);
                    thread::spawn(move || {
                        world.flag.store(true, Ordering::Relaxed);
                        unpark(&world);
                    })
                })
                .collect();
            run(&world);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(world.done.load(Ordering::Relaxed), 1, "the fiber was lost or ran twice");
        });
    }

    #[test]
    fn unpark_races_with_park() {
        finishes_with(1);
    }

    #[test]
    fn of_two_unparkers_one_makes_it_ready() {
        finishes_with(2);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_unpark_is_remembered_once() {
        let token = Token::new();
        assert!(!token.unpark() && !token.unpark());
        assert!(token.take());
        assert!(!token.take());
        assert!(token.park());
        assert!(token.unpark());
    }
}
