//! CPU use of other processes during a run: figures of a busy machine are unreliable.

use std::fs;
use std::time::Duration;

use crate::sample::Noise;

/// CPU time of all processors for any purpose; `None` if `/proc` lacks it.
pub(crate) fn machine() -> Option<Duration> {
    let Ticks { all, idle, steal, .. } = Ticks::parse(&fs::read_to_string("/proc/stat").ok()?)?;
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    Some(Duration::from_secs_f64((all - idle - steal) as f64 / per_second))
}

/// CPU time of interrupts, mostly those of network packets; 0 if `/proc` lacks it.
pub(crate) fn interrupts() -> Duration {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = Ticks::parse(&text).map_or(0, |ticks| ticks.interrupts);
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Clock ticks of all processors since the start.
struct Ticks {
    all: u64,
    idle: u64,
    interrupts: u64,
    /// Ticks taken by the hypervisor.
    steal: u64,
}

impl Ticks {
    /// proc_stat(5)
    fn parse(machine: &str) -> Option<Ticks> {
        let line = machine.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        // User, nice, system, idle, iowait, irq, softirq, steal; guest time is included in user.
        Some(Ticks {
            all: ticks.get(..8)?.iter().sum(),
            idle: ticks[3] + ticks[4],
            interrupts: ticks[5] + ticks[6],
            steal: ticks[7],
        })
    }
}

/// Clock ticks of the machine's processors and of this process, at one moment.
pub(crate) struct Usage {
    /// Ticks of all processors together, idle or not.
    all: u64,
    busy: u64,
    /// Ticks taken by the hypervisor.
    steal: u64,
    /// Ticks of this process and of its children that have ended.
    own: u64,
}

impl Usage {
    /// Reads the current ticks; `None` if `/proc` lacks them.
    pub(crate) fn now() -> Option<Usage> {
        let machine = fs::read_to_string("/proc/stat").ok()?;
        let process = fs::read_to_string("/proc/self/stat").ok()?;
        Usage::parse(&machine, &process)
    }

    /// proc_stat(5), proc_pid_stat(5)
    fn parse(machine: &str, process: &str) -> Option<Usage> {
        let Ticks { all, idle, steal, .. } = Ticks::parse(machine)?;
        // The name may contain spaces and parentheses; field 3 follows it.
        let fields: Vec<&str> = process.rsplit_once(')')?.1.split_whitespace().collect();
        let own = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Usage { all, busy: all - idle, steal, own: own(14)? + own(15)? + own(16)? + own(17)? })
    }

    /// Share of the machine that others have used since, from 0 to 1. Time taken by the host counts
    /// as theirs.
    pub(crate) fn others_since(&self, later: &Usage) -> f64 {
        let busy = later.busy.saturating_sub(self.busy);
        let others = busy.saturating_sub(later.own.saturating_sub(self.own));
        others as f64 / later.all.saturating_sub(self.all).max(1) as f64
    }

    /// Shares of the machine that other programs used and that the hypervisor took since, in
    /// percent. `own` is CPU time of children that have not ended.
    pub(crate) fn shares_since(&self, later: &Usage, own: Duration) -> (f64, f64) {
        let all = later.all.saturating_sub(self.all).max(1) as f64;
        let steal = later.steal.saturating_sub(self.steal) as f64;
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        let others = self.others_since(later) * all - steal - own.as_secs_f64() * per_second;
        (100.0 * others.max(0.0) / all, 100.0 * steal / all)
    }
}

impl Noise {
    /// Noise by others since `before`. `own` is CPU time of children that have not ended.
    pub(crate) fn since(before: Option<Usage>, own: Duration) -> Noise {
        let shares = before.zip(Usage::now());
        let shares = shares.map(|(before, now)| before.shares_since(&now, own));
        let (others_percent, steal_percent) = shares.unwrap_or_default();
        Noise { run_delay_percent: 0.0, others_percent, steal_percent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_children_use_is_not_others() {
        let process = |own: u64| format!("7 (a) b) R 1 1 1 0 -1 0 0 0 0 0 {own} 10 20 30 20 0");
        let usage = |user: u64, idle: u64, own: u64| {
            let machine =
                format!("cpu  {user} 0 100 {idle} 50 0 10 5 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n");
            Usage::parse(&machine, &process(own)).unwrap()
        };
        let start = usage(1000, 2000, 100);
        assert_eq!(start.others_since(&usage(1500, 2500, 600)), 0.0);
        assert_eq!(start.others_since(&usage(1500, 2500, 350)), 0.25);
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let own = Duration::from_secs_f64(100.0 / ticks);
        let (others, steal) = start.shares_since(&usage(1500, 2500, 350), own);
        assert_eq!((others.round(), steal), (15.0, 0.0));
        assert!(Usage::now().is_some());
    }
}
