//! Streams of every kind, over each back end: TCP, Unix sockets, pipes, terminals.

extern crate weftwork_fiber as fiber;

#[macro_use]
mod harness;
mod patience;

use std::fmt::Debug;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net as std_unix;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fiber::net::{PipeReader, PipeWriter, TcpListener, TcpStream, UnixListener, UnixStream, pipe};
use fiber::{BackendChoice, JoinHandle, Runtime, is_cancellation};
use patience::PATIENCE;

contract! {
    connecting_where_nothing_listens_fails
    connecting_ends_in_time
    a_connect_beside_a_full_queue_waits
    a_connect_beside_a_full_queue_ends_when_told
    a_cancel_that_the_ring_misses_is_repeated
    reads_and_writes_end_when_told
    timeout_bounds_reads_and_writes
    the_end_of_reading_wakes_a_reader
    the_end_of_writing_wakes_a_writer
    a_peer_that_goes_wakes_reader_and_writer
    after_a_half_close_the_other_half_works
    an_empty_write_moves_nothing
    an_error_is_kept_until_it_is_told
    what_follows_urgent_data_is_read
    what_follows_passed_descriptors_is_read
    a_wait_outlives_a_closed_duplicate
    signals_do_not_disturb
    pipes_end_when_told
    pipe_ends_that_go_wake_the_other
    packets_of_a_pipe_are_read_one_by_one
    lines_of_a_terminal_are_read_one_by_one
    a_fifo_is_opened_when_the_other_side_is
}

/// Operations that all streams share.
trait Stream: Debug + Send + Sync {
    fn read(&self, buffer: &mut [u8], deadline: Option<Instant>) -> io::Result<usize>;
    fn receive(&self, deadline: Option<Instant>) -> io::Result<Vec<u8>>;
    fn send(&self, bytes: &[u8], deadline: Option<Instant>) -> io::Result<usize>;
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;
    fn take_error(&self) -> io::Result<Option<io::Error>>;
    fn duplicate(&self) -> Arc<dyn Stream>;
    fn fd(&self) -> i32;
}

macro_rules! is_stream {
    ($name:ident) => {
        impl Stream for $name {
            fn read(&self, buffer: &mut [u8], deadline: Option<Instant>) -> io::Result<usize> {
                self.receive_into(buffer, deadline)
            }

            fn receive(&self, deadline: Option<Instant>) -> io::Result<Vec<u8>> {
                self.receive(deadline, <[u8]>::to_vec)
            }

            fn send(&self, bytes: &[u8], deadline: Option<Instant>) -> io::Result<usize> {
                self.send(&[IoSlice::new(bytes)], false, deadline)
            }

            fn shutdown(&self, how: Shutdown) -> io::Result<()> {
                self.shutdown(how)
            }

            fn take_error(&self) -> io::Result<Option<io::Error>> {
                self.take_error()
            }

            fn duplicate(&self) -> Arc<dyn Stream> {
                Arc::new(self.try_clone().unwrap())
            }

            fn fd(&self) -> i32 {
                self.as_fd().as_raw_fd()
            }
        }
    };
}

is_stream!(TcpStream);
is_stream!(UnixStream);

type Pair = (Arc<dyn Stream>, Arc<dyn Stream>);

type MakePair = fn() -> Pair;

const KINDS: [(&str, MakePair); 5] = [
    ("TCP over IPv4", || tcp_pair("127.0.0.1:0")),
    ("TCP over IPv6", || tcp_pair("[::1]:0")),
    ("Unix, by path", || {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let near = UnixStream::connect(&path).unwrap();
        (Arc::new(near), Arc::new(listener.accept().unwrap()))
    }),
    ("Unix, by abstract name", || {
        let name = abstract_name();
        let listener = UnixListener::bind_addr(&name).unwrap();
        let near = UnixStream::connect_addr(&name).unwrap();
        let peer = near.peer_addr().unwrap();
        assert_eq!(peer.as_abstract_name(), name.as_abstract_name());
        (Arc::new(near), Arc::new(listener.accept().unwrap()))
    }),
    ("Unix, a pair", || {
        let (near, far) = UnixStream::pair().unwrap();
        (Arc::new(near), Arc::new(far))
    }),
];

fn is_tcp(kind: &str) -> bool {
    kind.starts_with("TCP")
}

