//! Stack overflow: a message that a person can act on, then an abort.
//!
//! The guard page below every stack turns an overflow into SIGSEGV. The handler runs on the
//! thread's alternate stack (the standard library gives every thread one). If the fault is in the
//! guard of the running fiber, it reports the fiber and what to change. Any other fault goes to the
//! earlier SIGSEGV handler, which as a rule is the standard library's own overflow message.

use std::io::Write;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use crate::sched::processor;

struct PreviousAction(libc::sigaction);

static PREVIOUS: OnceLock<PreviousAction> = OnceLock::new();

/// Installs the handler, once for the process.
pub(crate) fn install() {
    PREVIOUS.get_or_init(|| {
        // SAFETY: the handler below does only what a signal handler may; the structures are plain
        // data that sigaction(2) fills or reads.
        unsafe {
            let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
            libc::sigaction(libc::SIGSEGV, std::ptr::null(), previous.as_mut_ptr());
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
            PreviousAction(previous.assume_init())
        }
    });
}

extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a siginfo that is good during the handler.
    let address = unsafe { (*info).si_addr() } as usize;
    if let Some(fiber) = processor::running_here()
        && let Some(stack_len) = fiber.control().overflowed_at(address)
    {
        report(fiber.control(), stack_len);
        // SAFETY: abort is safe to call from a signal handler. signal-safety(7)
        unsafe { libc::abort() };
    }
    pass_on(signal, info, context);
}

/// Writes the message from a buffer on this stack: no allocation, no lock.
fn report(control: &crate::sched::fiber::Control, stack_len: usize) {
    let mut buffer = [0u8; 1024];
    let mut rest = &mut buffer[..];
    let name = control.name().unwrap_or("<unnamed>");
    // A text that is too long is cut off.
    let _ = write!(
        rest,
        "\nfiber '{name}' (number {}, spawned at {}) has overflowed its stack of {} KiB\n\
         give it more with fiber::Builder::stack_size, or keep big values on the heap\n",
        control.id(),
        control.spawned_at(),
        stack_len / 1024,
    );
    let left_len = rest.len();
    let message = &buffer[..buffer.len() - left_len];
    // SAFETY: write(2) of a local buffer; it may be called from a signal handler.
    unsafe { libc::write(2, message.as_ptr().cast(), message.len()) };
}

/// Passes a fault that is no overflow to the previous handler.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(PreviousAction(previous)) = PREVIOUS.get() else {
        return;
    };
    let handler = previous.sa_sigaction;
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // Back to the default; the fault then repeats and kills the process.
        // SAFETY: setting a default action is allowed in a handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    } else if previous.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: with SA_SIGINFO the previous handler has this type. sigaction(2)
        let call: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(handler) };
        call(signal, info, context);
    } else {
        // SAFETY: without SA_SIGINFO the previous handler has this type. sigaction(2)
        let call: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
        call(signal);
    }
}
