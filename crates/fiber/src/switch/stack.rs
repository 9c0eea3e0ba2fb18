//! Stacks: slabs of equal slots in a few big mappings, each slot guarded, freed slots used again.
//!
//! ```text
//!  one chunk = one mapping (no transparent huge pages: one touched byte would cost 2 MiB)
//!  ┌───────┬──────────────────┬───────┬──────────────────┬───────┬─────────
//!  │ guard │ ◀── stack grows  │ guard │ ◀── stack grows  │ guard │ ...
//!  └───────┴──────────────────┴───────┴──────────────────┴───────┴─────────
//!  ▲ limit                    ▲ base of slot 0 = limit of slot 1
//! ```
//!
//! Guards are made with `MADV_GUARD_INSTALL` (Linux 6.13), which needs no mapping of its own, so a
//! million guarded stacks are one mapping. Before that kernel `mprotect` must split the mapping at
//! every guard, and `vm.max_map_count` (65,530 as a rule) allows some 32,000 stacks: new stacks
//! fail well before, with an error that says what to raise, because at the real limit `malloc`
//! fails too.
//!
//! A parked fiber costs the pages that it touched (one as a rule) and a slot of address space.
//! Freed slots are used again last in, first out: the warmest first. They keep the uppermost page,
//! and give the others back: at once, or if a processor has cached them, once it is idle. Of more
//! than [`WARM_MAX`] free ones an idle processor gives that page back as well, the coldest first.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::mem::ManuallyDrop;
use std::num::NonZeroU64;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::base::stamp;

/// Stack size of a fiber unless its builder says otherwise: address space; only touched pages cost.
pub(crate) const STACK_SIZE_DEFAULT: usize = 64 * 1024;

/// Smallest stack: formatting a panic message with a backtrace needs about this much.
pub(crate) const STACK_SIZE_MIN: usize = 16 * 1024;

/// Largest stack: a larger request is a mistake (a size in bits, say). With its guard, of 64 KiB at
/// most, a stack has fewer than 2^18 pages of 4 KiB: see [`StackPlace`].
pub(crate) const STACK_SIZE_MAX: usize = (1 << 30) - 2 * (64 << 10);

/// Smallest page that a kernel has; see [`page_size`].
const PAGE_SIZE_MIN: usize = 4096;
const CHUNK_LEN: usize = 64 << 20;

/// Page size of this kernel: 4 KiB; on aarch64 16 KiB and 64 KiB as well.
pub(crate) fn page_size() -> usize {
    // x86-64 has no other size, and the constant saves 4 % of a spawn.
    if cfg!(target_arch = "x86_64") { PAGE_SIZE_MIN } else { rustix::param::page_size() }
}

/// `madvise(2)`: install a lightweight guard region. Not in libc's headers of 2022.
const MADV_GUARD_INSTALL: libc::c_int = 102;

/// True if this kernel guards stacks without a mapping per guard (`MADV_GUARD_INSTALL`, Linux
/// 6.13).
pub fn guard_install_supported() -> bool {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    *SUPPORTED.get_or_init(|| {
        let page_size = page_size();
        let Ok(chunk) = map(page_size) else {
            return false;
        };
        // SAFETY: the page was just mapped and nothing else knows its address.
        let result = unsafe { libc::madvise(chunk.as_ptr().cast(), page_size, MADV_GUARD_INSTALL) };
        // SAFETY: as above; it is not used afterwards.
        unsafe { libc::munmap(chunk.as_ptr().cast(), page_size) };
        result == 0
    })
}

/// One slot: the stack of one fiber. Goes back to its slab when dropped.
#[derive(Debug)]
pub(crate) struct FiberStack(StackPlace);

/// Address and size of a stack in one word, because every fiber keeps two of them, in pages of 4
/// KiB whatever the kernel's are:
///
/// ```text
///  63         46 45 36 35                               0
/// ┌─────────────┬─────┬──────────────────────────────────┐
/// │ pages, of 18│  0  │ number of the first page, of 36  │    user space has 48 bits of addresses, less 12
/// └─────────────┴─────┴──────────────────────────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StackPlace(NonZeroU64);

impl FiberStack {
    /// Takes a slot of at least `stack_size` usable bytes.
    ///
    /// # Errors
    /// Out of memory, or (kernels before 6.13) out of guards; the message says what to raise.
    pub(crate) fn take(stack_size: usize) -> io::Result<FiberStack> {
        let slot_len = slot_len(stack_size, page_size());
        let limit = slabs().entry(slot_len).or_insert_with(|| Slab::new(slot_len)).take()?;
        Ok(FiberStack(StackPlace::new(limit, slot_len)))
    }

    /// The place, which goes back to its slab by [`from_place`](FiberStack::from_place) alone.
    pub(crate) fn into_place(self) -> StackPlace {
        ManuallyDrop::new(self).0
    }

