//! Generated session logs for a file set: users open a page, fetch its embedded files, think, and
//! continue.
//!
//! The thesis drives its web servers with 16 httperf copies, each with a log of its own. Most
//! entries are one request on a connection of its own; some fetch several files over one persistent
//! connection, with active and idle periods between, as Barford and Crovella measured them
//! ("Generating representative web workloads for network and server performance evaluation",
//! SIGMETRICS 1998):
//!
//! ```text
//!  page ──reply──▶ active period ──▶ embedded files together ──▶ idle period ──▶ next page …
//!        (the browser works)                              (the user thinks)
//! ```
//!
//! Files are drawn by their share of the requests, so that all logs together have the table of the
//! file set.

use std::time::Duration;

use crate::random::Random;
use crate::workload::distribution::Weighted;
use crate::workload::fileset::FileSet;
use crate::workload::session_log::{Call, CallBurst, UserSession};

/// Behaviour of the users.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UserModel {
    /// Share of sessions with a single request.
    pub single_share: f64,
    /// Factor on all periods; 0 leaves them out.
    pub think_scale: f64,
}

// Barford and Crovella, table 2: embedded references Pareto (k = 1, α = 2.43), active periods
// Weibull (α = 1.46 s, β = 0.382), idle periods Pareto (k = 1 s, α = 1.5).
const EMBEDDED_ALPHA: f64 = 2.43;
const EMBEDDED_MAX: usize = 12;
const ACTIVE_SCALE_S: f64 = 1.46;
const ACTIVE_SHAPE: f64 = 0.382;
const ACTIVE_S_MAX: f64 = 1.0;
const IDLE_MIN_S: f64 = 1.0;
const IDLE_ALPHA: f64 = 1.5;
const IDLE_S_MAX: f64 = 60.0;

/// Mean number of pages of a session with several requests (geometric).
const PAGES_MEAN: f64 = 3.0;

/// Makes log number `number` of a set: at least `requests` requests, in whole sessions.
pub fn session_log(
    set: &FileSet,
    users: &UserModel,
    requests: usize,
    seed: u64,
    number: u64,
) -> Vec<UserSession> {
    let mut maker =
        Maker { set, users, chooser: set.chooser(), random: Random::stream(seed, number) };
    let mut sessions = Vec::new();
    let mut made = 0;
    while made < requests {
        let session = maker.session();
        made += session.calls();
        sessions.push(session);
    }
    sessions
}

/// Number of requests for each file, in the set's order.
pub fn requests_per_file(set: &FileSet, sessions: &[UserSession]) -> Vec<u64> {
    let paths = set.entries.iter().enumerate().map(|(at, entry)| (&*entry.path, at));
    let places: std::collections::HashMap<_, _> = paths.collect();
    let mut counts = vec![0; set.entries.len()];
    for call in sessions.iter().flat_map(|s| &s.bursts).flat_map(|burst| &burst.calls) {
        if let Some(&at) = places.get(&*call.uri) {
            counts[at] += 1;
        }
    }
    counts
}

struct Maker<'a> {
    set: &'a FileSet,
    users: &'a UserModel,
    chooser: Weighted,
    random: Random,
}