fn tcp_pair(address: &str) -> Pair {
    let listener = TcpListener::bind(address).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (Arc::new(near), Arc::new(listener.accept().unwrap()))
}

fn abstract_name() -> std_unix::SocketAddr {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("weft-streams-{}-{number}", std::process::id());
    std_unix::SocketAddr::from_abstract_name(name).unwrap()
}

/// A pair of each kind, for `test`.
fn for_each_kind(test: impl Fn(&str, Arc<dyn Stream>, Arc<dyn Stream>)) {
    for (kind, pair) in KINDS {
        eprintln!("{kind}:");
        let (near, far) = pair();
        test(kind, near, far);
    }
}

/// Runs `f` in a fiber, which has begun to wait when this returns, as a rule. The promise also
/// holds if it has not.
fn waiting_in<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let fiber = fiber::spawn(f);
    fiber::sleep(Duration::from_millis(2));
    fiber
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(5))
}

/// Deadline that makes a test fail instead of hang.
fn late() -> Option<Instant> {
    Some(Instant::now() + PATIENCE)
}

/// Sends until that fails. The kernel may find room in a stream that was full a moment before.
fn send_on(stream: &dyn Stream, deadline: impl Fn() -> Option<Instant>) -> io::Error {
    let chunk = vec![7; 1 << 16];
    loop {
        if let Err(error) = stream.send(&chunk, deadline()) {
            return error;
        }
    }
}

fn fill(stream: &dyn Stream) {
    assert_eq!(send_on(stream, soon).kind(), ErrorKind::TimedOut);
}

fn kind_of<T: Debug>(result: io::Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

fn is_cancelled<T: Debug>(result: &io::Result<T>) -> bool {
    result.as_ref().is_err_and(is_cancellation)
}

fn connecting_where_nothing_listens_fails() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        // Bound and not listening, so that no other test has the port.
        let listener = socket2(address);
        let closed = TcpStream::connect(listener.1);
        assert_eq!(kind_of(closed), ErrorKind::ConnectionRefused, "{address}");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    assert_eq!(kind_of(UnixStream::connect(&path)), ErrorKind::NotFound);
    drop(std_unix::UnixListener::bind(&path).unwrap());
    let refused = UnixStream::connect(&path);
    assert_eq!(kind_of(refused), ErrorKind::ConnectionRefused);
    let refused = UnixStream::connect_addr(&abstract_name());
    assert_eq!(kind_of(refused), ErrorKind::ConnectionRefused);
}

fn socket2(address: &str) -> (OwnedFd, std::net::SocketAddr) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let address: std::net::SocketAddr = address.parse().unwrap();
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket(family, SocketType::STREAM, None).unwrap();
    bind(&socket, &address).unwrap();
    let address = getsockname(&socket).unwrap().try_into().unwrap();
    (socket, address)
}

/// A queue with room for one connection: the kernel drops what a second one sends.
fn connecting_ends_in_time() {
    let full = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let address = full.local_addr().unwrap();
    let connect = |after| TcpStream::connect_timeout(&address, after);
    let first = connect(PATIENCE).unwrap();
    assert!(!first.nodelay().unwrap());
    first.set_nodelay(true).unwrap();
    assert!(first.nodelay().unwrap());
    let soon = Duration::from_millis(20);
    assert_eq!(kind_of(connect(soon)), ErrorKind::TimedOut);
    let on_a_thread = fiber::offload(|| connect(soon));
    assert_eq!(kind_of(on_a_thread), ErrorKind::TimedOut);
    assert_eq!(kind_of(connect(Duration::ZERO)), ErrorKind::InvalidInput);
}

/// A Unix listener whose queue is full, of connections that are returned with it.
fn full_listener() -> (std_unix::UnixListener, std_unix::SocketAddr, [std_unix::UnixStream; 2]) {
    let name = abstract_name();
    let listener = std_unix::UnixListener::bind_addr(&name).unwrap();
    // The queue holds one connection and the one that the kernel adds.
    rustix::net::listen(&listener, 1).unwrap();
    let connect = || std_unix::UnixStream::connect_addr(&name).unwrap();
    let filling = [connect(), connect()];
    (listener, name, filling)
}

