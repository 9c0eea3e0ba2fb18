//! A bad link for experiments: two TAP interfaces; frames sent to one leave by the other, late or
//! never. It replaces netem, which many kernels lack.
//!
//! ```text
//! weft-programs relay LOSS DELAY NEAR FAR        per mille, milliseconds, names of interfaces
//!
//!   generator ── NEAR ══ relay ── half of DELAY each way, loss towards NEAR ══ FAR ── server
//! ```
//!
//! It prints `ready` once the interfaces exist, and ends with them.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use netstack::device::impair::{Impair, Impairment};
use netstack::device::tap::Tap;
use netstack::device::{Device, Offload, OutgoingFrame, ReceiveBurst};
use netstack::time::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const FRAMES_PER_BURST: usize = 64;
const SEED: u64 = 1;
/// A second of 1 Gbit/s in short frames: more than a path holds in these experiments.
const FRAMES_MAX: usize = 1 << 16;

pub(crate) fn run(words: &[String]) -> Result<Infallible, String> {
    let [loss, delay, near, far] = words else {
        return Err("usage: relay LOSS DELAY NEAR FAR".to_owned());
    };
    let number = |text: &str| text.parse::<u32>().map_err(|_| format!("'{text}' is not a number"));
    let there = Impairment {
        delay: Duration::from_millis(number(delay)?.into()) / 2,
        frames_max: FRAMES_MAX,
        ..Impairment::NONE
    };
    let back = Impairment { loss: f64::from(number(loss)?) / 1000.0, ..there };
    pass(near, far, there, back).map_err(|error| error.to_string())
}

/// Passes frames `there`, from the near end to the far one, and `back`.
fn pass(near: &str, far: &str, there: Impairment, back: Impairment) -> io::Result<Infallible> {
    let mut near = open(near)?;
    let mut far = Impair::new(open(far)?, there, back, SEED);
    println!("ready");
    let len_max = near.capabilities().receive_len_max;
    let mut burst = ReceiveBurst::new(FRAMES_PER_BURST, len_max);
    let began = std::time::Instant::now();
    loop {
        let now = Instant::START + began.elapsed();
        burst.clear();
        near.receive(now, &mut burst)?;
        hand_on(now, &burst, &mut far);
        burst.clear();
        far.receive(now, &mut burst)?;
        hand_on(now, &burst, &mut near);
        wait(&[&near, &far], far.wakes_at().map(|at| at.since(now)))?;
    }
}

fn open(name: &str) -> io::Result<Tap> {
    Ok(Tap::open(name, 1, false)?.remove(0))
}

/// Forwards frames; those for which the other end has no space, or is not up, are lost.
fn hand_on(now: Instant, burst: &ReceiveBurst, to: &mut impl Device) {
    for frame in burst.frames() {
        let _ = to.transmit(
            now,
            &OutgoingFrame { headers: frame.bytes, payload: &[], offload: Offload::None },
        );
    }
}

/// Waits for a frame, or until `time`.
fn wait(devices: &[&dyn Device], time: Option<Duration>) -> io::Result<()> {
    let descriptors = devices.iter().filter_map(|device| device.descriptor());
    let mut waits: Vec<_> =
        descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let time = time.unwrap_or(Duration::MAX);
    let limit =
        Timespec { tv_sec: time.as_secs().min(3600) as i64, tv_nsec: time.subsec_nanos().into() };
    match poll(&mut waits, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
