//! Cost of a ready event with a dispatcher: idle descriptors × events ready at a time.
//!
//! A number of active socket pairs is written to at a time, and the dispatcher is called until it
//! has reported them all; each is read. The same is done without a dispatcher, and subtracted: the
//! rest is the dispatcher's cost, and its effect on the sender (a signal, a wake-up). The two
//! alternate, and the minimum of each counts. `bare` is epoll_wait(2) without crate `event`,
//! edge-triggered.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use event::{Dispatcher, Fdm, Interest, Mechanism, Token, Trigger};
use lab::Output;
use rustix::event::epoll;

use super::{Parameters, sample};

const ACTIVE: usize = 100;
/// Length of a turn, and of its warm-up: a dispatcher learns which descriptors are idle and which
/// are active from several events of each.
const TURN: Duration = Duration::from_millis(80);
const WARM_UP: Duration = Duration::from_millis(60);
const WARM_UP_EVENTS: u64 = 3 * ACTIVE as u64;
/// Events in a figure.
const EVENTS: u64 = 1_000_000;

type Pair = (UnixStream, UnixStream);

pub(super) fn run(parameters: &Parameters) -> Result<Output, String> {
    least(parameters).map_err(|error| error.to_string())
}

fn least(parameters: &Parameters) -> io::Result<Output> {
    let name = parameters.dispatcher.as_deref().unwrap_or("epoll");
    let at_a_time = parameters.get("ready", 1) as usize;
    let idle = pairs(parameters.get("idle", 0) as usize)?;
    // Runs with the dispatcher and without alternate.
    let turns = parameters.get("ms", 1000) / (2 * (TURN + WARM_UP).as_millis() as u64);
    let mut dispatched = f64::INFINITY;
    let mut floor = f64::INFINITY;
    for _ in 0..turns.max(1) {
        let active = pairs(ACTIVE)?;
        dispatched = dispatched.min(with(name, &active, &idle, at_a_time)?);
        let nothing = rounds(&active, at_a_time, |sent, seen| {
            seen.extend_from_slice(sent);
            Ok(())
        });
        floor = floor.min(nothing?);
    }
    let ns = (dispatched - floor).max(0.0) * EVENTS as f64;
    Ok(sample(EVENTS, Duration::from_nanos(ns as u64)))
}

fn pairs(count: usize) -> io::Result<Vec<Pair>> {
    (0..count).map(|_| UnixStream::pair()).collect()
}

/// Nanoseconds per event on a dispatcher of this name.
fn with(name: &str, active: &[Pair], idle: &[Pair], at_a_time: usize) -> io::Result<f64> {
    let watched = active.iter().chain(idle).enumerate();
    if name == "bare" {
        let mut bare = Bare::new()?;
        for (token, (_, far)) in watched {
            bare.add(far, token as u64)?;
        }
        return rounds(active, at_a_time, |_, seen| bare.wait(seen));
    }
    let mut dispatcher: Box<dyn Dispatcher> = match name {
        "fdm-8" => Box::new(Fdm::new(8)),
        name => {
            let mechanism: Mechanism = name.parse().map_err(io::Error::other)?;
            mechanism.open()?
        }
    };
    for (token, (_, far)) in watched {
        dispatcher.add(far.as_fd(), Token(token as u64), Interest::READ)?;
    }
    let is_one_shot = dispatcher.trigger() == Trigger::OneShot;
    let mut ready = Vec::new();
    rounds(active, at_a_time, |_, seen| {
        dispatcher.wait(&mut ready, Some(Duration::ZERO))?;
        for token in ready.iter().map(|ready| ready.token) {
            seen.push(token.0 as usize);
            if is_one_shot {
                let far = &active[token.0 as usize].1;
                dispatcher.modify(far.as_fd(), token, Interest::READ)?;
            }
        }
        Ok(())
    })
}

/// For a turn: writes to `at_a_time` pairs, waits until all are reported, and reads them. Returns
/// the nanoseconds of each. `wait` gets the written pairs, and adds the ready ones.
fn rounds(
    active: &[Pair],
    at_a_time: usize,
    mut wait: impl FnMut(&[usize], &mut Vec<usize>) -> io::Result<()>,
) -> io::Result<f64> {
    let (mut next, mut seen, mut sent) = (0, Vec::new(), Vec::new());
    let (mut events, mut is_warm, mut began) = (0_u64, false, Instant::now());
    loop {
        let elapsed = began.elapsed();
        if is_warm && elapsed >= TURN {
            return Ok(elapsed.as_nanos() as f64 / events as f64);
        }
        if !is_warm && elapsed >= WARM_UP && events >= WARM_UP_EVENTS {
            (is_warm, events, began) = (true, 0, Instant::now());
        }
        sent.clear();
        for _ in 0..at_a_time {
            (&active[next].0).write_all(b"x")?;
            sent.push(next);
            next = (next + 1) % active.len();
        }
        let mut missing = at_a_time;
        while missing > 0 {
            seen.clear();
            wait(&sent, &mut seen)?;
            for at in &seen {
                (&active[*at].1).read_exact(&mut [0])?;
            }
            missing -= seen.len();
        }
        events += at_a_time as u64;
    }
}

/// `epoll_wait(2)` as a C program would call it.
struct Bare {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Bare {
    fn new() -> io::Result<Bare> {
        Ok(Bare {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(512),
        })
    }

    fn add(&mut self, fd: &UnixStream, token: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, fd, data, flags)?)
    }

    fn wait(&mut self, seen: &mut Vec<usize>) -> io::Result<()> {
        self.events.clear();
        let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let room = rustix::buffer::spare_capacity(&mut self.events);
        epoll::wait(&self.epoll, room, Some(&zero))?;
        seen.extend(self.events.iter().map(|event| event.data.u64() as usize));
        Ok(())
    }
}
