//! The smallest engine: a kernel thread for each connection, which does what the carriage wants.
//!
//! It is built and tested, and not offered. `docs/adding-an-engine.md` walks through it.

use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow::{self, Break, Continue};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use event::Mechanism;
use rustix::event::{PollFd, PollFlags, poll};
use session::{Now, Session};

use super::admission::{Opens, Start};
use super::loops::{
    Accepted, House, LoopThreads, Loops, ROOM_LEN, Waits, Wire, all_sockets, output, tell,
};
use crate::carriage::{Carriage, Want};
use crate::clock;
use crate::counters::Closed;
use crate::file::DiskRead;

/// So often a thread that waits looks whether the server has something to say.
const TICK: Duration = Duration::from_millis(10);

/// What its thread owns.
struct Connection<S> {
    carriage: Carriage<S>,
    wire: Wire,
    peer: Option<SocketAddr>,
    /// Which of the listeners it came from.
    listener: usize,
}

/// # Errors
/// What the kernel says to a new thread and its descriptors.
pub(crate) fn start<S: Session + 'static, O: Opens<S>>(start: Start<O>) -> io::Result<Loops> {
    let (house, bound) = House::new(start, Box::new(|| Mechanism::Poll.open()), (1, true));
    let mut loops = Loops::new(&house, bound);
    let begin = {
        let house = Arc::clone(&house);
        move |accepted| begin(&house, accepted)
    };
    loops.deal(&house, all_sockets(loops.listeners())?, begin)?;
    Ok(loops)
}

/// Gives a connection that was accepted a thread, unless there is no room for it.
fn begin<S: Session + 'static, O: Opens<S>>(house: &Arc<House<O>>, accepted: Accepted) {
    let Some((accepted, carriage)) = house.welcome(accepted, clock::now()) else {
        return;
    };
    let mut connection = Connection {
        carriage,
        wire: Wire::new(accepted.socket, true),
        peer: accepted.peer,
        listener: accepted.listener,
    };
    let of_thread = Arc::clone(house);
    let run = move || {
        // A session that panics ends its own connection. The panic hook has reported it.
        let ended = catch_unwind(AssertUnwindSafe(|| connection.run(&of_thread)));
        of_thread.end(connection, ended.unwrap_or(Closed::Error));
    };
    if LoopThreads::detach("connection".to_owned(), run).is_err() {
        house.end((), Closed::Error); // The kernel has no room for a thread.
    }
}

impl<S: Session> Connection<S> {
    /// Does what the carriage wants until that is to close.
    fn run(&mut self, house: &House<impl Opens<S>>) -> Closed {
        let mut room = vec![0; ROOM_LEN];
        loop {
            let mut now = clock::now();
            self.carriage
                .at_stage(house.admission.shared.stage.get(), now);
            match self.step(house, &mut room, &mut now) {
                Continue(()) => {}
                Break(Waits::End(closed)) => return closed,
                Break(waits) if waits.are_over(now) => self.carriage.expired(now),
                Break(waits) => self.wait(waits, now),
            }
        }
    }

    /// Does one thing that the carriage wants, and tells it what came of that; or says what it has
    /// to wait for first.
    fn step(
        &mut self,
        house: &House<impl Opens<S>>,
        room: &mut [u8],
        now: &mut Now,
    ) -> ControlFlow<Waits> {
        let Connection { carriage, wire, .. } = self;
        match carriage.want() {
            Want::Open { tls } => {
                let peer = || self.peer;
                let session = house.admission.session(self.listener, peer, tls, *now);
                carriage.opened(session, *now);
            }
            Want::Receive { until } => {
                let part = carriage.shared().memory.part_of(room);
                match wire.receive(part, until)? {
                    Ok(len) => carriage.input(&room[..len], *now),
                    Err(error) => carriage.failed(&error, *now),
                }
            }
            Want::Fill { room, until } => {
                let filled = wire.receive(room, until)?;
                tell(carriage, filled, *now, Carriage::filled);
            }
            Want::Turn => carriage.go_on(*now),
            Want::Work => {
                let job = carriage.begin_work().run(*now);
                carriage.worked(job, clock::now());
            }
            Want::Nothing => unreachable!("work is done at once"),
            Want::Close(closed) => return Break(Waits::End(closed)),
            _ => {
                output(carriage, wire, now, None, None::<fn(DiskRead)>)?;
            }
        }
        Continue(())
    }

    /// Waits for the socket or for the time, until the next look at the server at most.
    fn wait(&mut self, waits: Waits, now: Now) {
        let until = waits.until().unwrap_or(now.monotonic);
        let patience = until.saturating_duration_since(now.monotonic).min(TICK);
        let flags = match waits {
            Waits::Input { .. } => PollFlags::IN,
            Waits::Room { .. } => PollFlags::OUT,
            _ => return thread::sleep(patience),
        };
        let patience = patience.try_into().expect("a tick is short");
        // If it fails, the next step finds out why.
        let _ = poll(&mut [PollFd::new(&self.wire, flags)], Some(&patience));
        self.wire.try_again();
    }
}

#[cfg(test)]
mod tests;
