//! A connection being served by a worker, from its admission until it is counted as closed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use session::{Now, Opening, Session};

use super::pool::AcceptPool;
use crate::blocking::Driver;
use crate::clock;
use crate::connection::Facts;
use crate::counters::Closed;
use crate::registry::{Connection, IdleSince, Registered};
use crate::stream::Stream;

pub(crate) struct Serving<S: Session, T: Stream> {
    /// `None` once the conversation has ended.
    driver: Option<(Driver<S, T>, Registered)>,
}

impl<S: Session, T: Stream> Serving<S, T> {
    /// Begins to serve a connection.
    pub(crate) fn begin<L, O>(pool: &AcceptPool<L, O>, point: usize, stream: T) -> Serving<S, T> {
        let (now, point) = (clock::now(), pool.point(point));
        let machine = (pool.admission).machine(point.tls.as_ref(), || stream.peer(), now);
        let connection = Arc::new(Connection { stream, idle: IdleSince::default() });
        let registered = pool.connections.register(point.processor, &connection);
        let driver = Driver { machine, connection, returned: None };
        Serving { driver: Some((driver, registered)) }
    }

    pub(crate) fn driver(&self) -> &Driver<S, T> {
        &self.driver.as_ref().expect("the driver exists until the end").0
    }

    /// Continues the conversation; `false` if it has ended. A panicking session is a bug, and ends
    /// only this connection: the hook has reported it.
    pub(crate) fn guard(
        &mut self,
        drive: impl FnOnce(&mut Driver<S, T>) -> Result<(), Closed>,
    ) -> bool {
        let (driver, _) = self.driver.as_mut().expect("the driver exists until the end");
        let driven = catch_unwind(AssertUnwindSafe(|| drive(driver)));
        match driven.unwrap_or(Err(Closed::Error)) {
            Ok(()) => true,
            Err(closed) => {
                // Drop the descriptor first, then count: tests may count both.
                let shared = Arc::clone(driver.machine.shared());
                // The session's destructor may panic too.
                let _ = catch_unwind(AssertUnwindSafe(|| self.driver = None));
                shared.counters.closed(closed);
                false
            }
        }
    }
}

/// Returns a function that creates the session of a connection from this point.
pub(crate) fn open<'a, S, O, L, T: Stream>(
    pool: &'a AcceptPool<L, O>,
    point: usize,
) -> impl Fn(&T, Facts<'_>, Now) -> S + 'a
where
    O: Fn(Opening<'_>) -> S,
{
    move |stream, facts, now| {
        let listener = pool.point(point).number;
        let peer = || stream.peer();
        pool.admission.session(listener, peer, facts, now)
    }
}