/// Seen: on epoll the connection failed with `WouldBlock`. Cause: the kernel makes only blocking
/// calls wait, and does not report free room. Cure: the connect is tried again.
fn a_connect_beside_a_full_queue_waits() {
    let (listener, name, _filling) = full_listener();
    let connecting = waiting_in(move || UnixStream::connect_addr(&name));
    assert!(!connecting.is_finished(), "the queue is full");
    for _ in 0..2 {
        listener.accept().unwrap();
    }
    let mut connected = connecting.join().unwrap().unwrap();
    connected.write_all(b"there").unwrap();
    let mut got = [0; 5];
    (&listener.accept().unwrap().0).read_exact(&mut got).unwrap();
    assert_eq!(&got, b"there");
}

fn a_connect_beside_a_full_queue_ends_when_told() {
    let (_listener, name, _filling) = full_listener();
    let short = Duration::from_millis(10);
    let late = fiber::timeout(short, || UnixStream::connect_addr(&name));
    assert_eq!(kind_of(late), ErrorKind::TimedOut);
    let connecting = waiting_in(move || UnixStream::connect_addr(&name));
    connecting.fiber().cancel();
    let ended = connecting.join().unwrap();
    assert!(is_cancelled(&ended), "{ended:?}");
    // TCP: a listener whose queue is full drops SYNs.
    let (socket, address) = socket2("127.0.0.1:0");
    rustix::net::listen(&socket, 0).unwrap();
    let _filling = std::net::TcpStream::connect(address).unwrap();
    let late = fiber::timeout(short, || TcpStream::connect(address));
    assert_eq!(kind_of(late), ErrorKind::TimedOut);
    let connecting = waiting_in(move || TcpStream::connect(address));
    connecting.fiber().cancel();
    let ended = connecting.join().unwrap();
    assert!(is_cancelled(&ended), "{ended:?}");
}

/// Seen: a cancelled connection to a Unix socket whose queue was full never ended. Cause: the
/// kernel finds no request on its way from its poll to a worker thread, which then waits forever.
/// Cure: operations that have not ended are cancelled again.
fn a_cancel_that_the_ring_misses_is_repeated() {
    let (_listener, name, _filling) = full_listener();
    for yields in (0..64).step_by(4) {
        let name = name.clone();
        let connecting = fiber::spawn(move || UnixStream::connect_addr(&name));
        (0..yields).for_each(|_| fiber::yield_now());
        connecting.fiber().cancel();
        fiber::timeout(PATIENCE, || connecting.wait()).unwrap();
        let ended = connecting.join().unwrap();
        assert!(is_cancelled(&ended), "{ended:?}");
    }
}

fn reads_and_writes_end_when_told() {
    for_each_kind(|kind, near, far| {
        assert_eq!(kind_of(near.read(&mut [0; 8], soon())), ErrorKind::TimedOut);
        assert_eq!(kind_of(near.receive(soon())), ErrorKind::TimedOut);
        let reader = Arc::clone(&near);
        let reading = waiting_in(move || reader.read(&mut [0; 8], late()));
        reading.fiber().cancel();
        assert!(is_cancelled(&reading.join().unwrap()), "{kind}");
        let reader = Arc::clone(&near);
        let reading = waiting_in(move || reader.receive(late()));
        reading.fiber().cancel();
        assert!(is_cancelled(&reading.join().unwrap()), "{kind}");
        // The cancel loses no data.
        far.send(b"late", late()).unwrap();
        assert_eq!(near.receive(late()).unwrap(), b"late");

        fill(&*near);
        let writer = Arc::clone(&near);
        let writing = waiting_in(move || send_on(&*writer, late));
        writing.fiber().cancel();
        assert!(is_cancellation(&writing.join().unwrap()), "{kind}");
    });
}

/// Seen: a write to a full Unix socket continued past the deadline of `timeout`, forever. Cause:
/// the end of the wait was taken for that of a look whether writing was shut down. Cure: the
/// deadline of the fiber is known there.
fn timeout_bounds_reads_and_writes() {
    let short = Duration::from_millis(5);
    for_each_kind(|kind, near, _far| {
        let reader = Arc::clone(&near);
        let read = move || fiber::timeout(short, || reader.read(&mut [0; 8], None));
        assert_eq!(kind_of(ended(read)), ErrorKind::TimedOut, "{kind}");
        fill(&*near);
        let write = move || fiber::timeout(short, || send_on(&*near, || None));
        assert_eq!(ended(write).kind(), ErrorKind::TimedOut, "{kind}");
    });
}

