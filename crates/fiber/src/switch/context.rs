//! Switches of a thread between stacks.
//!
//! Code that gives its thread away leaves four registers in its [`Context`]; the compiler saves the
//! others in the frame that switches. Any context may switch to any other that waits: a fiber
//! to the next fiber as well as to the processor's loop. There is no parent and no child.
//!
//! ```text
//!  a stack before it is run                     and while it waits
//!  base ─▶ ┌─────────────────────┐              base ─▶ ┌─────────────────────┐
//!          │ how to drop f       │                      │ ...                 │
//!          │ f                   │                      │ frames of f         │
//!          ├─────────────────────┤ ◀─ stack             │ frame that switched │ ◀─ stack
//!          │                     │                      │                     │
//! ```

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::base::report::report;
use crate::switch::sanitizer;
use crate::switch::stack::{FiberStack, StackPlace};

/// Code that has a stack and does not run: a fiber, or a processor's loop.
///
/// Its thread alone changes it. Others may read the registers, which are then those of some switch
/// before.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Context {
    instruction: AtomicUsize,
    stack: AtomicUsize,
    /// Frame pointer; the address of `f` before it has begun.
    base: AtomicUsize,
    /// Register that the compiler keeps for itself; before `f` has begun its caller.
    kept: AtomicUsize,
    /// [`StackPlace`] of the stack that it owns, or 0.
    place: AtomicU64,
}

/// Cache lines of a frame that waits that are read first: its own, and those of its callers.
const FRAME_LINES: usize = 2;

/// Alignment of the stack pointer at a call.
const STACK_ALIGN: usize = 16;

impl Context {
    /// A context without a stack: for code that runs on its thread's own, or is to get one.
    pub(crate) const fn without_stack() -> Context {
        Context {
            instruction: AtomicUsize::new(0),
            stack: AtomicUsize::new(0),
            base: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            place: AtomicU64::new(0),
        }
    }

    /// A context that is to run `f`, which lies at the base of `stack` until then and returns the
    /// context that gets the thread afterwards.
    pub(crate) fn new<F: FnOnce() -> *const Context>(stack: FiberStack, f: F) -> Context {
        let context = Context::without_stack();
        context.put(stack, f);
        context
    }

    /// Gives it a stack, and `f` to run on it.
    pub(crate) fn put<F: FnOnce() -> *const Context>(&self, stack: FiberStack, f: F) {
        assert!(self.stack().is_none(), "a context has one stack");
        let place = stack.into_place();
        let base = place.usable().end;
        let drop_at = base - size_of::<DropClosure>();
        let align = align_of::<F>().max(STACK_ALIGN);
        let closure_at = (drop_at - size_of::<F>()) & !(align - 1);
        assert!(closure_at > place.usable().start, "{} bytes", size_of::<F>());
        let drop_closure: DropClosure = drop_in_place::<F>;
        // SAFETY: both lie inside the usable part of the new context's own stack, which is idle.
        unsafe {
            std::ptr::with_exposed_provenance_mut::<DropClosure>(drop_at).write(drop_closure);
            std::ptr::with_exposed_provenance_mut::<F>(closure_at).write(f);
        }
        let call: unsafe extern "C" fn(*mut F) -> *const Context = call_closure::<F>;
        self.instruction.store(begin as *const () as usize, Ordering::Relaxed);
        self.stack.store(closure_at, Ordering::Relaxed);
        self.base.store(closure_at, Ordering::Relaxed);
        self.kept.store(call as *const () as usize, Ordering::Relaxed);
        self.place.store(place.bits(), Ordering::Relaxed);
    }

    /// The stack that it has now. No lock, no allocation: the overflow handler asks.
    pub(crate) fn stack(&self) -> Option<StackPlace> {
        StackPlace::from_bits(self.place.load(Ordering::Relaxed))
    }

    /// Takes the stack, on which no frame is used any more.
    pub(crate) fn take_stack(&self) -> Option<FiberStack> {
        let place = self.stack()?;
        self.place.store(0, Ordering::Relaxed);
        // SAFETY: `put` took it out of a FiberStack.
        Some(unsafe { FiberStack::from_place(place) })
    }

    /// Instruction, stack and base pointer of the frame that waits, for a debugger that has stopped
    /// the world.
    pub(crate) fn waiting_frame(&self) -> (usize, usize, usize) {
        (
            self.instruction.load(Ordering::Relaxed),
            self.stack.load(Ordering::Relaxed),
            self.base.load(Ordering::Relaxed),
        )
    }

