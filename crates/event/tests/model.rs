//! Random operations on every dispatcher, with `poll(2)` as the oracle.
//!
//! A failure prints the seed; `EVENT_SEED=n` replays it.

extern crate weftwork_event as event;

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use event::{Dispatcher, Interest, Mechanism, Ready, Token, Trigger};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use rustix::event::{PollFd, PollFlags, poll};

const PAIRS: usize = 12;
const STEPS: usize = 1500;
/// Longer than any report takes: a dispatcher may report readiness some calls or some time (`lap`)
/// later.
const PATIENCE: Duration = Duration::from_secs(60);

struct Model {
    mechanism: Mechanism,
    dispatcher: Box<dyn Dispatcher>,
    random: Xoshiro256PlusPlus,
    links: Vec<Link>,
    /// Counts tokens, so that each add and each modify has its own.
    tokens: u64,
    ready: Vec<Ready>,
}

struct Link {
    near: UnixStream,
    far: OwnedFd,
    watched: Option<(Token, Interest)>,
    /// Readable, writable at the last check.
    was_ready: (bool, bool),
    /// Edge and one-shot: readable, writable has begun and was not reported yet.
    is_due: (bool, bool),
}

impl Link {
    fn new() -> Link {
        let (near, far) = pair();
        Link {
            near,
            far: far.into(),
            watched: None,
            was_ready: (false, false),
            is_due: (false, false),
        }
    }

    /// Answer of `poll(2)`: readable, writable.
    fn oracle(&self, interest: Interest, tells_hangup: bool) -> (bool, bool) {
        let mut asked = PollFlags::empty();
        asked.set(PollFlags::IN, interest.reads());
        asked.set(PollFlags::OUT, interest.writes());
        let mut fds = [PollFd::new(&self.far, asked)];
        poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        let said = fds[0].revents();
        let hangup = said.contains(PollFlags::HUP);
        let error = said.contains(PollFlags::ERR);
        let readable = said.contains(PollFlags::IN) || hangup && (tells_hangup || interest.reads());
        let writable = said.contains(PollFlags::OUT) || hangup && tells_hangup;
        (readable || error, writable || error)
    }
}

fn pair() -> (UnixStream, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    (near, far)
}

impl Model {
    fn pick(&mut self, below: usize) -> usize {
        (self.random.next_u64() % below as u64) as usize
    }

    fn interest(&mut self) -> Interest {
        let interest = [Interest::READ, Interest::WRITE, Interest::BOTH][self.pick(3)];
        if self.pick(8) == 0 { interest.pinned() } else { interest }
    }

    fn step(&mut self) {
        let at = self.pick(PAIRS);
        let interest = self.interest();
        let action = self.pick(9);
        let forgets = self.pick(2) == 0;
        self.tokens += 1;
        let token = Token(self.tokens);
        let link = &mut self.links[at];
        match (action, link.watched) {
            (0 | 1, None) => {
                self.dispatcher.add(link.far.as_fd(), token, interest).unwrap();
                link.watched = Some((token, interest));
                link.was_ready = (false, false);
            }
            (0, Some(_)) => {
                self.dispatcher.modify(link.far.as_fd(), token, interest).unwrap();
                link.watched = Some((token, interest));
                link.was_ready = (false, false);
            }
            (1, Some(_)) => {
                self.dispatcher.remove(link.far.as_fd()).unwrap();
                link.watched = None;
            }
            (2, _) => {
                // Another file under the same number: removed, closed, opened, perhaps added.
                if link.watched.take().is_some() {
                    let far = link.far.as_fd();
                    let parted = if forgets {
                        self.dispatcher.forget(far)
                    } else {
                        self.dispatcher.remove(far)
                    };
                    parted.unwrap();
                }
                let (near, far) = pair();
                rustix::io::dup2(&far, &mut link.far).unwrap();
                link.near = near;
            }
            (3 | 4, _) => {
                let _ = link.near.write(b"bytes");
            }
            (5, _) => {
                let mut bytes = [0; 64];
                while rustix::io::read(&link.far, &mut bytes).is_ok_and(|read| read > 0) {}
            }
            (6, _) => while rustix::io::write(&link.far, &[0; 65536]).is_ok() {},
            (7, _) => {
                let mut bytes = [0; 65536];
                while link.near.read(&mut bytes).is_ok_and(|read| read > 0) {}
            }
            (8, _) if interest.reads() && interest.writes() => {
                link.near.shutdown(std::net::Shutdown::Both).unwrap();
            }
            _ => self.check_reports(),
        }
        self.note_edges(at);
    }

