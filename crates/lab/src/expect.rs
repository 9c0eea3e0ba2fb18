//! Expectations: statements about figures, with a margin, that can fail.

use serde::Serialize;

use crate::measure::{Better, Measure};
use crate::numbers::{grouped, show, show_ratio, with_unit};
use crate::rows::{Ratio, Row, Rows};

/// Two figures that differ by less are equal: identical programs differ by as much on a virtual
/// machine.
pub(crate) const MARGIN: f64 = 0.08;

/// An expectation and its verdict.
#[derive(Clone, Debug, Serialize)]
pub struct Expectation {
    /// `yield at 1 processor takes at most 30 ns`.
    pub says: String,
    /// The verdict.
    pub verdict: Judgement,
    /// The figures that decided.
    pub because: String,
    /// The configuration that it is about.
    pub configuration: String,
    /// The [name](Measure::name) of the measure that decided.
    pub measure: &'static str,
}

/// Expectations of an experiment; `None` for one whose system takes no part.
pub type Expectations = Vec<Option<Expectation>>;

/// A verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// The expectation holds.
    Met,
    /// The figure is within the margin of it.
    Equal,
    /// The expectation does not hold.
    Failed,
    /// Its rows are missing, or their measure was not taken.
    NotMeasured,
}

impl Judgement {
    /// The verdict in words.
    pub fn words(self) -> &'static str {
        match self {
            Judgement::Met => "as expected",
            Judgement::Equal => "about equal",
            Judgement::Failed => "target missed",
            Judgement::NotMeasured => "not measured",
        }
    }

    /// Judges a lead: `worse` is the figure that should be ahead by the other one. Within the
    /// margin on either side it is a tie.
    fn of_two(worse: f64) -> Judgement {
        if worse * (1.0 + MARGIN) < 1.0 {
            Judgement::Met
        } else {
            Judgement::of(worse.max(1.0 + f64::EPSILON))
        }
    }

    /// Judges a quotient that should be 1 at most.
    fn of(quotient: f64) -> Judgement {
        if quotient <= 1.0 {
            Judgement::Met
        } else if quotient <= 1.0 + MARGIN {
            Judgement::Equal
        } else {
            Judgement::Failed
        }
    }
}

/// Judges rows by one measure. `label` is a configuration's.
#[derive(Clone, Copy)]
pub struct Judge<'a> {
    rows: &'a Rows,
    measure: &'a Measure,
}

impl Rows {
    /// A judge by this measure.
    pub fn by<'a>(&'a self, measure: &'a Measure) -> Judge<'a> {
        Judge { rows: self, measure }
    }
}

