//! Grace periods: memory that readers may still use is reused only after they have left.
//!
//! Readers take no lock and count nothing in an item. They *pin* the epoch while they read, in a
//! counter of their thread's own stripe; a writer that removes an item from the table stamps it
//! with the epoch and sets it aside.
//!
//! ```text
//!   epoch  e-1        e         e+1        e+2
//!          │ reader pins e ......│          │
//!          │          item out, stamped e   │
//!          │          │          │          └─ no pin of e or less: the memory is free
//! ```
//!
//! The epoch advances from `e` to `e + 1` only when no reader pins `e - 1`, so a reader that pins
//! `e` holds it at `e + 1` or less. Threads that found the item had pinned `stamp` or less; at
//! `stamp + 2` all of them have left. This is epoch-based reclamation (Fraser, "Practical
//! lock-freedom", 2004, 5.2.3) with counters instead of a list of threads, so that threads need not
//! register: any number of threads share the stripes.

use super::sync::{AtomicU64, Ordering, fence};

/// Pin counts of some threads. Two cache lines each, because processors fetch lines in pairs.
#[repr(align(128))]
#[derive(Debug)]
struct PinStripe {
    /// Wide enough that leaked pins never wrap it around.
    pins: [AtomicU64; 3],
}

#[derive(Debug)]
pub(crate) struct Epochs {
    epoch: AtomicU64,
    stripes: Box<[PinStripe]>,
}

/// A pin: the stripe and the epoch. Given back through [`Epochs::unpin`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pin {
    stripe: usize,
    lane: usize,
}

impl Epochs {
    pub(crate) fn new(stripe_count: usize) -> Epochs {
        let stripe = |_| PinStripe { pins: [0, 0, 0].map(AtomicU64::new) };
        // The first epoch is 3: stamps are compared with the epoch minus 2.
        Epochs { epoch: AtomicU64::new(3), stripes: (0..stripe_count).map(stripe).collect() }
    }

    #[inline]
    pub(crate) fn pin(&self, stripe: usize) -> Pin {
        let stripe = stripe % self.stripes.len();
        loop {
            let epoch = self.epoch.load(Ordering::Relaxed);
            let lane = (epoch % 3) as usize;
            let pins = &self.stripes[stripe].pins[lane];
            pins.fetch_add(1, Ordering::SeqCst);
            // Pin before reading the epoch and the table; pairs with the fences below.
            reader_fence();
            if self.epoch.load(Ordering::Acquire) == epoch {
                return Pin { stripe, lane };
            }
            // The epoch advanced meanwhile: this lane may already have been checked.
            pins.fetch_sub(1, Ordering::Release);
        }
    }

    #[inline]
    pub(crate) fn unpin(&self, pin: Pin) {
        self.stripes[pin.stripe].pins[pin.lane].fetch_sub(1, Ordering::Release);
    }

    /// The stamp for memory just removed. Memory with a stamp three epochs older is free.
    #[inline]
    pub(crate) fn stamp(&self) -> u64 {
        fence(Ordering::SeqCst);
        // Acquire: as in `is_over`, for memory three epochs older.
        self.epoch.load(Ordering::Acquire)
    }

    /// True if every thread that may have seen memory with this stamp has left.
    #[inline]
    pub(crate) fn is_over(&self, stamp: u64) -> bool {
        stamp + 2 <= self.epoch.load(Ordering::Acquire)
    }

    /// Advances the epoch by one if no reader holds it. Returns whether it advanced, by this thread
    /// or another.
    pub(crate) fn try_advance(&self) -> bool {
        let epoch = self.epoch.load(Ordering::Acquire);
        fence(Ordering::SeqCst);
        let before = ((epoch - 1) % 3) as usize;
        // Acquire: the readers' loads happen before the memory is written again.
        let held = |stripe: &PinStripe| stripe.pins[before].load(Ordering::Acquire) != 0;
        if self.stripes.iter().any(held) {
            return false;
        }
        let next = epoch + 1;
        // If this fails, another thread has advanced it.
        let _ = self.epoch.compare_exchange(epoch, next, Ordering::AcqRel, Ordering::Relaxed);
        true
    }
}

