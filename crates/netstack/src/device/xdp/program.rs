//! The program in the kernel, and the maps that it looks its queue's socket and limit up in.
//!
//! ```text
//!    0   r7 = r1->rx_queue_index       of the frame's struct xdp_md
//!    1   r2 = r1->data; r3 = r1->data_end
//!    3   r4 = r2 + 24                  behind the bytes examined
//!    5   if r4 > r3 goto 13
//!    6   r5 = ethertype
//!    7   if r5 != IPv4 goto 10
//!    8   r5 = IPv4's protocol; goto 12
//!   10   if r5 != IPv6 goto 13
//!   11   r5 = IPv6's next header
//!   12   if r5 == TCP goto 35
//!   13   *(r10 - 4) = r7
//!   14   the code of others.rs          ends with XDP_DROP, or continues
//!   35   r2 = r7
//!   36   r1 = sockets                  the map; two instructions long
//!   38   r3 = XDP_PASS                 what to return if the queue has no socket
//!   39   call bpf_redirect_map         r0 = XDP_REDIRECT to the socket, or XDP_PASS
//!   40   exit
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::super::bpf::{self, Instruction, code, instruction};
use super::super::others::{COUNTS_DOWN_LEN, ETHERTYPE_AT, Limit, PROTOCOL_V4_AT, PROTOCOL_V6_AT};
use crate::wire::Protocol;
use crate::wire::ethernet::EtherType;

/// Mode in which the kernel runs the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttachMode {
    /// In the driver, if that can, on the frame as the card has left it.
    Driver,
    /// Behind it, on the kernel's own buffer: XDP_FLAGS_SKB_MODE in `linux/if_link.h`.
    Generic,
}

/// The program, attached to an interface for as long as this lives.
pub(super) struct Program {
    sockets: OwnedFd,
    pub(super) others: Limit,
    _link: OwnedFd,
}

impl Program {
    /// Attaches the program. With `has_pieces` a frame may span several chunks, of which the
    /// program examines only the first.
    pub(super) fn attach(
        interface: u32,
        queues: u32,
        mode: AttachMode,
        has_pieces: bool,
    ) -> io::Result<Program> {
        const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
        let four = size_of::<u32>();
        let sockets = bpf::create_map(bpf::MAP_OF_XDP_SOCKETS, four, queues, 0)?;
        let others = Limit::new(queues)?;
        let instructions = program(sockets.as_fd(), &others);
        let knows_pieces = if has_pieces { BPF_F_XDP_HAS_FRAGS } else { 0 };
        let loaded = bpf::load(bpf::PROGRAM_XDP, &instructions, knows_pieces)?;
        let flags = match mode {
            AttachMode::Driver => 0,
            AttachMode::Generic => 1 << 1,
        };
        let link = bpf::attach_xdp(loaded.as_fd(), interface, flags)?;
        Ok(Program { sockets, others, _link: link })
    }

    /// Directs frames of `queue` to `socket`.
    pub(super) fn direct(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        bpf::put(self.sockets.as_fd(), queue, socket)
    }
}

fn program(sockets: BorrowedFd<'_>, others: &Limit) -> Vec<Instruction> {
    const DATA_AT: i16 = 0;
    const DATA_END_AT: i16 = 4;
    const RX_QUEUE_INDEX_AT: i16 = 16;
    const XDP_DROP: i32 = 1;
    const XDP_PASS: i32 = 2;
    const BPF_REDIRECT_MAP: i32 = 51;
    // Byte order of a value loaded into a register.
    let ethertype = |it: EtherType| i32::from(it.0.swap_bytes());
    let looked_at = PROTOCOL_V4_AT.max(PROTOCOL_V6_AT) as i32 + 1;
    let [map, map_end] = bpf::load_map(1, sockets);
    let looks = [
        instruction(code::LOAD_WORD, 7, 1, RX_QUEUE_INDEX_AT, 0),
        instruction(code::LOAD_WORD, 2, 1, DATA_AT, 0),
        instruction(code::LOAD_WORD, 3, 1, DATA_END_AT, 0),
        instruction(code::MOVE, 4, 2, 0, 0),
        instruction(code::ADD_IMMEDIATE, 4, 0, 0, looked_at),
        instruction(code::JUMP_IF_GREATER, 4, 3, 7, 0),
        instruction(code::LOAD_HALF, 5, 2, ETHERTYPE_AT as i16, 0),
        instruction(code::JUMP_UNLESS_EQUAL, 5, 0, 2, ethertype(EtherType::IPV4)),
        instruction(code::LOAD_BYTE, 5, 2, PROTOCOL_V4_AT as i16, 0),
        instruction(code::JUMP, 0, 0, 2, 0),
        instruction(code::JUMP_UNLESS_EQUAL, 5, 0, 2, ethertype(EtherType::IPV6)),
        instruction(code::LOAD_BYTE, 5, 2, PROTOCOL_V6_AT as i16, 0),
        instruction(code::JUMP_IF_EQUAL, 5, 0, 1 + COUNTS_DOWN_LEN, Protocol::TCP.0.into()),
        instruction(code::STORE_WORD, 10, 7, -4, 0),
    ];
    let redirects = [
        instruction(code::MOVE, 2, 7, 0, 0),
        map,
        map_end,
        instruction(code::MOVE_IMMEDIATE, 3, 0, 0, XDP_PASS),
        instruction(code::CALL, 0, 0, 0, BPF_REDIRECT_MAP),
        instruction(code::EXIT, 0, 0, 0, 0),
    ];
    [&looks[..], &others.counts_down(XDP_DROP), &redirects].concat()
}