impl Judge<'_> {
    /// Expects a median of at most `limit`.
    pub fn at_most(&self, label: &str, system: &str, limit: f64) -> Option<Expectation> {
        self.bounded(label, system, "most", limit, |median| median / limit)
    }

    /// Expects a median of at least `limit`.
    pub fn at_least(&self, label: &str, system: &str, limit: f64) -> Option<Expectation> {
        self.bounded(label, system, "least", limit, |median| limit / median)
    }

    fn bounded(
        &self,
        label: &str,
        system: &str,
        side: &str,
        limit: f64,
        quotient: impl Fn(f64) -> f64,
    ) -> Option<Expectation> {
        let title = self.measure.title;
        let limit = format!("{} {}", plain(limit), self.measure.unit);
        let median = self.median(label, system);
        let verdict = median.map_or(Judgement::Failed, |it| Judgement::of(quotient(it)));
        self.expectation(
            label,
            format!("{system}, {label}: {title} of at {side} {limit}"),
            self.is_there(label, system).then_some(verdict),
            self.show(label, system) + &self.best(label, system),
        )
    }

    /// Expects the system to be `times` better than the best of `others` that take part: to cost so
    /// many times less, or to do so many times more. `None` if none of them takes part.
    pub fn beats(
        &self,
        label: &str,
        system: &str,
        others: &[&str],
        times: f64,
    ) -> Option<Expectation> {
        let mut asked = others.to_vec();
        asked.retain(|other| self.rows.has_system(other));
        if asked.is_empty() {
            return None;
        }
        let ours = self.median(label, system);
        let there = asked.iter().filter_map(|other| self.reached(label, other));
        let quotient = |theirs| ours.map(|ours| self.behind(ours, theirs, times));
        let quotients = there.map(|theirs| quotient(theirs).unwrap_or(f64::INFINITY));
        let worst = quotients.reduce(f64::max);
        let worst = worst.filter(|_| self.is_there(label, system));
        let figures = asked.iter().map(|other| {
            let lead = show_factor(self.lead(label, system, other), ["", "×"]);
            format!("{other} {}{lead}", self.show(label, other))
        });
        let figures = figures.collect::<Vec<_>>().join("; ");
        let because = format!("{}; {figures}", self.show(label, system));
        let says = self.says_lead(label, system, &asked, times);
        // A lead is more than the margin; a target that is reached is reached.
        let judged = if times == 1.0 { Judgement::of_two } else { Judgement::of };
        self.expectation(label, says, worst.map(judged), because)
    }

    /// `a, c: 2.00× less server CPU per request than b (target 2.2×)`: beside the closest rival.
    fn says_lead(&self, label: &str, system: &str, others: &[&str], times: f64) -> String {
        let Measure { title, better, .. } = *self.measure;
        let names = others.join(", ");
        let (word, factor) = in_words(times, better);
        if times == 1.0 {
            return format!("{system}, {label}: {word} {title} than {names}");
        }
        let at_most = if times < 1.0 { "at most " } else { "" };
        let target = format!("{at_most}{}×", plain(factor));
        let leads = others.iter().filter_map(|other| {
            let lead = self.lead(label, system, other)?.medians;
            (lead.is_finite() && lead > 0.0).then_some((lead, other))
        });
        let closest = leads.min_by(|one, other| one.0.total_cmp(&other.0));
        let Some((lead, rival)) = closest else {
            return format!("{system}, {label}: {target} {word} {title} than {names}");
        };
        let (how, factor) = in_words(lead, better);
        let factor = show_times(factor);
        let target = if how == word { target } else { format!("{target} {word}") };
        format!("{system}, {label}: {factor}× {how} {title} than {rival} (target {target})")
    }

    /// The factor by which a system is better than another one; below 1 it is worse.
    fn lead(&self, label: &str, system: &str, other: &str) -> Option<Ratio> {
        let ratio = self.rows.ratio(self.measure, label, system, other)?;
        Some(match self.measure.better {
            Better::More => ratio,
            _ => Ratio { medians: 1.0 / ratio.medians, best: 1.0 / ratio.best },
        })
    }

    /// Expects two systems to be equal: neither is worse by more than the margin. `None` if one of
    /// them takes no part.
    pub fn same(&self, label: &str, system: &str, other: &str) -> Option<Expectation> {
        if !self.rows.has_system(system) || !self.rows.has_system(other) {
            return None;
        }
        let both = self.median(label, system).zip(self.median(label, other));
        let verdict = both.map(|(ours, theirs)| {
            if ours == theirs {
                return Judgement::Met;
            }
            let worse = self.worse_by(ours, theirs);
            within_margin(worse.max(1.0 / worse))
        });
        let says = format!("{label}: {system} and {other} say the same");
        let because = self.two(" and", (label, system), (label, other));
        self.expectation(label, says, verdict, because)
    }

    /// Expects at most `factor` times the figure of another system. `None` if that takes no part.
    pub fn near(&self, label: &str, system: &str, factor: f64, other: &str) -> Option<Expectation> {
        if !self.rows.has_system(other) {
            return None;
        }
        let most = times(factor);
        let title = self.measure.title;
        let limit = self.reached(label, other).map(|theirs| factor * theirs);
        let says = format!("{system}, {label}: {title} of at most {most}that of {other}");
        let verdict = self.limited(label, system, limit);
        let between = format!("; {other}");
        let because = self.two(&between, (label, system), (label, other));
        self.expectation(label, says, verdict, because)
    }

    /// Expects at most `factor` times the system's own figure in the configuration `of`.
    pub fn within(&self, label: &str, of: &str, system: &str, factor: f64) -> Option<Expectation> {
        let most = times(factor);
        let title = self.measure.title;
        let limit = self.reached(of, system).map(|there| factor * there);
        let says = format!("{system}, {label}: {title} of at most {most}that at {of}");
        let verdict = self.limited(label, system, limit);
        let because = self.two(" against", (label, system), (of, system));
        self.expectation(label, says, verdict, because)
    }

    /// Expects a system's figure to be the same in two configurations, within the margin.
    pub fn alike(&self, label: &str, of: &str, system: &str) -> Option<Expectation> {
        let both = self.median(label, system).zip(self.median(of, system));
        let both = both.filter(|(here, there)| here.min(*there) > 0.0);
        let verdict = both.map(|(here, there)| within_margin((here / there).max(there / here)));
        let title = self.measure.title;
        let says = format!("{system}: the same {title} at {label} and at {of}");
        let because = self.two(" and", (label, system), (of, system));
        self.expectation(label, says, verdict, because)
    }

    fn expectation(
        &self,
        label: &str,
        says: String,
        verdict: Option<Judgement>,
        because: String,
    ) -> Option<Expectation> {
        Some(Expectation {
            configuration: label.to_owned(),
            says,
            verdict: verdict.unwrap_or(Judgement::NotMeasured),
            because,
            measure: self.measure.name,
        })
    }

    /// The part of a target that is missing: 1 is reached. Nothing cannot be fewer than nothing, so
    /// no cost beside no cost is a tie.
    fn behind(&self, ours: f64, theirs: f64, times: f64) -> f64 {
        let is_tie = self.measure.better != Better::More && ours <= 0.0 && theirs <= 0.0;
        if is_tie { 1.0 + f64::EPSILON } else { times * self.worse_by(ours, theirs) }
    }

    /// The factor by which one figure is worse than another. Nothing at all is the worst of rates,
    /// also beside another nothing, and the best of costs.
    fn worse_by(&self, ours: f64, theirs: f64) -> f64 {
        match self.measure.better {
            Better::More if ours <= 0.0 => f64::INFINITY,
            Better::More => theirs / ours,
            _ if ours <= 0.0 => 0.0,
            _ => ours / theirs,
        }
    }

    fn is_there(&self, label: &str, system: &str) -> bool {
        let is_there =
            |row: &Row| !row.is_absent && (!row.failures.is_empty() || row.tells_of(self.measure));
        self.rows.find(label, system).is_some_and(is_there)
    }

    /// Judges a median by a limit, if there is one.
    fn limited(&self, label: &str, system: &str, limit: Option<f64>) -> Option<Judgement> {
        let limit = limit.filter(|_| self.is_there(label, system))?;
        Some(match self.median(label, system) {
            // Also nothing by nothing, which has no quotient.
            Some(median) if median <= limit => Judgement::Met,
            Some(median) => Judgement::of(median / limit),
            None => Judgement::Failed,
        })
    }

    /// The figure to be beaten: the median, or the worst possible of a system that never came to an
    /// end. A system that failed has none.
    fn reached(&self, label: &str, system: &str) -> Option<f64> {
        let row = self.rows.find(label, system)?;
        let is_never = row.failures.is_empty() && row.tells_of(self.measure);
        let worst = match self.measure.better {
            Better::More => 0.0,
            _ => f64::INFINITY,
        };
        let median = row.spread(self.measure).map(|spread| spread.median);
        median.or(is_never.then_some(worst))
    }

    fn median(&self, label: &str, system: &str) -> Option<f64> {
        Some(self.rows.spread(self.measure, label, system)?.median)
    }

    /// Figures of two rows with words between them, and the first by the second.
    fn two(&self, between: &str, of: (&str, &str), by: (&str, &str)) -> String {
        let [first, second] = [of, by].map(|(label, system)| self.show(label, system));
        let ratio = self.rows.ratio_of(self.measure, of, by);
        let ratio = show_factor(ratio, ["ratio ", ""]);
        format!("{first}{between} {second}{ratio}")
    }

    /// `; best sample: 29.1 ns`, of several samples.
    fn best(&self, label: &str, system: &str) -> String {
        let spread = self.rows.spread(self.measure, label, system);
        let several = spread.filter(|spread| spread.count > 1);
        several.map_or(String::new(), |spread| {
            let best = spread.best(self.measure.better);
            format!("; best sample: {}", with_unit(best, self.measure.unit))
        })
    }

    /// The median, and the number of samples without a figure.
    fn show(&self, label: &str, system: &str) -> String {
        let row = self.rows.find(label, system).filter(|row| !row.is_absent);
        let Some(row) = row else {
            return "not measured".to_owned();
        };
        let why = row.why_nothing(self.measure);
        let (without, of) = row.missing(self.measure);
        let median = row.spread(self.measure).map(|spread| spread.median);
        let median = median.map(|median| with_unit(median, self.measure.unit));
        match median {
            Some(median) if without == 0 => median,
            Some(median) => format!("{median}, {why} in {without} of {of}"),
            None if without == 0 || without == of => why.to_owned(),
            None => format!("{why} in {without} of {of}"),
        }
    }
}

