//! User-level threads: plain blocking code, as many as you like, on a few kernel threads.
//!
//! A *fiber* is a thread that the kernel does not know of. It has a stack of its own, blocks where
//! threads block (reading a socket, sleeping, joining), and costs a page of memory and some 15
//! nanoseconds a switch. *Processors* (kernel threads) run the fibers; while one waits for the
//! network, its processor runs another.
//!
//! ```
//! use std::io::{Read, Write};
//! use weftwork_fiber::net::{TcpListener, TcpStream};
//!
//! weftwork_fiber::run(|| {
//!     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
//!     let address = listener.local_addr().unwrap();
//!     weftwork_fiber::spawn(move || {
//!         while let Ok(mut stream) = listener.accept() {
//!             weftwork_fiber::spawn(move || {
//!                 let mut word = [0; 5];
//!                 stream.read_exact(&mut word).unwrap();
//!                 stream.write_all(&word).unwrap();
//!             });
//!         }
//!     });
//!     let mut stream = TcpStream::connect(address).unwrap();
//!     stream.write_all(b"hello").unwrap();
//!     let mut answer = String::new();
//!     stream.read_to_string(&mut answer).unwrap();
//!     assert_eq!(answer, "hello");
//! });
//! ```
//!
//! # If you know threads, you know this
//!
//! Most of it: names, errors and behaviour are those of `std` where nothing else is said.
//!
//! | you know | here | |
//! |---|---|---|
//! | `std::thread` | [`spawn()`], [`Builder`], [`JoinHandle`], [`scope`], [`sleep`], [`park`], [`yield_now`] | [`JoinSet`] for results as they come |
//! | `std::net` | [`net`]: TCP, UDP, Unix | `std::io::{Read, Write}`, so other people's code works on them; [`accept`](net::TcpListener::accept) returns the stream alone |
//! | `std::fs`, `std::process` | [`fs`], [`process`], [`signal`] | no processor waits for the disk or a child |
//! | `std::sync` | [`sync`]: locks, channels, [`select!`], semaphores, … | fibers and plain threads together |
//! | `thread_local!` | [`fiber_local!`] | `thread_local!` is the processor's |
//!
//! Calls on a plain thread block that thread. [`run`] starts a runtime with a processor
//! for each CPU and ends with its first fiber; [`Runtime::builder`] has the settings, and a runtime
//! that lives longer.
//!
//! # Fibers that belong together
//!
//! [`scope`] waits for its fibers, so they may borrow. [`timeout`] bounds what is done inside,
//! however deep. [`cancel`](Fiber::cancel) asks a fiber to end: its wait fails, and so do those
//! after. Both end every wait that can fail: I/O, `recv`, `send`, [`select!`], a `wait` with an
//! [`io::Result`](std::io::Result), and what has `timeout` in its name. Calls that cannot fail keep
//! waiting: `lock`, `acquire`, [`join`](JoinHandle::join), and `wait` of `Condvar`, `Event` and
//! `Barrier`. [`sleep`] and [`park`] return early.
//!
//! ```
//! use std::time::Duration;
//! use weftwork_fiber::sync::{Mutex, mpsc};
//!
//! weftwork_fiber::run(|| {
//!     let found = Mutex::new(Vec::new());
//!     weftwork_fiber::scope(|scope| {
//!         for n in 1..=3 {
//!             let found = &found; // borrowed
//!             scope.spawn(move || found.lock().unwrap().push(n));
//!         }
//!     });
//!     assert_eq!(found.into_inner().unwrap().len(), 3);
//!
//!     let (words, to_read) = mpsc::sync_channel(1);
//!     let speaker = weftwork_fiber::spawn(move || words.send("hello").unwrap());
//!     let heard = weftwork_fiber::select! {
//!         recv(to_read) -> word => word.unwrap(),
//!         default(Duration::from_secs(5)) => "nothing",
//!     };
//!     assert_eq!(heard, "hello");
//!     speaker.join().unwrap();
//! });
//! ```
//!
//! # What to know
//!
//! * **A fiber starts anywhere and then stays.** The closure must be `Send`; what it makes
//!   inside need not be. `thread_local!` and libraries that use it are safe, and see the
//!   processor's values.
//! * **Nothing preempts a fiber.** A fiber that computes for long keeps its processor:
//!   [`yield_now`] now and then, or [`offload`] it. So does a call that blocks the thread
//!   (`std::fs`, a contended `std::sync::Mutex`): fine when short, else `offload`. A lock that is
//!   held across a wait must be one of [`sync`].
//! * **A fiber that waits can be told to end**: [`Fiber::cancel`] ends the wait with an error, and
//!   what was completed is not lost; [`timeout`] and [`deadline`] bound what runs inside. Their
//!   tables have all waits. A loop around [`sleep`], which has no error, asks [`is_cancelled`].
//!   [`scope`] and [`JoinSet`] keep fibers together: none outlives them, and cancellation goes
//!   down. [`Runtime::shutdown`] cancels what is left.
//! * **The kernel side is io_uring or epoll**, by [`BackendChoice`]; [`Runtime::denied`] says why
//!   when it could not be io_uring.
//! * **Stacks are 64 KiB of address space**, guarded; an overflow says which fiber it was. Keep big
//!   arrays on the heap: each page of the stack that was touched stays with the fiber.
//! * **A fiber that mostly waits needs no stack**: a [`Stackless`] one has a stack only while
//!   it runs, and may continue on another processor.
//! * **While a fiber unwinds from a panic it does not suspend**: I/O and locks in destructors block
//!   the thread then; [`sync`] says [what that means](sync#code-that-cannot-suspend). The message
//!   of a panic names the fiber: the first runtime puts that line before the panic hook that it
//!   finds.
//! * **Do not wait in the initialiser of a `thread_local!`.** `std` relies on it, and it is the one
//!   rule that the crate cannot keep for you: see `docs/fiber/soundness.md`.
//!
//! # More than one cluster
//!
//! A runtime is a *cluster* of processors, and a process may have several: one for what blocks,
//! say, so that connections do not feel it. [`ClusterHandle::run`] calls something there.
//! [`Runtime::add_processor`] and
//! [`Runtime::remove_processor`] change a cluster while it runs.
//!
//! ```
//! let disk = weftwork_fiber::Runtime::builder().processors(1).start().unwrap();
//! let cluster = disk.cluster();
//! let len = weftwork_fiber::run(move || {
//!     let path = std::path::PathBuf::from("/proc/self/stat");
//!     cluster.run(|| std::fs::read(&path)).unwrap().len() // borrowed; blocks a processor over there
//! });
//! assert!(len > 0);
//! ```
//!
//! # Looking inside
//!
//! [`Runtime::dump`] lists all fibers: what each waits for (the descriptor and the operation, the
//! lock and its owner), for how long, where it was spawned, and with
//! [`Inspector::dump_with_backtraces`] where it is. [`RuntimeBuilder::stall_detector`] names a
//! fiber that keeps its processor, and fibers that wait for each other in a ring.
//! [`Runtime::counters`] counts.
//!
//! # Further
//!
//! The [`tutorial`] has five short chapters, the [`cookbook`] has recipes. The
//! examples (`examples/`) are a page each: `echo`, `chat`, `proxy`, `static_files`,
//! `port_scanner`, `producer_consumer`. For those who come from tokio, Go or Java, and why it is
//! sound: `docs/fiber/`.
//!
//! # Inside
//!
//! Folders are layered, and each uses only those below it (`crates/weft/tests/tidy/crates.rs`
//! has the table). From the ground up: `base` (counters, clocks, locks) · `switch` (stacks) ·
//! `backend` (io_uring, epoll: completions come out as values) · `sched` (the queue, timers, the
//! fiber, the cluster, the processor) · `io` (operations, accept, calls on other threads) · `turn`
//! (what a processor does) · `sync` · `fs` · `net` · `spawn` · `process`, `signal` · `inspect`
//! (dumps, the monitor) · `runtime`.

