//! Scenes with locks and channels. Guarded values must add up, wherever fibers were cancelled.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fiber::sync::{Condvar, Mutex, RwLock, Semaphore, mpmc};

use crate::dice::Dice;
use crate::scenes::Props;

/// State that all players of a round share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Always the same number twice, under the lock.
    pair: Mutex<(u64, u64)>,
    /// Number of changes to the pair.
    changes: AtomicU64,
    table: RwLock<Vec<u64>>,
    permits: Semaphore,
    /// Number of players with a permit.
    inside: AtomicU64,
}

const PERMITS: usize = 3;

impl Default for Shared {
    fn default() -> Shared {
        Shared {
            pair: Mutex::new((0, 0)),
            changes: AtomicU64::new(0),
            table: RwLock::new(vec![0; 16]),
            permits: Semaphore::new(PERMITS),
            inside: AtomicU64::new(0),
        }
    }
}

impl Shared {
    /// Checks the end state, when no scene plays any more.
    pub(crate) fn check(&self) -> Result<(), String> {
        let pair = *self.pair.lock().map_err(|_| "a lock is poisoned")?;
        let changes = self.changes.load(Ordering::SeqCst);
        if pair != (changes, changes) {
            return Err(format!("{pair:?} after {changes} changes under a lock"));
        }
        match self.permits.available() {
            PERMITS => Ok(()),
            left => Err(format!("{left} of {PERMITS} permits are left")),
        }
    }
}

/// Changes guarded values, and suspends while it holds the locks.
pub(crate) fn counted(dice: &mut Dice, props: &Props) -> io::Result<()> {
    let shared = &props.shared;
    let patience = Duration::from_millis(dice.below(20));
    let locked = if dice.one_in(2) {
        shared.pair.lock_timeout(patience).ok()
    } else {
        shared.pair.lock().ok()
    };
    if let Some(mut pair) = locked {
        pair.0 += 1;
        fiber::sleep(Duration::from_micros(dice.below(300)));
        pair.1 += 1;
        shared.changes.fetch_add(1, Ordering::SeqCst);
        assert_eq!(pair.0, pair.1, "two fibers had one lock");
    }
    if dice.one_in(4) {
        let mut table = shared.table.write().expect("no fiber panics");
        let next = table[0] + 1;
        table[0] = next;
        fiber::yield_now();
        table.fill(next);
    } else {
        let table = shared.table.read().expect("no fiber panics");
        fiber::yield_now();
        assert!(table.iter().all(|&entry| entry == table[0]), "{table:?}");
    }
    fiber::checkpoint()
}

/// Numbers through a channel of a random kind; each comes once, in the order of its sender.
pub(crate) fn through_channels(dice: &mut Dice, _: &Props) -> io::Result<()> {
    let (sender, receiver) = match dice.below(3) {
        0 => mpmc::rendezvous(),
        1 => mpmc::unbounded(),
        _ => mpmc::bounded(1 + dice.below(8) as usize),
    };
    let count = dice.below(100);
    let senders: Vec<_> = (0..2)
        .map(|_| {
            let sender = sender.clone();
            fiber::spawn(move || (0..count).take_while(|&n| sender.send(n).is_ok()).count())
        })
        .collect();
    drop(sender);
    // Stops early now and then, which the senders notice.
    let wanted = if dice.one_in(5) { count } else { 2 * count };
    let received: Vec<u64> = receiver.iter().take(wanted as usize).collect();
    drop(receiver);
    // A cancelled fiber receives no more.
    fiber::checkpoint()?;
    let sent: usize = senders.into_iter().map(|sender| sender.join().expect("a sender")).sum();
    assert!(received.len() <= sent, "{} of {sent}", received.len());
    let sum: u64 = received.iter().sum();
    if wanted == 2 * count {
        assert_eq!(sum, count * count.saturating_sub(1), "numbers were lost");
    }
    fiber::checkpoint()
}

/// A permit, and a wait on a condition.
pub(crate) fn permits(dice: &mut Dice, props: &Props) -> io::Result<()> {
    let shared = &props.shared;
    {
        let _permit = shared.permits.acquire();
        let inside = shared.inside.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(inside <= PERMITS as u64, "{inside} have a permit of {PERMITS}");
        fiber::sleep(Duration::from_micros(dice.below(300)));
        shared.inside.fetch_sub(1, Ordering::SeqCst);
    }
    let met = (Mutex::new(false), Condvar::new());
    fiber::scope(|scope| {
        scope.spawn(|| {
            *met.0.lock().expect("no fiber panics") = true;
            met.1.notify_one();
        });
        let guard = met.0.lock().expect("no fiber panics");
        drop(met.1.wait_while(guard, |met| !*met));
    });
    fiber::checkpoint()
}
