//! The server's clocks, and their difference over the generator's measurement.

use std::time::{Duration, SystemTime};

use super::fault::Fault;

/// The server's clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) at: SystemTime,
    pub(super) cpu: Duration,
    pub(super) delay_ns: u64,
    /// CPU time of the laboratory's relay on the way to the server, if there is one.
    pub(super) relay: Duration,
    /// CPU time of all processors, for any purpose.
    pub(super) machine: Duration,
    pub(super) disk_read_bytes: u64,
    /// 0 without a group that counts them.
    pub(super) disk_reads: u64,
    /// Clock ticks in user and kernel mode.
    pub(super) ticks: [u64; 2],
}

/// Resources that the server used during the measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    lasts: Duration,
    pub(super) cpu_s: f64,
    delay_s: f64,
    pub(super) machine_s: f64,
    pub(super) disk_read_bytes: f64,
    pub(super) disk_reads: f64,
    /// Clock ticks in user and kernel mode.
    pub(super) ticks: [f64; 2],
}

impl Window {
    /// Interpolates between readings; `None` if they do not cover the whole measurement.
    pub(super) fn of(readings: &[Reading], begin: SystemTime, lasts: Duration) -> Option<Window> {
        let end = begin + lasts;
        let used = |meter: fn(&Reading) -> f64| {
            Some(read_at(readings, end, meter)? - read_at(readings, begin, meter)?)
        };
        Some(Window {
            lasts,
            cpu_s: used(|reading| reading.cpu.as_secs_f64())?,
            delay_s: used(|reading| reading.delay_ns as f64 / 1e9)?,
            machine_s: used(|reading| reading.machine.as_secs_f64())?,
            disk_read_bytes: used(|reading| reading.disk_read_bytes as f64)?,
            disk_reads: used(|reading| reading.disk_reads as f64)?,
            ticks: [
                used(|reading| reading.ticks[0] as f64)?,
                used(|reading| reading.ticks[1] as f64)?,
            ],
        })
    }

    /// Returns a fault if the CPU time cannot be right.
    pub(super) fn check(&self, replies: u64) -> Result<(), Fault> {
        if self.cpu_s > 0.0 || replies == 0 {
            Ok(())
        } else {
            Err(format!(
                "the server answered {replies} requests, and the clock of its CPU time stood still"
            )
            .into())
        }
    }

    /// Time that the server waited for its core, in percent, limited to the time that it left to
    /// others: beyond that its threads wait for each other.
    pub(super) fn delay_percent(&self) -> f64 {
        let lasts_s = self.lasts.as_secs_f64();
        let left_s = (lasts_s - self.cpu_s).max(0.0);
        100.0 * self.delay_s.min(left_s) / lasts_s.max(1e-9)
    }
}

/// A meter's reading at a moment, interpolated between the readings around it.
fn read_at(readings: &[Reading], at: SystemTime, meter: fn(&Reading) -> f64) -> Option<f64> {
    let after = readings.iter().position(|reading| reading.at >= at)?;
    let before = &readings[after.checked_sub(1)?];
    let after = &readings[after];
    let between = after.at.duration_since(before.at).ok()?.as_secs_f64();
    let part = at.duration_since(before.at).ok()?.as_secs_f64() / between.max(1e-9);
    Some(meter(before) + (meter(after) - meter(before)) * part)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen: the disk reads per reply of `web-disk` and `web-cold` came out twice as high as they
    /// were. Cause: bytes were counted from the start of the warm-up, replies from its end. Cure:
    /// both between the same two moments.
    #[test]
    fn interpolated_readings() {
        let start = SystemTime::UNIX_EPOCH;
        let at = |ms: u64| start + Duration::from_millis(ms);
        let reading = |ms: u64, cpu_ms: u64| Reading {
            at: at(ms),
            cpu: Duration::from_millis(cpu_ms),
            delay_ns: 2_000_000 * cpu_ms,
            relay: Duration::ZERO,
            machine: Duration::from_millis(3 * cpu_ms),
            disk_read_bytes: 1000 * cpu_ms,
            disk_reads: 4 * cpu_ms,
            ticks: [5 * cpu_ms, 6 * cpu_ms],
        };
        let readings = [reading(0, 100), reading(20, 120), reading(40, 130)];
        let cpu_ms_at = |ms| {
            let cpu_s = read_at(&readings, at(ms), |reading| reading.cpu.as_secs_f64())?;
            Some((cpu_s * 1e6).round() / 1e3)
        };
        assert_eq!(cpu_ms_at(10), Some(110.0));
        assert_eq!(cpu_ms_at(20), Some(120.0));
        assert_eq!(cpu_ms_at(30), Some(125.0));
        // Outside of the readings.
        assert_eq!((cpu_ms_at(0), cpu_ms_at(41)), (None, None));

        let from_10_to = |ms: u64| Window::of(&readings, at(10), Duration::from_millis(ms - 10));
        let used = from_10_to(30).unwrap();
        let times_s = [used.cpu_s, used.delay_s, used.machine_s];
        assert_eq!(times_s.map(|time_s| (1e3 * time_s).round()), [15.0, 30.0, 45.0]);
        let disk = [used.disk_read_bytes, used.disk_reads];
        assert_eq!(disk.map(f64::round), [15_000.0, 60.0]);
        assert_eq!(used.ticks.map(f64::round), [75.0, 90.0]);
        assert!(from_10_to(41).is_none());
    }

    #[test]
    fn no_run_delay_on_a_full_core() {
        let window = |cpu_s, delay_s| Window {
            lasts: Duration::from_secs(2),
            cpu_s,
            delay_s,
            machine_s: 0.0,
            disk_read_bytes: 0.0,
            disk_reads: 0.0,
            ticks: [0.0; 2],
        };
        // 64 threads on one core: each waits for the others.
        assert_eq!(window(2.0, 126.0).delay_percent(), 0.0);
        assert_eq!(window(1.8, 126.0).delay_percent().round(), 10.0);
        assert_eq!(window(1.0, 0.5).delay_percent(), 25.0);
        // Seen: "25.3 µs (0–26.1)" in netstack-cores, of a server that answered 10,144 requests
        // and used no CPU time, where /proc/stat had one core of two idle.
        assert!(matches!(window(0.0, 0.0).check(10_144), Err(Fault::Failed(_))));
        assert!(window(0.0, 0.0).check(0).is_ok() && window(0.1, 0.0).check(9).is_ok());
    }
}
