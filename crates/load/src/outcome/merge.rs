//! Merge of the outcomes of several generators. It is exact: counts are added, and histograms
//! bucket by bucket. (A mean of percentiles is no percentile.)

use crate::outcome::{Demand, IntervalRecord, Kind, Outcome};

impl Outcome {
    /// Adds the outcome of another generator that ran at the same time with the same plan.
    ///
    /// # Errors
    /// When the two did not measure the same classes of requests.
    pub fn merge(&mut self, other: &Outcome) -> Result<(), String> {
        let work = |outcome: &Outcome| -> (Kind, Vec<_>) {
            let names = outcome.total.classes.iter().map(|class| class.name);
            (outcome.asked.kind, names.collect())
        };
        if work(self) != work(other) {
            let what = "outcomes of different work cannot be merged";
            return Err(format!("{what}: {:?} and {:?}", work(self), work(other)));
        }
        self.asked.add(&other.asked);
        self.began = self.began.min(other.began);
        self.elapsed = self.elapsed.max(other.elapsed);
        self.offered_rate_per_s = match (self.offered_rate_per_s, other.offered_rate_per_s) {
            (Some(ours), Some(theirs)) => Some(ours + theirs),
            _ => None,
        };
        self.total.add_thread(&other.total);
        self.merge_intervals(&other.intervals);
        self.merge_generators(other);
        self.stopped_early |= other.stopped_early;
        Ok(())
    }

    fn merge_intervals(&mut self, theirs: &[IntervalRecord]) {
        for (ours, theirs) in self.intervals.iter_mut().zip(theirs) {
            ours.lasts = ours.lasts.max(theirs.lasts);
            ours.tally.add_thread(&theirs.tally);
        }
        let known = self.intervals.len().min(theirs.len());
        self.intervals.extend_from_slice(&theirs[known..]);
    }

    fn merge_generators(&mut self, other: &Outcome) {
        self.generator.threads.extend_from_slice(&other.generator.threads);
        // They may count the same packets.
        self.generator.table_drops = self.generator.table_drops.max(other.generator.table_drops);
        if self.generator.io != other.generator.io {
            self.generator.io = format!("{}; {}", self.generator.io, other.generator.io);
        }
    }

    /// Copy without the intervals.
    pub fn without_intervals(&self) -> Outcome {
        Outcome { intervals: Vec::new(), ..self.clone() }
    }

    /// Whole outcome as JSON, readable by [`Outcome::from_json`].
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("numbers and texts")
    }

    /// Reads the output of [`Outcome::to_json`] or of [`report::json`](crate::report::json).
    ///
    /// # Errors
    /// When it is neither.
    pub fn from_json(mut document: serde_json::Value) -> Result<Outcome, String> {
        let whole = match document.get_mut("mergeable") {
            Some(part) => part.take(),
            None => document,
        };
        serde_json::from_value(whole)
            .map_err(|error| format!("this is not an outcome of weft load: {error}"))
    }
}

impl Demand {
    /// Adds the demand of another generator.
    fn add(&mut self, other: &Demand) {
        self.connections += other.connections;
        self.idle_connections += other.idle_connections;
        self.requests_max = match (self.requests_max, other.requests_max) {
            (Some(ours), Some(theirs)) => Some(ours + theirs),
            _ => None,
        };
        self.verify |= other.verify;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;
    use crate::verdict::VerdictRow;

    #[test]
    fn an_outcome_reads_back_as_it_was() {
        let outcome = sample(&["get", "set"], 1, 10_000);
        let again = Outcome::from_json(outcome.to_json()).unwrap();
        assert_eq!(again.to_json(), outcome.to_json());
        assert_eq!(again.total.response_ns(), outcome.total.response_ns());
    }

    #[test]
    fn merged_percentiles_are_exact() {
        // One generator saw only fast replies, the other only slow ones.
        let mut all = sample(&["request"], 1, 10_000);
        let slow = sample(&["request"], 1000, 10_000);
        let mut expected = all.total.response_ns();
        expected.add(slow.total.response_ns()).unwrap();
        all.merge(&Outcome::from_json(slow.to_json()).unwrap()).unwrap();
        assert_eq!(all.total.response_ns(), expected);
        assert_eq!(all.total.replies(), 20_000);
        assert_eq!(all.offered_rate_per_s, Some(2.0 * 5_000.0));
        assert_eq!(all.asked.connections, 2 * 64);
        assert_eq!(all.verdict().row, VerdictRow::KeptUp);
        assert_eq!(all.intervals.len(), slow.intervals.len());
        assert_eq!(all.intervals[0].tally.replies(), 2 * slow.intervals[0].tally.replies());
    }

    #[test]
    fn merging_in_any_order_is_the_same() {
        let parts = [sample(&["get"], 1, 100), sample(&["get"], 7, 500), sample(&["get"], 90, 3)];
        let merged = |order: [usize; 3]| {
            let mut all = parts[order[0]].clone();
            all.merge(&parts[order[1]]).unwrap();
            all.merge(&parts[order[2]]).unwrap();
            crate::report::figures(&all).latency_us.intended
        };
        assert_eq!(merged([0, 1, 2]), merged([2, 1, 0]));
        assert_eq!(merged([0, 1, 2]), merged([1, 2, 0]));
    }

    #[test]
    fn different_work_is_not_merged() {
        let error = sample(&["request"], 1, 10).merge(&sample(&["get"], 1, 10)).unwrap_err();
        assert!(error.contains("different work"), "{error}");
        let mut closed = sample(&["request"], 1, 10);
        closed.asked.kind = Kind::Closed;
        let error = closed.merge(&sample(&["request"], 1, 10)).unwrap_err();
        assert!(error.contains("Closed"), "{error}");
    }

    #[test]
    fn merged_demand_is_the_sum() {
        let mut all = sample(&["request"], 1, 10);
        let mut other = all.clone();
        let of = |outcome: &mut Outcome, most, verify| {
            outcome.asked.idle_connections = 3;
            (outcome.asked.requests_max, outcome.asked.verify) = (most, verify);
        };
        of(&mut all, Some(10), false);
        of(&mut other, Some(30), true);
        all.merge(&other).unwrap();
        assert_eq!((all.asked.idle_connections, all.asked.requests_max), (6, Some(40)));
        assert!(all.asked.verify);
        of(&mut other, None, false);
        all.merge(&other).unwrap();
        assert_eq!((all.asked.requests_max, all.asked.verify), (None, true));
    }

    #[test]
    fn what_is_no_outcome_is_refused() {
        let refused =
            |text: &str| Outcome::from_json(serde_json::from_str(text).unwrap()).unwrap_err();
        assert!(refused("{}").contains("not an outcome of weft load"));
        assert!(refused("[1]").contains("not an outcome of weft load"));
        let mut outcome = sample(&["get"], 1, 10).to_json();
        outcome["total"]["classes"][0]["response_ns"] = "HISTFAAA".into();
        assert!(Outcome::from_json(outcome).is_err());
    }
}