    /// Notes the readiness that the last step began or ended.
    fn note_edges(&mut self, at: usize) {
        let link = &mut self.links[at];
        let Some((_, interest)) = link.watched else {
            return;
        };
        if matches!(self.mechanism, Mechanism::RtSig(_)) && !link.oracle(Interest::WRITE, true).1 {
            // A full Unix socket signals space only to a writer that failed: see RtSig.
            while rustix::io::write(&link.far, &[0; 65536]).is_ok() {}
        }
        let now = link.oracle(interest, true);
        link.is_due.0 = now.0 && (link.is_due.0 || !link.was_ready.0);
        link.is_due.1 = now.1 && (link.is_due.1 || !link.was_ready.1);
        link.was_ready = now;
    }

    fn check_reports(&mut self) {
        self.dispatcher.wait(&mut self.ready, Some(Duration::ZERO)).unwrap();
        let mut tokens: Vec<_> = self.ready.iter().map(|ready| ready.token).collect();
        tokens.sort_unstable();
        let count = tokens.len();
        tokens.dedup();
        assert_eq!(tokens.len(), count, "a token twice in {:?}", self.ready);
        let tells_hangup = self.mechanism != Mechanism::Select;
        let is_one_shot = self.dispatcher.trigger() == Trigger::OneShot;
        for ready in &self.ready {
            let link = self
                .links
                .iter_mut()
                .find(|link| link.watched.is_some_and(|(token, _)| token == ready.token));
            let Some(link) = link else { panic!("{ready:?}: the token is no longer watched") };
            let (_, interest) = link.watched.unwrap();
            if self.dispatcher.trigger() == Trigger::Level {
                let (readable, writable) = link.oracle(interest, tells_hangup);
                let said = ready.readiness;
                assert!(readable || !said.is_readable(), "{said:?} where nothing is readable");
                assert!(writable || !said.is_writable(), "{said:?} where nothing is writable");
            }
            link.is_due.0 &= !ready.readiness.is_readable();
            link.is_due.1 &= !ready.readiness.is_writable();
            if is_one_shot {
                self.dispatcher.modify(link.far.as_fd(), ready.token, interest).unwrap();
            }
        }
    }

    /// Checks that all ready descriptors are reported, with the readiness that `poll(2)` sees.
    fn settle(&mut self) {
        let is_level = self.dispatcher.trigger() == Trigger::Level;
        let tells_hangup = self.mechanism != Mechanism::Select;
        let owed = |link: &Link| {
            let (token, interest) = link.watched?;
            let now = link.oracle(interest, tells_hangup);
            let (readable, writable) = if is_level { now } else { link.is_due };
            (readable || writable).then_some((token, readable, writable))
        };
        let mut owed: Vec<_> = self.links.iter().filter_map(owed).collect();
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            self.check_reports();
            owed.retain(|(token, readable, writable)| {
                let said = self.ready.iter().find(|ready| ready.token == *token);
                let Some(Ready { readiness, .. }) = said else {
                    return true;
                };
                (*readable && !readiness.is_readable()) || (*writable && !readiness.is_writable())
            });
            if owed.is_empty() {
                return;
            }
        }
        panic!("not reported in {PATIENCE:?} (token, readable, writable): {owed:?}");
    }
}

fn run(mechanism: Mechanism, seed: u64) {
    let dispatcher = match mechanism.open() {
        Err(error) if mechanism == Mechanism::Uring => {
            assert!(matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)), "{error}");
            // Bypasses the test harness, which would capture it.
            let said = format!("io_uring is denied here, and not tested: {error}\n");
            let _ = std::io::stderr().write_all(said.as_bytes());
            return;
        }
        opened => opened.unwrap(),
    };
    let mut model = Model {
        mechanism,
        dispatcher,
        random: Xoshiro256PlusPlus::seed_from_u64(seed),
        links: (0..PAIRS).map(|_| Link::new()).collect(),
        tokens: 0,
        ready: Vec::new(),
    };
    for step in 0..STEPS {
        model.step();
        if step % 25 == 24 {
            model.settle();
        }
    }
}

#[test]
fn every_dispatcher_agrees_with_poll() {
    let replayed = std::env::var("EVENT_SEED").ok().and_then(|seed| seed.parse().ok());
    let first = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seeds = replayed.map_or(first..first + 2, |seed| seed..seed + 1);
    for seed in seeds {
        for mechanism in Mechanism::ALL {
            // Printed with the failure only.
            println!("dispatcher {mechanism}, replay with EVENT_SEED={seed}");
            run(mechanism, seed);
        }
    }
}
