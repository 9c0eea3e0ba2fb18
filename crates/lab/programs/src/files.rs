//! One responder that sends files in several ways: the question for which the thesis on fairness
//! changed its runtime. `weft-programs files WAY PORT FOLDER` has one thread, one ring, and no
//! limits; the ways differ only in how they send a body.
//!
//! | way | a body is sent by | if the socket is full |
//! |---|---|---|
//! | `block` | sendfile(2) | the thread blocks in it |
//! | `yield` | sendfile(2) with `O_NONBLOCK` | tried again after the others |
//! | `poll` | the same | the ring reports free space |
//! | `splice` | two linked splices through a pipe, on the ring | a kernel thread waits |
//! | `splice-8` | the same, with at most 8 such threads | the same, and others wait for a thread |
//! | `splice-2` | the same on a second ring | a kernel thread waits |
//! | `read` | a read and a send on the ring | the ring continues once there is space |

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::ceiling::{INPUT_BYTES, listen};

const ENTRIES: u32 = 4096;
/// A part of a body: the capacity of a pipe.
const PART_BYTES: usize = 64 * 1024;
const NOT_FOUND: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";

/// Kinds of completions, in the upper half of their user data.
const ACCEPT: u64 = 0;
const RECEIVE: u64 = 1;
/// Bytes of `Connection::output` were sent.
const SEND: u64 = 2;
/// A body continues.
const GO_ON: u64 = 3;
const READ: u64 = 4;
const INTO_PIPE: u64 = 5;
const OUT_OF_PIPE: u64 = 6;
/// The second ring has completions.
const SECOND: u64 = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Block,
    Yield,
    Poll,
    Splice,
    Read,
}

/// Serves until it is killed.
///
/// # Errors
/// A mistake in the arguments, or a failed system call.
pub(crate) fn run(words: &[String]) -> Result<Infallible, String> {
    let [way, port, folder] = words else {
        return Err("usage: files WAY PORT FOLDER".to_owned());
    };
    let (way, workers_max, has_second) = match &**way {
        "block" => (Way::Block, None, false),
        "yield" => (Way::Yield, None, false),
        "poll" => (Way::Poll, None, false),
        "splice" => (Way::Splice, None, false),
        "splice-8" => (Way::Splice, Some(8), false),
        "splice-2" => (Way::Splice, None, true),
        "read" => (Way::Read, None, false),
        _ => return Err(format!("unknown way '{way}'")),
    };
    let port: u16 = port.parse().map_err(|_| format!("'{port}' is not a port"))?;
    let serve = || -> io::Result<Infallible> {
        let files = open_all(Path::new(folder))?;
        let listener = listen(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
        println!("port {}", listener.local_addr()?.port());
        Responder::new(way, files, workers_max, has_second)?.serve(&listener)
    };
    serve().map_err(|error| error.to_string())
}

/// Files of a folder and their lengths, by request target.
fn open_all(folder: &Path) -> io::Result<HashMap<Vec<u8>, (File, u64)>> {
    let mut files = HashMap::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        if about.is_file() {
            let target = format!("/{}", entry.file_name().display());
            files.insert(target.into_bytes(), (File::open(entry.path())?, about.len()));
        }
    }
    Ok(files)
}

/// A connection. INVARIANT: as long as `pending` operations are in progress, the kernel may hold
/// the bytes of `input` and `output`; neither they nor the connection are moved or freed.
struct Connection {
    socket: OwnedFd,
    input: Vec<u8>,
    filled: usize,
    /// A head, or a part of a body that was read from the file.
    output: Vec<u8>,
    sent: usize,
    body: Option<Body>,
    pipe: Option<(OwnedFd, OwnedFd)>,
    in_pipe: usize,
    pending: u32,
    closes: bool,
    has_failed: bool,
}

/// A body being sent: the rest of a file.
#[derive(Clone, Copy)]
struct Body {
    file: RawFd,
    offset: u64,
    left: u64,
}