    /// # Safety
    /// It is of [`into_place`](FiberStack::into_place), and nothing on the stack is used any more.
    pub(crate) unsafe fn from_place(place: StackPlace) -> FiberStack {
        FiberStack(place)
    }
}

/// Length of a slot for a stack of this size, on a kernel with pages of this size.
fn slot_len(stack_size: usize, page_size: usize) -> usize {
    let size = stack_size.clamp(STACK_SIZE_MIN, STACK_SIZE_MAX);
    // The guard comes on top, except for powers of two: a stack of 64 KiB then has a slot of 64
    // KiB, and a page less of stack is cheaper than more page tables. A larger page would leave too
    // little of it, or nothing.
    if size.is_power_of_two() && page_size == PAGE_SIZE_MIN {
        size
    } else {
        (size + page_size).next_multiple_of(page_size)
    }
}

const PAGE_SHIFT: u32 = PAGE_SIZE_MIN.trailing_zeros();
const PAGES_SHIFT: u32 = 46;

impl StackPlace {
    fn new(limit: NonNull<u8>, slot_len: usize) -> StackPlace {
        let first = (limit.as_ptr().expose_provenance() >> PAGE_SHIFT) as u64;
        let pages = (slot_len >> PAGE_SHIFT) as u64;
        assert!(first >> 36 == 0, "a stack at page {first:#x}, above 48 bits");
        assert!(pages >> 18 == 0, "a stack of {pages} pages, above 18 bits");
        StackPlace(NonZeroU64::new(pages << PAGES_SHIFT | first).expect("above null"))
    }

    /// Place of the [`bits`](StackPlace::bits); `None` for 0.
    pub(crate) fn from_bits(bits: u64) -> Option<StackPlace> {
        NonZeroU64::new(bits).map(StackPlace)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0.get()
    }

    /// From the guard page to the base.
    fn range(self) -> Range<usize> {
        let first = self.0.get() & ((1 << PAGES_SHIFT) - 1);
        let start = (first as usize) << PAGE_SHIFT;
        start..start + self.len()
    }

    fn len(self) -> usize {
        ((self.0.get() >> PAGES_SHIFT) as usize) << PAGE_SHIFT
    }

    /// The guard page: a fault in it is an overflow of this stack.
    pub(crate) fn guard(self) -> Range<usize> {
        let start = self.range().start;
        start..start + page_size()
    }

    /// Range above the guard.
    pub(crate) fn usable(self) -> Range<usize> {
        self.guard().end..self.range().end
    }

    /// Gives all pages but the uppermost back, on a stack that is free.
    fn give_pages_back(self) {
        let usable = self.usable();
        let start = std::ptr::with_exposed_provenance_mut(usable.start);
        let len = usable.len() - page_size();
        // SAFETY: no frame is on the stack; whatever it held, the next one writes before it reads.
        // Advice may fail (locked memory) without harm.
        unsafe { libc::madvise(start, len, libc::MADV_DONTNEED) };
    }

    /// Gives the uppermost page back as well.
    fn give_last_page_back(self) {
        let start = std::ptr::with_exposed_provenance_mut(self.range().end - page_size());
        // SAFETY: as in `give_pages_back`.
        unsafe { libc::madvise(start, page_size(), libc::MADV_DONTNEED) };
    }
}

impl Drop for FiberStack {
    fn drop(&mut self) {
        self.0.give_pages_back();
        if let Some(slab) = slabs().get_mut(&self.0.len()) {
            let limit = std::ptr::with_exposed_provenance_mut(self.0.range().start);
            slab.free.push(NonNull::new(limit).expect("above null"));
        }
    }
}

/// Stacks of the default size that a processor keeps, so that a step, or a fiber that is spawned
/// here, takes one without a lock.
#[derive(Debug, Default)]
pub(crate) struct StackCache {
    stacks: RefCell<Vec<FiberStack>>,
    /// Stamp since when cached stacks, or free ones of the slabs, may have more pages than they
    /// need; 0 if none has.
    deep_since: Cell<u64>,
    /// True if free stacks of the slabs have, as of the latest check.
    is_cooling: Cell<bool>,
}

/// Limit on cached stacks: more than are usually in use within a turn.
const STACKS_CACHED_MAX: usize = 128;

/// Age at which an idle processor gives pages of its cached stacks back.
const DEEP_MAX: Duration = Duration::from_secs(1);

/// Free stacks of a slab that keep their uppermost page: 4 MiB.
const WARM_MAX: usize = 1024;

/// Stacks that give it back at a time, while the slabs are locked, and the pause before the next
/// ones do.
const COOLED_AT_ONCE: usize = 256;
const COOL_PAUSE: Duration = Duration::from_millis(20);

