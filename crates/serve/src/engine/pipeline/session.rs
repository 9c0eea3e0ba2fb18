//! The session stage: threads that pass input to sessions.
//!
//! Blocking work is handed to the pool of [jobs](crate::jobs) together with its connection, which
//! returns through the stage's queue. However many connections wait for a disk or a long listing,
//! all threads of the stage thus stay available to the others.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use session::{Now, Session, Work as _};

use super::connection::{Arrival, Connection, Payload, Stop, cut, cut_arrival, guard};
use super::stages::Stages;
use crate::clock;
use crate::connection::Action;
use crate::engine::admission::Opens;
use crate::engine::reactor::{EngineContext, SHARE_OF_TURN, STEPS_MAX};

/// One thread of the stage.
pub(super) struct SessionThread<S: Session, O> {
    engine: Arc<EngineContext<O>>,
    stages: Arc<Stages<S>>,
    /// Items of this batch for each reader and each writer.
    to_readers: Vec<VecDeque<Arrival<S>>>,
    to_writers: Vec<VecDeque<Box<Connection<S>>>>,
    /// Connections in a TLS handshake, which takes long: they get a turn after the others of a
    /// batch. While there are as many as the queue's limit, nothing more is taken from it.
    handshakes: VecDeque<Box<Connection<S>>>,
}

impl<S: Session + 'static, O: Opens<S>> SessionThread<S, O> {
    pub(super) fn new(
        engine: Arc<EngineContext<O>>,
        stages: Arc<Stages<S>>,
    ) -> SessionThread<S, O> {
        SessionThread {
            to_readers: stages.readers.iter().map(|_| VecDeque::new()).collect(),
            to_writers: stages.writers.iter().map(|_| VecDeque::new()).collect(),
            handshakes: VecDeque::new(),
            engine,
            stages,
        }
    }

    /// Runs until the server is over.
    pub(super) fn run(mut self) {
        let stages = Arc::clone(&self.stages);
        let threads = stages.session_threads;
        let mut batch = Vec::new();
        loop {
            let is_idle = self.handshakes.is_empty();
            let space = stages.queue_limit.saturating_sub(self.handshakes.len());
            let batch_max = stages.batch_max.min(space);
            if !(stages.sessions).wait(batch_max, threads, is_idle, &mut batch) {
                break;
            }
            for connection in batch.drain(..) {
                if connection.machine.is_handshaking() {
                    self.handshakes.push_back(connection);
                } else {
                    self.converse(connection);
                }
            }
            self.hand_over();
            self.continue_handshakes();
        }
        let late = mem::take(&mut self.handshakes);
        late.into_iter().for_each(|connection| cut(&self.engine, connection, clock::now()));
    }

    fn converse(&mut self, mut connection: Box<Connection<S>>) {
        let engine = &*self.engine;
        let stop = guard(&mut connection, |connection| connection.converse(engine));
        self.dispatch(connection, stop);
    }

    /// Continues handshakes, for as long as others may wait.
    fn continue_handshakes(&mut self) {
        let Some(first) = self.handshakes.pop_front() else {
            return;
        };
        let until = Instant::now() + SHARE_OF_TURN;
        self.converse(first);
        while Instant::now() < until
            && let Some(next) = self.handshakes.pop_front()
        {
            self.converse(next);
        }
        self.hand_over();
    }

    /// Adds a connection to the batch for its next stage.
    fn dispatch(&mut self, connection: Box<Connection<S>>, stop: Option<Stop>) {
        match stop {
            Some(Stop::Block) => self.hand_to_pool(connection),
            // It has had its turn. A writer, which never waits for this stage, returns it behind
            // the others.
            Some(Stop::Turn | Stop::Write) => {
                self.to_writers[connection.writer].push_back(connection);
            }
            Some(Stop::Idle) => {
                if let Some(late) = self.stages.idle_lists[connection.reader].put(connection) {
                    cut(&self.engine, late, clock::now());
                }
            }
            Some(Stop::Read) | None => {
                self.to_readers[connection.reader].push_back(Arrival::Back(connection));
            }
        }
    }

    /// Lets the pool do blocking work. A thread of the pool then waits for space in the queue;
    /// threads of the stage never wait for it.
    fn hand_to_pool(&mut self, mut connection: Box<Connection<S>>) {
        let permit = match self.engine.admission.shared.jobs.reserve() {
            Ok(permit) => permit,
            Err(error) => {
                let failed = |connection: &mut Connection<S>| connection.fail(&error);
                let stop = guard(&mut connection, failed);
                return self.dispatch(connection, stop);
            }
        };
        let (engine, stages) = (Arc::clone(&self.engine), Arc::clone(&self.stages));
        permit.hand_over(move || {
            guard(&mut connection, |connection| connection.block(&engine));
            let mut batch = VecDeque::from([connection]);
            stages.sessions.put(&mut batch);
            // The server is over.
            batch.drain(..).for_each(|connection| cut(&engine, connection, clock::now()));
        });
    }

    /// Hands over to the other stages, waiting for space there. They never wait for this one.
    fn hand_over(&mut self) {
        let batches = self.to_writers.iter_mut().zip(&self.stages.writers);
        for (batch, stage) in batches {
            stage.queue.put(batch);
            // The rest is too late: the server is over.
            batch.drain(..).for_each(|connection| cut(&self.engine, connection, clock::now()));
        }
        let batches = self.to_readers.iter_mut().zip(&self.stages.readers);
        for (batch, stage) in batches {
            stage.queue.put(batch);
            batch.drain(..).for_each(|arrival| cut_arrival(&self.engine, arrival, clock::now()));
        }
    }
}