impl Maker<'_> {
    fn session(&mut self) -> UserSession {
        if self.random.unit() < self.users.single_share {
            return UserSession {
                bursts: vec![CallBurst { calls: vec![self.call()], think: None }],
            };
        }
        let mut session = UserSession::default();
        loop {
            self.page(&mut session);
            if self.random.unit() < 1.0 / PAGES_MEAN {
                return session;
            }
        }
    }

    /// Appends a page, an active period, the embedded files and an idle period.
    fn page(&mut self, session: &mut UserSession) {
        let page = self.call();
        let embedded: Vec<Call> = (0..self.embedded()).map(|_| self.call()).collect();
        let idle = Some(self.idle());
        if embedded.is_empty() {
            session.bursts.push(CallBurst { calls: vec![page], think: idle });
        } else {
            let active = Some(self.active());
            session.bursts.push(CallBurst { calls: vec![page], think: active });
            session.bursts.push(CallBurst { calls: embedded, think: idle });
        }
    }

    fn call(&mut self) -> Call {
        let at = self.chooser.draw(&mut self.random);
        Call::get(self.set.entries[at].path.clone())
    }

    fn embedded(&mut self) -> usize {
        let count = self.random.unit_above_zero().powf(-1.0 / EMBEDDED_ALPHA);
        // The minimum of Pareto is 1: the page itself.
        (count.round() as usize - 1).min(EMBEDDED_MAX)
    }

    fn active(&mut self) -> Duration {
        let hazard = -self.random.unit_above_zero().ln();
        let active_s = ACTIVE_SCALE_S * hazard.powf(1.0 / ACTIVE_SHAPE);
        // A period above a second is not the browser at work (the same paper, section 3).
        self.scaled(active_s.min(ACTIVE_S_MAX))
    }

    fn idle(&mut self) -> Duration {
        let idle_s = IDLE_MIN_S * self.random.unit_above_zero().powf(-1.0 / IDLE_ALPHA);
        self.scaled(idle_s.min(IDLE_S_MAX))
    }

    fn scaled(&self, period_s: f64) -> Duration {
        Duration::from_millis((period_s * self.users.think_scale * 1e3).round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::fileset::{Model, Recipe};
    use crate::workload::session_log;

    const USERS: UserModel = UserModel { single_share: 0.7, think_scale: 1.0 };

    fn set() -> FileSet {
        FileSet::plan(Recipe { model: Model::Thesis, scale: 1.0, seed: 1, exponent: 1.0 }).unwrap()
    }

    #[test]
    fn sixteen_logs_have_the_sets_table() {
        let set = set();
        let mut counts = vec![0; set.entries.len()];
        for number in 0..16 {
            let log = session_log(&set, &USERS, 20_000, 1, number);
            for (sum, count) in counts.iter_mut().zip(requests_per_file(&set, &log)) {
                *sum += count;
            }
        }
        assert!(counts.iter().sum::<u64>() >= 320_000);
        for (seed, ours) in set.table_of_requests(&counts) {
            assert_eq!(ours.size_bytes, seed.size_bytes, "{seed:?} {ours:?}");
            let differs = ours.memory_mb / seed.memory_mb - 1.0;
            assert!(differs.abs() <= 0.10, "{seed:?} {ours:?}");
            let percent = (seed.requests_percent, ours.requests_percent);
            assert!((percent.0 - percent.1).abs() < 0.3, "{percent:?}");
        }
    }

    #[test]
    fn logs_differ_and_replay_by_seed() {
        let set = set();
        let log = |seed, number| session_log(&set, &USERS, 100, seed, number);
        assert_eq!(log(1, 0), log(1, 0));
        assert_ne!(log(1, 0), log(1, 1));
        assert_ne!(log(1, 0), log(2, 0));
    }

    #[test]
    fn users_are_as_asked_for() {
        let log = session_log(&set(), &USERS, 50_000, 3, 0);
        let single = log.iter().filter(|session| session.calls() == 1).count();
        let share = single as f64 / log.len() as f64;
        // Single requests, and longer sessions of one page without embedded files.
        assert!((0.70..0.85).contains(&share), "{share}");
        let thinks = log.iter().flat_map(|s| &s.bursts).filter_map(|burst| burst.think);
        assert!(thinks.clone().max() <= Some(Duration::from_secs(60)));
        assert!(thinks.clone().any(|think| think >= Duration::from_secs(1)), "idle periods");
        assert!(thinks.clone().any(|think| think < Duration::from_secs(1)), "active periods");
    }

    #[test]
    fn httperf_reads_what_is_written() {
        let log = session_log(&set(), &USERS, 1000, 3, 0);
        let mut text = Vec::new();
        session_log::write(&log, &mut text).unwrap();
        assert_eq!(session_log::parse(&String::from_utf8(text).unwrap()).unwrap(), log);
    }
}
