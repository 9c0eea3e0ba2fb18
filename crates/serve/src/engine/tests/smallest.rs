//! The smallest engine: a kernel thread per connection, which does its machine's actions.
//!
//! It is built and tested, but not offered. `docs/adding-an-engine.md` walks through it.

use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow::{self, Break, Continue};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use session::{Now, Session, Work as _};

use crate::clock;
use crate::connection::{Action, Machine};
use crate::counters::Closed;
use crate::engine::admission::{Opens, Start};
use crate::engine::reactor::{
    Accepted, EngineContext, LoopThreads, Loops, RECEIVE_LEN, Socket, Wait, all_sockets, output,
};
use crate::file::DiskRead;

/// Interval at which a waiting thread checks the server's state.
const TICK: Duration = Duration::from_millis(10);

/// State of a thread.
struct Connection<S> {
    machine: Machine<S>,
    socket: Socket,
    peer: Option<SocketAddr>,
    /// Number of the listener that it came from.
    listener: usize,
}

/// # Errors
/// Errors of a new thread and its descriptors.
pub(crate) fn start<S: Session + 'static, O: Opens<S>>(start: Start<O>) -> io::Result<Loops> {
    let (engine, bound) = EngineContext::over_sockets(start, (1, true));
    let mut loops = Loops::new(&engine, bound);
    let begin = {
        let engine = Arc::clone(&engine);
        move |accepted| begin(&engine, accepted)
    };
    loops.spawn_accept_thread(&engine, all_sockets(loops.listeners())?, begin)?;
    Ok(loops)
}

/// Starts a thread for an accepted connection, unless it is refused.
fn begin<S: Session + 'static, O: Opens<S>>(engine: &Arc<EngineContext<O>>, accepted: Accepted) {
    let Some((accepted, machine)) = engine.admit(accepted, clock::now()) else {
        return;
    };
    let mut connection = Connection {
        machine,
        socket: Socket::new(accepted.socket, true),
        peer: accepted.peer,
        listener: accepted.listener,
    };
    let of_thread = Arc::clone(engine);
    let run = move || {
        // A session that panics ends its own connection. The panic hook has reported it.
        let ended = catch_unwind(AssertUnwindSafe(|| connection.run(&of_thread)));
        of_thread.end(connection, ended.unwrap_or(Closed::Error));
    };
    if LoopThreads::detach("connection".to_owned(), run).is_err() {
        engine.end((), Closed::Error); // The kernel has no memory for a thread.
    }
}

impl<S: Session> Connection<S> {
    /// Does the machine's actions until it closes.
    fn run(&mut self, engine: &EngineContext<impl Opens<S>>) -> Closed {
        let mut buffer = vec![0; RECEIVE_LEN];
        loop {
            let mut now = clock::now();
            let server_state = engine.admission.shared.server_state.get();
            self.machine.handle_server_state(server_state, now);
            match self.step(engine, &mut buffer, &mut now) {
                Continue(()) => {}
                Break(Wait::End(closed)) => return closed,
                Break(wait) if wait.is_over(now) => self.machine.handle_timeout(now),
                Break(wait) => self.wait(wait, now),
            }
        }
    }

    /// Does the next action and reports its result, or returns the wait that it needs first.
    fn step(
        &mut self,
        engine: &EngineContext<impl Opens<S>>,
        buffer: &mut [u8],
        now: &mut Now,
    ) -> ControlFlow<Wait> {
        let Connection { machine, socket, .. } = self;
        match machine.next_action() {
            Action::Open(facts) => {
                let peer = || self.peer;
                let session = engine.admission.session(self.listener, peer, facts, *now);
                machine.handle_opened(session, *now);
            }
            Action::Receive { until } => {
                let part = machine.shared().memory.part_of(buffer);
                match socket.receive(part, until)? {
                    Ok(len) => machine.handle_input(&buffer[..len], *now),
                    Err(error) => machine.handle_error(&error, *now),
                }
            }
            Action::Fill { space, until } => {
                let filled = socket.receive(space, until)?;
                machine.handle_filled(filled, *now);
            }
            Action::Turn => machine.handle_turn(*now),
            Action::Work => {
                if let Some(mut work) = machine.take_work(*now) {
                    work.run(*now);
                    machine.handle_worked(work, clock::now());
                }
            }
            Action::Nothing => unreachable!("work is never pending"),
            Action::Close(closed) => return Break(Wait::End(closed)),
            _ => {
                output(machine, socket, now, None, None::<fn(DiskRead)>)?;
            }
        }
        Continue(())
    }

    /// Waits for the socket or the deadline, at most until the next check of the server.
    fn wait(&mut self, wait: Wait, now: Now) {
        let until = wait.until().unwrap_or(now.monotonic);
        let patience = until.saturating_duration_since(now.monotonic).min(TICK);
        let flags = match wait {
            Wait::Input { .. } => PollFlags::IN,
            Wait::Writable { .. } => PollFlags::OUT,
            _ => return thread::sleep(patience),
        };
        let patience = patience.try_into().expect("a tick is short");
        // After a failure, the next step finds the reason.
        let _ = poll(&mut [PollFd::new(&self.socket, flags)], Some(&patience));
        self.socket.try_again();
    }
}

#[cfg(test)]
mod tests;