/// A tie within the margin counts as met here.
fn within_margin(quotient: f64) -> Judgement {
    match Judgement::of(quotient) {
        Judgement::Failed => Judgement::Failed,
        _ => Judgement::Met,
    }
}

/// `: 2.00× (best samples 4.00×)`, with these texts around each number. Empty where one of the two
/// is nothing.
fn show_factor(ratio: Option<Ratio>, [before, behind]: [&str; 2]) -> String {
    let both = ratio.map(|ratio| [ratio.medians, ratio.best]);
    let both = both.filter(|both| both.iter().all(|it| it.is_finite() && *it > 0.0));
    both.map_or(String::new(), |both| {
        let [medians, best] = both.map(show_times);
        format!(": {before}{medians}{behind} (best samples {best}{behind})")
    })
}

/// A lead as a word and a factor of at least 1: a lead of 0.5 in a cost is `more`, 2.
pub(crate) fn in_words(lead: f64, better: Better) -> (&'static str, f64) {
    let [ahead, behind] = match better {
        Better::More => ["more", "less"],
        _ => ["less", "more"],
    };
    if lead < 1.0 { (behind, 1.0 / lead) } else { (ahead, lead) }
}

/// `0.97`, `194`.
pub(crate) fn show_times(times: f64) -> String {
    if times < 10.0 { show_ratio(times) } else { show(times) }
}

