//! The blocking engine: a fiber or a kernel thread per connection does what its carriage wants, one
//! thing after the other, and waits where it must. A kernel thread receives in a loop
//! ([`converse`]). A fiber receives between two of its steps, and needs no stack while it waits.

use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Instant;

use session::{Now, Session, TlsFacts};

use crate::carriage::{Carriage, Want};
use crate::clock;
use crate::counters::Closed;
use crate::registry::Connection;
use crate::stream::{self, Stream};

/// A carriage and the stream that it travels on.
pub(crate) struct Driver<S, T> {
    pub(crate) carriage: Carriage<S>,
    pub(crate) connection: Arc<Connection<T>>,
}

/// Carries one conversation to its end, which is the error.
pub(crate) fn converse<S: Session + 'static, T: Stream>(
    driver: &mut Driver<S, T>,
    open: impl Fn(&T, Option<TlsFacts<'_>>, Now) -> S,
) -> Result<(), Closed> {
    let Connection { stream, .. } = &*Arc::clone(&driver.connection);
    let mut now = clock::now();
    loop {
        let until = driver.drive(now, &open)?;
        let len_max = driver.carriage.shared().memory.receive_len_max();
        let received = stream.receive(len_max, until, |input| driver.received(input));
        now = received.unwrap_or_else(|error| driver.receive_failed(error));
    }
}

impl<S: Session + 'static, T: Stream> Driver<S, T> {
    /// A receive has brought this; nothing is the end. Says when.
    #[inline]
    pub(crate) fn received(&mut self, input: &[u8]) -> Now {
        self.connection.idle.end();
        let now = time(&mut self.carriage);
        // Sessions do not wait, so they need not use (and keep) pages of the fiber's stack.
        fiber::on_processor_stack(|| self.carriage.input(input, now));
        now
    }

    /// A receive has failed. Says when.
    pub(crate) fn receive_failed(&mut self, error: io::Error) -> Now {
        tell(&mut self.carriage, Err(error), Carriage::finished)
    }

    /// Does what the carriage wants until it wants to receive. Says until when.
    ///
    /// # Errors
    /// How the conversation ended.
    #[inline]
    pub(crate) fn drive(
        &mut self,
        mut now: Now,
        open: impl Fn(&T, Option<TlsFacts<'_>>, Now) -> S,
    ) -> Result<Instant, Closed> {
        let (carriage, stream) = (&mut self.carriage, &self.connection.stream);
        loop {
            match carriage.want() {
                Want::Send {
                    out,
                    until,
                    is_last,
                } => match stream::send_out(stream, out, until, is_last) {
                    // What was taken at once took no time.
                    (Ok(len), true) if !carriage.is_timed() => carriage.sent(len, now),
                    (sent, _) => now = tell(carriage, sent, Carriage::sent),
                },
                Want::Receive { until } => {
                    self.connection.idle.note(carriage, now);
                    return Ok(until);
                }
                Want::Fill { room, until } => {
                    let filled = stream.receive_into(room, until);
                    now = tell(carriage, filled, Carriage::filled);
                }
                Want::File(piece) => {
                    let carried = stream.carry_file(&piece);
                    now = tell(carriage, carried, Carriage::carried);
                }
                Want::Read(piece) => {
                    let bytes = stream.read_file(&piece);
                    now = tell(carriage, bytes, Carriage::read);
                }
                Want::Untaken(look) => {
                    now = tell(carriage, stream.untaken(&look), Carriage::untaken);
                }
                Want::Turn => {
                    now = time(carriage);
                    fiber::on_processor_stack(|| carriage.go_on(now));
                }
                Want::Work => {
                    let job = carriage.begin_work();
                    let done = carriage.shared().jobs.run(job, now);
                    now = tell(carriage, done, Carriage::worked);
                }
                Want::Open { tls } => {
                    let session = open(stream, tls, now);
                    carriage.opened(session, now);
                }
                Want::Queues { asks_unsent } => {
                    now = tell(carriage, stream.queues(asks_unsent), Carriage::queues);
                }
                Want::Finish => {
                    let ended = stream.shutdown(Shutdown::Write);
                    now = tell(carriage, ended, Carriage::finished);
                }
                Want::Nothing => unreachable!("it waits for work"),
                Want::Close(closed) => return Err(closed),
            }
        }
    }
}

/// Tells the carriage what came of what it wanted. Says when.
fn tell<S: Session, R>(
    carriage: &mut Carriage<S>,
    result: io::Result<R>,
    told: impl FnOnce(&mut Carriage<S>, R, Now),
) -> Now {
    let now = time(carriage);
    match result {
        Ok(result) => told(carriage, result, now),
        Err(error) => carriage.failed(&error, now),
    }
    now
}

/// What time it is. The carriage is told first if the server drains.
fn time<S: Session>(carriage: &mut Carriage<S>) -> Now {
    let now = clock::now();
    carriage.at_stage(carriage.shared().stage.get(), now);
    now
}
