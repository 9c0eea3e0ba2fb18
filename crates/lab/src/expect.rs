//! Expectations: statements about figures that can fail.
//!
//! A verdict is about the 95 % interval of a ratio of medians (or of a median, if a limit is a
//! number): *as expected* if the whole interval is on the good side, *target missed* if none of it
//! is, and *about equal* between. With fewer than [`SAMPLES_MIN`] samples the verdict is only
//! tentative.

mod tally;
#[cfg(test)]
mod tests;

use serde::Serialize;
pub(crate) use tally::Tally;

use crate::measure::{Better, Measure};
use crate::numbers::{SAMPLES_MIN, bootstrap, grouped, show, show_ratio, with_unit};
use crate::rows::{Ratio, Row, Rows};

/// Minimum of a lead: builds of the same source differ by as much, with any number of samples.
const RESOLUTION: f64 = 0.02;
/// Two figures are the same if the interval shows a smaller difference.
pub(crate) const SAME: f64 = 0.08;
/// Share of a ceiling's lead that is required where the full target is out of reach.
const REACH: f64 = 0.9;
/// Value for a lead between two zeros: neither reached nor missed.
const TIE: f64 = 1.0 + 1e-9;

/// An expectation and its verdict.
#[derive(Clone, Debug, Serialize)]
pub struct Expectation {
    /// `yield at 1 processor takes at most 30 ns`.
    pub says: String,
    /// The verdict.
    pub verdict: Judgement,
    /// True if there are enough samples for it.
    pub is_sure: bool,
    /// Its origin.
    pub source: ExpectationSource,
    /// The figures that decided.
    pub because: String,
    /// The configuration judged.
    pub configuration: String,
    /// The [name](Measure::name) of the measure that decided.
    pub measure: &'static str,
}

/// Expectations of an experiment; `None` for one whose system does not take part.
pub type Expectations = Vec<Option<Expectation>>;

/// Origin of an expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpectationSource {
    /// A finding of a paper.
    Paper,
    /// A goal of this project.
    Goal,
}

impl ExpectationSource {
    /// The origin as a word.
    pub fn word(self) -> &'static str {
        match self {
            ExpectationSource::Paper => "paper",
            ExpectationSource::Goal => "goal",
        }
    }
}

/// Marks an expectation as a paper's finding.
pub(crate) fn paper(made: Option<Expectation>) -> Option<Expectation> {
    made.map(|made| Expectation { source: ExpectationSource::Paper, ..made })
}

/// A verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// The expectation holds.
    Met,
    /// The interval includes both sides.
    Equal,
    /// The expectation does not hold.
    Failed,
    /// Rows are missing, or their measure was not taken.
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

/// A rule for the interval of a quotient.
#[derive(Clone, Copy)]
enum Rule {
    /// At most 1.
    Bound,
    /// Below 1.
    Lead,
    /// Equal to 1.
    Same,
}

impl Rule {
    fn judge(self, (from, to): (f64, f64)) -> Judgement {
        let (is_good, is_bad) = match self {
            Rule::Bound => (to <= 1.0, from > TIE),
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

/// Judge of rows by one measure. `label` is a configuration's.
#[derive(Clone, Copy)]
pub struct Judge<'a> {
    rows: &'a Rows,
    measure: &'a Measure,
    ceilings: &'a [&'a str],
}

/// A row: a configuration and a system.
type At<'a> = (&'a str, &'a str);

/// A verdict, and true if there are enough samples for it.
type Verdict = (Judgement, bool);

impl Rows {
    /// A judge by this measure.
    pub fn by<'a>(&'a self, measure: &'a Measure) -> Judge<'a> {
        Judge { rows: self, measure, ceilings: &[] }
    }
}

impl<'a> Judge<'a> {
    /// Limits targets to a share of what these bare responders reach: where the kernel is the
    /// bottleneck, no server can do better.
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

    /// Expects the system to be `times` better than the best of the `others` that take part: that
    /// many times less for costs, more for rates. `None` if none of them takes part.
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
        // Systems that failed or are missing are not beaten.
        let compared: Vec<&str> = verdicts.iter().map(|(other, _)| *other).collect();
        let named = if compared.is_empty() { &asked } else { &compared };
        let says = self.says_lead((label, system), named, times, wanted);
        self.expectation(label, says, worst, because)
    }

    /// The required lead: a share of the best ceiling's lead, if that is less than `times`.
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

