//! Blocking driver: a fiber or a kernel thread per connection does the actions of its machine one
//! after another, and blocks where it must. A kernel thread receives in a loop ([`converse`]). A
//! fiber receives between two of its steps, and needs no stack while it waits.

use std::io;
use std::mem;
use std::net::Shutdown;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use session::{Now, Session};

use crate::clock;
use crate::connection::{Action, Facts, Machine};
use crate::counters::Closed;
use crate::registry::Connection;
use crate::stream::{self, Stream};

/// A connection machine and its stream.
pub(crate) struct Driver<S: Session, T> {
    pub(crate) machine: Machine<S>,
    pub(crate) connection: Arc<Connection<T>>,
    /// Finished work, for a fiber that receives while work runs.
    pub(crate) returned: Option<Arc<Returned<S::Work>>>,
}

/// Finished background work; `None` if it panicked.
pub(crate) type Returned<W> = Mutex<Vec<Option<W>>>;

/// Runs one conversation to its end, which is returned as the error.
pub(crate) fn converse<S: Session + 'static, T: Stream>(
    driver: &mut Driver<S, T>,
    open: impl Fn(&T, Facts<'_>, Now) -> S,
) -> Result<(), Closed> {
    let Connection { stream, .. } = &*Arc::clone(&driver.connection);
    driver.machine.work_in_place();
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
        // Sessions never block, so they need not use (and keep) pages of the fiber's stack.
        fiber::on_processor_stack(|| self.machine.handle_input(input, now));
        now
    }

    /// Takes the error of a receive. Returns the current time.
    pub(crate) fn handle_receive_error(&mut self, error: &io::Error) -> Now {
        let now = read_clock(&mut self.machine);
        self.machine.handle_error(error, now);
        now
    }

    /// Does the machine's actions up to the next receive. Returns its deadline.
    ///
    /// # Errors
    /// The reason for the end of the conversation.
    #[inline]
    pub(crate) fn drive(
        &mut self,
        mut now: Now,
        open: impl Fn(&T, Facts<'_>, Now) -> S,
    ) -> Result<Instant, Closed> {
        let Driver { machine, connection, returned } = self;
        let connection = &**connection;
        let stream = &connection.stream;
        loop {
            let is_duplex = machine.is_duplex();
            match machine.next_action() {
                Action::Send { out, until, is_last } => {
                    let patience = (!is_duplex).then_some(until);
                    match stream::send_out(stream, out, patience, is_last) {
                        // A send that completed at once took no time.
                        (Ok(len), true) if !machine.is_timed() => machine.handle_sent(Ok(len), now),
                        (Err(error), _) if is_duplex && is_for_later(&error) => {
                            now = wait_for_event(machine, connection, returned, until, true);
                        }
                        (sent, _) => {
                            now = read_clock(machine);
                            machine.handle_sent(sent, now);
                        }
                    }
                }
                Action::Receive { until } => {
                    if !machine.has_works_out() {
                        connection.idle.note(machine, now);
                        return Ok(until);
                    }
                    now = wait_for_event(machine, connection, returned, until, false);
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
                    // While the peer takes all output, no other place checks for its input.
                    if is_duplex && let Some(taken_at) = try_event(machine, connection, returned) {
                        now = taken_at;
                        continue;
                    }
                    now = read_clock(machine);
                    fiber::on_processor_stack(|| machine.handle_turn(now));
                }
                Action::Work => {
                    // Work that may block may take long: receive the peer's input first.
                    if is_duplex
                        && fiber::current().is_none()
                        && let Some(taken_at) = try_event(machine, connection, returned)
                    {
                        now = taken_at;
                        continue;
                    }
                    if let Some(work) = machine.take_work(now) {
                        now = run(machine, returned, work, now);
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
                Action::Nothing => {
                    now = read_clock(machine);
                    if !take_back(machine, returned, now) {
                        fiber::park();
                    }
                }
                Action::Close(closed) => return Err(closed),
            }
        }
    }
}

/// Takes finished work, or input that arrived during output. `None` if there is neither.
fn try_event<S: Session, T: Stream>(
    machine: &mut Machine<S>,
    connection: &Connection<T>,
    returned: &Option<Arc<Returned<S::Work>>>,
) -> Option<Now> {
    let now = read_clock(machine);
    if take_back(machine, returned, now) {
        return Some(now);
    }
    let len_max = machine.shared().memory.receive_len_max();
    let received = connection.stream.try_receive(len_max, |input| {
        connection.idle.end();
        fiber::on_processor_stack(|| machine.handle_input(input, now));
    });
    match received {
        Ok(()) => {}
        Err(error) if is_for_later(&error) => return None,
        Err(error) => machine.handle_error(&error, now),
    }
    Some(now)
}

/// The same, but waits for either; with `wants_space` for space as well.
#[cold]
fn wait_for_event<S: Session, T: Stream>(
    machine: &mut Machine<S>,
    connection: &Connection<T>,
    returned: &Option<Arc<Returned<S::Work>>>,
    until: Instant,
    wants_space: bool,
) -> Now {
    if let Some(now) = try_event(machine, connection, returned) {
        return now;
    }
    let waited = if wants_space {
        connection.stream.wait_either(until)
    } else {
        connection.stream.wait_readable(until)
    };
    let now = read_clock(machine);
    if let Err(error) = waited {
        machine.handle_error(&error, now);
    }
    now
}

/// Runs work, in the background if the connection's fiber continues meanwhile.
fn run<S: Session>(
    machine: &mut Machine<S>,
    returned: &mut Option<Arc<Returned<S::Work>>>,
    work: S::Work,
    now: Now,
) -> Now {
    let jobs = Arc::clone(&machine.shared().jobs);
    let worked = match fiber::current() {
        Some(fiber) if !machine.waits_for_work() => {
            let returned = Arc::clone(returned.get_or_insert_default());
            let done = move |work| {
                lock(&returned).push(work);
                fiber.interrupt();
            };
            match jobs.work(work, now, done) {
                Ok(()) => return now,
                Err(work) => Err(work),
            }
        }
        _ => jobs.run(work, now),
    };
    let now = read_clock(machine);
    match worked {
        Ok(work) => machine.handle_worked(work, now),
        Err(work) => machine.handle_refused(work, now),
    }
    now
}

/// Returns finished work to the machine. `false` if there is none yet.
fn take_back<S: Session>(
    machine: &mut Machine<S>,
    returned: &Option<Arc<Returned<S::Work>>>,
    now: Now,
) -> bool {
    let Some(returned) = returned else {
        return false;
    };
    let works = mem::take(&mut *lock(returned));
    let has_some = !works.is_empty();
    for work in works {
        // The panic hook has reported it.
        let work = work.unwrap_or_else(|| resume_unwind(Box::new("a job has panicked")));
        fiber::on_processor_stack(|| machine.handle_worked(work, now));
    }
    has_some
}

fn lock<W>(returned: &Returned<W>) -> MutexGuard<'_, Vec<Option<W>>> {
    returned.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Reads the clock. Tells the machine first if the server drains.
fn read_clock<S: Session>(machine: &mut Machine<S>) -> Now {
    let now = clock::now();
    machine.handle_server_state(machine.shared().server_state.get(), now);
    now
}
