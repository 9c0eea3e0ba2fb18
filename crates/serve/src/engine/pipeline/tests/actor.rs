//! A session that acts on each byte that it receives.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use session::{Next, Now, Outbox, Phase, Received, Session, Work};

/// Locks that tests open, and counts of waits.
#[derive(Default)]
pub(super) struct Locks {
    /// Names of opened locks.
    opened: Mutex<Vec<u8>>,
    has_opened: Condvar,
    /// Number of waits that have begun.
    waits: AtomicUsize,
}

impl Locks {
    pub(super) fn open(&self, name: u8) {
        self.opened.lock().unwrap().push(name);
        self.has_opened.notify_all();
    }

    pub(super) fn waits(&self) -> usize {
        self.waits.load(Ordering::Relaxed)
    }

    fn wait(&self, name: u8) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let opened = self.opened.lock().unwrap();
        let waits = |opened: &mut Vec<u8>| !opened.contains(&name);
        drop(self.has_opened.wait_while(opened, waits));
    }
}

pub(super) const BIG_LEN: usize = 300_000;

/// Echoes each byte after doing its command.
pub(super) struct Actor {
    locks: Arc<Locks>,
    /// Work has been done for the first byte of the input.
    has_worked: bool,
    works_for: u8,
}

impl Actor {
    pub(super) fn new(locks: &Arc<Locks>) -> Actor {
        Actor { locks: Arc::clone(locks), has_worked: false, works_for: 0 }
    }
}

/// Work for a byte.
pub(super) struct Act(Arc<Locks>, u8);

impl Work for Act {
    fn run(&mut self, _: Now) {
        match self.1 {
            b'!' => panic!("deliberate, from a test"),
            digit @ b'0'..=b'9' => self.0.wait(digit),
            letter @ b'A'..=b'J' => self.0.open(letter - b'A' + b'0'),
            b'?' => self.0.wait(b'?'),
            _ => {}
        }
    }

    fn waits(&self) -> bool {
        matches!(self.1, b'?' | b'~')
    }

    fn begin(mut self, now: Now, done: Box<dyn FnOnce(Self) + Send>) {
        if self.1 == b'~' {
            return done(self);
        }
        thread::spawn(move || {
            self.run(now);
            done(self);
        });
    }
}

impl Session for Actor {
    type Work = Act;

    fn receive(&mut self, input: &[u8], _now: Now, out: &mut Outbox) -> Received {
        for (used, &byte) in input.iter().enumerate() {
            if out.is_full() {
                let next = Next::Flush;
                return Received { used, next };
            }
            let worked = mem::take(&mut self.has_worked);
            self.works_for = byte;
            match byte {
                // Blocks the thread that passes it its input.
                b'S' => {
                    self.locks.wait(b'S');
                    out.put(b"S");
                }
                b'P' => panic!("deliberate, from a test"),
                // A digit waits for its lock. A capital letter opens one: `A` opens that of `0`.
                b'w' | b'!' | b'?' | b'~' | b'0'..=b'9' | b'A'..=b'J' if !worked => {
                    let next = Next::Work;
                    return Received { used, next };
                }
                b'b' => out.put_shared(vec![b'b'; BIG_LEN].into()),
                _ => out.put(&[byte]),
            }
        }
        let next = Next::Receive(Phase::Idle);
        Received { used: input.len(), next }
    }

    fn take_work(&mut self) -> Option<Act> {
        Some(Act(Arc::clone(&self.locks), self.works_for))
    }

    fn handle_worked(&mut self, _: Act, _: Now, _: &mut Outbox) -> Next {
        self.has_worked = true;
        Next::Flush
    }
}