/// Result of `f` in a fiber that is cancelled if it does not end by itself.
fn ended<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let fiber = fiber::spawn(f);
    let _ = fiber::timeout(PATIENCE, || fiber.wait());
    fiber.fiber().cancel();
    fiber.join().unwrap()
}

fn the_end_of_reading_wakes_a_reader() {
    for_each_kind(|kind, near, _far| {
        let (one, other) = (Arc::clone(&near), Arc::clone(&near));
        let reading = waiting_in(move || one.read(&mut [0; 8], late()));
        let receiving = waiting_in(move || other.receive(late()));
        near.shutdown(Shutdown::Read).unwrap();
        assert_eq!(reading.join().unwrap().unwrap(), 0, "{kind}");
        assert_eq!(receiving.join().unwrap().unwrap(), b"", "{kind}");
        assert_eq!(near.read(&mut [0; 8], late()).unwrap(), 0, "{kind}");
    });
}

fn the_end_of_writing_wakes_a_writer() {
    for_each_kind(|kind, near, _far| {
        fill(&*near);
        let writer = Arc::clone(&near);
        let writing = waiting_in(move || send_on(&*writer, late));
        near.shutdown(Shutdown::Write).unwrap();
        let error = writing.join().unwrap().kind();
        assert_eq!(error, ErrorKind::BrokenPipe, "{kind}");
        let error = kind_of(near.send(b"x", late()));
        assert_eq!(error, ErrorKind::BrokenPipe, "{kind}");
    });
}

fn a_peer_that_goes_wakes_reader_and_writer() {
    for_each_kind(|kind, near, far| {
        let reader = Arc::clone(&near);
        let reading = waiting_in(move || reader.read(&mut [0; 8], late()));
        drop(far);
        assert_eq!(reading.join().unwrap().unwrap(), 0, "{kind}");
    });
    for_each_kind(|kind, near, far| {
        fill(&*near);
        let writer = Arc::clone(&near);
        let writing = waiting_in(move || send_on(&*writer, late));
        // With bytes that it has not read.
        drop(far);
        let error = writing.join().unwrap().kind();
        let gone = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
        assert!(gone.contains(&error), "{kind}: {error}");
    });
}

fn after_a_half_close_the_other_half_works() {
    for_each_kind(|kind, near, far| {
        near.send(b"question", late()).unwrap();
        near.shutdown(Shutdown::Write).unwrap();
        assert_eq!(far.receive(late()).unwrap(), b"question", "{kind}");
        assert_eq!(far.receive(late()).unwrap(), b"", "{kind}");
        far.send(b"answer", late()).unwrap();
        drop(far);
        assert_eq!(near.receive(late()).unwrap(), b"answer", "{kind}");
        assert_eq!(near.receive(late()).unwrap(), b"", "{kind}");
    });
}

fn an_empty_write_moves_nothing() {
    for_each_kind(|kind, near, far| {
        assert_eq!(near.send(b"", late()).unwrap(), 0, "{kind}");
        assert_eq!(kind_of(far.receive(soon())), ErrorKind::TimedOut, "{kind}");
        near.send(b"x", late()).unwrap();
        assert_eq!(far.receive(late()).unwrap(), b"x", "{kind}");
    });
}

fn an_error_is_kept_until_it_is_told() {
    for_each_kind(|kind, near, far| {
        assert!(near.take_error().unwrap().is_none(), "{kind}");
        near.send(b"not read", late()).unwrap();
        drop(far);
        // Reported once, by whichever call comes first.
        let error = near.take_error().unwrap().map(|error| error.kind());
        assert_eq!(error, Some(ErrorKind::ConnectionReset), "{kind}");
        assert!(near.take_error().unwrap().is_none(), "{kind}");
        assert_eq!(near.read(&mut [0; 8], late()).unwrap(), 0, "{kind}");
    });
}

/// Seen: on epoll the bytes after an urgent one were read when more came, and else never. Cause: a
/// read that is shorter than its buffer was taken for the last one, and it had ended where the
/// urgent byte was. Cure: with urgent data it is not.
fn what_follows_urgent_data_is_read() {
    for_each_kind(|kind, near, far| {
        // So that the reader's processor knows the socket.
        assert_eq!(kind_of(near.receive(soon())), ErrorKind::TimedOut);
        for round in 0..3 {
            far.send(b"before", late()).unwrap();
            // SAFETY: sends one byte of a constant. send(2)
            let sent = unsafe { libc::send(far.fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) };
            assert_eq!(sent, 1, "{kind}");
            far.send(b"after", late()).unwrap();
            let mut got = Vec::new();
            while !got.ends_with(b"after") {
                got.extend(near.receive(late()).unwrap());
            }
            assert_eq!(got, b"beforeafter", "{kind}, round {round}");
        }
    });
}

