//! State that a fiber shows to observers: the list of fibers, a debugger, the overflow handler.
//!
//! Each switch leaves two marks in the control block, plain stores that cost a nanosecond together:
//! the state, and where the frame lies that waits. A debugger sets its registers to that frame and
//! unwinds from there (`tools/gdb/fibers.py`); the runtime itself lets the fiber say where it is,
//! by resuming it for just that.

use std::fmt;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use crate::switch::stack::StackPlace;

/// State of a fiber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum FiberState {
    /// Not started yet.
    Unstarted,
    /// Gave way to others.
    Ready,
    /// Runs.
    Running,
    /// Waits, or has just got what it waited for.
    Waiting,
    /// Between two steps, without a stack: waits for input, or has just got it.
    BetweenSteps,
    /// Has just finished.
    Finished,
}

impl FiberState {
    const ALL: [FiberState; 6] = [
        FiberState::Unstarted,
        FiberState::Ready,
        FiberState::Running,
        FiberState::Waiting,
        FiberState::BetweenSteps,
        FiberState::Finished,
    ];
}

impl fmt::Display for FiberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            FiberState::Unstarted => "unstarted",
            FiberState::Ready => "ready",
            FiberState::Running => "running",
            FiberState::Waiting => "waiting",
            FiberState::BetweenSteps => "between steps",
            FiberState::Finished => "finished",
        })
    }
}

/// The marks. Written by the processor that runs the fiber, read by any thread.
pub(crate) struct Look {
    state: AtomicU8,
    /// Milliseconds of the coarse monotonic clock, which wrap after 49 days.
    spawned_ms: u32,
    /// A [`StackPlace`], or 0.
    stack: AtomicU64,
    frame: AtomicPtr<WaitingFrame>,
}

/// Registers of a suspended fiber that unwinding starts from, in the frame that waits.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct WaitingFrame {
    instruction: usize,
    stack: usize,
    base: usize,
}

impl Look {
    pub(crate) fn new() -> Look {
        Look {
            state: AtomicU8::new(FiberState::Unstarted as u8),
            spawned_ms: coarse_ms(),
            stack: AtomicU64::new(0),
            frame: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    #[inline]
    pub(crate) fn enter(&self, state: FiberState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// A reader that sees that it waits also sees where (its home).
    pub(crate) fn state(&self) -> FiberState {
        FiberState::ALL[usize::from(self.state.load(Ordering::Acquire))]
    }

    /// Time since it was spawned, to some milliseconds.
    pub(crate) fn age(&self) -> Duration {
        Duration::from_millis(u64::from(coarse_ms().wrapping_sub(self.spawned_ms)))
    }

    pub(crate) fn note_stack(&self, stack: StackPlace) {
        self.stack.store(stack.bits(), Ordering::Relaxed);
    }

    pub(crate) fn forget_stack(&self) {
        self.stack.store(0, Ordering::Relaxed);
    }

    /// The stack that it has now. No lock, no allocation: the overflow handler asks.
    pub(crate) fn stack(&self) -> Option<StackPlace> {
        StackPlace::from_bits(self.stack.load(Ordering::Relaxed))
    }

    /// Shows the frame that waits to those who look, until the guard goes.
    #[inline]
    pub(crate) fn show<'a>(&'a self, frame: &'a WaitingFrame) -> Shown<'a> {
        self.frame
            .store(std::ptr::from_ref(frame).cast_mut(), Ordering::Relaxed);
        Shown(self)
    }

    /// Instruction, stack and base pointer of the frame that waits, for a debugger that has stopped
    /// the world.
    pub(crate) fn waiting_frame(&self) -> Option<(usize, usize, usize)> {
        let frame = self.frame.load(Ordering::Relaxed);
        if frame.is_null() {
            return None;
        }
        // SAFETY: it points into a stack, which is never unmapped. If the fiber goes on meanwhile,
        // the numbers are wrong, and three numbers are what they are.
        let WaitingFrame {
            instruction,
            stack,
            base,
        } = unsafe { frame.read_volatile() };
        Some((instruction, stack, base))
    }

    /// True if its stack has room for an unwinder beneath the frame that waits.
    pub(crate) fn has_room_to_trace(&self) -> bool {
        const UNWINDER_LEN: usize = 12 * 1024;
        let (frame, stack) = (self.frame.load(Ordering::Relaxed), self.stack());
        // A fiber may wait inside of another library's coroutine, on a stack whose end is not known
        // here.
        stack.is_some_and(|stack| {
            let usable = stack.usable();
            (usable.start + UNWINDER_LEN..usable.end).contains(&(frame as usize))
        })
    }
}

/// A frame that is shown.
pub(crate) struct Shown<'a>(&'a Look);

impl Drop for Shown<'_> {
    #[inline]
    fn drop(&mut self) {
        let nothing = std::ptr::null_mut();
        self.0.frame.store(nothing, Ordering::Relaxed);
    }
}

impl WaitingFrame {
    /// The registers of the function that this is inlined into.
    #[inline(always)]
    pub(crate) fn here() -> WaitingFrame {
        let (instruction, stack, base): (usize, usize, usize);
        // SAFETY: copies registers.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!(
                "lea {0}, [rip]",
                "mov {1}, rsp",
                "mov {2}, rbp",
                out(reg) instruction,
                out(reg) stack,
                out(reg) base,
                options(nomem, nostack, preserves_flags)
            );
        }
        // SAFETY: copies registers.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            std::arch::asm!(
                "adr {0}, .",
                "mov {1}, sp",
                "mov {2}, x29",
                out(reg) instruction,
                out(reg) stack,
                out(reg) base,
                options(nomem, nostack, preserves_flags)
            );
        }
        WaitingFrame {
            instruction,
            stack,
            base,
        }
    }
}

/// The monotonic clock to the kernel's tick, at a quarter of the price. clock_gettime(2)
fn coarse_ms() -> u32 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    (now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000) as u32
}
