//! Stackless fibers: no frame, and so no stack, while they wait for input.
//!
//! ```text
//!   step: blocking code on a stack        between two steps: the value, and a receive in flight
//!   ┌──────────────────────────┐          ┌─────────┐
//!   │ received(input)          │ Receive  │  value  │  input came
//!   │   send.. may suspend     │ ───────▶ │ (no     │ ───────────▶ next step, on any stack,
//!   └──────────────────────────┘          │  stack) │              of any processor
//!                                         └─────────┘
//! ```
//!
//! Between two steps no frame of the user's exists, so nothing can hold an address into the
//! thread-local storage of a kernel thread, nor anything that is not `Send`: the fiber may continue
//! anywhere, and moving it is as safe as starting one. Within a step it stays where it is, as every
//! fiber does.
//!
//! This is what a server's connection is: it waits for a request far longer than it takes to answer
//! it. Ten thousand that wait cost their values, not ten thousand pages of stack; and those that
//! are busy share a few stacks, which are warm in the cache.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use crate::base::abort::{AbortOnUnwind, DROPPED};
use crate::io::lent::LentBuffer;
use crate::io::op::Op;
use crate::net::Input;
use crate::net::socket::Source;
use crate::sched::cluster::ProcessorShared;
use crate::sched::fiber::{FiberRef, Flow, StacklessBody};
use crate::sched::processor;
use crate::spawn::packet::{self, Packet};

/// A stackless fiber: a value with one function for each event it waits for.
///
/// ```
/// use weftwork_fiber::net::{Input, TcpListener, TcpStream};
/// use weftwork_fiber::{Flow, Source, Stackless};
/// use std::io::{Read, Write};
///
/// struct Shout(TcpStream);
///
/// impl Stackless for Shout {
///     fn source(&self) -> Source<'_> {
///         self.0.source()
///     }
///
///     fn received(&mut self, input: std::io::Result<Input<'_>>) -> Flow {
///         match input {
///             Ok(input) if !input.is_empty() => {
///                 let louder = input.to_ascii_uppercase();
///                 drop(input);
///                 self.0.write_all(&louder).map_or(Flow::Done, |()| Flow::Receive)
///             }
///             _ => Flow::Done,
///         }
///     }
/// }
///
/// weftwork_fiber::run(|| {
///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
///     let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
///     let shout = weftwork_fiber::spawn_stackless(Shout(listener.accept().unwrap()));
///     client.write_all(b"weft").unwrap();
///     let mut heard = [0; 4];
///     client.read_exact(&mut heard).unwrap();
///     assert_eq!(&heard, b"WEFT");
///     drop(client);
///     shout.join().unwrap();
/// });
/// ```
///
/// Each step may run on another processor, so the value must be `Send`:
///
/// ```compile_fail,E0277
/// struct Bound(std::rc::Rc<u32>);
/// impl weftwork_fiber::Stackless for Bound {}
/// ```
pub trait Stackless: Send + 'static {
    /// The first step, before the first input.
    fn begin(&mut self) -> Flow {
        Flow::Receive
    }

    /// Source of the next input. Called after each step that returned [`Flow::Receive`], so a fiber
    /// that never returns that needs none. Runs outside the fiber and must not block.
    fn source(&self) -> Source<'_> {
        panic!("a stackless fiber that returns Flow::Receive must implement Stackless::source")
    }

    /// Deadline of that wait; `None` for no limit. Called as [`source`](Stackless::source) is.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// A step after [`Flow::Yield`] or [`Flow::Park`]. Runs in a fiber and may block as fibers do.
    fn resumed(&mut self) -> Flow {
        Flow::Receive
    }

    /// A step: input has come; empty input is the end of the stream. Runs in a fiber and may block
    /// as fibers do. An error is `TimedOut` past the deadline, [`Cancelled`](crate::Cancelled),
    /// else what `recv(2)` reports.
    fn received(&mut self, input: io::Result<Input<'_>>) -> Flow {
        panic!(
            "a stackless fiber that returns Flow::Receive must implement Stackless::received, for {input:?}"
        )
    }
}

/// A stackless fiber: its value, its wait and the packet that reports its end.
pub(crate) struct StacklessFiber<S> {
    /// `None` once it is done.
    value: Option<S>,
    wait: Suspension,
    /// `None` if no handle waits for it.
    packet: Option<Arc<Packet<()>>>,
}

