//! The processor's own counter, for ages in the ready queue: cheap to read, the same on all CPUs,
//! and in a unit that is seldom needed, because mostly quotients of ages count.
//!
//! `Instant::now` reads the same counter but also converts it, which takes twice as long.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The counter now.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn now() -> u64 {
    // SAFETY: every x86-64 has a time-stamp counter, and Linux lets programs read it (prctl(2),
    // PR_SET_TSC).
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The counter now.
#[cfg(target_arch = "aarch64")]
#[inline]
pub(crate) fn now() -> u64 {
    let ticks: u64;
    // SAFETY: reads the virtual counter, which Linux opens to programs on every aarch64 machine.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
    ticks
}

/// Growth of the counter in `time`, within some percent.
pub(crate) fn ticks(time: Duration) -> u64 {
    per_microsecond().saturating_mul(time.as_micros() as u64)
}

/// Time since the counter was `stamp`, within some percent.
pub(crate) fn since(stamp: u64) -> Duration {
    Duration::from_micros(now().saturating_sub(stamp) / per_microsecond())
}

/// Growth of the counter in a microsecond. The first call measures it, which takes some 100 µs.
fn per_microsecond() -> u64 {
    static PER_MICROSECOND: OnceLock<u64> = OnceLock::new();
    *PER_MICROSECOND.get_or_init(|| {
        // A thread that is interrupted between two clocks measures nonsense, once.
        let mut measured = [(); 5].map(|()| measure());
        measured.sort_unstable();
        measured[2].max(1)
    })
}

fn measure() -> u64 {
    let (began, counted_from) = (Instant::now(), now());
    while began.elapsed() < Duration::from_micros(20) {
        std::hint::spin_loop();
    }
    now().saturating_sub(counted_from) / began.elapsed().as_micros() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_grows_by_what_is_said() {
        let (outer, began, inner) = (now(), Instant::now(), now());
        std::thread::sleep(Duration::from_millis(20));
        let (inner, took) = (now() - inner, began.elapsed());
        let (outer, wanted) = (now() - outer, ticks(took));
        assert!(outer > wanted / 2, "{outer} in {took:?}, not {wanted}");
        assert!(inner < wanted * 2, "{inner} in {took:?}, not {wanted}");
    }
}
