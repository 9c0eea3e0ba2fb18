//! Blocking driver: a fiber or a kernel thread per connection does one action of its machine after
//! the other, and waits where it must. A kernel thread receives in a loop ([`converse`]). A fiber
//! receives between two of its steps, and needs no stack while it waits.

use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Instant;

use session::{Now, Session};

use crate::clock;
use crate::connection::{Action, Facts, Machine};
use crate::counters::Closed;
use crate::registry::Connection;
use crate::stream::{self, Stream};

/// A connection machine and its stream.
pub(crate) struct Driver<S, T> {
    pub(crate) machine: Machine<S>,
    pub(crate) connection: Arc<Connection<T>>,
}

/// Runs one conversation to its end, which is the error.
pub(crate) fn converse<S: Session + 'static, T: Stream>(
    driver: &mut Driver<S, T>,
    open: impl Fn(&T, Facts<'_>, Now) -> S,
) -> Result<(), Closed> {
    let Connection { stream, .. } = &*Arc::clone(&driver.connection);
    let mut now = clock::now();
    loop {
        let until = driver.drive(now, &open)?;
        let len_max = driver.machine.shared().memory.receive_len_max();
        let received = stream.receive(len_max, until, |input| driver.handle_received(input));
        now = received.unwrap_or_else(|error| driver.handle_receive_error(&error));
    }
}

impl<S: Session + 'static, T: Stream> Driver<S, T> {
    /// Takes received input; an empty slice is the end. Returns the time.
    #[inline]
    pub(crate) fn handle_received(&mut self, input: &[u8]) -> Now {
        self.connection.idle.end();
        let now = read_clock(&mut self.machine);
        // Sessions do not wait, so they need not use (and keep) pages of the fiber's stack.
        fiber::on_processor_stack(|| self.machine.handle_input(input, now));
        now
    }

    /// Takes the error of a receive. Returns the time.
    pub(crate) fn handle_receive_error(&mut self, error: &io::Error) -> Now {
        let now = read_clock(&mut self.machine);
        self.machine.handle_error(error, now);
        now
    }

    /// Does the machine's actions up to the next receive. Returns the deadline of that.
    ///
    /// # Errors
    /// The reason of the end of the conversation.
    #[inline]
    pub(crate) fn drive(
        &mut self,
        mut now: Now,
        open: impl Fn(&T, Facts<'_>, Now) -> S,
    ) -> Result<Instant, Closed> {
        let machine = &mut self.machine;
        let stream = &self.connection.stream;
        loop {
            match machine.next_action() {
                Action::Send {
                    out,
                    until,
                    is_last,
                } => match stream::send_out(stream, out, until, is_last) {
                    // What was taken at once took no time.
                    (Ok(len), true) if !machine.is_timed() => machine.handle_sent(Ok(len), now),
                    (sent, _) => {
                        now = read_clock(machine);
                        machine.handle_sent(sent, now);
                    }
                },
                Action::Receive { until } => {
                    self.connection.idle.note(machine, now);
                    return Ok(until);
                }
                Action::Fill { space, until } => {
                    let filled = stream.receive_into(space, until);
                    now = read_clock(machine);
                    machine.handle_filled(filled, now);
                }
                Action::SendFile(piece) => {
                    let progress = stream.send_or_read_file(&piece);
                    now = read_clock(machine);
                    machine.handle_file_progress(progress, now);
                }
                Action::ReadFile(piece) => {
                    let read = stream.read_file(&piece);
                    now = read_clock(machine);
                    machine.handle_read(read, now);
                }
                Action::CheckUnacked(check) => {
                    let unacked = stream.unacked(&check);
                    now = read_clock(machine);
                    machine.handle_unacked(unacked, now);
                }
                Action::Turn => {
                    now = read_clock(machine);
                    fiber::on_processor_stack(|| machine.handle_turn(now));
                }
                Action::Work => {
                    if let Some(work) = machine.take_work() {
                        let worked = machine.shared().jobs.run(work, now);
                        now = read_clock(machine);
                        match worked {
                            Ok(work) => machine.handle_worked(work, now),
                            Err(work) => machine.handle_refused(work, now),
                        }
                    }
                }
                Action::Open(facts) => {
                    let session = open(stream, facts, now);
                    machine.handle_opened(session, now);
                }
                Action::CheckQueues { asks_unsent } => {
                    let queues = stream.queues(asks_unsent);
                    now = read_clock(machine);
                    machine.handle_queues(queues, now);
                }
                Action::Finish => {
                    let finished = stream.shutdown(Shutdown::Write);
                    now = read_clock(machine);
                    machine.handle_finished(finished, now);
                }
                Action::Nothing => unreachable!("it waits for work"),
                Action::Close(closed) => return Err(closed),
            }
        }
    }
}

/// Reads the clock. The machine hears first of a drain of the server.
fn read_clock<S: Session>(machine: &mut Machine<S>) -> Now {
    let now = clock::now();
    machine.handle_server_state(machine.shared().server_state.get(), now);
    now
}