    /// Returns a tie between two costs of zero, whatever lead is required.
    fn tie(&self, label: &str, system: &str, other: &str) -> Option<Verdict> {
        let rows = [system, other].map(|one| self.figures(label, one));
        let [ours, theirs] = rows.each_ref().map(|row| row.as_deref().unwrap_or_default());
        let is_nothing = |side: &[f64]| !side.is_empty() && side.iter().all(|it| *it <= 0.0);
        let is_tie = self.measure.better != Better::More && is_nothing(ours) && is_nothing(theirs);
        is_tie.then(|| (Judgement::Equal, self.is_enough(ours.len().min(theirs.len()))))
    }

    /// `a, c: 2.00× less server CPU per request than b (target 2.2×)`, with the closest rival.
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

    /// Expects two systems to be the same. `None` if one of them does not take part.
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

    /// Expects at most `factor` times another system's figure. `None` if that does not take part.
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

    /// Ratio of the required lead to the actual one: 1 if it is reached. Two zeros are a tie.
    fn behind(&self, ours: f64, theirs: f64, wanted: f64) -> f64 {
        let is_tie = self.measure.better != Better::More && ours <= 0.0 && theirs <= 0.0;
        if !is_tie {
            return wanted * self.worse_by(ours, theirs);
        }
        if wanted > 1.0 { TIE } else { 1.0 }
    }

    /// Factor by which one figure is worse than another. Zero is the worst rate, even compared with
    /// another zero, and the best cost.
    fn worse_by(&self, ours: f64, theirs: f64) -> f64 {
        match self.measure.better {
            Better::More if ours <= 0.0 => f64::INFINITY,
            Better::More => theirs / ours,
            _ => over(ours, theirs),
        }
    }

    /// Judges a quotient of rows' medians, the first of which is ours. `None` if ours is missing,
    /// or another one has no figure.
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
        // Without a median nothing is reached, however the samples are drawn.
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

    /// Judges one row by a multiple of another.
    fn limited(&self, sides: [At<'_>; 2], factor: f64) -> Option<Verdict> {
        self.verdict(sides, Rule::Bound, |[ours, theirs]| over(ours, factor * theirs))
    }

    /// Figures of a row, with the worst value for missing ones; `None` if it was not measured.
    fn figures(&self, label: &str, system: &str) -> Option<Vec<f64>> {
        let is_there =
            |row: &&Row| !row.is_absent && (!row.failures.is_empty() || row.tells_of(self.measure));
        self.rows.find(label, system).filter(is_there).map(|row| row.ranked(self.measure))
    }

    /// True if a row can be compared with: it has a median, or no sample failed, even if none came
    /// to an end.
    fn is_reached(&self, label: &str, system: &str) -> bool {
        let row = self.rows.find(label, system);
        row.is_some_and(|row| row.failures.is_empty() || row.spread(self.measure).is_some())
    }

    fn median(&self, label: &str, system: &str) -> Option<f64> {
        Some(self.rows.spread(self.measure, label, system)?.median)
    }

    /// Figures of two rows with words between them, and their ratio.
    fn two(&self, between: &str, [of, by]: [At<'_>; 2]) -> String {
        let [first, second] = [of, by].map(|(label, system)| self.show(label, system));
        let ratio = self.rows.ratio_of(self.measure, of, by);
        let bounds = self.rows.bounds_of(self.measure, of, by);
        let ratio = show_factor(ratio, bounds, ["ratio ", ""]);
        format!("{first}{between} {second}{ratio}")
    }

    /// `; best sample: 29.1 ns`; empty for a single sample.
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

/// Quotient of a figure and its limit; 1 if they are equal. "Never" exceeds any limit.
fn over(figure: f64, limit: f64) -> f64 {
    if figure == limit && figure.is_finite() {
        1.0
    } else if figure.is_infinite() {
        figure
    } else {
        figure / limit
    }
}

/// Quotient of two figures; 1 for two zeros.
fn equal_or(one: f64, other: f64) -> f64 {
    if one == other { 1.0 } else { one / other }
}

/// `: 2.00× (1.90–2.10; best samples 4.00×)`, with these texts around each number. Empty if one of
/// the two is zero.
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

/// A number as people write it: `0.7`, `30`, `4,403`.
fn plain(number: f64) -> String {
    if number < 1000.0 {
        let text = format!("{number:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        grouped(number)
    }
}
