//! Filter of a packet socket's frames.
//!
//! A frame with a VLAN tag belongs to another link. The kernel removes the tag, so it would look
//! like a frame of this link. packet(7), `tp_vlan_tci`
//!
//! ```text
//!    0   r6 = r1                       where loads from the frame look
//!    1   r0 = r6->vlan_present         of struct __sk_buff
//!    2   if r0 == 0 goto 5
//!    3   r0 = 0; exit
//!    5   r0 = ethertype
//!    6   if r0 != IPv4 goto 9
//!    7   r0 = IPv4's protocol; goto 11
//!    9   if r0 != IPv6 goto 12
//!   10   r0 = IPv6's next header
//!   11   if r0 == TCP goto 34
//!   12   *(r10 - 4) = 0                the socket's limit is the map's first
//!   13   the code of others.rs          ends with 0, or continues
//!   34   r0 = -1; exit                 the whole frame
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::super::bpf::{self, Instruction, code, instruction};
use super::super::others::{COUNTS_DOWN_LEN, ETHERTYPE_AT, Limit, PROTOCOL_V4_AT, PROTOCOL_V6_AT};
use super::super::sys;
use crate::wire::Protocol;
use crate::wire::ethernet::EtherType;

/// Attaches the filter to a socket: it drops tagged frames and limits those that are not TCP. There
/// is no such limit without `CAP_BPF`, or where the kernel refuses this process programs.
pub(super) fn attach(socket: BorrowedFd<'_>) -> io::Result<Option<Limit>> {
    match with_limit(socket) {
        Ok(limit) => Ok(Some(limit)),
        Err(_) => sys::drop_tagged(socket).map(|()| None),
    }
}

fn with_limit(socket: BorrowedFd<'_>) -> io::Result<Limit> {
    let others = Limit::new(1)?;
    let loaded = bpf::load(bpf::PROGRAM_SOCKET_FILTER, &program(&others), 0)?;
    sys::attach_program(socket, loaded.as_fd())?;
    Ok(others)
}

fn program(others: &Limit) -> Vec<Instruction> {
    const VLAN_PRESENT_AT: i16 = 20;
    let ethertype = |it: EtherType| i32::from(it.0);
    let looks = [
        instruction(code::MOVE, 6, 1, 0, 0),
        instruction(code::LOAD_WORD, 0, 6, VLAN_PRESENT_AT, 0),
        instruction(code::JUMP_IF_EQUAL, 0, 0, 2, 0),
        instruction(code::MOVE_IMMEDIATE, 0, 0, 0, 0),
        instruction(code::EXIT, 0, 0, 0, 0),
        instruction(code::LOAD_FRAME_HALF, 0, 0, 0, ETHERTYPE_AT as i32),
        instruction(code::JUMP_UNLESS_EQUAL, 0, 0, 2, ethertype(EtherType::IPV4)),
        instruction(code::LOAD_FRAME_BYTE, 0, 0, 0, PROTOCOL_V4_AT as i32),
        instruction(code::JUMP, 0, 0, 2, 0),
        instruction(code::JUMP_UNLESS_EQUAL, 0, 0, 2, ethertype(EtherType::IPV6)),
        instruction(code::LOAD_FRAME_BYTE, 0, 0, 0, PROTOCOL_V6_AT as i32),
        instruction(code::JUMP_IF_EQUAL, 0, 0, 1 + COUNTS_DOWN_LEN, Protocol::TCP.0.into()),
        instruction(code::STORE_IMMEDIATE_WORD, 10, 0, -4, 0),
    ];
    let keeps =
        [instruction(code::MOVE_IMMEDIATE, 0, 0, 0, -1), instruction(code::EXIT, 0, 0, 0, 0)];
    [&looks[..], &others.counts_down(0), &keeps].concat()
}
