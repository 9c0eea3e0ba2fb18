//! Tells valgrind where the fibers' stacks are, so that it takes a switch for what it is and not
//! for a function with a frame of megabytes: `./ci.sh valgrind`.
//!
//! A request to valgrind is an idiom of instructions that do nothing on a processor and that
//! valgrind looks for (valgrind.h, "client requests"). Each stack is announced once, when its slot
//! is cut; slots are never given back.

use std::ops::Range;

/// `VG_USERREQ__STACK_REGISTER` of valgrind.h: from the lowest to the highest byte.
const STACK_REGISTER: usize = 0x1501;

/// Announces a stack. Without valgrind it costs a nanosecond.
pub(crate) fn register_stack(stack: &Range<usize>) {
    request([STACK_REGISTER, stack.start, stack.end - 1, 0, 0, 0]);
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn request(arguments: [usize; 6]) {
    // SAFETY: rotations of a register by 128 bits in all and an exchange of a register with itself
    // change nothing; valgrind reads the array behind RAX and writes its answer to RDX. Flags are
    // clobbered.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") &raw const arguments,
            inout("rdx") 0usize => _,
            options(nostack)
        );
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
fn request(arguments: [usize; 6]) {
    // SAFETY: as above, with X12 and X10; valgrind reads the array behind X4 and writes its answer
    // to X3.
    unsafe {
        std::arch::asm!(
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            "orr x10, x10, x10",
            in("x4") &raw const arguments,
            inout("x3") 0usize => _,
            options(nostack)
        );
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn request(_: [usize; 6]) {}
