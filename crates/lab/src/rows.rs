//! Samples by configuration and system, and figures computed from them.

use crate::measure::{Better, Configuration, Measure};
use crate::numbers::{SAMPLES_MIN, Scale, Spread, bootstrap, middle};
use crate::sample::Sample;

/// One configuration on one system.
#[derive(Clone, Debug)]
pub struct Row {
    /// The configuration.
    pub configuration: Configuration,
    /// The system's name.
    pub system: String,
    /// Samples in the order of the rounds.
    pub samples: Vec<Sample>,
    /// The round of each.
    pub rounds: Vec<u32>,
    /// Reasons of failed samples.
    pub failures: Vec<String>,
    /// True if the system has no such program.
    pub is_absent: bool,
}

impl Row {
    pub(crate) fn new(configuration: &Configuration, system: &str) -> Row {
        Row {
            configuration: configuration.clone(),
            system: system.to_owned(),
            samples: Vec::new(),
            rounds: Vec::new(),
            failures: Vec::new(),
            is_absent: false,
        }
    }

    fn figures(&self, measure: &Measure) -> impl Iterator<Item = Option<f64>> {
        let samples = self.samples.iter();
        samples.map(|sample| measure.figure(&self.configuration, &sample.values))
    }

    /// True if a sample has the measure, or shows that it never ended.
    pub(crate) fn tells_of(&self, measure: &Measure) -> bool {
        self.figures(measure).any(|figure| figure.is_some()) || self.nevers(measure) > 0
    }

    /// Number of samples that never ended, or had no reply.
    fn nevers(&self, measure: &Measure) -> usize {
        let each = self.figures(measure).zip(&self.samples);
        let is_never = |(figure, sample): &(Option<f64>, &Sample)| {
            figure.is_none() && (measure.can_be_never || sample.is_silent_about(measure.name))
        };
        each.filter(is_never).count()
    }

    /// Number of samples without a figure, and of all samples.
    pub(crate) fn missing(&self, measure: &Measure) -> (usize, usize) {
        let never = self.nevers(measure);
        let failed = self.failures.len();
        (never + failed, self.samples.len() + failed)
    }

    /// Figures, with the worst possible value for missing ones.
    pub(crate) fn ranked(&self, measure: &Measure) -> Vec<f64> {
        let worst = match measure.better {
            Better::More => 0.0,
            _ => f64::INFINITY,
        };
        let (without, _) = self.missing(measure);
        self.figures(measure).flatten().chain(std::iter::repeat_n(worst, without)).collect()
    }

    /// Reason for a missing spread or figure.
    pub(crate) fn why_nothing(&self, measure: &Measure) -> &'static str {
        match self.tells_of(measure) {
            true if self.failures.is_empty() => "never",
            true if self.missing(measure).0 > self.failures.len() => "failed or never",
            false if self.failures.is_empty() => "not measured",
            _ => "failed",
        }
    }

    /// Text of a measure in tables and figures: a median with its band, or the reason for its
    /// absence. A sample without a figure is worse than any, and that end of the band.
    pub(crate) fn show(&self, measure: &Measure, scale: Scale) -> String {
        let why = self.why_nothing(measure);
        let spread = self.spread(measure);
        let (without, _) = self.missing(measure);
        let Some(there) = Spread::of(self.figures(measure).flatten().collect()) else {
            return why.to_owned();
        };
        let least = scale.show(there.least);
        let greatest = scale.show(there.greatest);
        match (spread, measure.better) {
            (Some(spread), _) if without == 0 => scale.show_spread(spread),
            (spread, better) => {
                let median = spread.map_or(why.to_owned(), |spread| scale.show(spread.median));
                match better {
                    Better::More => format!("{median} ({why}–{greatest})"),
                    _ => format!("{median} ({least}–{why})"),
                }
            }
        }
    }

    /// Median, minimum and maximum of a measure; `None` if the median is missing.
    pub fn spread(&self, measure: &Measure) -> Option<Spread> {
        let mut figures: Vec<f64> = self.figures(measure).flatten().collect();
        figures.sort_by(f64::total_cmp);
        let (without, _) = self.missing(measure);
        let count = figures.len() + without;
        // A missing figure is worse than any.
        let before = match measure.better {
            Better::More => without,
            _ => 0,
        };
        let at = |place: usize| figures.get(place.checked_sub(before)?).copied();
        Some(Spread {
            median: middle(count, at)?,
            least: *figures.first()?,
            greatest: *figures.last()?,
            count: figures.len(),
        })
    }
}

