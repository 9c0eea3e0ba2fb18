//! Adds and removes processors at random while a round is played.

use std::fmt;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fiber::{Retirement, Runtime};

use crate::dice::Dice;

/// Limit on running processors; retiring ones do not count.
const RUNNING_MAX: usize = 6;
/// Time that a processor may take to end when the round is over and no fiber is left.
const PATIENCE: Duration = Duration::from_secs(10);

/// Processors that came and went.
#[derive(Debug, Default)]
pub(crate) struct Resized {
    added: usize,
    removed: usize,
}

impl fmt::Display for Resized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} processors came, {} went", self.added, self.removed)
    }
}

/// Plays while processors are added and removed. Fails if a removed one does not end.
pub(crate) fn during<R>(
    runtime: &Runtime,
    seed: u64,
    play: impl FnOnce() -> R,
) -> (R, Result<Resized, String>) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let hand = scope.spawn(|| resize(runtime, Dice::new(seed), &is_over));
        let played = play();
        is_over.store(true, Ordering::SeqCst);
        let resized = hand.join().expect("adding and removing does not panic");
        (played, resized)
    })
}

fn resize(runtime: &Runtime, mut dice: Dice, is_over: &AtomicBool) -> Result<Resized, String> {
    let mut resized = Resized::default();
    let mut going: Vec<Retirement> = Vec::new();
    while !is_over.load(Ordering::SeqCst) {
        if dice.one_in(2) && runtime.processor_count() < RUNNING_MAX {
            match runtime.add_processor() {
                Ok(_) => resized.added += 1,
                // Too many processors are still retiring.
                Err(error) if error.kind() == ErrorKind::QuotaExceeded => {}
                Err(error) => return Err(format!("a processor does not come: {error}")),
            }
        } else if runtime.processor_count() > 1 {
            let mut running = runtime.processors();
            running.retain(|one| !one.is_retiring);
            let index = running[dice.below(running.len() as u64) as usize].index;
            let removed = runtime.remove_processor(index);
            going.push(removed.map_err(|error| format!("processor {index} stays: {error}"))?);
            resized.removed += 1;
        }
        going.retain(|one| !one.is_over());
        std::thread::sleep(Duration::from_millis(dice.below(50)));
    }
    match going.iter().find(|one| !one.wait(PATIENCE)) {
        None => Ok(resized),
        Some(one) => {
            Err(format!("{one:?} does not go\n{}", runtime.inspector().dump_with_backtraces()))
        }
    }
}