/// A read ends behind the bytes that descriptors came with, as with urgent data.
fn what_follows_passed_descriptors_is_read() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    for_each_kind(|kind, near, far| {
        if is_tcp(kind) {
            return;
        }
        assert_eq!(kind_of(near.receive(soon())), ErrorKind::TimedOut);
        let stdin = io::stdin();
        let fds = [stdin.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        // SAFETY: `far` keeps the descriptor open.
        let socket = unsafe { rustix::fd::BorrowedFd::borrow_raw(far.fd()) };
        let slices = [IoSlice::new(b"with")];
        sendmsg(socket, &slices, &mut control, SendFlags::empty()).unwrap();
        far.send(b"after", late()).unwrap();
        let mut got = Vec::new();
        while !got.ends_with(b"after") {
            got.extend(near.receive(late()).unwrap());
        }
        assert_eq!(got, b"withafter", "{kind}");
    });
}

fn a_wait_outlives_a_closed_duplicate() {
    for_each_kind(|kind, near, far| {
        for _ in 0..3 {
            let duplicate = near.duplicate();
            assert_eq!(kind_of(duplicate.receive(soon())), ErrorKind::TimedOut);
            let reader = Arc::clone(&near);
            let reading = waiting_in(move || reader.receive(late()));
            drop(duplicate);
            far.send(b"still", late()).unwrap();
            assert_eq!(reading.join().unwrap().unwrap(), b"still", "{kind}");
        }
    });
}

/// A handler that does nothing, and interrupts calls.
fn interrupt_this_process() {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: all-zero is a valid `sigaction`; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut()), 0);
    }
}

fn signals_do_not_disturb() {
    const BYTES: usize = 2_000;
    interrupt_this_process();
    // SAFETY: no precondition; sends to a thread of this process a signal that has a handler.
    let signal_all = || unsafe {
        for thread in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            let id: i32 = thread.file_name().to_str().unwrap().parse().unwrap();
            libc::syscall(libc::SYS_tgkill, libc::getpid(), id, libc::SIGURG);
        }
    };
    for_each_kind(|kind, near, far| {
        let echo = fiber::spawn(move || {
            while let Ok(bytes) = far.receive(late()) {
                if bytes.is_empty() {
                    return;
                }
                far.send(&bytes, late()).unwrap();
            }
        });
        for n in 0..BYTES {
            let byte = [n as u8];
            near.send(&byte, late()).unwrap();
            if n % 64 == 0 {
                signal_all();
            }
            assert_eq!(near.receive(late()).unwrap(), byte, "{kind}");
        }
        near.shutdown(Shutdown::Write).unwrap();
        echo.join().unwrap();
    });
}

fn pipes_end_when_told() {
    let (mut reader, mut writer) = pipe().unwrap();
    let reading = waiting_in(move || (reader.read(&mut [0; 8]), reader));
    reading.fiber().cancel();
    let (ended, _reader) = reading.join().unwrap();
    assert!(is_cancelled(&ended), "{ended:?}");
    let writing = waiting_in(move || writer.write_all(&vec![0; 1 << 20]));
    writing.fiber().cancel();
    let ended = writing.join().unwrap();
    assert!(is_cancelled(&ended), "{ended:?}");
}

fn pipe_ends_that_go_wake_the_other() {
    let (mut reader, writer) = pipe().unwrap();
    let reading = waiting_in(move || reader.read(&mut [0; 8]));
    drop(writer);
    assert_eq!(reading.join().unwrap().unwrap(), 0);
    let (reader, mut writer) = pipe().unwrap();
    let writing = waiting_in(move || writer.write_all(&vec![0; 1 << 20]));
    drop(reader);
    assert_eq!(kind_of(writing.join().unwrap()), ErrorKind::BrokenPipe);
}

