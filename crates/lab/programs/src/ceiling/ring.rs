//! io_uring(7): one system call per turn for all receives and sends.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::replies::Replies;
use super::{INPUT_BYTES, REQUEST_BYTES_MAX};

const ENTRIES: u32 = 4096;

/// Kinds of completions, in the upper half of their user data.
const ACCEPT: u64 = 0;
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

/// A connection. INVARIANT: one operation is in progress, and until it completes the kernel holds
/// the bytes of `input` or of `output`, which are neither moved nor freed.
struct Connection {
    socket: OwnedFd,
    /// Unanswered input: the first `filled` bytes.
    input: Vec<u8>,
    filled: usize,
    output: Vec<u8>,
    sent: usize,
    closes: bool,
}

struct Server {
    ring: IoUring,
    // By descriptor.
    connections: Vec<Option<Connection>>,
    replies: Replies,
}

pub(super) fn serve(listener: &TcpListener, replies: Replies) -> io::Result<Infallible> {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun();
    let mut server = Server { ring: builder.build(ENTRIES)?, connections: Vec::new(), replies };
    let listener = listener.as_raw_fd();
    server.accept(listener)?;
    let mut done = Vec::new();
    loop {
        server.ring.submit_and_wait(1)?;
        done.extend(
            server
                .ring
                .completion()
                .map(|one| (one.user_data(), one.result(), cqueue::more(one.flags()))),
        );
        for (data, result, more) in done.drain(..) {
            let at = data as u32 as usize;
            match data >> 32 {
                ACCEPT => {
                    server.accepted(result)?;
                    if !more {
                        server.accept(listener)?;
                    }
                }
                RECEIVE => server.received(at, result)?,
                _ => server.sent(at, result)?,
            }
        }
    }
}

impl Server {
    fn accept(&mut self, listener: RawFd) -> io::Result<()> {
        let accept = opcode::AcceptMulti::new(types::Fd(listener)).build();
        self.push(accept.user_data(ACCEPT << 32))
    }

    fn accepted(&mut self, result: i32) -> io::Result<()> {
        if result < 0 {
            // The client left before the accept, or there are too many: the others go on.
            return Ok(());
        }
        // SAFETY: the kernel has just made this descriptor for this accept; nothing else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(result) };
        rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
        let at = result as usize;
        if self.connections.len() <= at {
            self.connections.resize_with(at + 1, || None);
        }
        self.connections[at] = Some(Connection {
            socket,
            input: vec![0; INPUT_BYTES],
            filled: 0,
            output: Vec::new(),
            sent: 0,
            closes: false,
        });
        self.receive(at)
    }

    fn receive(&mut self, at: usize) -> io::Result<()> {
        let connection = self.connections[at].as_mut().expect("it is served");
        let room = &mut connection.input[connection.filled..];
        let socket = types::Fd(connection.socket.as_raw_fd());
        let receive = opcode::Recv::new(socket, room.as_mut_ptr(), room.len() as u32).build();
        self.push(receive.user_data(RECEIVE << 32 | at as u64))
    }

    fn received(&mut self, at: usize, result: i32) -> io::Result<()> {
        let Some(connection) = &mut self.connections[at] else {
            return Ok(());
        };
        if result <= 0 {
            self.connections[at] = None;
            return Ok(());
        }
        connection.filled += result as usize;
        let input = &connection.input[..connection.filled];
        let answered = self.replies.answer(input, &mut connection.output);
        connection.input.copy_within(answered.used..connection.filled, 0);
        connection.filled -= answered.used;
        connection.closes = answered.closes;
        if connection.filled > REQUEST_BYTES_MAX {
            self.connections[at] = None;
            return Ok(());
        }
        // The kernel holds no buffer now, so the input may grow for a long request.
        if connection.filled == connection.input.len() {
            connection.input.resize(2 * connection.filled, 0);
        }
        if connection.output.is_empty() { self.receive(at) } else { self.send(at) }
    }

    fn send(&mut self, at: usize) -> io::Result<()> {
        let connection = self.connections[at].as_mut().expect("it is served");
        let rest = &connection.output[connection.sent..];
        let socket = types::Fd(connection.socket.as_raw_fd());
        let send = opcode::Send::new(socket, rest.as_ptr(), rest.len() as u32).build();
        self.push(send.user_data(SEND << 32 | at as u64))
    }

    fn sent(&mut self, at: usize, result: i32) -> io::Result<()> {
        let Some(connection) = &mut self.connections[at] else {
            return Ok(());
        };
        if result < 0 {
            self.connections[at] = None;
            return Ok(());
        }
        connection.sent += result as usize;
        if connection.sent < connection.output.len() {
            return self.send(at);
        }
        connection.output.clear();
        connection.sent = 0;
        if connection.closes {
            self.connections[at] = None;
            return Ok(());
        }
        self.receive(at)
    }

    fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: an entry points to nothing, or to the input or output of a connection that is
            // dropped and changed only when its one operation has completed.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }
}