    /// True if its stack has room for an unwinder beneath the frame that waits.
    pub(crate) fn has_space_to_trace(&self) -> bool {
        const UNWINDER_LEN: usize = 12 * 1024;
        let frame = self.stack.load(Ordering::Relaxed);
        // A fiber may wait inside of another library's coroutine, on a stack whose end is not known
        // here.
        self.stack().is_some_and(|stack| {
            let usable = stack.usable();
            (usable.start + UNWINDER_LEN..usable.end).contains(&frame)
        })
    }

    /// Gives the thread to `to` until some context switches back here; returns the word that it
    /// brings.
    ///
    /// Inlined, and jumps in place of a return: the processor predicts returns by calls, of which
    /// another stack has made others.
    ///
    /// # Safety
    /// `self` is the context of the code that runs. `to` waits: it has been put, or has switched
    /// away, and nothing else resumes it; both stay where they are until they run again. Nothing
    /// that was computed from thread-local storage before is used afterwards, unless the thread is
    /// the same.
    #[inline(always)]
    pub(crate) unsafe fn switch_to(&self, to: *const Context, word: usize) -> usize {
        let from = std::ptr::from_ref(self);
        let brought: usize;
        // SAFETY: by the contract `to` is there.
        let left = sanitizer::leave(unsafe { &*to }.stack());
        // SAFETY: a switch back restores the stack and the frame pointer that the block began with;
        // every other register is named as changed. Memory is changed by what runs in between, as
        // by a call.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!(
                "lea rcx, [rip + 2f]",
                "mov [rdi], rcx",
                "mov [rdi + 8], rsp",
                "mov [rdi + 16], rbp",
                "mov [rdi + 24], rbx",
                "mov rbx, [rsi + 24]",
                "mov rbp, [rsi + 16]",
                "mov rsp, [rsi + 8]",
                "jmp qword ptr [rsi]",
                "2:",
                inout("rdi") from => _,
                inout("rsi") to => _,
                inout("rdx") word => brought,
                out("r12") _,
                out("r13") _,
                out("r14") _,
                out("r15") _,
                clobber_abi("C"),
            );
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            std::arch::asm!(
                "adr x9, 2f",
                "mov x10, sp",
                "stp x9, x10, [x0]",
                "stp x29, x19, [x0, 16]",
                "ldp x9, x10, [x1]",
                "ldp x29, x19, [x1, 16]",
                "mov sp, x10",
                "br x9",
                "2:",
                inout("x0") from => _,
                inout("x1") to => _,
                inout("x2") word => brought,
                out("x20") _, out("x21") _, out("x22") _, out("x23") _, out("x24") _,
                out("x25") _, out("x26") _, out("x27") _, out("x28") _, out("lr") _,
                out("v8") _, out("v9") _, out("v10") _, out("v11") _,
                out("v12") _, out("v13") _, out("v14") _, out("v15") _,
                clobber_abi("C"),
            );
        }
        sanitizer::arrive(left);
        brought
    }

    /// Fetches what a switch to this context is going to touch first.
    #[inline(always)]
    pub(crate) fn prefetch_frame(&self) {
        let frame = self.stack.load(Ordering::Relaxed);
        (0..FRAME_LINES).for_each(|line| prefetch(frame + line * 64));
    }

    /// Fetches the registers.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        prefetch(std::ptr::from_ref(self).addr());
    }

    /// Runs `f` on this context's stack, beneath the frame that waits.
    ///
    /// # Safety
    /// It waits meanwhile, in a frame of the calling thread, and `f` does not switch.
    pub(crate) unsafe fn call<R>(&self, f: impl FnOnce() -> R) -> R {
        let left = sanitizer::leave(self.stack());
        let mut call = StackCall { f: ManuallyDrop::new(AssertUnwindSafe(f)), result: None };
        let stack = self.stack.load(Ordering::Relaxed);
        // SAFETY: the stack below the waiting frame is free.
        unsafe { call_on(stack, std::ptr::from_mut(&mut call).cast(), make_call(&call)) };
        sanitizer::arrive(left);
        match call.result.expect("the call was made") {
            Ok(result) => result,
            Err(payload) => resume_unwind(payload),
        }
    }
}