/// Orders the pin before the reads that follow.
#[inline]
fn reader_fence() {
    // A locked instruction is a full barrier on x86-64 (Intel SDM 3A 9.2.3.9), and the pin is one;
    // a second barrier would cost as much as the whole lookup.
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    fence(Ordering::SeqCst);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn memory_is_free_after_two_epochs() {
        let epochs = Epochs::new(4);
        let stamp = epochs.stamp();
        assert!(!epochs.is_over(stamp));
        assert!(epochs.try_advance() && epochs.try_advance());
        assert!(epochs.is_over(stamp));
    }

    #[test]
    fn reader_holds_older_memory() {
        let epochs = Epochs::new(4);
        let pin = epochs.pin(1);
        let stamp = epochs.stamp();
        while epochs.try_advance() {}
        assert!(!epochs.is_over(stamp));
        epochs.unpin(pin);
        assert!(epochs.try_advance() && epochs.is_over(stamp));
    }

    /// Seen (in review): memory in use by a reader was reused. Cause: 2^32 pins had leaked, and the
    /// pin count was 0 again. Cure: a count of 64 bits, which does not wrap within a program's
    /// lifetime.
    #[test]
    fn leaked_pins_do_not_wrap() {
        let epochs = Epochs::new(1);
        let reader = epochs.pin(0);
        let stamp = epochs.stamp();
        epochs.stripes[0].pins[reader.lane].store(u32::MAX.into(), Ordering::SeqCst);
        let _ = epochs.pin(0);
        assert!(!(0..3).all(|_| epochs.try_advance()), "the reader holds it");
        assert!(!epochs.is_over(stamp));
    }

    #[test]
    fn late_reader_holds_nothing_old() {
        let epochs = Epochs::new(4);
        let stamp = epochs.stamp();
        assert!(epochs.try_advance());
        let _late = epochs.pin(0);
        assert!(epochs.try_advance() && epochs.is_over(stamp));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    /// A table of one slot: a reader that found a value in it must never see its memory reused.
    #[test]
    fn reader_never_sees_reused_memory() {
        loom::model(|| {
            let epochs = Arc::new(Epochs::new(1));
            let slot = Arc::new(AtomicUsize::new(1));
            let memory = Arc::new(loom::cell::UnsafeCell::new(7));
            let reader = {
                let (epochs, slot, memory) = (epochs.clone(), slot.clone(), memory.clone());
                thread::spawn(move || {
                    let pin = epochs.pin(0);
                    if slot.load(Ordering::Acquire) == 1 {
                        memory.with(|memory| {
                            #[allow(unsafe_code)]
                            // SAFETY: the model checks that nothing writes meanwhile.
                            let seen = unsafe { *memory };
                            assert_eq!(seen, 7);
                        });
                    }
                    epochs.unpin(pin);
                })
            };
            slot.store(0, Ordering::Release);
            let stamp = epochs.stamp();
            epochs.try_advance();
            epochs.try_advance();
            if epochs.is_over(stamp) {
                memory.with_mut(|memory| {
                    #[allow(unsafe_code)]
                    // SAFETY: as above.
                    unsafe {
                        *memory = 9;
                    }
                });
            }
            reader.join().unwrap();
        });
    }

    /// Waits as a slab class does: the next stamp of the same lane proves that memory waiting there
    /// is free.
    ///
    /// Seen (in review): loom found a reader's access concurrent with the reuse of its memory.
    /// Cause: the stamp was read relaxed, and another thread had advanced the epoch, so nothing
    /// ordered the access before the reuse. Cure: the stamp is read with acquire.
    #[test]
    fn stamp_three_later_frees_safely() {
        loom::model(|| {
            let epochs = Arc::new(Epochs::new(1));
            let memory = Arc::new(loom::cell::UnsafeCell::new(7));
            let pin = epochs.pin(0);
            let stamp = epochs.stamp();
            let other = epochs.clone();
            let advancer = thread::spawn(move || (0..3).all(|_| other.try_advance()));
            let owner_epochs = epochs.clone();
            let owner_memory = memory.clone();
            let owner = thread::spawn(move || {
                if owner_epochs.stamp() == stamp + 3 {
                    owner_memory.with_mut(|memory| {
                        #[allow(unsafe_code)]
                        // SAFETY: as above.
                        unsafe {
                            *memory = 9;
                        }
                    });
                }
            });
            memory.with(|memory| {
                #[allow(unsafe_code)]
                // SAFETY: as above.
                let seen = unsafe { *memory };
                assert_eq!(seen, 7);
            });
            epochs.unpin(pin);
            advancer.join().unwrap();
            owner.join().unwrap();
        });
    }
}