struct Responder {
    way: Way,
    ring: IoUring,
    second: Option<IoUring>,
    files: HashMap<Vec<u8>, (File, u64)>,
    // By descriptor.
    connections: Vec<Option<Box<Connection>>>,
}

impl Responder {
    fn new(
        way: Way,
        files: HashMap<Vec<u8>, (File, u64)>,
        workers_max: Option<u32>,
        has_second: bool,
    ) -> io::Result<Responder> {
        let ring = IoUring::new(ENTRIES)?;
        if let Some(most) = workers_max {
            ring.submitter().register_iowq_max_workers(&mut [most; 2])?;
        }
        let second = has_second.then(|| IoUring::new(ENTRIES)).transpose()?;
        Ok(Responder { way, ring, second, files, connections: Vec::new() })
    }

    fn serve(&mut self, listener: &TcpListener) -> io::Result<Infallible> {
        let listener = listener.as_raw_fd();
        self.accept(listener)?;
        self.watch_second()?;
        let mut done = Vec::new();
        loop {
            self.ring.submit_and_wait(1)?;
            let completed = self.ring.completion();
            let completed =
                completed.map(|one| (one.user_data(), one.result(), cqueue::more(one.flags())));
            done.extend(completed);
            for (data, result, more) in done.drain(..) {
                match data >> 32 {
                    ACCEPT => {
                        self.accepted(result)?;
                        if !more {
                            self.accept(listener)?;
                        }
                    }
                    SECOND => self.look_at_second(more)?,
                    kind => self.completed(kind, data as u32 as usize, result)?,
                }
            }
            if let Some(second) = &self.second {
                second.submit()?;
            }
        }
    }

    fn accept(&mut self, listener: RawFd) -> io::Result<()> {
        let accept = opcode::AcceptMulti::new(types::Fd(listener)).build();
        push(&mut self.ring, accept.user_data(ACCEPT << 32))
    }

    fn watch_second(&mut self) -> io::Result<()> {
        let Some(second) = &self.second else {
            return Ok(());
        };
        let ring = types::Fd(second.as_raw_fd());
        let poll = opcode::PollAdd::new(ring, readable()).multi(true).build();
        push(&mut self.ring, poll.user_data(SECOND << 32))
    }

    fn look_at_second(&mut self, more: bool) -> io::Result<()> {
        let Some(second) = &mut self.second else {
            return Ok(());
        };
        let done: Vec<_> = second.completion().map(|one| (one.user_data(), one.result())).collect();
        for (data, result) in done {
            self.completed(data >> 32, data as u32 as usize, result)?;
        }
        if more { Ok(()) } else { self.watch_second() }
    }

    fn accepted(&mut self, result: i32) -> io::Result<()> {
        if result < 0 {
            return Ok(());
        }
        // SAFETY: the kernel has just made this descriptor for this accept; nothing else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(result) };
        rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
        let at = result as usize;
        if self.connections.len() <= at {
            self.connections.resize_with(at + 1, || None);
        }
        self.connections[at] = Some(Box::new(Connection {
            socket,
            input: vec![0; INPUT_BYTES],
            filled: 0,
            output: Vec::new(),
            sent: 0,
            body: None,
            pipe: None,
            in_pipe: 0,
            pending: 0,
            closes: false,
            has_failed: false,
        }));
        self.receive(at)
    }

    fn of(&mut self, at: usize) -> &mut Connection {
        self.connections[at].as_mut().expect("an operation of it is under way")
    }

    /// Submits an operation of a connection.
    fn submit(&mut self, at: usize, kind: u64, entry: squeue::Entry) -> io::Result<()> {
        self.of(at).pending += 1;
        let entry = entry.user_data(kind << 32 | at as u64);
        let is_splice = kind == INTO_PIPE || kind == OUT_OF_PIPE;
        match &mut self.second {
            Some(second) if is_splice => push(second, entry),
            _ => push(&mut self.ring, entry),
        }
    }