/// A read ends with its packet (O_DIRECT, pipe(2)), as with urgent data.
fn packets_of_a_pipe_are_read_one_by_one() {
    use rustix::pipe::{PipeFlags, pipe_with};
    let flags = PipeFlags::CLOEXEC | PipeFlags::DIRECT;
    let (reader, writer) = pipe_with(flags).unwrap();
    let (mut reader, mut writer) = (PipeReader::from(reader), PipeWriter::from(writer));
    read_two(&mut reader, [b"one\n", b"two\n"], || {
        writer.write_all(b"one\n").unwrap();
        writer.write_all(b"two\n").unwrap();
    });
}

/// Reads what `write` writes, in two reads of the same buffer.
fn read_two(reader: &mut PipeReader, wanted: [&[u8]; 2], write: impl FnOnce()) {
    // So that the processor knows the descriptor.
    reader.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let mut buffer = [0; 64];
    assert_eq!(kind_of(reader.read(&mut buffer)), ErrorKind::TimedOut);
    write();
    reader.set_read_timeout(Some(PATIENCE)).unwrap();
    for wanted in wanted {
        let len = reader.read(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], wanted);
    }
}

/// A read ends with its line, as with urgent data.
fn lines_of_a_terminal_are_read_one_by_one() {
    // SAFETY: opens a new terminal and its other end; nothing else owns the descriptors.
    let (master, slave) = unsafe {
        let master = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        assert!(master >= 0 && libc::grantpt(master) == 0 && libc::unlockpt(master) == 0);
        const TIOCGPTPEER: libc::c_ulong = 0x5441;
        let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
        let slave = libc::ioctl(master, TIOCGPTPEER, flags);
        assert!(slave >= 0);
        (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
    };
    let mut reader = PipeReader::from(slave);
    read_two(&mut reader, [b"one\n", b"two\n"], || {
        assert_eq!(rustix::io::write(&master, b"one\ntwo\n").unwrap(), 8);
    });
}

/// Seen: on the ring opening a FIFO for writing failed with ENXIO. Cause: the ring tries everything
/// without waiting first, and a FIFO without a reader says so. Cure: it is then opened where it may
/// wait.
fn a_fifo_is_opened_when_the_other_side_is() {
    use fiber::fs::{File, OpenOptions};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    for writer_first in [true, false] {
        let (write_path, read_path) = (path.clone(), path.clone());
        let write = move || {
            let mut file = OpenOptions::new().write(true).open(&write_path).unwrap();
            file.write_all(b"through a name").unwrap();
        };
        let read = move || {
            let mut got = String::new();
            let mut file = File::open(&read_path).unwrap();
            file.read_to_string(&mut got).unwrap();
            got
        };
        let (writer, reader) = if writer_first {
            let writer = waiting_in(write);
            (writer, fiber::spawn(read))
        } else {
            let reader = waiting_in(read);
            (fiber::spawn(write), reader)
        };
        writer.join().unwrap();
        assert_eq!(reader.join().unwrap(), "through a name");
    }
}

/// A plain thread waits as a fiber does.
#[test]
fn thread_connects_to_full_queue() {
    let (listener, name, _filling) = full_listener();
    let connecting = std::thread::spawn(move || UnixStream::connect_addr(&name));
    for _ in 0..3 {
        listener.accept().unwrap();
    }
    connecting.join().unwrap().unwrap();
}

/// Seen (in review): each duplicate of a stream that was dropped left its registration with epoll.
/// Cause: closing a descriptor does not end it while another one has its file. Cure: it is removed.
#[test]
fn dropped_duplicate_leaves_epoll() {
    let builder = Runtime::builder().processors(1);
    let runtime = builder.backend(BackendChoice::Epoll).start().unwrap();
    let registrations = || -> usize {
        let infos = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
        let info = infos.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
        info.map(|text| text.lines().filter(|line| line.starts_with("tfd:")).count()).sum()
    };
    let added = runtime.run(move || {
        let (near, _far) = UnixStream::pair().unwrap();
        assert_eq!(kind_of(near.receive(soon(), <[u8]>::len)), ErrorKind::TimedOut);
        let before = registrations();
        for _ in 0..50 {
            let duplicate = near.try_clone().unwrap();
            let received = duplicate.receive(soon(), <[u8]>::len);
            assert_eq!(kind_of(received), ErrorKind::TimedOut);
        }
        registrations().saturating_sub(before)
    });
    assert!(added < 25, "{added} new registrations");
}
