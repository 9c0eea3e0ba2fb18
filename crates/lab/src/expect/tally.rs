//! Counts of verdicts: findings of the papers, and goals of this project.

use super::{Expectation, ExpectationSource, Judgement};

/// Counts of verdicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Findings of the papers with a verdict.
    pub(crate) findings: usize,
    /// Findings that were confirmed here.
    pub(crate) seen: usize,
    /// Goals of this project that are reached.
    pub(crate) reached: usize,
    pub(crate) equal: usize,
    pub(crate) missed: usize,
    /// Verdicts of both kinds from too few samples.
    pub(crate) unsure: usize,
    /// Expectations of both kinds without figures.
    pub(crate) not_measured: usize,
}

impl Tally {
    pub(crate) fn of<'a>(all: impl IntoIterator<Item = &'a Expectation>) -> Tally {
        let mut tally = Tally::default();
        for one in all {
            let has_verdict = one.is_sure && one.verdict != Judgement::NotMeasured;
            let is_finding = has_verdict && one.source == ExpectationSource::Paper;
            tally.findings += usize::from(is_finding);
            let count = match (one.verdict, one.source) {
                (Judgement::NotMeasured, _) => &mut tally.not_measured,
                _ if !one.is_sure => &mut tally.unsure,
                (Judgement::Met, ExpectationSource::Paper) => &mut tally.seen,
                (Judgement::Met, ExpectationSource::Goal) => &mut tally.reached,
                (_, ExpectationSource::Paper) => continue,
                (Judgement::Equal, ExpectationSource::Goal) => &mut tally.equal,
                (Judgement::Failed, ExpectationSource::Goal) => &mut tally.missed,
            };
            *count += 1;
        }
        tally
    }

    /// The counts as sentences, without zeros.
    pub(crate) fn sentences(&self) -> String {
        let Tally { findings, seen, reached, equal, missed, unsure, not_measured } = *self;
        let goals = reached + equal + missed;
        let mut parts = Vec::new();
        if findings > 0 {
            parts.push(format!("{seen} of {findings} findings of the papers are seen here."));
        }
        if goals > 0 {
            let mut text = format!("{reached} of {goals} goals of this project are reached");
            for (count, words) in [(equal, "about equal"), (missed, "missed")] {
                if count > 0 {
                    text += &format!(", {count} {words}");
                }
            }
            parts.push(text + ".");
        }
        if unsure > 0 {
            parts.push(format!("Of {unsure} there are too few samples for a verdict."));
        }
        if not_measured > 0 {
            parts.push(format!("Not measured: {not_measured}."));
        }
        parts.join(" ")
    }
}
