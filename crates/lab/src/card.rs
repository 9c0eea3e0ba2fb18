//! Machine card: a description of this machine and the current speed of its parts, so that two
//! reports can be compared.

use std::fs;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::busy::Usage;
use crate::sample::Noise;

/// A machine card: its name and the cost of its parts. Takes about half a second.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Card {
    /// `AMD EPYC, 2 cores, Linux 6.18.44`.
    pub machine: String,
    /// A multiplication, an addition and a shift, each dependent on the one before.
    pub compute_ns: f64,
    /// A read in 64 MiB from an address that depends on the read before.
    pub memory_ns: f64,
    /// getppid(2).
    pub system_call_ns: f64,
    /// A byte from one thread to another and back, over a socket pair, on one core.
    pub switch_ns: f64,
    /// A byte to and fro over TCP on the loopback.
    pub loopback_ns: f64,
    /// Recent number of runnable processes, from /proc/loadavg.
    pub load_average: f64,
    /// Time taken by the hypervisor meanwhile, in percent of all cores.
    #[serde(default)]
    pub steal_percent: f64,
}

impl Card {
    /// Measures this machine.
    pub fn take() -> Card {
        let usage = Usage::now();
        let mut card = Card {
            machine: machine(),
            compute_ns: compute_ns(),
            memory_ns: memory_ns(),
            system_call_ns: system_call_ns(),
            switch_ns: switch_ns().unwrap_or(0.0),
            loopback_ns: loopback_ns().unwrap_or(0.0),
            load_average: load_average(),
            steal_percent: 0.0,
        };
        card.steal_percent = Noise::since(usage, Duration::ZERO).steal_percent;
        card
    }

    /// Names and figures, for tables.
    pub fn figures(&self) -> [(&'static str, &'static str, f64); 7] {
        [
            ("compute step", "ns", self.compute_ns),
            ("memory, 64 MiB at random", "ns", self.memory_ns),
            ("system call", "ns", self.system_call_ns),
            ("thread to thread and back", "ns", self.switch_ns),
            ("loopback, to and fro", "ns", self.loopback_ns),
            ("load average", "", self.load_average),
            ("taken by the hypervisor", "%", self.steal_percent),
        ]
    }
}

/// Minimum of some short tries: disturbances only make them slower.
fn least(mut once: impl FnMut() -> f64) -> f64 {
    (0..5).map(|_| once()).fold(f64::INFINITY, f64::min)
}

fn per_step(steps: u32, work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_nanos() as f64 / f64::from(steps)
}

fn compute_ns() -> f64 {
    const STEPS: u32 = 4_000_000;
    least(|| {
        per_step(STEPS, || {
            let mut state = black_box(1_u64);
            for _ in 0..STEPS {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(state >> 33);
            }
            black_box(state);
        })
    })
}

fn memory_ns() -> f64 {
    const WORDS: usize = 64 * 1024 * 1024 / 8;
    const STEPS: u32 = 200_000;
    // One cycle over all places: with a multiplier of 1 more than a multiple of 4 and an odd
    // increment, a generator modulo a power of two has its full period (Knuth, 3.2.1.2).
    let next = |at: usize| {
        at.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f) % WORDS
    };
    let places: Vec<usize> = (0..WORDS).map(next).collect();
    let mut at = 0;
    least(|| {
        per_step(STEPS, || {
            for _ in 0..STEPS {
                at = places[at];
            }
            at = black_box(at);
        })
    })
}

fn system_call_ns() -> f64 {
    const STEPS: u32 = 100_000;
    least(|| {
        per_step(STEPS, || {
            for _ in 0..STEPS {
                black_box(rustix::process::getppid());
            }
        })
    })
}

fn switch_ns() -> std::io::Result<f64> {
    let (near, far) = UnixStream::pair()?;
    to_and_fro(near, far, true)
}

fn loopback_ns() -> std::io::Result<f64> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    to_and_fro(near, far, false)
}

/// Sends a byte to another thread and back; with `one_core` both are on the same one.
fn to_and_fro<S>(mut near: S, mut far: S, one_core: bool) -> std::io::Result<f64>
where
    S: Read + Write + Send + 'static,
{
    const STEPS: u32 = 2_000;
    let work = move || -> std::io::Result<f64> {
        if one_core {
            let mut cpus = rustix::thread::CpuSet::new();
            let usable = rustix::thread::sched_getaffinity(None)?;
            let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|&core| usable.is_set(core));
            cpus.set(first.unwrap_or(0));
            rustix::thread::sched_setaffinity(None, &cpus)?;
        }
        // The thread inherits the core.
        let echo = thread::spawn(move || {
            let mut byte = [0];
            while far.read_exact(&mut byte).is_ok() && far.write_all(&byte).is_ok() {}
        });
        let mut byte = [1];
        let mut failed = None;
        let figure = least(|| {
            per_step(STEPS, || {
                for _ in 0..STEPS {
                    if let Err(error) =
                        near.write_all(&byte).and_then(|()| near.read_exact(&mut byte))
                    {
                        failed = Some(error);
                        return;
                    }
                }
            })
        });
        drop(near);
        let _ = echo.join();
        failed.map_or(Ok(figure), Err)
    };
    // A thread of its own, so that the pinning ends with it.
    thread::spawn(work).join().map_err(|_| std::io::Error::other("a thread panicked"))?
}

fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

/// `AMD EPYC, 2 cores, Linux 6.18.44`.
pub(crate) fn machine() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpus.lines().find(|line| line.split([':', '\t']).next() == Some(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let model = field("model name").unwrap_or_else(|| "unknown processor".to_owned());
    // Virtual machines give many processors the same name.
    let number = field("model").map_or(String::new(), |number| format!(" model {number}"));
    let virtual_ = if cpus.contains(" hypervisor") { " (virtual)" } else { "" };
    let cores = cores();
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy().into_owned();
    format!("{model}{number}{virtual_}, {cores} cores, Linux {release}")
}

/// `2026-11-22 08:40`, in UTC.
pub fn date_of(unix_s: u64) -> String {
    let date = OffsetDateTime::from_unix_timestamp(unix_s as i64);
    let date = date.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let month = u8::from(date.month());
    let day = format!("{}-{month:02}-{:02}", date.year(), date.day());
    format!("{day} {:02}:{:02}", date.hour(), date.minute())
}

/// Number of cores that this process may use.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date_of(0), "1970-01-01 00:00");
        assert_eq!(date_of(951_782_400), "2000-02-29 00:00");
        assert_eq!(date_of(1_795_338_000), "2026-11-22 09:00");
    }

    #[test]
    fn a_card_has_all_its_figures() {
        let card = Card::take();
        assert!(card.machine.contains(" cores, Linux "), "{}", card.machine);
        let figures = card.figures();
        assert!(figures.iter().all(|(_, _, figure)| *figure >= 0.0), "{figures:?}");
    }
}