    fn completed(&mut self, kind: u64, at: usize, result: i32) -> io::Result<()> {
        let connection = self.of(at);
        connection.pending -= 1;
        let is_end = kind == RECEIVE && result <= 0;
        // The second of two linked operations is cancelled if the first was short.
        let has_failed = result < 0 && result != -Errno::CANCELED.raw_os_error();
        connection.has_failed |= is_end || has_failed;
        let moved = result.max(0) as usize;
        match kind {
            RECEIVE => connection.filled += moved,
            SEND => connection.sent += moved,
            READ => {
                connection.output.truncate(moved);
                connection.sent = 0;
                connection.has_failed |= moved == 0;
            }
            INTO_PIPE => connection.in_pipe += moved,
            OUT_OF_PIPE => connection.in_pipe -= moved,
            _ => {}
        }
        if matches!(kind, READ | INTO_PIPE)
            && let Some(body) = &mut connection.body
        {
            body.offset += moved as u64;
            body.left -= moved as u64;
        }
        if connection.pending > 0 {
            return Ok(());
        }
        if connection.has_failed {
            self.connections[at] = None;
            return Ok(());
        }
        if kind == RECEIVE { self.received(at) } else { self.go_on(at) }
    }

    fn receive(&mut self, at: usize) -> io::Result<()> {
        let connection = self.of(at);
        let room = &mut connection.input[connection.filled..];
        let socket = types::Fd(connection.socket.as_raw_fd());
        let receive = opcode::Recv::new(socket, room.as_mut_ptr(), room.len() as u32).build();
        self.submit(at, RECEIVE, receive)
    }

    /// Answers one request, if it is complete.
    fn received(&mut self, at: usize) -> io::Result<()> {
        let connection = self.connections[at].as_mut().expect("it has just received");
        let input = &connection.input[..connection.filled];
        let Some(length) = input.windows(4).position(|four| four == b"\r\n\r\n") else {
            if connection.filled == connection.input.len() {
                self.connections[at] = None;
                return Ok(());
            }
            return self.receive(at);
        };
        let head = &input[..length];
        let target = head.split(|&byte| byte == b' ').nth(1).unwrap_or_default();
        connection.closes = head.windows(17).any(|some| some == b"Connection: close");
        connection.output.clear();
        connection.sent = 0;
        match self.files.get(target) {
            Some((file, left)) => {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {left}\r\n\r\n");
                connection.output.extend_from_slice(head.as_bytes());
                let body = Body { file: file.as_raw_fd(), offset: 0, left: *left };
                connection.body = (!head_only(input)).then_some(body);
            }
            None => connection.output.extend_from_slice(NOT_FOUND),
        }
        connection.input.copy_within(length + 4..connection.filled, 0);
        connection.filled -= length + 4;
        self.go_on(at)
    }

    /// Sends pending output, then the next part of the body, then receives the next request.
    fn go_on(&mut self, at: usize) -> io::Result<()> {
        let way = self.way;
        let connection = self.of(at);
        let socket = types::Fd(connection.socket.as_raw_fd());
        let rest = &connection.output[connection.sent..];
        if !rest.is_empty() {
            let send = opcode::Send::new(socket, rest.as_ptr(), rest.len() as u32).build();
            return self.submit(at, SEND, send);
        }
        if connection.in_pipe > 0 {
            return self.empty_pipe(at);
        }
        let Some(body) = connection.body.filter(|body| body.left > 0) else {
            connection.body = None;
            if connection.closes {
                self.connections[at] = None;
                return Ok(());
            }
            // Pipelined bytes wait for the next receive: no generator here sends any.
            return self.receive(at);
        };
        match way {
            Way::Block | Way::Yield | Way::Poll => self.send_file(at, body),
            Way::Splice => self.fill_pipe(at, body),
            Way::Read => self.read(at, body),
        }
    }

