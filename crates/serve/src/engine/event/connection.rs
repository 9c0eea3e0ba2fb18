//! A connection of a loop. It does what its machine wants until it would have to wait, and says
//! for what.

use std::net::SocketAddr;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::Instant;

use session::{Now, Session};

use super::inbox::{Inbox, Message};
use crate::clock;
use crate::connection::{Action, Machine};
use crate::engine::admission::{Admission, Opens};
use crate::engine::reactor::{
    HasWatch, LongUntil, SHARE_OF_TURN, Socket, Wait, Watch, is_put_off, output, take_steps,
};
use crate::file::DiskRead;
use crate::jobs::Jobs;

/// One connection.
pub(super) struct Connection<S> {
    pub(super) machine: Machine<S>,
    pub(super) socket: Socket,
    pub(super) waits: Wait,
    pub(super) peer: Option<SocketAddr>,
    /// Which of the server's listeners it came from.
    pub(super) listener: usize,
    /// What the loop has told its dispatcher and its timers of it.
    pub(super) watch: Watch,
}

impl<S> HasWatch for Box<Connection<S>> {
    fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }
}

/// What the connections of a loop share.
pub(super) struct LoopContext<S> {
    /// What time it was at the last look.
    pub(super) now: Now,
    /// Until when this turn of the loop goes on with long work.
    pub(super) long_until: Instant,
    /// Where input is received: a session uses it at once, or the machine holds it.
    pub(super) room: Vec<u8>,
    pub(super) inbox: Arc<Inbox<S>>,
    pub(super) jobs: Arc<Jobs>,
    /// Whether threads read what is not in memory. Otherwise the loop waits for the disk.
    pub(super) has_file_threads: bool,
}

impl<S: Session + 'static> Connection<S> {
    /// Does what the machine wants until it would have to wait, and notes for what.
    pub(super) fn drive(
        &mut self,
        context: &mut LoopContext<S>,
        admission: &Admission<impl Opens<S>>,
    ) -> Wait {
        // A connection that has waited for a turn of its session has one now. The next comes after
        // those of others.
        let mut has_turn = matches!(self.waits, Wait::Turn);
        // Nor is its long work put off then.
        let long_until = (!has_turn).then_some(context.long_until);
        let waits = take_steps(
            || match self.step(context, admission, &mut has_turn, long_until) {
                Break(waits) if waits.is_over(context.now) => {
                    self.machine.handle_timeout(context.now);
                    Continue(0)
                }
                stepped => stepped,
            },
        );
        self.waits = waits.unwrap_or(Wait::Turn);
        self.waits
    }

    /// Does one thing that the machine wants. Says how much that sent.
    #[inline]
    fn step(
        &mut self,
        context: &mut LoopContext<S>,
        admission: &Admission<impl Opens<S>>,
        has_turn: &mut bool,
        long_until: LongUntil,
    ) -> ControlFlow<Wait, u64> {
        let Connection {
            machine,
            socket,
            watch,
            ..
        } = self;
        match machine.next_action() {
            Action::Receive { until } => {
                let is_long = machine.is_handshaking();
                if is_long && is_put_off(context.now.monotonic, long_until) && socket.may_receive()
                {
                    return Break(Wait::Turn);
                }
                let room = machine.shared().memory.part_of(&mut context.room);
                match socket.receive(room, until)? {
                    Ok(len) => machine.handle_input(&context.room[..len], context.now),
                    Err(error) => machine.handle_error(&error, context.now),
                }
                if is_long {
                    context.update_clock();
                }
            }
            Action::Fill { space, until } => {
                let filled = socket.receive(space, until)?;
                machine.handle_filled(filled, context.now);
            }
            Action::Turn => {
                if !std::mem::take(has_turn) {
                    return Break(Wait::Turn);
                }
                machine.handle_turn(context.update_clock());
            }
            Action::Work => {
                let (job, inbox, name) = (machine.take_work(), context.inbox.clone(), watch.name);
                let done = move |job| inbox.post(Message::Worked(name, job));
                if let Err(error) = context.jobs.work(job, context.now, done) {
                    machine.handle_error(&error, context.now);
                }
            }
            Action::Nothing => return Break(Wait::Thread),
            Action::Open { tls } => {
                let session = admission.session(self.listener, || self.peer, tls, context.now);
                machine.handle_opened(session, context.now);
            }
            Action::Close(closed) => return Break(Wait::End(closed)),
            _ => {
                let slow = slow(&context.inbox, &context.jobs, watch.name);
                let slow = context.has_file_threads.then_some(slow);
                return output(machine, socket, &mut context.now, long_until, slow);
            }
        }
        Continue(0)
    }
}

impl<S> LoopContext<S> {
    /// Begins a turn of the loop.
    pub(super) fn begin_turn(&mut self) {
        self.update_clock();
        self.long_until = self.now.monotonic + SHARE_OF_TURN;
    }

    /// Whether this turn has done its share of long work.
    pub(super) fn is_late(&mut self) -> bool {
        self.update_clock().monotonic >= self.long_until
    }

    pub(super) fn update_clock(&mut self) -> Now {
        self.now = clock::now();
        self.now
    }
}

/// How a connection has a file read without waiting for it: a thread posts the piece.
fn slow<S: Session + 'static>(
    inbox: &Arc<Inbox<S>>,
    jobs: &Arc<Jobs>,
    name: u64,
) -> impl FnOnce(DiskRead) {
    move |read: DiskRead| {
        inbox.count_slow_read();
        let to = Arc::clone(inbox);
        let call = move || to.post(Message::Read(name, read.run()));
        if let Err(error) = jobs.hand_over(false, call) {
            inbox.post(Message::Read(name, Err(error)));
        }
    }
}