impl StackCache {
    pub(crate) fn take(&self) -> io::Result<FiberStack> {
        match self.stacks.borrow_mut().pop() {
            Some(stack) => Ok(stack),
            None => FiberStack::take(STACK_SIZE_DEFAULT),
        }
    }

    pub(crate) fn give(&self, stack: FiberStack, now: u64) {
        let mut stacks = self.stacks.borrow_mut();
        let is_default = stack.0.len() == slot_len(STACK_SIZE_DEFAULT, page_size());
        if stacks.len() < STACKS_CACHED_MAX && is_default {
            stacks.push(stack);
        }
        if self.deep_since.get() == 0 {
            self.deep_since.set(now);
        }
    }

    /// Time that an idle processor may sleep before it trims; `None` if there is nothing to trim.
    pub(crate) fn trims_after(&self) -> Option<Duration> {
        let pause = if self.is_cooling.get() { COOL_PAUSE } else { DEEP_MAX };
        (self.deep_since.get() != 0).then_some(pause)
    }

    /// Gives pages back if it is time, at the stamp `now`.
    pub(crate) fn trim(&self, now: u64) {
        let Some(pause) = self.trims_after() else {
            return;
        };
        if now.saturating_sub(self.deep_since.get()) < stamp::ticks(pause) {
            return;
        }
        if !self.is_cooling.get() {
            let stacks = self.stacks.borrow();
            stacks.iter().for_each(|stack| stack.0.give_pages_back());
        }
        let has_more = slabs().values_mut().any(Slab::cool);
        let was_cooling = self.is_cooling.replace(has_more);
        // Stacks cached while others cooled are yet to be trimmed.
        let is_over = !has_more && !was_cooling;
        self.deep_since.set(if is_over { 0 } else { now });
    }
}

/// All slots of one length. Chunks are never unmapped: a stack that a stopped runtime left behind
/// may still be named by the kernel.
pub(crate) struct Slab {
    slot_len: usize,
    /// Number of slots that have been cut.
    made: usize,
    free: Vec<NonNull<u8>>,
    /// Number of free stacks, from the first on, that have no page any more.
    cold: usize,
    /// The rest of the newest chunk, not yet cut into slots.
    fresh: Option<(NonNull<u8>, usize)>,
}

// SAFETY: the pointers are to memory that is not used until a slot is taken, under the lock.
unsafe impl Send for Slab {}

pub(crate) fn slabs() -> MutexGuard<'static, HashMap<usize, Slab>> {
    static SLABS: OnceLock<Mutex<HashMap<usize, Slab>>> = OnceLock::new();
    SLABS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stacks in use, and stacks in all.
pub(crate) fn taken_and_made() -> (usize, usize) {
    let slabs = slabs();
    let made: usize = slabs.values().map(|slab| slab.made).sum();
    let free: usize = slabs.values().map(|slab| slab.free.len()).sum();
    (made - free, made)
}

impl Slab {
    fn new(slot_len: usize) -> Slab {
        Slab { slot_len, made: 0, free: Vec::new(), cold: 0, fresh: None }
    }

    fn take(&mut self) -> io::Result<NonNull<u8>> {
        if let Some(limit) = self.free.pop() {
            self.cold = self.cold.min(self.free.len());
            return Ok(limit);
        }
        let (limit, left) = match self.fresh {
            Some(fresh) => fresh,
            None => {
                (map(CHUNK_LEN.max(self.slot_len))?, CHUNK_LEN.max(self.slot_len) / self.slot_len)
            }
        };
        // Noted before the guard: if that fails, the chunk is tried again and not mapped again.
        self.fresh = Some((limit, left));
        guard(limit)?;
        // SAFETY: at least one slot is left, so the next begins inside the chunk or at its end.
        let next = unsafe { limit.add(self.slot_len) };
        self.fresh = (left > 1).then_some((next, left - 1));
        self.made += 1;
        let start = limit.as_ptr().addr();
        crate::switch::valgrind::register_stack(&(start + page_size()..start + self.slot_len));
        Ok(limit)
    }

    /// Gives the last page of some free stacks back, the coldest first. True if more are to follow.
    fn cool(&mut self) -> bool {
        let end = self.free.len().saturating_sub(WARM_MAX);
        let until = end.min(self.cold + COOLED_AT_ONCE);
        for &limit in self.free.get(self.cold..until).unwrap_or_default() {
            StackPlace::new(limit, self.slot_len).give_last_page_back();
        }
        self.cold = self.cold.max(until);
        self.cold < end
    }
}