/// All rows of an experiment.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    rows: Vec<Row>,
}

impl Rows {
    /// Creates empty rows for all configurations on all systems.
    pub(crate) fn new(configurations: &[Configuration], systems: &[String]) -> Rows {
        let rows = configurations
            .iter()
            .flat_map(|configuration| systems.iter().map(|system| Row::new(configuration, system)));
        Rows { rows: rows.collect() }
    }

    #[cfg(test)]
    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Rows by configuration and system.
    pub fn all(&self) -> &[Row] {
        &self.rows
    }

    /// The row of a configuration and a system.
    pub fn find(&self, configuration: &str, system: &str) -> Option<&Row> {
        let mut rows = self.rows.iter();
        rows.find(|row| row.configuration.label == configuration && row.system == system)
    }

    pub(crate) fn find_mut(&mut self, configuration: &str, system: &str) -> Option<&mut Row> {
        let mut rows = self.rows.iter_mut();
        rows.find(|row| row.configuration.label == configuration && row.system == system)
    }

    /// Courses of a measure for a system in a configuration, step by step: time, and spread.
    pub(crate) fn course(
        &self,
        measure: &Measure,
        configuration: &str,
        system: &str,
    ) -> Vec<(f64, Spread)> {
        let samples = self.find(configuration, system).map_or(&[][..], |row| &row.samples);
        let courses = samples.iter().filter_map(|sample| sample.courses.get(measure.name));
        let courses: Vec<_> = courses.collect();
        let steps = courses.iter().map(|course| course.figures.len()).max();
        let step = |at: usize| {
            let figures = courses.iter().filter_map(|course| course.figures.get(at));
            let spread = Spread::of(figures.copied().collect())?;
            Some(((at as f64 + 0.5) * courses.first()?.step_s, spread))
        };
        (0..steps.unwrap_or(0)).filter_map(step).collect()
    }

    /// Systems in their order.
    pub fn systems(&self) -> Vec<&str> {
        let mut systems: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !systems.contains(&row.system.as_str()) {
                systems.push(&row.system);
            }
        }
        systems
    }

    /// Configurations in their order.
    pub fn configurations(&self) -> Vec<&Configuration> {
        let mut configurations: Vec<&Configuration> = Vec::new();
        for row in &self.rows {
            if configurations.last().is_none_or(|last| last.label != row.configuration.label) {
                configurations.push(&row.configuration);
            }
        }
        configurations
    }

    pub(crate) fn has_configuration(&self, label: &str) -> bool {
        self.rows.iter().any(|row| row.configuration.label == label)
    }

    /// True if the system takes part at all.
    pub(crate) fn has_system(&self, system: &str) -> bool {
        self.rows.iter().any(|row| row.system == system)
    }

    /// Spread of an existing row.
    pub fn spread(&self, measure: &Measure, configuration: &str, system: &str) -> Option<Spread> {
        self.find(configuration, system)?.spread(measure)
    }

    /// Unit for all figures of a measure.
    pub(crate) fn scale(&self, measure: &Measure) -> Scale {
        let spreads = self.rows.iter().filter_map(|row| row.spread(measure));
        let medians = spreads.map(|spread| spread.median);
        let (least, greatest) = medians.fold((f64::MAX, 0.0_f64), |(least, greatest), median| {
            (least.min(median), greatest.max(median))
        });
        Scale::of_table(measure.unit, least, greatest)
    }

    /// Ratio of two systems' figures in the same configuration: of the medians, and of the best
    /// samples.
    pub fn ratio(&self, measure: &Measure, label: &str, of: &str, by: &str) -> Option<Ratio> {
        self.ratio_of(measure, (label, of), (label, by))
    }

    /// Ratio of two rows, each a configuration and a system.
    pub(crate) fn ratio_of(
        &self,
        measure: &Measure,
        of: (&str, &str),
        by: (&str, &str),
    ) -> Option<Ratio> {
        let [of, by] =
            [of, by].map(|(configuration, system)| self.spread(measure, configuration, system));
        let (of, by, better) = (of?, by?, measure.better);
        Some(Ratio { medians: of.median / by.median, best: of.best(better) / by.best(better) })
    }

    /// The 95 % interval of the ratio of two rows' medians, if both have enough samples.
    pub(crate) fn bounds_of(
        &self,
        measure: &Measure,
        of: (&str, &str),
        by: (&str, &str),
    ) -> Option<(f64, f64)> {
        let figures =
            |(label, system): (&str, &str)| Some(self.find(label, system)?.ranked(measure));
        let (of, by) = (figures(of)?, figures(by)?);
        let is_enough = of.len().min(by.len()) >= SAMPLES_MIN;
        is_enough.then(|| bootstrap([&of, &by], |[of, by]| of / by))
    }
}

