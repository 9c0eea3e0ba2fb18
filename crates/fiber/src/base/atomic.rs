//! The atomics, locks and cells of everything that is model-checked: the standard library's, or
//! loom's under `--cfg loom`. Modules that use these know nothing of rings, stacks or sockets, so
//! that a model is the code itself.
//!
//! ```console
//! $ RUSTFLAGS="--cfg loom" cargo test -p weftwork-fiber --lib --release models
//! ```

// Each module takes what it needs.
#![allow(unused_imports, dead_code)]

#[cfg(not(loom))]
pub(crate) use std::hint::spin_loop;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;
#[cfg(loom)]
pub(crate) use loom::hint::spin_loop;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};

/// A fence that is sequentially consistent.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn full_fence() {
    // A locked instruction orders all ordinary memory as well as `mfence`, which the standard
    // library's fence is, and takes a fifth of the time.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the word on top of the stack keeps its value.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp], 0", options(nostack));
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(loom)]
pub(crate) fn full_fence() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// [`std::cell::UnsafeCell`] with loom's methods: loom's own checks that no two threads are inside
/// at once.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with the address, to read from.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Calls `f` with the address, to read from and write to.
    #[inline]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
