//! What a ready event costs on each dispatcher: idle descriptors × events ready at a time.
//!
//! `cargo run --release -p weftwork-event --example dispatch_cost [ROUNDS]`
//!
//! 100 active socket pairs are written to in turn, so many at a time, and the dispatcher is asked
//! until it has reported them; each is read. The same is done without a dispatcher, and subtracted:
//! what is left is the dispatcher, and what it adds to the sender (a signal, a wake-up). Each
//! figure is the least of ROUNDS rounds (5), in which the dispatchers take turns; beside it stands
//! how many waits an event took. `bare` is epoll_wait(2) without this crate, edge-triggered.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use event::{Dispatcher, Fdm, Interest, Mechanism, Token, Trigger};
use rustix::event::epoll;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const ACTIVE: usize = 100;
const IDLE: [usize; 4] = [0, 1000, 3000, 6000];
const AT_A_TIME: [usize; 3] = [1, 10, 100];
/// How long one sample is.
const SAMPLE: Duration = Duration::from_millis(80);
/// Before it: a dispatcher learns what is idle.
const WARM_UP: Duration = Duration::from_millis(60);

type Pair = (UnixStream, UnixStream);

/// What takes turns in a round.
#[derive(Clone, Copy)]
enum Subject {
    /// Writes and reads only.
    Nothing,
    Bare,
    Fdm8,
    Mechanism(Mechanism),
}

fn main() -> io::Result<()> {
    let rounds = std::env::args()
        .nth(1)
        .map_or(5, |it| it.parse().expect("ROUNDS is a number"));
    let limits = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limits.maximum,
            ..limits
        },
    )?;
    let subjects: Vec<_> = [Subject::Nothing, Subject::Bare, Subject::Fdm8]
        .into_iter()
        .chain(Mechanism::ALL.map(Subject::Mechanism))
        .collect();
    let names: Vec<_> = subjects[1..].iter().map(|it| it.name()).collect();
    println!("ns for each ready event (waits for each event)\n");
    println!("| idle | at a time | {} |", names.join(" | "));
    println!("|---|---{}|", "|---".repeat(names.len()));
    for idle in IDLE {
        let idle = pairs(idle)?;
        for at_a_time in AT_A_TIME {
            let mut least = vec![(f64::MAX, 0.0); subjects.len()];
            for _ in 0..rounds {
                for (subject, least) in subjects.iter().zip(&mut least) {
                    let sample = subject.sample(&idle, at_a_time)?;
                    if sample.0 < least.0 {
                        *least = sample;
                    }
                }
            }
            let floor = least[0].0;
            let cells = least[1..]
                .iter()
                .map(|(ns, waits)| format!("{:.0} ({waits:.2})", ns - floor));
            let cells: Vec<_> = cells.collect();
            println!("| {} | {at_a_time} | {} |", idle.len(), cells.join(" | "));
        }
    }
    Ok(())
}

fn pairs(count: usize) -> io::Result<Vec<Pair>> {
    (0..count).map(|_| UnixStream::pair()).collect()
}

impl Subject {
    fn name(self) -> String {
        match self {
            Subject::Nothing => "nothing".to_owned(),
            Subject::Bare => "bare".to_owned(),
            Subject::Fdm8 => "fdm N=8".to_owned(),
            Subject::Mechanism(mechanism) => mechanism.to_string(),
        }
    }

    /// Nanoseconds and waits for each event.
    fn sample(self, idle: &[Pair], at_a_time: usize) -> io::Result<(f64, f64)> {
        let active = pairs(ACTIVE)?;
        match self {
            Subject::Nothing => rounds(&active, at_a_time, |sent, seen| {
                seen.extend_from_slice(sent);
                Ok(())
            }),
            Subject::Bare => {
                let mut bare = Bare::new()?;
                for (token, (_, far)) in active.iter().chain(idle).enumerate() {
                    bare.add(far, token as u64)?;
                }
                rounds(&active, at_a_time, |_, seen| bare.wait(seen))
            }
            Subject::Fdm8 => dispatched(&mut Fdm::new(8), &active, idle, at_a_time),
            Subject::Mechanism(mechanism) => {
                dispatched(&mut *mechanism.open()?, &active, idle, at_a_time)
            }
        }
    }
}

fn dispatched(
    dispatcher: &mut dyn Dispatcher,
    active: &[Pair],
    idle: &[Pair],
    at_a_time: usize,
) -> io::Result<(f64, f64)> {
    for (token, (_, far)) in active.iter().chain(idle).enumerate() {
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

/// Writes to so many pairs, waits until all are reported and reads them, for the time of a sample.
/// `wait` is told what was written to, and adds what is ready.
fn rounds(
    active: &[Pair],
    at_a_time: usize,
    mut wait: impl FnMut(&[usize], &mut Vec<usize>) -> io::Result<()>,
) -> io::Result<(f64, f64)> {
    let (mut next, mut seen, mut sent) = (0, Vec::new(), Vec::new());
    let (mut events, mut waits) = (0_u64, 0_u64);
    let mut began = Instant::now();
    let mut is_warm = false;
    loop {
        let elapsed = began.elapsed();
        if is_warm && elapsed >= SAMPLE {
            let each = |total: f64| total / events as f64;
            return Ok((each(elapsed.as_nanos() as f64), each(waits as f64)));
        }
        if !is_warm && elapsed >= WARM_UP {
            (is_warm, events, waits) = (true, 0, 0);
            began = Instant::now();
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
            waits += 1;
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
    epoll: std::os::fd::OwnedFd,
    events: Vec<epoll::Event>,
}

impl Bare {
    fn new() -> io::Result<Bare> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Bare {
            epoll,
            events: Vec::with_capacity(512),
        })
    }

    fn add(&mut self, fd: &UnixStream, token: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(token),
            flags,
        )?)
    }

    fn wait(&mut self, seen: &mut Vec<usize>) -> io::Result<()> {
        self.events.clear();
        let zero = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let room = rustix::buffer::spare_capacity(&mut self.events);
        epoll::wait(&self.epoll, room, Some(&zero))?;
        seen.extend(self.events.iter().map(|event| event.data.u64() as usize));
        Ok(())
    }
}