/// Asks for a cache line. Any address is allowed.
#[inline(always)]
fn prefetch(address: usize) {
    // SAFETY: a hint, which has no effect that a program can see.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

/// Drops a closure that never began. Code that waits in the middle is never dropped: the kernel may
/// have addresses of its frames.
impl Drop for Context {
    fn drop(&mut self) {
        let Some(place) = self.stack() else { return };
        if self.instruction.load(Ordering::Relaxed) != begin as *const () as usize {
            return;
        }
        let closure = std::ptr::with_exposed_provenance_mut(self.base.load(Ordering::Relaxed));
        let drop_at = place.usable().end - size_of::<DropClosure>();
        // Goes back after the closure, also if that panics.
        let _stack = self.take_stack();
        // SAFETY: `put` wrote both, and nothing has run.
        unsafe {
            let drop_closure = std::ptr::with_exposed_provenance::<DropClosure>(drop_at).read();
            drop_closure(closure);
        }
    }
}

type DropClosure = unsafe fn(*mut ());

/// # Safety
/// The pointer is to a closure, which is not used afterwards.
unsafe fn drop_in_place<F>(closure: *mut ()) {
    // SAFETY: by the contract.
    unsafe { closure.cast::<F>().drop_in_place() };
}

/// Runs the closure at the base of the stack. A panic beyond it aborts.
///
/// # Safety
/// The pointer is to a closure, which is not used afterwards.
unsafe extern "C" fn call_closure<F: FnOnce() -> *const Context>(
    closure: *mut F,
) -> *const Context {
    sanitizer::begin();
    // SAFETY: by the contract.
    let f = unsafe { closure.read() };
    // Without a handler the unwinder would not begin, and no destructor would report the bug.
    let Ok(to) = catch_unwind(AssertUnwindSafe(f)) else {
        report(format_args!("bug: a panic left the first frame of a fiber; please report it\n"));
        std::process::abort();
    };
    // SAFETY: `f` returns a context that waits.
    sanitizer::end(unsafe { &*to }.stack());
    to
}

/// The first frame of a stack: calls the function in `kept` with the address in `base`, and gives
/// the thread to the context that it returns.
#[unsafe(naked)]
unsafe extern "C" fn begin() -> ! {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        ".cfi_startproc",
        // Unwinders end here.
        ".cfi_undefined rip",
        "mov rdi, rbp",
        "xor ebp, ebp",
        "call rbx",
        "xor edx, edx",
        "mov rbx, [rax + 24]",
        "mov rbp, [rax + 16]",
        "mov rsp, [rax + 8]",
        "jmp qword ptr [rax]",
        ".cfi_endproc",
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        ".cfi_startproc",
        ".cfi_undefined x30",
        "mov x0, x29",
        "mov x29, xzr",
        "blr x19",
        "mov x2, xzr",
        "ldp x9, x10, [x0]",
        "ldp x29, x19, [x0, 16]",
        "mov sp, x10",
        "br x9",
        ".cfi_endproc",
    );
}

/// A call that is made on another stack, and its result.
struct StackCall<F, R> {
    f: ManuallyDrop<F>,
    result: Option<std::thread::Result<R>>,
}

/// The function that makes a call of this type.
fn make_call<F: FnOnce() -> R, R>(_: &StackCall<F, R>) -> unsafe extern "C" fn(*mut ()) {
    unsafe extern "C" fn make<F: FnOnce() -> R, R>(call: *mut ()) {
        // SAFETY: `call` hands its own over, and waits.
        let call = unsafe { &mut *call.cast::<StackCall<F, R>>() };
        // SAFETY: it is taken once.
        let f = unsafe { ManuallyDrop::take(&mut call.f) };
        let back = sanitizer::begin();
        call.result = Some(catch_unwind(AssertUnwindSafe(f)));
        sanitizer::back(back);
    }
    make::<F, R>
}

/// Calls `function` with `argument` on the stack whose free part ends at `stack`.
#[unsafe(naked)]
unsafe extern "C" fn call_on(
    stack: usize,
    argument: *mut (),
    function: unsafe extern "C" fn(*mut ()),
) {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdi",
        "and rsp, -16",
        "mov rdi, rsi",
        "call rdx",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, -16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x29, -16",
        ".cfi_offset x30, -8",
        "mov x29, sp",
        ".cfi_def_cfa_register x29",
        "and x9, x0, -16",
        "mov sp, x9",
        "mov x0, x1",
        "blr x2",
        "mov sp, x29",
        "ldp x29, x30, [sp], 16",
        ".cfi_def_cfa sp, 0",
        "ret",
        ".cfi_endproc",
    );
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Seen (in review): a stack was lost for good. Cause: the destructor of a closure that never
    /// ran panicked before the stack was taken. Cure: it is taken first.
    #[test]
    fn panic_in_drop_loses_no_stack() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                resume_unwind(Box::new(()));
            }
        }
        const STACK_SIZE: usize = 77_777; // Of no other test.
        let stack = FiberStack::take(STACK_SIZE).unwrap();
        let panics = Panics;
        let context = Context::new(stack, move || {
            drop(panics);
            std::ptr::null()
        });
        let place = context.stack();
        catch_unwind(AssertUnwindSafe(|| drop(context))).unwrap_err();
        let again = FiberStack::take(STACK_SIZE).unwrap().into_place();
        assert_eq!(Some(again), place);
    }
}