/// Ratio of two figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Ratio of the medians.
    pub medians: f64,
    /// Ratio of the best samples.
    pub best: f64,
}

/// Text of a row in a table: a median with its band, or the reason for its absence.
pub(crate) fn show_row(row: Option<&Row>, measure: &Measure, scale: Scale) -> String {
    let row = row.filter(|row| !row.is_absent);
    row.map_or("–".to_owned(), |row| row.show(measure, scale))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Rows of one configuration "c": a system and its samples' figures; `None` is never.
    pub(crate) fn rows(of: &[(&str, &[Option<f64>])]) -> Rows {
        let configuration = Configuration::new("c", "p", []);
        let rows = of.iter().map(|(system, figures)| {
            let samples = figures.iter().map(|figure| {
                let values = figure.map(|figure| ("cpu_us".to_owned(), figure));
                Sample { values: values.into_iter().collect(), ..Sample::default() }
            });
            Row { samples: samples.collect(), ..Row::new(&configuration, system) }
        });
        Rows { rows: rows.collect() }
    }

    const LESS: Measure = Measure { can_be_never: true, ..Measure::CPU_US };
    const MORE: Measure = Measure { better: Better::More, ..LESS };

    #[test]
    fn missing_figures_rank_worst() {
        let median = |measure: &Measure, figures: &[Option<f64>]| {
            let rows = rows(&[("s", figures)]);
            rows.spread(measure, "c", "s").map(|spread| spread.median)
        };
        assert_eq!(median(&LESS, &[Some(9.0), Some(1.0), Some(2.0)]), Some(2.0));
        assert_eq!(median(&LESS, &[Some(1.0), None, Some(2.0)]), Some(2.0));
        assert_eq!(median(&MORE, &[Some(1.0), None, Some(2.0)]), Some(1.0));
        assert_eq!(median(&LESS, &[Some(1.0), None, None]), None);
        assert_eq!(median(&MORE, &[Some(1.0), None, None]), None);
        assert_eq!(median(&LESS, &[]), None);
        // A measure that was not taken says nothing.
        let figures = [Some(1.0), None, None];
        assert_eq!(median(&Measure::CPU_US, &figures), Some(1.0));
    }

    /// Seen: the published median of four rounds was the third best. Cause: the upper of the two in
    /// the middle was taken. Cure: their mean.
    #[test]
    fn middle_of_an_even_number() {
        let median = |measure: &Measure, figures: &[Option<f64>]| {
            let rows = rows(&[("s", figures)]);
            rows.spread(measure, "c", "s").map(|spread| spread.median)
        };
        let four = [Some(10.0), Some(1.0), Some(2.0), Some(3.0)];
        assert_eq!(median(&LESS, &four), Some(2.5));
        assert_eq!(median(&MORE, &four), Some(2.5));
        let one_never = [Some(10.0), Some(1.0), None, Some(3.0)];
        assert_eq!(median(&LESS, &one_never), Some(6.5));
        assert_eq!(median(&MORE, &one_never), Some(2.0));
        assert_eq!(median(&LESS, &[Some(1.0), None]), None);
        assert_eq!(Spread::of(four.iter().flatten().copied().collect()).unwrap().median, 2.5);
    }

    /// Seen: a recovery of "0.800 (0.600–0.800)" of three samples, one of which never recovered,
    /// and "failed" for a server that had answered once. Cause: the band included existing figures
    /// only. Cure: a missing figure is the worst end.
    #[test]
    fn missing_figure_ends_the_band() {
        let scale = Scale::of_table("µs", 1.0, 1.0);
        let shown = |measure: &Measure, figures: &[Option<f64>], failed: usize| {
            let mut rows = rows(&[("s", figures)]);
            let row = rows.find_mut("c", "s").unwrap();
            row.failures = vec!["it died".to_owned(); failed];
            show_row(rows.find("c", "s"), measure, scale)
        };
        let recovered = [Some(0.8), Some(0.6), None];
        assert_eq!(shown(&LESS, &recovered, 0), "0.800 (0.600–never)");
        let once = [None, Some(1.2), None];
        assert_eq!(shown(&LESS, &once, 0), "never (1.20–never)");
        assert_eq!(shown(&LESS, &[None, None], 0), "never");
        let rates = [Some(9.0), Some(10.0)];
        assert_eq!(shown(&MORE, &rates, 1), "9.00 (failed–10.0)");
        assert_eq!(shown(&MORE, &rates, 3), "failed (failed–10.0)");
        assert_eq!(shown(&LESS, &[Some(0.8), None], 1), "failed or never (0.800–failed or never)");
        // A measure that was not taken says nothing.
        let older = [2.0, 2.0, 2.5, 3.0, 3.0].map(Some);
        let older = [&older[..], &[None]].concat();
        assert_eq!(shown(&Measure::CPU_US, &older, 0), "2.50 (2.00–3.00)");
        let once = [Some(25.3)];
        assert_eq!(shown(&Measure::CPU_US, &once, 4), "failed (25.3–failed)");
    }

    /// Seen: "not measured" for the p99 of a server that answered nothing in any sample, and the
    /// median of three for one that did so in two of five. Cause: such a sample has no p99, and was
    /// taken for one from before the measure existed.
    #[test]
    fn silence_is_worse_than_any_latency() {
        let answered = |p99_us: f64| Sample::of([("rate_per_s", 10.0), ("p99_us", p99_us)]);
        let silent = Sample::of([("rate_per_s", 0.0)]);
        let older = Sample::of([("rate_per_s", 10.0)]);
        let mut rows = rows(&[("some", &[]), ("silent", &[]), ("older", &[])]);
        let mut put = |system: &str, samples: &[Sample]| {
            rows.find_mut("c", system).unwrap().samples = samples.to_vec();
        };
        let two = [silent.clone(), silent.clone()];
        put("some", &[&[1.0, 2.0, 3.0].map(answered)[..], &two].concat());
        put("silent", &two);
        put("older", &[older, answered(2.0)]);
        let scale = Scale::of_table("µs", 1.0, 1.0);
        let shown = |system: &str| show_row(rows.find("c", system), &Measure::P99, scale);
        assert_eq!(["some", "silent", "older"].map(shown), ["3.00 (1.00–never)", "never", "2.00"]);
    }

    #[test]
    fn best_sample() {
        let rows = rows(&[
            ("a", &[Some(2.0), Some(4.0), Some(6.0)]),
            ("b", &[Some(1.0), Some(2.0), Some(3.0)]),
        ]);
        let ratio = |measure| rows.ratio(measure, "c", "a", "b").unwrap();
        assert_eq!(ratio(&LESS), Ratio { medians: 2.0, best: 2.0 });
        assert_eq!(rows.spread(&MORE, "c", "b").unwrap().best(Better::More), 3.0);
        assert_eq!(rows.ratio(&LESS, "c", "a", "gone"), None);
    }

    #[test]
    fn course_of_spreads() {
        use crate::sample::Course;
        let mut rows = rows(&[("s", &[None, None, None])]);
        let row = rows.find_mut("c", "s").unwrap();
        let all: [&[f64]; 3] = [&[1.0, 10.0], &[2.0, 20.0], &[3.0]];
        for (sample, figures) in row.samples.iter_mut().zip(all) {
            let course = Course { step_s: 0.5, figures: figures.to_vec() };
            sample.courses.insert(LESS.name.to_owned(), course);
        }
        let course = rows.course(&LESS, "c", "s");
        let shown = course.iter().map(|(at_s, spread)| (*at_s, spread.median, spread.count));
        assert_eq!(shown.collect::<Vec<_>>(), [(0.25, 2.0, 3), (0.75, 15.0, 2)]);
        assert_eq!(rows.course(&LESS, "c", "gone"), []);
    }
}
