//! A program executed one instruction at a time, and what it did between two marks (ptrace(2)).
//!
//! A thread calls [`begin`], then [`mark`]s. Its time-stamp counter shows the number of
//! instructions, so that nothing depends on the speed of the machine.

use std::arch::asm;
use std::ops::Range;
use std::process::Command;

use nix::libc::user_regs_struct;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Work of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Work {
    /// Atomic read-modify-writes, sequentially consistent stores and full fences.
    pub atomics: u64,
    pub clock_reads: u64,
    pub system_calls: u64,
    pub instructions: u64,
}

const MARK: u64 = 1;
const PAUSE: u64 = 2;
const END: u64 = 3;

/// Has the calling thread stepped by the process that started this one.
pub(crate) fn begin() {
    ptrace::traceme().unwrap();
    raise(Signal::SIGSTOP).unwrap();
}

/// Ends one count, and begins the next.
pub(crate) fn mark() {
    trap(MARK);
}

/// Ends a count. Later instructions are not counted.
pub(crate) fn pause() {
    trap(PAUSE);
}

/// Ends the stepping.
pub(crate) fn end() {
    trap(END);
}

fn trap(what: u64) {
    // SAFETY: the tracer leaves the trap out, and all registers as they are.
    unsafe { asm!("int3", in("rax") what) };
}

/// Threads as well, but only those of this thread's program: several are stepped at a time.
const OWN: WaitPidFlag = WaitPidFlag::__WALL.union(WaitPidFlag::__WNOTHREAD);

/// Runs the program; returns the least work between two marks: by cost, then by instructions.
pub(crate) fn run(program: &mut Command) -> Work {
    let mut child = program.spawn().unwrap();
    let thread = loop {
        match waitpid(None, Some(OWN)).unwrap() {
            WaitStatus::Stopped(thread, Signal::SIGSTOP) => break thread,
            WaitStatus::Stopped(thread, signal) => ptrace::cont(thread, signal).unwrap(),
            status => panic!("{status:?} before the first mark"),
        }
    };
    let works = step_to_end(thread);
    assert!(child.wait().unwrap().success());
    let of_all = |work: &Work| work.atomics + work.clock_reads + work.system_calls;
    let least = works.into_iter().min_by_key(|work| (of_all(work), work.instructions));
    least.expect("the program marks twice")
}

fn step_to_end(thread: Pid) -> Vec<Work> {
    let vdso = vdso_of(thread);
    let mut is_repeated = false;
    let mut works = Vec::new();
    let mut work = None;
    let mut counter = None;
    loop {
        let mut registers = ptrace::getregs(thread).unwrap();
        let instruction = Instruction::at(thread, registers.rip);
        if instruction.is_trap() {
            works.extend(work.take());
            skip(thread, &mut registers, 1);
            match registers.rax {
                MARK => work = Some(Work::default()),
                PAUSE => {}
                _ => break,
            }
            continue;
        }
        let counter = counter.get_or_insert_with(|| {
            // SAFETY: every x86-64 has a time-stamp counter, which programs may read.
            unsafe { std::arch::x86_64::_rdtsc() }
        });
        *counter += 1;
        // The kernel's clock is read anew if it ticks meanwhile. vdso(7)
        is_repeated &= vdso.contains(&registers.rip);
        if let Some(work) = &mut work {
            work.instructions += 1;
            work.atomics += u64::from(instruction.is_atomic());
            let reads_clock = instruction.reads_clock().is_some();
            work.clock_reads += u64::from(reads_clock && !is_repeated);
            work.system_calls += u64::from(instruction.is_system_call());
        }
        if let Some(len) = instruction.reads_clock() {
            is_repeated = true;
            registers.rax = *counter & u64::from(u32::MAX);
            registers.rdx = *counter >> 32;
            skip(thread, &mut registers, len);
            continue;
        }
        ptrace::step(thread, None).unwrap();
        while let WaitStatus::Stopped(thread, signal) = waitpid(thread, Some(OWN)).unwrap()
            && signal != Signal::SIGTRAP
        {
            ptrace::step(thread, signal).unwrap();
        }
    }
    ptrace::detach(thread, None).unwrap();
    works
}

/// Addresses of the kernel's own code in the process.
fn vdso_of(thread: Pid) -> Range<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{thread}/maps")).unwrap();
    let line = maps.lines().find(|line| line.ends_with("[vdso]"));
    let range = line.and_then(|line| line.split_once(' ')?.0.split_once('-'));
    let (start, end) = range.expect("every process has this mapping");
    let address = |hex| u64::from_str_radix(hex, 16).unwrap();
    address(start)..address(end)
}

fn skip(thread: Pid, registers: &mut user_regs_struct, len: u64) {
    registers.rip += len;
    ptrace::setregs(thread, *registers).unwrap();
}

/// The first bytes of an instruction, without its prefixes.
struct Instruction {
    is_locked: bool,
    code: [u8; 3],
}

impl Instruction {
    fn at(thread: Pid, address: u64) -> Instruction {
        // Eight bytes are enough: only what does nothing has more than four prefixes.
        let bytes = ptrace::read(thread, address as *mut _).unwrap();
        let bytes = bytes.to_ne_bytes();
        let is_prefix = |byte: &u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
        let prefixes = bytes.iter().take_while(|byte| is_prefix(byte)).count();
        Instruction {
            is_locked: bytes[..prefixes].contains(&0xf0),
            code: std::array::from_fn(|at| bytes.get(prefixes + at).copied().unwrap_or(0)),
        }
    }

    fn is_trap(&self) -> bool {
        self.code[0] == 0xcc
    }

    /// LOCK, XCHG with memory, MFENCE.
    fn is_atomic(&self) -> bool {
        match self.code {
            [0x86 | 0x87, operands, _] => operands < 0xc0,
            [0x0f, 0xae, 0xf0] => true,
            _ => self.is_locked,
        }
    }

    /// RDTSC, RDTSCP: the length.
    fn reads_clock(&self) -> Option<u64> {
        match self.code {
            [0x0f, 0x31, _] => Some(2),
            [0x0f, 0x01, 0xf9] => Some(3),
            _ => None,
        }
    }

    fn is_system_call(&self) -> bool {
        self.code.starts_with(&[0x0f, 0x05])
    }
}