    fn send_file(&mut self, at: usize, mut body: Body) -> io::Result<()> {
        let way = self.way;
        let connection = self.of(at);
        // SAFETY: the server holds all files for as long as it runs.
        let file = unsafe { rustix::fd::BorrowedFd::borrow_raw(body.file) };
        // A ring waits on a socket only while that is blocking, so the flag is set and reset.
        if way != Way::Block {
            rustix::fs::fcntl_setfl(&connection.socket, OFlags::NONBLOCK)?;
        }
        let sent = loop {
            let left = body.left as usize;
            let sent = rustix::fs::sendfile(&connection.socket, file, Some(&mut body.offset), left);
            match sent {
                Ok(sent) => body.left -= sent as u64,
                Err(error) => break Err(error),
            }
            if body.left == 0 || sent == Ok(0) {
                break Ok(());
            }
        };
        if way != Way::Block {
            rustix::fs::fcntl_setfl(&connection.socket, OFlags::empty())?;
        }
        connection.body = Some(body);
        match sent {
            Ok(()) if body.left == 0 => self.go_on(at),
            Err(Errno::AGAIN) if way == Way::Yield => {
                self.submit(at, GO_ON, opcode::Nop::new().build())
            }
            Err(Errno::AGAIN) => {
                let socket = types::Fd(connection.socket.as_raw_fd());
                let poll = opcode::PollAdd::new(socket, writable()).build();
                self.submit(at, GO_ON, poll)
            }
            _ => {
                self.connections[at] = None;
                Ok(())
            }
        }
    }

    /// Submits two linked splices: a part of the file into the pipe, and out of it.
    fn fill_pipe(&mut self, at: usize, body: Body) -> io::Result<()> {
        let connection = self.of(at);
        if connection.pipe.is_none() {
            connection.pipe = Some(rustix::pipe::pipe()?);
        }
        let (_, end) = connection.pipe.as_ref().expect("it has just been made");
        let end = types::Fd(end.as_raw_fd());
        let part = body.left.min(PART_BYTES as u64) as u32;
        let file = types::Fd(body.file);
        let into = opcode::Splice::new(file, body.offset as i64, end, -1, part).build();
        self.submit(at, INTO_PIPE, into.flags(squeue::Flags::IO_LINK))?;
        self.empty_pipe(at)
    }

    fn empty_pipe(&mut self, at: usize) -> io::Result<()> {
        let connection = self.of(at);
        let (begin, _) = connection.pipe.as_ref().expect("there is something in it");
        let begin = types::Fd(begin.as_raw_fd());
        let socket = types::Fd(connection.socket.as_raw_fd());
        let splice = opcode::Splice::new(begin, -1, socket, -1, PART_BYTES as u32).build();
        self.submit(at, OUT_OF_PIPE, splice)
    }

    fn read(&mut self, at: usize, body: Body) -> io::Result<()> {
        let connection = self.of(at);
        connection.output.resize(body.left.min(PART_BYTES as u64) as usize, 0);
        connection.sent = connection.output.len();
        let part = connection.output.len() as u32;
        let read = opcode::Read::new(types::Fd(body.file), connection.output.as_mut_ptr(), part);
        self.submit(at, READ, read.offset(body.offset).build())
    }
}

fn head_only(input: &[u8]) -> bool {
    input.starts_with(b"HEAD ")
}

fn readable() -> u32 {
    u32::from(rustix::event::PollFlags::IN.bits())
}

fn writable() -> u32 {
    u32::from(rustix::event::PollFlags::OUT.bits())
}

fn push(ring: &mut IoUring, entry: squeue::Entry) -> io::Result<()> {
    loop {
        // SAFETY: an entry points to nothing, or to the input or output of a connection that is
        // dropped and changed only when its operations have completed.
        if unsafe { ring.submission().push(&entry) }.is_ok() {
            return Ok(());
        }
        ring.submit()?;
    }
}
