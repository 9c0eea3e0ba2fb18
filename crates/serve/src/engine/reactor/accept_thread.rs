//! The accept thread: accepts for all loops and distributes the connections.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use event::{Dispatcher, Interest, Ready, Token};

use super::acceptor::Acceptor;
use super::context::EngineContext;
use super::listeners::{Accepted, BACK_OFF, Listeners};
use super::waker::LoopHandle;
use crate::clock;

const WAKER: u64 = 0;

/// Destination of accepted connections.
pub(crate) trait Distribute {
    /// Returns true if there is space for one more. If not, `own` is woken when there is.
    fn find_space(&mut self, own: &Arc<LoopHandle>) -> bool;

    fn distribute(&mut self, accepted: Accepted);
}

/// A destination that always has space.
impl<F: FnMut(Accepted)> Distribute for F {
    fn find_space(&mut self, _own: &Arc<LoopHandle>) -> bool {
        true
    }

    fn distribute(&mut self, accepted: Accepted) {
        self(accepted);
    }
}

/// See the [module page](self).
pub(crate) struct AcceptThread<O, D> {
    engine: Arc<EngineContext<O>>,
    own: Arc<LoopHandle>,
    to: D,
    dispatcher: Box<dyn Dispatcher>,
    acceptor: Acceptor,
}

impl<O, D: Distribute> AcceptThread<O, D> {
    /// # Errors
    /// Errors of the dispatcher.
    pub(crate) fn new(
        engine: Arc<EngineContext<O>>,
        own: Arc<LoopHandle>,
        to: D,
        listeners: Listeners,
        mut dispatcher: Box<dyn Dispatcher>,
    ) -> io::Result<AcceptThread<O, D>> {
        let interest = Interest::READ.pinned();
        dispatcher.add(own.waker.as_fd(), Token(WAKER), interest)?;
        let mut acceptor = Acceptor::new(listeners, &engine, Arc::clone(&own));
        acceptor.open(&mut *dispatcher)?;
        Ok(AcceptThread { engine, own, to, dispatcher, acceptor })
    }

    /// Distributes connections until the server closes.
    pub(crate) fn run(mut self) {
        let mut reports = Vec::new();
        while !self.engine.connection_limit.is_closing() {
            let now = clock::now().monotonic;
            let timeout = self.acceptor.wakes_at();
            let timeout = timeout.map(|until| until.saturating_duration_since(now));
            let wait = |timeout| self.dispatcher.wait(&mut reports, timeout);
            let waited = self.own.waker.wait(timeout, wait);
            let counters = &self.own.counters;
            counters.waits.add(1);
            counters.reports.add(reports.len() as u64);
            if waited.is_err() {
                counters.errors.add(1);
                thread::sleep(BACK_OFF);
            }
            for Ready { token, .. } in reports.drain(..) {
                match token.0 {
                    WAKER => self.own.waker.reset(),
                    token => self.acceptor.set_ready(token),
                }
            }
            let now = clock::now().monotonic;
            let (engine, dispatcher) = (Arc::clone(&self.engine), &mut *self.dispatcher);
            self.acceptor.begin_turn(now, dispatcher);
            loop {
                if !self.to.find_space(&self.own) {
                    self.acceptor.pause(&mut *self.dispatcher, &engine.admission);
                    break;
                }
                self.acceptor.resume(now, &mut *self.dispatcher);
                let next = (self.acceptor).next(now, &mut *self.dispatcher, &engine.admission);
                let Some(accepted) = next else { break };
                self.distribute(accepted);
            }
        }
        if let Some(accepted) = self.acceptor.close(&mut *self.dispatcher) {
            self.distribute(accepted);
        }
        self.engine.connection_limit.note_closed();
    }

    fn distribute(&mut self, accepted: Accepted) {
        self.own.counters.passed_on.add(1);
        self.to.distribute(accepted);
    }
}