impl<S: Session + 'static> Connection<S> {
    /// Continues the conversation until another stage is needed, or it may block.
    fn converse(&mut self, engine: &EngineContext<impl Opens<S>>) -> Stop {
        if let Payload::Failed | Payload::Watch(_) = self.payload {
            return self.next_stop();
        }
        let mut now = clock::now();
        let Connection { machine, .. } = self;
        machine.handle_server_state(engine.admission.shared.server_state.get(), now);
        self.open(engine, now);
        let Connection { machine, payload, .. } = self;
        match mem::replace(payload, Payload::Nothing) {
            Payload::Input(input) => machine.handle_input(&input.bytes, now),
            Payload::Filled(len) => machine.handle_filled(Ok(len), now),
            Payload::Worked(Ok(work)) => machine.handle_worked(work, now),
            Payload::Worked(Err(work)) => machine.handle_refused(work, now),
            other => *payload = other,
        }
        for _ in 0..STEPS_MAX {
            match self.machine.next_action() {
                Action::Open(_) => self.open(engine, now),
                Action::Turn => {
                    now = clock::now();
                    self.machine.handle_turn(now);
                }
                Action::Work => {
                    if let Some(work) = self.machine.take_work(now) {
                        self.payload = Payload::Work(work);
                        break;
                    }
                }
                _ => break,
            }
        }
        self.next_stop()
    }

    /// Makes its session, if it is to have one now.
    fn open(&mut self, engine: &EngineContext<impl Opens<S>>, now: Now) {
        if let Action::Open(facts) = self.machine.next_action() {
            let peer = || self.peer;
            let session = engine.admission.session(self.listener, peer, facts, now);
            self.machine.handle_opened(session, now);
        }
    }

    /// Does work that may block. Work that waits for an event would occupy the thread meanwhile, so
    /// it is left to the reader, which is told when it is done.
    fn block<O>(&mut self, engine: &EngineContext<O>) {
        let Connection { machine, socket, payload, .. } = self;
        let now = clock::now();
        machine.handle_server_state(engine.admission.shared.server_state.get(), now);
        match mem::replace(payload, Payload::Nothing) {
            Payload::Cold(read) => {
                if let Err(error) = socket.reader.handle_read(read.run()) {
                    machine.handle_error(&error, clock::now());
                }
            }
            Payload::Work(work) if work.waits() => *payload = Payload::Watch(work),
            Payload::Work(mut work) => {
                work.run(now);
                machine.handle_worked(work, clock::now());
            }
            other => *payload = other,
        }
    }

    /// Fails an operation that may block and cannot be done now.
    fn fail(&mut self, error: &io::Error) -> Stop {
        match mem::replace(&mut self.payload, Payload::Nothing) {
            Payload::Work(work) => self.machine.handle_refused(work, clock::now()),
            _ => self.machine.handle_error(error, clock::now()),
        }
        self.next_stop()
    }
}