/// Maps memory that costs nothing until it is touched.
fn map(len: usize) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory in
    // use.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        let error = io::Error::last_os_error();
        let advice = "no memory for fiber stacks; if memory is free, see vm.overcommit_memory \
                      and `ulimit -v`";
        return Err(io::Error::new(error.kind(), format!("{advice} ({error})")));
    }
    // SAFETY: the range was just mapped. Advice may fail (no such kernel option) without harm.
    unsafe { libc::madvise(address, len, libc::MADV_NOHUGEPAGE) };
    Ok(NonNull::new(address.cast()).expect("mmap returned null"))
}

/// Makes the first page of the slot at `limit` a guard.
fn guard(limit: NonNull<u8>) -> io::Result<()> {
    static NO_GUARD_INSTALL: AtomicBool = AtomicBool::new(false);
    if !NO_GUARD_INSTALL.load(Ordering::Relaxed) {
        // SAFETY: the page lies in a chunk of the slab, in a free slot.
        let result =
            unsafe { libc::madvise(limit.as_ptr().cast(), page_size(), MADV_GUARD_INSTALL) };
        if result == 0 {
            return Ok(());
        }
        NO_GUARD_INSTALL.store(true, Ordering::Relaxed);
    }
    guard_by_mapping(limit)
}

/// Makes a guard as before Linux 6.13: two mappings for each guard, of which there are few.
fn guard_by_mapping(limit: NonNull<u8>) -> io::Result<()> {
    static GUARDS: AtomicUsize = AtomicUsize::new(0);
    // Half of the mappings for stacks at two a stack, half for malloc and files.
    let guards_max = max_map_count() / 4;
    if GUARDS.fetch_add(1, Ordering::Relaxed) >= guards_max {
        GUARDS.fetch_sub(1, Ordering::Relaxed);
        return Err(io::Error::new(
            io::ErrorKind::OutOfMemory,
            format!(
                "all {guards_max} guarded fiber stacks that vm.max_map_count leaves room for are in \
                 use; raise it (sysctl vm.max_map_count=1048576) or run Linux 6.13 or newer"
            ),
        ));
    }
    // SAFETY: the page lies in a chunk of the slab, in a free slot.
    let result = unsafe { libc::mprotect(limit.as_ptr().cast(), page_size(), libc::PROT_NONE) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    GUARDS.fetch_sub(1, Ordering::Relaxed);
    Err(error)
}

fn max_map_count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
        text.trim().parse().unwrap_or(65_530)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_disjoint_and_reused() {
        let a = FiberStack::take(STACK_SIZE_DEFAULT).unwrap();
        let b = FiberStack::take(STACK_SIZE_DEFAULT).unwrap();
        let (a, b) = (a.0.range(), b.0.range());
        assert!(a.end <= b.start || b.end <= a.start);
        assert_eq!(a.len(), slot_len(STACK_SIZE_DEFAULT, page_size()));
    }

    #[test]
    fn the_usable_part_can_be_written_whole() {
        let stack = FiberStack::take(20_000).unwrap();
        assert!(stack.0.usable().len() >= 20_000);
        let Range { start, end } = stack.0.usable();
        for address in start..end {
            // SAFETY: inside the usable part of a stack that runs no fiber.
            unsafe { (address as *mut u8).write(7) };
        }
    }

    /// Seen (in review): with pages of 64 KiB, which some kernels for aarch64 have, the first fiber
    /// was a SIGSEGV. Cause: the kernel rounds the guard up to a page, which was the whole stack.
    #[test]
    fn guards_of_large_pages_leave_a_stack() {
        for page_size in [4096, 16 << 10, 64 << 10] {
            for size in [0, 16 << 10, 20_000, STACK_SIZE_DEFAULT, 1 << 20, 1 << 29, usize::MAX] {
                let slot_len = slot_len(size, page_size);
                // On the smallest pages the guard of a power of two is a part of it.
                let guard_within = if page_size == 4096 { 4096 } else { 0 };
                let usable_min = size.clamp(STACK_SIZE_MIN, STACK_SIZE_MAX) - guard_within;
                assert!(slot_len >= usable_min + page_size, "{size}, {page_size}");
                assert!(slot_len.is_multiple_of(page_size), "{size}, {page_size}");
                assert!(slot_len >> PAGE_SHIFT < 1 << 18, "{size}, {page_size}");
            }
        }
    }

    #[test]
    fn guards_by_mapping() {
        guard_by_mapping(map(page_size()).unwrap()).unwrap();
    }

    /// Seen (in review): after some thousand attempts without memory no stack could be had for
    /// good. Cause: a guard that the kernel refused stayed counted. Cure: it does not.
    #[test]
    fn refused_guard_is_not_counted() {
        let unmapped = NonNull::new(std::ptr::without_provenance_mut(page_size())).unwrap();
        for _ in 0..=max_map_count() / 4 {
            let error = guard_by_mapping(unmapped).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOMEM), "{error}");
        }
        guard_by_mapping(map(page_size()).unwrap()).unwrap();
    }
}
