//! Expectations: statements about figures, that can fail.
//!
//! A verdict is about the 95 % interval of a ratio of medians (or of a median, where a limit is a
//! number): *as expected* if all of it is on the good side, *target missed* if none of it is, and
//! *about equal* between. From fewer than [`SAMPLES_MIN`] samples there is no such verdict, but
//! what it seems to be.

mod tally;

use serde::Serialize;
pub(crate) use tally::Tally;

use crate::measure::{Better, Measure};
use crate::numbers::{SAMPLES_MIN, bootstrap, grouped, show, show_ratio, with_unit};
use crate::rows::{Ratio, Row, Rows};

/// A lead is at least this: builds of one source differ by as much, however many samples there are.
const RESOLUTION: f64 = 0.02;
/// Two figures are the same if the interval shows that they differ by less.
pub(crate) const SAME: f64 = 0.08;
/// Part of a ceiling's lead that is asked for where more is not to be had.
const REACH: f64 = 0.9;

/// An expectation and its verdict.
#[derive(Clone, Debug, Serialize)]
pub struct Expectation {
    /// `yield at 1 processor takes at most 30 ns`.
    pub says: String,
    /// The verdict.
    pub verdict: Judgement,
    /// True if there were samples enough for it.
    pub is_sure: bool,
    /// Its origin.
    pub source: ExpectationSource,
    /// The figures that decided.
    pub because: String,
    /// The configuration that it is about.
    pub configuration: String,
    /// The [name](Measure::name) of the measure that decided.
    pub measure: &'static str,
}

/// Expectations of an experiment; `None` for one whose system takes no part.
pub type Expectations = Vec<Option<Expectation>>;

/// Origin of an expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpectationSource {
    /// A paper found it.
    Paper,
    /// It is a goal of this project.
    Goal,
}

impl ExpectationSource {
    /// The origin in a word.
    pub fn word(self) -> &'static str {
        match self {
            ExpectationSource::Paper => "paper",
            ExpectationSource::Goal => "goal",
        }
    }
}

/// Marks what a paper found.
pub(crate) fn paper(made: Option<Expectation>) -> Option<Expectation> {
    made.map(|made| Expectation { source: ExpectationSource::Paper, ..made })
}

/// A verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// The expectation holds.
    Met,
    /// The interval has both sides of it.
    Equal,
    /// The expectation does not hold.
    Failed,
    /// Its rows are missing, or their measure was not taken.
    NotMeasured,
}

impl Expectation {
    /// The verdict in words.
    pub fn words(&self) -> &'static str {
        match (self.verdict, self.is_sure) {
            (Judgement::Met, true) => "as expected",
            (Judgement::Equal, true) => "about equal",
            (Judgement::Failed, true) => "target missed",
            (Judgement::Met, false) => "seems so",
            (Judgement::Equal, false) => "seems equal",
            (Judgement::Failed, false) => "seems missed",
            (Judgement::NotMeasured, _) => "not measured",
        }
    }
}

/// A rule by which an interval of a quotient is judged.
#[derive(Clone, Copy)]
enum Rule {
    /// 1 at most.
    Bound,
    /// Less than 1.
    Lead,
    /// 1.
    Same,
}

impl Rule {
    fn judge(self, (from, to): (f64, f64)) -> Judgement {
        let (is_good, is_bad) = match self {
            Rule::Bound => (to <= 1.0, from > 1.0),
            Rule::Lead => (to * (1.0 + RESOLUTION) < 1.0, from > 1.0 + RESOLUTION),
            Rule::Same => (
                from * (1.0 + SAME) >= 1.0 && to <= 1.0 + SAME,
                from > 1.0 + SAME || to * (1.0 + SAME) < 1.0,
            ),
        };
        match (is_good, is_bad) {
            (true, _) => Judgement::Met,
            (_, true) => Judgement::Failed,
            _ => Judgement::Equal,
        }
    }
}

