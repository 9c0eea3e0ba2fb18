//! Prefetching of memory.

#![allow(unsafe_code)]

/// Asks the processor to fetch the cache line of an address. A hint: no value is read, and any
/// address is allowed.
#[inline]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults, whatever the address (Intel SDM volume 2, PREFETCHh),
        // and SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