/// `0.8 times `; empty for 1.
fn times(factor: f64) -> String {
    if factor == 1.0 { String::new() } else { format!("{} times ", plain(factor)) }
}

/// A number as a person would write it: `0.7`, `30`, `4,403`.
fn plain(number: f64) -> String {
    if number < 1000.0 {
        let text = format!("{number:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        grouped(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::rows;

    fn verdict(made: Option<Expectation>) -> Judgement {
        made.unwrap().verdict
    }

    /// A measure of which this is the better one.
    fn measure(better: Better) -> Measure {
        Measure { better, ..Measure::CPU_US }
    }

    #[test]
    fn never_missing_and_margin() {
        let rows = rows(&[
            ("a", &[Some(1.0)]),
            ("near a", &[Some(1.05)]),
            ("b", &[Some(2.0)]),
            ("n", &[None, None]),
            ("absent", &[]),
        ]);
        let measure = Measure { can_be_never: true, ..Measure::CPU_US };
        let judge = rows.by(&measure);
        let beats = |of: &str, others: &[&str]| verdict(judge.beats("c", of, others, 1.0));
        assert_eq!(beats("a", &["b", "n", "absent"]), Judgement::Met);
        assert_eq!(beats("near a", &["a", "b"]), Judgement::Equal);
        assert_eq!(beats("a", &["near a", "b"]), Judgement::Equal, "a tie");
        assert_eq!(beats("b", &["a", "n"]), Judgement::Failed);
        assert_eq!(beats("n", &["a"]), Judgement::Failed);
        assert_eq!(beats("a", &["absent"]), Judgement::NotMeasured);
        assert!(judge.beats("c", "a", &["gone"], 1.0).is_none());
        let same = |of, other| verdict(judge.same("c", of, other));
        assert_eq!((same("a", "near a"), same("b", "a")), (Judgement::Met, Judgement::Failed));
        let twice = |of| verdict(judge.beats("c", of, &["b"], 2.0));
        assert_eq!((twice("a"), twice("near a")), (Judgement::Met, Judgement::Equal));
        assert_eq!(verdict(judge.at_most("c", "b", 1.5)), Judgement::Failed);
        assert_eq!(verdict(judge.at_most("c", "n", 1.5)), Judgement::Failed);
        assert_eq!(verdict(judge.at_most("c", "gone", 1.5)), Judgement::NotMeasured);
        assert_eq!(verdict(judge.at_least("c", "b", 1.5)), Judgement::Met);
        let limits = [
            judge.at_most("c", "near a", 1.0),
            judge.at_least("c", "b", 2.1),
            judge.at_least("c", "b", 2.2),
        ];
        assert_eq!(limits.map(verdict), [Judgement::Equal, Judgement::Equal, Judgement::Failed]);
        assert_eq!(verdict(judge.near("c", "b", 1.9, "a")), Judgement::Equal);
        assert_eq!(verdict(judge.within("gone", "c", "a", 2.0)), Judgement::NotMeasured);
    }

    /// Seen: a table of `never`, of a measure that older samples did not have. Cause: a sample
    /// without a figure was one that never came to its end, and was beaten. Cure: a measure says
    /// whether it can be so.
    #[test]
    fn measure_not_taken_is_not_missed() {
        let rows = rows(&[("a", &[Some(1.0)]), ("old", &[None, None])]);
        let judge = rows.by(&Measure::CPU_US);
        let made = judge.beats("c", "a", &["old"], 1.0).unwrap();
        assert_eq!(
            (made.verdict, &*made.because),
            (Judgement::NotMeasured, "1.00 µs; old not measured")
        );
        assert_eq!(verdict(judge.at_most("c", "old", 1.0)), Judgement::NotMeasured);
    }

    /// The margin was on one side: a lead of a thousandth was "as expected", and a lag of it "about
    /// equal".
    #[test]
    fn a_tie_is_no_lead_on_either_side() {
        let rows = rows(&[("a", &[Some(69_500.0)]), ("b", &[Some(69_400.0)])]);
        for better in [Better::More, Better::Less] {
            let measure = measure(better);
            let judge = rows.by(&measure);
            let ahead = |of, by| verdict(judge.beats("c", of, &[by], 1.0));
            assert_eq!(
                (ahead("a", "b"), ahead("b", "a"), ahead("a", "a")),
                (Judgement::Equal, Judgement::Equal, Judgement::Equal)
            );
        }
    }

    #[test]
    fn alike_within_the_margin() {
        let mut all = rows(&[("a", &[Some(1.0)])]);
        for (configuration, figure) in [("near", 1.05), ("far", 1.2)] {
            let mut row = all.find("c", "a").unwrap().clone();
            row.configuration.label = configuration.to_owned();
            let values = &mut row.samples[0].values;
            values.insert("cpu_us".to_owned(), figure);
            all.add(row);
        }
        let judge = all.by(&Measure::CPU_US);
        let alike = |configuration| verdict(judge.alike(configuration, "c", "a"));
        assert_eq!(
            (alike("near"), alike("far"), alike("gone")),
            (Judgement::Met, Judgement::Failed, Judgement::NotMeasured)
        );
    }

    /// Seen: "as expected: weft ahead of nginx in replies (0.00; nginx 0.00)".
    #[test]
    fn zero_rates_are_no_lead() {
        let rows = rows(&[("a", &[Some(0.0)]), ("b", &[Some(0.0)])]);
        let verdict = |better| {
            let measure = measure(better);
            let judge = rows.by(&measure);
            judge.beats("c", "a", &["b"], 10.0).unwrap().verdict
        };
        assert_eq!(verdict(Better::More), Judgement::Failed);
        assert_eq!(verdict(Better::Less), Judgement::Equal);
    }

    /// Seen: "weft ahead of nginx" where two of nginx's three samples had failed. Cause: a row
    /// without a median was one that never came to an end. Cure: only if nothing of it failed.
    #[test]
    fn failed_peer_is_not_beaten() {
        let mut rows = rows(&[("a", &[Some(1.0)]), ("b", &[Some(2.0)]), ("n", &[None])]);
        let failures = ["it crashed", "it crashed"].map(str::to_owned).to_vec();
        rows.find_mut("c", "b").unwrap().failures = failures;
        let never = Measure { can_be_never: true, ..Measure::CPU_US };
        for measure in [&Measure::CPU_US, &never] {
            let judge = rows.by(measure);
            let beaten = verdict(judge.beats("c", "a", &["b"], 1.0));
            let near = verdict(judge.near("c", "a", 1.0, "b"));
            assert_eq!((beaten, near), (Judgement::NotMeasured, Judgement::NotMeasured));
            // That ours failed is told.
            let ours = verdict(judge.beats("c", "b", &["a"], 1.0));
            assert_eq!(
                (ours, verdict(judge.at_most("c", "b", 9.0))),
                (Judgement::Failed, Judgement::Failed)
            );
        }
        let judge = rows.by(&never);
        let near = verdict(judge.near("c", "a", 1.0, "n"));
        assert_eq!(near, Judgement::Met, "the other one never came to an end");
    }

    /// Seen: two figures of 0 were "NOT AS EXPECTED: say the same". Cause: the quotient of nothing
    /// by nothing. Cure: it is not asked for.
    #[test]
    fn zero_equals_zero() {
        let rows = rows(&[("a", &[Some(0.0)]), ("b", &[Some(0.0)]), ("one", &[Some(1.0)])]);
        for better in [Better::Less, Better::More] {
            let measure = measure(better);
            let judge = rows.by(&measure);
            let same = |other| verdict(judge.same("c", "a", other));
            assert_eq!((same("b"), same("one")), (Judgement::Met, Judgement::Failed));
            let near = |of, other| verdict(judge.near("c", of, 0.7, other));
            assert_eq!((near("a", "b"), near("one", "b")), (Judgement::Met, Judgement::Failed));
            assert_eq!(verdict(judge.within("c", "c", "a", 0.7)), Judgement::Met);
        }
    }

    /// Seen: "as expected: recovery of at most 1 s (0.800 s)" of a server that did not recover in
    /// one of three samples.
    #[test]
    fn reason_counts_missing_figures() {
        let rows = rows(&[
            ("a", &[Some(0.8), Some(0.6), None]),
            ("b", &[None, Some(1.2), None]),
            ("n", &[None]),
        ]);
        let measure = Measure { can_be_never: true, ..Measure::CPU_US };
        let judge = rows.by(&measure);
        let because = |system| judge.at_most("c", system, 1.0).unwrap().because;
        assert_eq!(because("a"), "0.800 µs, never in 1 of 3; best sample: 0.600 µs");
        assert_eq!(because("b"), "never in 2 of 3");
        assert_eq!(because("n"), "never");
    }

    #[test]
    fn of_rates_the_greater_one_is_ahead() {
        let rows = rows(&[("a", &[Some(200.0)]), ("b", &[Some(100.0)])]);
        let measure = measure(Better::More);
        let judge = rows.by(&measure);
        let verdict = |of, by| verdict(judge.beats("c", of, &[by], 1.5));
        assert_eq!((verdict("a", "b"), verdict("b", "a")), (Judgement::Met, Judgement::Failed));
    }

    /// Seen: "as expected: 10 times as good as nginx in requests that failed (0 %; nginx 0 %)", of
    /// an overload in which nothing could fail. Cause: nothing was ahead of anything. Cure: beside
    /// another nothing it is a tie, whatever was asked.
    #[test]
    fn two_that_have_no_errors_are_equal() {
        let rows = rows(&[("a", &[Some(0.0)]), ("b", &[Some(0.0)]), ("c", &[Some(1.0)])]);
        let judge = rows.by(&Measure::CPU_US);
        for times in [0.5, 1.0, 10.0] {
            let made = judge.beats("c", "a", &["b", "c"], times).unwrap();
            assert_eq!(
                (made.verdict, &*made.because),
                (Judgement::Equal, "0 µs; b 0 µs; c 1.00 µs")
            );
        }
        let verdict = |of, by| judge.beats("c", of, &[by], 10.0).unwrap().verdict;
        assert_eq!((verdict("a", "c"), verdict("c", "a")), (Judgement::Met, Judgement::Failed));
    }

    /// Seen: "resident memory of each of at most 4403.2 bytes (4,595 bytes)".
    #[test]
    fn numbers_of_limits() {
        let shown = [0.7, 1.0, 1.35, 30.0, 95.0, 1000.0, 4.3 * 1024.0].map(plain);
        let expected = ["0.7", "1", "1.35", "30", "95", "1,000", "4,403"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_reason_names_the_figures() {
        let rows = rows(&[("a", &[Some(1.0), Some(2.0), Some(3.0)]), ("b", &[Some(4.0)])]);
        let judge = rows.by(&Measure::CPU_US);
        let made = judge.beats("c", "a", &["b", "gone"], 1.0).unwrap();
        assert_eq!(made.says, "a, c: less server CPU per request than b");
        assert_eq!(made.because, "2.00 µs; b 4.00 µs: 2.00× (best samples 4.00×)");
    }

    /// Seen: "NOT AS EXPECTED: 2.2 times as good as nginx (…: 2.00 times as good)", which reads as
    /// if it had been slower.
    #[test]
    fn a_lead_is_told_before_its_target() {
        let rows = rows(&[("a", &[Some(1.0)]), ("b", &[Some(2.0)]), ("c", &[Some(4.0)])]);
        let judge = rows.by(&Measure::CPU_US);
        let made = judge.beats("c", "a", &["b", "c"], 2.2).unwrap();
        let title = Measure::CPU_US.title;
        assert_eq!(
            format!("{}: {}", made.verdict.words(), made.says),
            format!("target missed: a, c: 2.00× less {title} than b (target 2.2×)")
        );
        let made = judge.beats("c", "b", &["a"], 0.4).unwrap();
        assert_eq!(
            (made.verdict, made.says),
            (Judgement::Met, format!("b, c: 2.00× more {title} than a (target at most 2.5×)"))
        );
    }

    /// Seen: "0.65 µs; other 1.00 µs", and nothing said of the best samples, beside any bound but
    /// that of being ahead.
    #[test]
    fn best_samples_beside_medians() {
        let mut rows = rows(&[
            ("a", &[Some(1.0), Some(2.0), Some(3.0)]),
            ("b", &[Some(4.0)]),
            ("none", &[Some(0.0)]),
        ]);
        let mut far = rows.find("c", "b").unwrap().clone();
        (far.configuration.label, far.system) = ("far".to_owned(), "a".to_owned());
        rows.add(far);
        let judge = rows.by(&Measure::CPU_US);
        let because = |made: Option<Expectation>| made.unwrap().because;
        assert_eq!(
            because(judge.near("c", "a", 0.7, "b")),
            "2.00 µs; b 4.00 µs: ratio 0.50 (best samples 0.25)"
        );
        assert_eq!(
            because(judge.within("far", "c", "a", 2.0)),
            "4.00 µs against 2.00 µs: ratio 2.00 (best samples 4.00)"
        );
        let and = "4.00 µs and 2.00 µs: ratio 2.00 (best samples 4.00)";
        assert_eq!(because(judge.same("c", "b", "a")), and);
        assert_eq!(because(judge.alike("far", "c", "a")), and);
        assert_eq!(because(judge.at_most("c", "a", 1.5)), "2.00 µs; best sample: 1.00 µs");
        assert_eq!(because(judge.at_most("c", "b", 1.5)), "4.00 µs");
        // By nothing there is no quotient.
        assert_eq!(because(judge.near("c", "a", 0.7, "none")), "2.00 µs; none 0 µs");
    }
}
