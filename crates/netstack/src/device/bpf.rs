//! Programs in the kernel and the maps that they share with this process, without a library or a
//! compiler. bpf(2)

#![allow(unsafe_code)]

use std::ffi::{c_int, c_long};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// One instruction. Documentation/bpf/standardization/instruction-set.rst
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Instruction {
    code: u8,
    /// Destination in the low half, source in the high one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

pub(super) const fn instruction(
    code: u8,
    dst: u8,
    src: u8,
    offset: i16,
    immediate: i32,
) -> Instruction {
    Instruction { code, registers: src << 4 | dst, offset, immediate }
}

/// The two instructions that load a map's address.
pub(super) fn load_map(dst: u8, map: BorrowedFd<'_>) -> [Instruction; 2] {
    const LOAD_IMMEDIATE_64: u8 = 0x18;
    /// Source register that makes the immediate a map's descriptor.
    const PSEUDO_MAP_FD: u8 = 1;
    [
        instruction(LOAD_IMMEDIATE_64, dst, PSEUDO_MAP_FD, 0, map.as_raw_fd()),
        instruction(0, 0, 0, 0, 0),
    ]
}

/// Codes of instructions. Those without a length are of 64 bits.
pub(super) mod code {
    pub(in super::super) const LOAD: u8 = 0x79;
    pub(in super::super) const LOAD_WORD: u8 = 0x61;
    pub(in super::super) const LOAD_HALF: u8 = 0x69;
    pub(in super::super) const LOAD_BYTE: u8 = 0x71;
    /// Loads two bytes of a socket's frame into r0, in network order; outside of the frame the
    /// program returns 0.
    pub(in super::super) const LOAD_FRAME_HALF: u8 = 0x28;
    pub(in super::super) const LOAD_FRAME_BYTE: u8 = 0x30;
    /// The same, at the sum of a register and the immediate.
    pub(in super::super) const LOAD_FRAME_HALF_BEHIND: u8 = 0x48;
    pub(in super::super) const STORE: u8 = 0x7b;
    pub(in super::super) const STORE_WORD: u8 = 0x63;
    pub(in super::super) const STORE_IMMEDIATE_WORD: u8 = 0x62;
    pub(in super::super) const ATOMIC_ADD: u8 = 0xdb;
    pub(in super::super) const MOVE: u8 = 0xbf;
    pub(in super::super) const MOVE_IMMEDIATE: u8 = 0xb7;
    pub(in super::super) const ADD_IMMEDIATE: u8 = 0x07;
    pub(in super::super) const AND_IMMEDIATE: u8 = 0x57;
    pub(in super::super) const SHIFT_LEFT_IMMEDIATE: u8 = 0x67;
    pub(in super::super) const EXCLUSIVE_OR: u8 = 0xaf;
    /// Multiplies by the immediate in 32 bits; the upper half becomes zero.
    pub(in super::super) const MULTIPLY_WORD: u8 = 0x24;
    pub(in super::super) const SHIFT_RIGHT_WORD: u8 = 0x74;
    pub(in super::super) const JUMP: u8 = 0x05;
    pub(in super::super) const JUMP_IF_EQUAL: u8 = 0x15;
    pub(in super::super) const JUMP_UNLESS_EQUAL: u8 = 0x55;
    pub(in super::super) const JUMP_IF_GREATER: u8 = 0x2d;
    pub(in super::super) const JUMP_IF_SIGNED_GREATER: u8 = 0x65;
    pub(in super::super) const CALL: u8 = 0x85;
    pub(in super::super) const EXIT: u8 = 0x95;
}

const _: () = assert!(cfg!(target_endian = "little"), "the program needs a little-endian CPU");

/// `enum bpf_map_type` and `enum bpf_prog_type` in `linux/bpf.h`.
pub(super) const MAP_OF_VALUES: u32 = 2;
pub(super) const MAP_OF_XDP_SOCKETS: u32 = 17;
pub(super) const PROGRAM_SOCKET_FILTER: u32 = 1;
pub(super) const PROGRAM_XDP: u32 = 6;

/// The map can be mapped into this process: `BPF_F_MMAPABLE`.
pub(super) const MAP_IS_MAPPED: u32 = 1 << 10;

/// Makes a map with keys 0 to `entries`.
pub(super) fn create_map(
    kind: u32,
    value_len: usize,
    entries: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct MapCreate {
        kind: u32,
        key_len: u32,
        value_len: u32,
        entries_max: u32,
        flags: u32,
    }
    let create = MapCreate {
        kind,
        key_len: size_of::<u32>() as u32,
        value_len: value_len as u32,
        entries_max: entries,
        flags,
    };
    const MAP_CREATE: c_int = 0;
    // SAFETY: the command reads one `MapCreate` and returns a descriptor.
    Ok(unsafe { descriptor(bpf(MAP_CREATE, &create)?) })
}

/// Puts a descriptor into a map of descriptors.
pub(super) fn put(map: BorrowedFd<'_>, key: u32, value: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct MapUpdate {
        map: u32,
        padding: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let value = value.as_raw_fd() as u32;
    let update = MapUpdate {
        map: map.as_raw_fd() as u32,
        padding: 0,
        key: &raw const key as u64,
        value: &raw const value as u64,
        flags: 0,
    };
    const MAP_UPDATE: c_int = 2;
    // SAFETY: the command reads one `MapUpdate`, and a key and a value of four bytes each, as maps
    // of descriptors have them. Both live until the end of this function.
    unsafe { bpf(MAP_UPDATE, &update)? };
    Ok(())
}

/// Loads a program, which the kernel verifies.
pub(super) fn load(kind: u32, instructions: &[Instruction], flags: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct ProgramLoad {
        kind: u32,
        instructions_len: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_len: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
    }
    let license = c"MIT OR Apache-2.0";
    let load = ProgramLoad {
        kind,
        instructions_len: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_len: 0,
        log: 0,
        kernel_version: 0,
        flags,
    };
    const PROGRAM_LOAD: c_int = 5;
    // SAFETY: the command reads one `ProgramLoad`, as many instructions as it says, and the license
    // up to its NUL, all of which live until the end of this function; and it returns a descriptor.
    Ok(unsafe { descriptor(bpf(PROGRAM_LOAD, &load)?) })
}

/// Attaches an XDP program to an interface, until the descriptor is closed.
pub(super) fn attach_xdp(
    program: BorrowedFd<'_>,
    interface: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct LinkCreate {
        program: u32,
        interface: u32,
        attach: u32,
        flags: u32,
    }
    const ATTACH_XDP: u32 = 37;
    let link =
        LinkCreate { program: program.as_raw_fd() as u32, interface, attach: ATTACH_XDP, flags };
    const LINK_CREATE: c_int = 28;
    // SAFETY: the command reads one `LinkCreate` and returns a descriptor.
    Ok(unsafe { descriptor(bpf(LINK_CREATE, &link)?) })
}

/// Calls `bpf(2)`. The kernel takes the fields that `attributes` lacks at the end of `union
/// bpf_attr` for zero.
///
/// # Safety
///
/// `attributes`, and the memory it points to, have the form that `command` reads.
unsafe fn bpf<T>(command: c_int, attributes: &T) -> io::Result<c_long> {
    let at = &raw const *attributes;
    let len = size_of::<T>();
    // SAFETY: the kernel reads `len` bytes of the attributes, which are borrowed, and, as the
    // caller promises, what they point to (bpf(2)).
    match unsafe { libc::syscall(libc::SYS_bpf, c_long::from(command), at, len) } {
        -1 => Err(io::Error::last_os_error()),
        returned => Ok(returned),
    }
}

/// # Safety
///
/// `returned` is a descriptor that a system call has just made and nothing else owns.
unsafe fn descriptor(returned: c_long) -> OwnedFd {
    // SAFETY: as the caller promises.
    unsafe { OwnedFd::from_raw_fd(returned as RawFd) }
}
