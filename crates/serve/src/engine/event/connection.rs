//! One connection of a loop: does its machine's actions up to the next wait.

use std::net::SocketAddr;
use std::ops::ControlFlow::{self, Break, Continue};

use session::Session;

use super::inbox::LoopContext;
use crate::connection::{Action, Machine};
use crate::engine::admission::{Admission, Opens};
use crate::engine::reactor::{
    HasWatch, LongUntil, Socket, Wait, Watch, is_postponed, output, take_steps,
};
use crate::file::DiskRead;

/// Cost of a received byte in sent bytes: a full buffer of input uses up a turn. A hostile byte
/// costs ten nanoseconds (compressed heads), a usual one a tenth of that.
const RECEIVED_COST: u64 = 8;

/// One connection.
pub(super) struct Connection<S> {
    pub(super) machine: Machine<S>,
    pub(super) socket: Socket,
    pub(super) waits: Wait,
    pub(super) peer: Option<SocketAddr>,
    /// Number of the server's listener that accepted it.
    pub(super) listener: usize,
    /// Registration with the poller.
    pub(super) watch: Watch,
}

impl<S> HasWatch for Box<Connection<S>> {
    fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }
}

impl<S: Session + 'static> Connection<S> {
    /// Does the machine's actions until one would have to wait. Records and returns the wait.
    pub(super) fn drive(
        &mut self,
        context: &mut LoopContext<S::Work>,
        admission: &Admission<impl Opens<S>>,
    ) -> Wait {
        // A connection that has waited for a turn of its session has one now. The next one comes
        // after other connections.
        let mut has_turn = matches!(self.waits, Wait::Turn);
        // In its turn, its long operations are not postponed either.
        let long_until = (!has_turn).then_some(context.long_until);
        let waits = take_steps(|| match self.step(context, admission, &mut has_turn, long_until) {
            Break(waits) if waits.is_over(context.now) => {
                self.machine.handle_timeout(context.now);
                Continue(0)
            }
            stepped => stepped,
        });
        self.waits = waits.unwrap_or(Wait::Turn);
        self.waits
    }

    /// Does the next action. Returns the number of bytes sent.
    #[inline]
    fn step(
        &mut self,
        context: &mut LoopContext<S::Work>,
        admission: &Admission<impl Opens<S>>,
        has_turn: &mut bool,
        long_until: LongUntil,
    ) -> ControlFlow<Wait, u64> {
        let Connection { machine, socket, watch, .. } = self;
        match machine.next_action() {
            Action::Receive { until } => {
                let is_long = machine.is_handshaking();
                if is_long
                    && is_postponed(context.now.monotonic, long_until)
                    && socket.may_receive()
                {
                    return Break(Wait::Turn);
                }
                let buffer = machine.shared().memory.part_of(&mut context.receive_buffer);
                let mut received = 0;
                match socket.receive(buffer, until)? {
                    Ok(len) => {
                        received = len as u64;
                        machine.handle_input(&context.receive_buffer[..len], context.now);
                    }
                    Err(error) => machine.handle_error(&error, context.now),
                }
                if is_long {
                    context.update_clock();
                }
                return Continue(RECEIVED_COST * received);
            }
            Action::Fill { space, until } => {
                let filled = socket.receive(space, until)?;
                machine.handle_filled(filled, context.now);
            }
            Action::Turn => {
                if !std::mem::take(has_turn) {
                    return Break(Wait::Turn);
                }
                // While the peer takes all output, no other place checks for its input.
                if machine.is_duplex() {
                    socket.expect_input();
                    if let Some(received) = try_receive(machine, socket, context) {
                        return Continue(RECEIVED_COST * received);
                    }
                }
                machine.handle_turn(context.update_clock());
            }
            Action::Work => {
                let LoopContext { inbox, jobs, now, .. } = context;
                if let Some(work) = machine.take_work(*now)
                    && let Err(work) = inbox.work(jobs, watch.token, work, *now)
                {
                    machine.handle_refused(work, *now);
                }
            }
            Action::Nothing => return Break(Wait::Thread),
            Action::Open(facts) => {
                let session = admission.session(self.listener, || self.peer, facts, context.now);
                machine.handle_opened(session, context.now);
            }
            Action::Close(closed) => return Break(Wait::End(closed)),
            _ => {
                let LoopContext { inbox, jobs, now, .. } = context;
                let slow = |read: DiskRead| inbox.read(jobs, watch.token, read);
                let slow = context.has_file_threads.then_some(slow);
                let stepped = output(machine, socket, now, long_until, slow);
                if let Break(Wait::Writable { until }) = stepped
                    && machine.is_duplex()
                {
                    if let Some(received) = try_receive(machine, socket, context) {
                        return Continue(RECEIVED_COST * received);
                    }
                    return Break(Wait::Either { until });
                }
                return stepped;
            }
        }
        Continue(0)
    }
}

/// Takes input that arrived during output. Returns its length; `None` if there is none.
fn try_receive<S: Session>(
    machine: &mut Machine<S>,
    socket: &mut Socket,
    context: &mut LoopContext<S::Work>,
) -> Option<u64> {
    let now = context.now;
    let buffer = machine.shared().memory.part_of(&mut context.receive_buffer);
    match socket.receive(buffer, now.monotonic) {
        Continue(Ok(len)) => {
            machine.handle_input(&context.receive_buffer[..len], now);
            Some(len as u64)
        }
        Continue(Err(error)) => {
            machine.handle_error(&error, now);
            Some(0)
        }
        Break(_) => None,
    }
}