#[cfg(not(target_os = "linux"))]
compile_error!("weftwork runs on Linux only: it stands on epoll and io_uring");

// From the lowest layer up.
mod base;

mod switch;

mod backend;

mod sched;

mod io;

mod turn;

pub mod sync;

pub mod fs;

pub mod net;

mod spawn;

pub mod process;
pub mod signal;

mod inspect;

mod runtime;

#[cfg(any(doc, doctest))]
pub mod cookbook;
#[cfg(any(doc, doctest))]
pub mod tutorial;

pub use backend::{BackendChoice, BackendKind, Denied, DeniedCause, Ring, probe};
pub use base::cancelled::{Cancelled, is_cancellation};
pub use base::counters::ProcessorCounters;
pub use inspect::dump::{Dump, DumpedFiber, DumpedStack};
pub use inspect::monitor::{Deadlock, Stall};
pub use io::cancel::{checkpoint, is_cancelled, park, park_timeout, uncancellable};
pub use io::offload::{
    OffloadCounters, offload, offload_counters, offload_detached, set_offload_threads_max,
    try_offload,
};
pub use io::op::sleep;
pub use net::socket::Source;
pub use runtime::{Inspector, Runtime, RuntimeBuilder, Shutdown, run};
pub use sched::block::{current, deadline, on_processor_stack, timeout, yield_now};
pub use sched::fiber::{Fiber, Flow};
pub use spawn::builder::{Builder, Scope, ScopedJoinHandle, scope, spawn, spawn_stackless};
pub use spawn::handle::ClusterHandle;
pub use spawn::join_set::JoinSet;
pub use spawn::packet::JoinHandle;
pub use spawn::processors::{ProcessorStatus, Retirement};
pub use spawn::stackless::Stackless;
pub use switch::locals::{AccessError, LocalKey};
pub use switch::look::FiberState;
pub use switch::resources::{Resources, resources};
pub use switch::stack::guard_install_supported;

/// Compiles and runs the code of the pages for users of other runtimes.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/coming-from-tokio.md")]
    struct Tokio;
    #[doc = include_str!("../docs/coming-from-go.md")]
    struct Go;
    #[doc = include_str!("../docs/coming-from-java.md")]
    struct Java;
}
