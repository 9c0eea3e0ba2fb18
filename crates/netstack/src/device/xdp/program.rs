//! The program in the kernel, and the map that it looks its queue's socket up in. bpf(2)
//!
//! ```text
//!   r2 = *(u32 *)(r1 + 16)      rx_queue_index of the frame's struct xdp_md
//!   r1 = sockets                the map; two instructions long
//!   r3 = XDP_PASS               what to return if the queue has no socket
//!   call bpf_redirect_map       r0 = XDP_REDIRECT to the socket, or XDP_PASS
//!   exit
//! ```

#![allow(unsafe_code)]

use std::ffi::{c_int, c_long};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// One instruction. Documentation/bpf/standardization/instruction-set.rst
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    /// Destination in the low half, source in the high one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const LOAD_WORD: u8 = 0x61;
const LOAD_IMMEDIATE_64: u8 = 0x18;
const MOVE_IMMEDIATE: u8 = 0xb7;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// As the source register of a load: the immediate is a map's descriptor.
const PSEUDO_MAP_FD: u8 = 1;
const RX_QUEUE_INDEX_AT: i16 = 16;
const XDP_PASS: i32 = 2;
const BPF_REDIRECT_MAP: i32 = 51;

const fn instruction(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction {
        code,
        registers: src << 4 | dst,
        offset,
        immediate,
    }
}

fn program(sockets: RawFd) -> [Instruction; 6] {
    [
        instruction(LOAD_WORD, 2, 1, RX_QUEUE_INDEX_AT, 0),
        instruction(LOAD_IMMEDIATE_64, 1, PSEUDO_MAP_FD, 0, sockets),
        instruction(0, 0, 0, 0, 0),
        instruction(MOVE_IMMEDIATE, 3, 0, 0, XDP_PASS),
        instruction(CALL, 0, 0, 0, BPF_REDIRECT_MAP),
        instruction(EXIT, 0, 0, 0, 0),
    ]
}

const _: () = assert!(
    cfg!(target_endian = "little"),
    "registers are the other way round"
);

/// The commands of bpf(2), with those members of `union bpf_attr` that they need. What a struct
/// leaves out at its end the kernel takes for zero.
mod command {
    use std::ffi::c_int;

    pub(super) const MAP_CREATE: c_int = 0;
    pub(super) const MAP_UPDATE: c_int = 2;
    pub(super) const PROGRAM_LOAD: c_int = 5;
    pub(super) const LINK_CREATE: c_int = 28;

    pub(super) const MAP_OF_XDP_SOCKETS: u32 = 17;
    pub(super) const PROGRAM_XDP: u32 = 6;
    pub(super) const ATTACH_XDP: u32 = 37;

    #[repr(C)]
    pub(super) struct MapCreate {
        pub(super) kind: u32,
        pub(super) key_len: u32,
        pub(super) value_len: u32,
        pub(super) entries_max: u32,
    }

    #[repr(C)]
    pub(super) struct MapUpdate {
        pub(super) map: u32,
        pub(super) padding: u32,
        pub(super) key: u64,
        pub(super) value: u64,
        pub(super) flags: u64,
    }

    #[repr(C)]
    pub(super) struct ProgramLoad {
        pub(super) kind: u32,
        pub(super) instructions_len: u32,
        pub(super) instructions: u64,
        pub(super) license: u64,
    }

    #[repr(C)]
    pub(super) struct LinkCreate {
        pub(super) program: u32,
        pub(super) interface: u32,
        pub(super) attach: u32,
        pub(super) flags: u32,
    }
}

/// Where the kernel runs the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the driver, if that can, on the frame as the card has left it.
    Driver,
    /// Behind it, on the kernel's own buffer: XDP_FLAGS_SKB_MODE in `linux/if_link.h`.
    Generic,
}

/// The program, attached to an interface for as long as this lives.
pub(super) struct Program {
    sockets: OwnedFd,
    /// The kernel detaches it when this is closed.
    _link: OwnedFd,
}

impl Program {
    pub(super) fn attach(interface: c_int, queues: u32, place: Place) -> io::Result<Program> {
        let four = size_of::<u32>() as u32;
        let create = command::MapCreate {
            kind: command::MAP_OF_XDP_SOCKETS,
            key_len: four,
            value_len: four,
            entries_max: queues,
        };
        // SAFETY: the command reads one `MapCreate` and returns a descriptor.
        let sockets = unsafe { descriptor(bpf(command::MAP_CREATE, &create)?) };
        let instructions = program(sockets.as_raw_fd());
        let license = c"MIT OR Apache-2.0";
        let load = command::ProgramLoad {
            kind: command::PROGRAM_XDP,
            instructions_len: instructions.len() as u32,
            instructions: instructions.as_ptr() as u64,
            license: license.as_ptr() as u64,
        };
        // SAFETY: the command reads one `ProgramLoad`, as many instructions as it says, and the
        // license up to its NUL, all of which live until the end of this function; and it returns a
        // descriptor.
        let loaded = unsafe { descriptor(bpf(command::PROGRAM_LOAD, &load)?) };
        let link = command::LinkCreate {
            program: loaded.as_raw_fd() as u32,
            interface: interface as u32,
            attach: command::ATTACH_XDP,
            flags: match place {
                Place::Driver => 0,
                Place::Generic => 1 << 1,
            },
        };
        // SAFETY: the command reads one `LinkCreate` and returns a descriptor.
        let link = unsafe { descriptor(bpf(command::LINK_CREATE, &link)?) };
        Ok(Program {
            sockets,
            _link: link,
        })
    }

    /// Frames of `queue` go to `socket`.
    pub(super) fn direct(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let socket = socket.as_raw_fd() as u32;
        let update = command::MapUpdate {
            map: self.sockets.as_raw_fd() as u32,
            padding: 0,
            key: &raw const queue as u64,
            value: &raw const socket as u64,
            flags: 0,
        };
        // SAFETY: the command reads one `MapUpdate`, and a key and a value of four bytes each,
        // which live until the end of this function.
        unsafe { bpf(command::MAP_UPDATE, &update)? };
        Ok(())
    }
}

/// # Safety
///
/// `attributes` is what `command` reads, and so is what it points to.
unsafe fn bpf<T>(command: c_int, attributes: &T) -> io::Result<c_long> {
    let (at, len) = (&raw const *attributes, size_of::<T>());
    // SAFETY: the kernel reads `len` bytes of the attributes, which are borrowed, and, as the
    // caller promises, what they point to (bpf(2)).
    match unsafe { libc::syscall(libc::SYS_bpf, c_long::from(command), at, len) } {
        -1 => Err(io::Error::last_os_error()),
        returned => Ok(returned),
    }
}

/// # Safety
///
/// `returned` is a descriptor that a system call has just made, and nothing else has.
unsafe fn descriptor(returned: c_long) -> OwnedFd {
    // SAFETY: as the caller promises.
    unsafe { OwnedFd::from_raw_fd(returned as RawFd) }
}