/// Judges rows by one measure. `label` is a configuration's.
#[derive(Clone, Copy)]
pub struct Judge<'a> {
    rows: &'a Rows,
    measure: &'a Measure,
    ceilings: &'a [&'a str],
}

/// A row: a configuration and a system.
type At<'a> = (&'a str, &'a str);

/// A verdict, and whether there are samples enough for it.
type Verdict = (Judgement, bool);

impl Rows {
    /// A judge by this measure.
    pub fn by<'a>(&'a self, measure: &'a Measure) -> Judge<'a> {
        Judge { rows: self, measure, ceilings: &[] }
    }
}

impl<'a> Judge<'a> {
    /// A judge who asks for no more than a part of what these systems reach, that do next to
    /// nothing: where the kernel is the limit, more is not to be had.
    pub(crate) fn below(self, ceilings: &'a [&'a str]) -> Judge<'a> {
        Judge { ceilings, ..self }
    }

    /// Expects a median of at most `limit`.
    pub fn at_most(&self, label: &str, system: &str, limit: f64) -> Option<Expectation> {
        self.bounded(label, system, ("most", limit), |median| over(median, limit))
    }

    /// Expects a median of at least `limit`.
    pub fn at_least(&self, label: &str, system: &str, limit: f64) -> Option<Expectation> {
        self.bounded(label, system, ("least", limit), |median| over(limit, median))
    }

    fn bounded(
        &self,
        label: &str,
        system: &str,
        (side, limit): (&str, f64),
        quotient: impl Fn(f64) -> f64,
    ) -> Option<Expectation> {
        let title = self.measure.title;
        let limit = format!("{} {}", plain(limit), self.measure.unit);
        let verdict = self.verdict([(label, system)], Rule::Bound, |[ours]| quotient(ours));
        self.expectation(
            label,
            format!("{system}, {label}: {title} of at {side} {limit}"),
            verdict,
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
        let wanted = self.within_reach(label, &asked, times);
        let rule = if wanted == 1.0 { Rule::Lead } else { Rule::Bound };
        let verdicts = asked.iter().filter_map(|other| {
            let tie = self.tie(label, system, other);
            let behind = |[ours, theirs]: [f64; 2]| self.behind(ours, theirs, wanted);
            let verdict = tie.or(self.verdict([(label, system), (label, other)], rule, behind));
            Some((*other, verdict?))
        });
        let verdicts: Vec<(&str, Verdict)> = verdicts.collect();
        let is_sure = verdicts.iter().all(|(_, (_, is_sure))| *is_sure);
        let worst = verdicts.iter().map(|(_, (verdict, _))| *verdict).max_by_key(|it| *it as u8);
        let worst = worst.map(|worst| (worst, is_sure));
        let figures = asked.iter().map(|other| {
            let lead = self.lead(label, system, other);
            let bounds = self.rows.bounds_of(self.measure, (label, system), (label, other));
            let bounds = bounds.map(|(from, to)| match self.measure.better {
                Better::More => (from, to),
                _ => (1.0 / to, 1.0 / from),
            });
            format!("{other} {}{}", self.show(label, other), show_factor(lead, bounds, ["", "×"]))
        });
        let figures = figures.collect::<Vec<_>>().join("; ");
        let because = format!("{}; {figures}", self.show(label, system));
        // What failed, or is not there, has not been beaten.
        let compared: Vec<&str> = verdicts.iter().map(|(other, _)| *other).collect();
        let named = if compared.is_empty() { &asked } else { &compared };
        let says = self.says_lead((label, system), named, times, wanted);
        self.expectation(label, says, worst, because)
    }

    /// The lead that is asked for: a part of what the best ceiling has, if that is less.
    fn within_reach(&self, label: &str, others: &[&str], times: f64) -> f64 {
        let is_known = |ceiling: &&&str| {
            let figures = self.figures(label, ceiling);
            figures.is_some_and(|figures| self.is_enough(figures.len()))
        };
        let leads = self.ceilings.iter().filter(is_known).filter_map(|ceiling| {
            let leads = others.iter().filter_map(|other| self.lead(label, ceiling, other));
            leads.map(|lead| REACH * lead.medians).reduce(f64::min)
        });
        let leads = leads.filter(|lead| lead.is_finite());
        leads.reduce(f64::max).map_or(times, |reach| times.min(reach.max(1.0)))
    }

    /// Nothing cannot be fewer than nothing: no cost beside no cost is a tie, whatever was asked.
    fn tie(&self, label: &str, system: &str, other: &str) -> Option<Verdict> {
        let rows = [system, other].map(|one| self.figures(label, one));
        let [ours, theirs] = rows.each_ref().map(|row| row.as_deref().unwrap_or_default());
        let is_nothing = |side: &[f64]| !side.is_empty() && side.iter().all(|it| *it <= 0.0);
        let is_tie = self.measure.better != Better::More && is_nothing(ours) && is_nothing(theirs);
        is_tie.then(|| (Judgement::Equal, self.is_enough(ours.len().min(theirs.len()))))
    }

    /// `a, c: 2.00× less server CPU per request than b (target 2.2×)`: beside the closest rival.
    fn says_lead(
        &self,
        (label, system): At<'_>,
        others: &[&str],
        times: f64,
        wanted: f64,
    ) -> String {
        let Measure { title, better, .. } = *self.measure;
        let names = others.join(", ");
        let (word, factor) = in_words(times, better);
        if times == 1.0 {
            return format!("{system}, {label}: {word} {title} than {names}");
        }
        let at_most = if times < 1.0 { "at most " } else { "" };
        let or = match (self.ceilings, wanted < times) {
            ([], _) => String::new(),
            (_, true) => format!(", or {REACH} of a ceiling's lead: {}×", show_times(wanted)),
            (_, false) => format!(", or {REACH} of a ceiling's lead"),
        };
        let target = format!("{at_most}{}×", plain(factor));
        let leads = others.iter().filter_map(|other| {
            let lead = self.lead(label, system, other)?.medians;
            (lead.is_finite() && lead > 0.0).then_some((lead, other))
        });
        let closest = leads.min_by(|one, other| one.0.total_cmp(&other.0));
        let Some((lead, rival)) = closest else {
            return format!("{system}, {label}: {target} {word} {title} than {names}{or}");
        };
        let (how, factor) = in_words(lead, better);
        let factor = show_times(factor);
        let target = if how == word { target } else { format!("{target} {word}") };
        format!("{system}, {label}: {factor}× {how} {title} than {rival} (target {target}{or})")
    }

    /// The factor by which a system is better than another one; below 1 it is worse.
    fn lead(&self, label: &str, system: &str, other: &str) -> Option<Ratio> {
        let ratio = self.rows.ratio(self.measure, label, system, other)?;
        Some(match self.measure.better {
            Better::More => ratio,
            _ => Ratio { medians: 1.0 / ratio.medians, best: 1.0 / ratio.best },
        })
    }

    /// Expects two systems to be the same. `None` if one of them takes no part.
    pub fn same(&self, label: &str, system: &str, other: &str) -> Option<Expectation> {
        if !self.rows.has_system(system) || !self.rows.has_system(other) {
            return None;
        }
        let sides = [(label, system), (label, other)];
        let is_something = sides.iter().all(|(at, system)| self.median(at, system).is_some());
        let verdict = self.verdict(sides, Rule::Same, |[ours, theirs]| equal_or(ours, theirs));
        let verdict = verdict.filter(|_| is_something);
        let says = format!("{label}: {system} and {other} say the same");
        self.expectation(label, says, verdict, self.two(" and", sides))
    }

    /// Expects at most `factor` times the figure of another system. `None` if that takes no part.
    pub fn near(&self, label: &str, system: &str, factor: f64, other: &str) -> Option<Expectation> {
        if !self.rows.has_system(other) {
            return None;
        }
        let most = times(factor);
        let title = self.measure.title;
        let says = format!("{system}, {label}: {title} of at most {most}that of {other}");
        let sides = [(label, system), (label, other)];
        let verdict = self.limited(sides, factor);
        self.expectation(label, says, verdict, self.two(&format!("; {other}"), sides))
    }

    /// Expects at most `factor` times the system's own figure in the configuration `of`.
    pub fn within(&self, label: &str, of: &str, system: &str, factor: f64) -> Option<Expectation> {
        let most = times(factor);
        let title = self.measure.title;
        let says = format!("{system}, {label}: {title} of at most {most}that at {of}");
        let sides = [(label, system), (of, system)];
        let verdict = self.limited(sides, factor);
        self.expectation(label, says, verdict, self.two(" against", sides))
    }

    /// Expects a system's figure to be the same in two configurations.
    pub fn alike(&self, label: &str, of: &str, system: &str) -> Option<Expectation> {
        let sides = [(label, system), (of, system)];
        let is_something = self.median(of, system) > Some(0.0);
        let verdict = self.verdict(sides, Rule::Same, |[here, there]| equal_or(here, there));
        let title = self.measure.title;
        let says = format!("{system}: the same {title} at {label} and at {of}");
        let verdict = verdict.filter(|_| is_something);
        self.expectation(label, says, verdict, self.two(" and", sides))
    }

    fn expectation(
        &self,
        label: &str,
        says: String,
        verdict: Option<Verdict>,
        because: String,
    ) -> Option<Expectation> {
        let (verdict, is_sure) = verdict.unwrap_or((Judgement::NotMeasured, true));
        Some(Expectation {
            configuration: label.to_owned(),
            says,
            verdict,
            is_sure,
            source: ExpectationSource::Goal,
            because,
            measure: self.measure.name,
        })
    }

    /// The part of a target that is missing: 1 is reached. Nothing beside nothing is a tie.
    fn behind(&self, ours: f64, theirs: f64, wanted: f64) -> f64 {
        let is_tie = self.measure.better != Better::More && ours <= 0.0 && theirs <= 0.0;
        if is_tie { 1.0 } else { wanted * self.worse_by(ours, theirs) }
    }

    /// The factor by which one figure is worse than another. Nothing at all is the worst of rates,
    /// also beside another nothing, and the best of costs.
    fn worse_by(&self, ours: f64, theirs: f64) -> f64 {
        match self.measure.better {
            Better::More if ours <= 0.0 => f64::INFINITY,
            Better::More => theirs / ours,
            _ => over(ours, theirs),
        }
    }

    /// Judges a quotient of rows' medians, the first of which is ours. `None` if ours is not there,
    /// or another one's figure is not known.
    fn verdict<const N: usize>(
        &self,
        sides: [At<'_>; N],
        rule: Rule,
        quotient: impl Fn([f64; N]) -> f64,
    ) -> Option<Verdict> {
        let rows = sides.map(|(label, system)| self.figures(label, system));
        let is_reached = |&(label, system): &At<'_>| self.is_reached(label, system);
        if rows.iter().any(Option::is_none) || !sides[1..].iter().all(is_reached) {
            return None;
        }
        let figures = rows.each_ref().map(|row| row.as_deref().unwrap_or_default());
        let fewest = figures.iter().map(|row| row.len()).min().unwrap_or(0);
        // Without a figure in the middle nothing is reached, however the samples are drawn.
        let (label, system) = sides[0];
        let verdict = match self.median(label, system) {
            None => Judgement::Failed,
            Some(_) => rule.judge(bootstrap(figures, quotient)),
        };
        Some((verdict, self.is_enough(fewest)))
    }

    fn is_enough(&self, samples: usize) -> bool {
        self.measure.is_exact || samples >= SAMPLES_MIN
    }

    /// Judges one row by so many times another.
    fn limited(&self, sides: [At<'_>; 2], factor: f64) -> Option<Verdict> {
        self.verdict(sides, Rule::Bound, |[ours, theirs]| over(ours, factor * theirs))
    }

    /// A row's figures, with the worst for each that is missing; `None` if it was not measured.
    fn figures(&self, label: &str, system: &str) -> Option<Vec<f64>> {
        let is_there =
            |row: &&Row| !row.is_absent && (!row.failures.is_empty() || row.tells_of(self.measure));
        self.rows.find(label, system).filter(is_there).map(|row| row.ranked(self.measure))
    }

    /// True if a row is something to be compared with: it has a median, or never came to an end
    /// without failing.
    fn is_reached(&self, label: &str, system: &str) -> bool {
        let row = self.rows.find(label, system);
        row.is_some_and(|row| row.failures.is_empty() || row.spread(self.measure).is_some())
    }

    fn median(&self, label: &str, system: &str) -> Option<f64> {
        Some(self.rows.spread(self.measure, label, system)?.median)
    }

    /// Figures of two rows with words between them, and the first by the second.
    fn two(&self, between: &str, [of, by]: [At<'_>; 2]) -> String {
        let [first, second] = [of, by].map(|(label, system)| self.show(label, system));
        let ratio = self.rows.ratio_of(self.measure, of, by);
        let bounds = self.rows.bounds_of(self.measure, of, by);
        let ratio = show_factor(ratio, bounds, ["ratio ", ""]);
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

/// A figure by its limit, which is reached by as much. What never came to an end is over any.
fn over(figure: f64, limit: f64) -> f64 {
    if figure == limit && figure.is_finite() {
        1.0
    } else if figure.is_infinite() {
        figure
    } else {
        figure / limit
    }
}

/// The quotient of two figures; of nothing by nothing 1.
fn equal_or(one: f64, other: f64) -> f64 {
    if one == other { 1.0 } else { one / other }
}

/// `: 2.00× (1.90–2.10; best samples 4.00×)`, with these texts around each number. Empty where one
/// of the two is nothing.
fn show_factor(
    ratio: Option<Ratio>,
    bounds: Option<(f64, f64)>,
    [before, behind]: [&str; 2],
) -> String {
    let both = ratio.map(|ratio| [ratio.medians, ratio.best]);
    let both = both.filter(|both| both.iter().all(|it| it.is_finite() && *it > 0.0));
    both.map_or(String::new(), |both| {
        let [medians, best] = both.map(show_times);
        let bounds = bounds.filter(|(_, to)| to.is_finite());
        let bounds = bounds.map_or(String::new(), |(from, to)| {
            let [from, to] = [from, to].map(show_times);
            format!("{from}–{to}; ")
        });
        format!(": {before}{medians}{behind} ({bounds}best samples {best}{behind})")
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
    fn never_missing_and_ties() {
        let rows = rows(&[
            ("a", &[Some(1.0)]),
            ("near a", &[Some(1.01)]),
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
        assert_eq!((twice("a"), twice("near a")), (Judgement::Met, Judgement::Failed));
        assert_eq!(verdict(judge.at_most("c", "b", 1.5)), Judgement::Failed);
        assert_eq!(verdict(judge.at_most("c", "n", 1.5)), Judgement::Failed);
        assert_eq!(verdict(judge.at_most("c", "gone", 1.5)), Judgement::NotMeasured);
        assert_eq!(verdict(judge.at_least("c", "b", 1.5)), Judgement::Met);
        let limits = [judge.at_most("c", "near a", 1.0), judge.at_least("c", "b", 2.1)];
        assert_eq!(limits.map(verdict), [Judgement::Failed, Judgement::Failed]);
        assert_eq!(verdict(judge.near("c", "b", 1.9, "a")), Judgement::Failed);
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

    /// Seen: "about equal" of any two figures that differed by less than 8 %, however sure the
    /// difference was, and "target missed" of one that was not.
    #[test]
    fn the_interval_decides() {
        let around =
            |middle: f64, by: f64| [-1.0, -0.5, 0.0, 0.5, 1.0].map(|at| Some(middle + at * by));
        let rows = rows(&[
            ("a", &around(1.0, 0.01)),
            ("sure", &around(1.05, 0.01)),
            ("unsure", &around(1.2, 0.5)),
            ("twice", &around(2.0, 0.2)),
            ("near", &around(1.05, 0.045)),
        ]);
        let judge = rows.by(&Measure::CPU_US);
        let lead = |of, by, times| judge.beats("c", of, &[by], times).unwrap();
        assert_eq!(lead("a", "sure", 1.0).words(), "as expected");
        assert_eq!(lead("sure", "a", 1.0).words(), "target missed");
        assert_eq!(lead("a", "unsure", 1.0).words(), "about equal");
        assert_eq!(lead("a", "twice", 1.5).words(), "as expected");
        assert_eq!(lead("a", "twice", 2.0).words(), "about equal");
        assert_eq!(lead("a", "twice", 3.0).words(), "target missed");
        let limit = |most| judge.at_most("c", "twice", most).unwrap().words();
        assert_eq!([2.3, 2.0, 1.7].map(limit), ["as expected", "about equal", "target missed"]);
        let same = |other| judge.same("c", "a", other).unwrap().words();
        assert_eq!(
            ["sure", "unsure", "near", "twice"].map(same),
            ["as expected", "about equal", "about equal", "target missed"]
        );
        let because = lead("a", "twice", 1.5).because;
        assert!(because.starts_with("1.00 µs; twice 2.00 µs: 2.00× (1.80–2.20;"), "{because}");
    }

    /// Seen: "as expected" from one sample.
    #[test]
    fn few_samples_are_sure_of_nothing() {
        let words = |samples: usize, measure: &Measure| {
            let [fast, slow] = [1.0, 2.0].map(|figure| vec![Some(figure); samples]);
            let rows = rows(&[("a", &fast), ("b", &slow)]);
            let judge = rows.by(measure);
            let made = [
                judge.beats("c", "a", &["b"], 1.0),
                judge.beats("c", "b", &["a"], 1.0),
                judge.at_most("c", "a", 1.0),
                judge.same("c", "a", "b"),
            ];
            made.map(|made| made.unwrap().words())
        };
        for samples in 1..SAMPLES_MIN {
            let expected = ["seems so", "seems missed", "seems so", "seems missed"];
            assert_eq!(words(samples, &Measure::CPU_US), expected);
        }
        let expected = ["as expected", "target missed", "as expected", "target missed"];
        assert_eq!(words(SAMPLES_MIN, &Measure::CPU_US), expected);
        // What is computed is the same each time.
        assert_eq!(words(1, &Measure { is_exact: true, ..Measure::CPU_US }), expected);
    }

    /// Seen: "less than b, n" as expected, where n had crashed; and a verdict from five samples of
    /// one rival and two of another.
    #[test]
    fn a_lead_is_over_those_that_were_compared() {
        let fast = [Some(1.0); 5];
        let slow = [Some(2.0); 5];
        let mut rows = rows(&[("a", &fast), ("b", &slow), ("few", &slow[..2]), ("n", &slow)]);
        rows.find_mut("c", "n").unwrap().samples.clear();
        rows.find_mut("c", "n").unwrap().failures = vec!["it crashed".to_owned()];
        let judge = rows.by(&Measure::CPU_US);
        let made = |others| judge.beats("c", "a", others, 1.0).unwrap();
        assert_eq!(made(&["b", "n"]).says, made(&["b"]).says);
        let words = [&["few", "b"], &["b", "few"]].map(|others| made(others).words());
        assert_eq!(words, ["seems so"; 2]);
    }

    /// Seen: "not measured" of a server that answered nothing, where it was to answer as much as
    /// elsewhere.
    #[test]
    fn nothing_is_not_like_something() {
        let mut all = rows(&[("a", &[Some(9.0); 5])]);
        let mut row = all.find("c", "a").unwrap().clone();
        row.configuration.label = "starved".to_owned();
        for sample in &mut row.samples {
            sample.values.insert("cpu_us".to_owned(), 0.0);
        }
        all.add(row);
        let measure = measure(Better::More);
        let judge = all.by(&measure);
        assert_eq!(judge.alike("starved", "c", "a").unwrap().words(), "target missed");
        assert_eq!(judge.alike("c", "starved", "a").unwrap().words(), "not measured");
    }

    /// Seen: goals above what a responder reaches that does nothing. Cause: they were set on
    /// another host. Cure: nine tenths of its lead are enough.
    #[test]
    fn a_ceiling_bounds_the_goal() {
        let rows = rows(&[
            ("a", &[Some(1.4); 5]),
            ("b", &[Some(2.0); 5]),
            ("bare", &[Some(1.3); 5]),
            ("slow", &[Some(3.0); 5]),
            ("few", &[Some(1.3)]),
        ]);
        let judge = |ceilings| rows.by(&Measure::CPU_US).below(ceilings);
        let wants = |ceilings, times| {
            let made = judge(ceilings).beats("c", "a", &["b"], times).unwrap();
            let (_, target) = made.says.split_once(" (target ").unwrap();
            (made.words(), target.to_owned())
        };
        assert_eq!(wants(&[], 2.0), ("target missed", "2×)".to_owned()));
        let less = "2×, or 0.9 of a ceiling's lead: 1.38×)".to_owned();
        assert_eq!(wants(&["slow", "bare", "gone"], 2.0), ("as expected", less));
        let more = "1.2×, or 0.9 of a ceiling's lead)".to_owned();
        assert_eq!(wants(&["bare"], 1.2), ("as expected", more));
        // A ceiling behind the rival leaves a lead to be had, if any.
        let slow = "2×, or 0.9 of a ceiling's lead: 1.00×)".to_owned();
        assert_eq!(wants(&["slow"], 2.0), ("as expected", slow));
        // One sample of a ceiling moves no goal.
        let few = "2×, or 0.9 of a ceiling's lead)".to_owned();
        assert_eq!(wants(&["few"], 2.0), ("target missed", few));
    }

    #[test]
    fn findings_and_goals_are_counted_apart() {
        let made = |verdict, is_sure, source| Expectation {
            says: String::new(),
            verdict,
            is_sure,
            source,
            because: String::new(),
            configuration: String::new(),
            measure: "",
        };
        let all = [
            made(Judgement::Met, true, ExpectationSource::Paper),
            made(Judgement::Failed, true, ExpectationSource::Paper),
            made(Judgement::Met, false, ExpectationSource::Paper),
            made(Judgement::Met, true, ExpectationSource::Goal),
            made(Judgement::Equal, true, ExpectationSource::Goal),
            made(Judgement::Failed, false, ExpectationSource::Goal),
            made(Judgement::NotMeasured, true, ExpectationSource::Goal),
        ];
        assert_eq!(
            Tally::of(&all).sentences(),
            "1 of 2 findings of the papers are seen here. 1 of 2 goals of this project are \
             reached, 1 about equal. Of 2 there are too few samples for a verdict. Not measured: 1."
        );
        let Tally { findings, reached, equal, missed, unsure, not_measured, .. } = Tally::of(&all);
        assert_eq!(findings + reached + equal + missed + unsure + not_measured, all.len());
        assert_eq!(Tally::of(&all[3..4]).sentences(), "1 of 1 goals of this project are reached.");
        assert_eq!(Tally::default().sentences(), "");
        let rows = rows(&[("a", &[Some(1.0)])]);
        let made = rows.by(&Measure::CPU_US).at_most("c", "a", 1.0);
        assert_eq!(made.as_ref().unwrap().source, ExpectationSource::Goal);
        assert_eq!(paper(made).unwrap().source, ExpectationSource::Paper);
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
        // One error of several samples is no error in the middle.
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
            format!("{}: {}", made.words(), made.says),
            format!("seems missed: a, c: 2.00× less {title} than b (target 2.2×)")
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