/// State between two steps.
enum Suspension {
    /// The first step is yet to come.
    Begin,
    /// The fiber yielded, or was parked.
    Resumed,
    /// Yet to begin, on another processor.
    Postponed,
    /// An operation, whose address the back end has until it is complete, and the processor that
    /// began it.
    Operation(Op, NonNull<ProcessorShared>),
    /// Failed to begin.
    Failed(io::Error),
}

// SAFETY: `Op` and the pointer are not `Send` by themselves. The operation is touched by the
// processor that began it until it is complete, and then by the one that runs the next step, which
// a queue handed the fiber to. The pointer is to a shared half, which lives as long as the cluster,
// which the fiber's control block holds.
unsafe impl<S: Send> Send for StacklessFiber<S> {}

impl<S: Stackless> StacklessFiber<S> {
    pub(crate) fn new(value: S, packet: Option<Arc<Packet<()>>>) -> StacklessFiber<S> {
        StacklessFiber { value: Some(value), wait: Suspension::Begin, packet }
    }

    /// Runs one step. Drops the value after the last one, while there is a stack to do it on.
    fn advance(&mut self) -> Flow {
        let value = self.value.as_mut().expect("a fiber ends once");
        let flow = match std::mem::replace(&mut self.wait, Suspension::Resumed) {
            Suspension::Begin => value.begin(),
            Suspension::Resumed => value.resumed(),
            Suspension::Postponed => Flow::Receive,
            Suspension::Failed(error) => value.received(Err(error)),
            Suspension::Operation(op, owner) => {
                // Before the value is called: it may panic, and the buffer must be given back all
                // the same.
                let lent = lent_to(&op, owner);
                let (socket, deadline) = (value.source().0, value.deadline());
                match socket.end_receive(&op, lent, deadline) {
                    Ok(None) => Flow::Receive,
                    Ok(Some(mut received)) => value.received(Ok(Input::of(&mut received))),
                    Err(error) => value.received(Err(error)),
                }
            }
        };
        if flow == Flow::Done {
            self.value = None;
        }
        flow
    }

    fn finish(&mut self, result: Result<(), Box<dyn Any + Send>>) {
        let abort = AbortOnUnwind(DROPPED);
        self.value = None;
        std::mem::forget(abort);
        packet::end(self.packet.take(), result);
    }
}

/// The buffer that a completed operation of processor `owner` has taken.
fn lent_to(op: &Op, owner: NonNull<ProcessorShared>) -> Option<LentBuffer> {
    LentBuffer::of(op.completion()?, owner)
}

impl<S: Stackless> StacklessBody for StacklessFiber<S> {
    fn step(&mut self) -> Flow {
        match catch_unwind(AssertUnwindSafe(|| self.advance())) {
            Ok(Flow::Done) => self.finish(Ok(())),
            Ok(flow) => return flow,
            Err(payload) => self.finish(Err(payload)),
        }
        Flow::Done
    }

    fn begin_wait(&mut self, fiber: FiberRef) -> bool {
        let value = self.value.as_ref().expect("a fiber that waits has its value");
        let asked = catch_unwind(AssertUnwindSafe(|| (value.source(), value.deadline())));
        let (source, deadline) = match asked {
            Ok(asked) => asked,
            Err(_) => {
                // The next step gets the error; the panic hook has reported it.
                let error = io::Error::other("Stackless::source or Stackless::deadline panicked");
                self.wait = Suspension::Failed(error);
                return false;
            }
        };
        let owner = processor::here(|processor| NonNull::from(processor.shared()));
        self.wait = Suspension::Operation(Op::new(fiber), owner);
        let Suspension::Operation(op, _) = &self.wait else { unreachable!("just made") };
        match source.0.begin_receive(op, deadline) {
            Ok(is_begun) => is_begun,
            Err(error) => {
                self.wait = Suspension::Failed(error);
                false
            }
        }
    }

    fn postpone_wait(&mut self) {
        self.wait = Suspension::Postponed;
    }

    fn abandon(&mut self, error: io::Error) {
        if let Suspension::Operation(op, owner) = &self.wait {
            drop(lent_to(op, *owner));
        }
        self.finish(Err(Box::new(error.to_string())));
    }
}
