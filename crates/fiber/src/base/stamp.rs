//! The processor's own counter, for ages in the ready queue: cheap to read, the same on all CPUs,
//! and in a unit that need not be known, because only quotients of ages count.
//!
//! `Instant::now` reads the same counter but also converts it, which takes twice as long.

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
