//! Numbers for people: three digits, a suitable unit, and medians with their bands.

use load::random::Random;
use load::report::count_of;

use crate::measure::Better;

/// Units of time, each a thousand of the one before.
const TIMES: [&str; 4] = ["ns", "µs", "ms", "s"];
/// Limit above which a table of times uses the next unit: its small figures keep their digits
/// longer.
const TABLE_FROM: f64 = 10_000.0;
const LEAST_IN_TABLE: f64 = 0.05;
const ALONE_FROM: f64 = 1_000.0;

/// A unit, and the factor that converts figures to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    factor: f64,
    pub(crate) unit: &'static str,
}

impl Scale {
    /// Chooses a unit for all figures of a table or a drawing. Times may have a larger unit than
    /// measured if the smallest keeps its digits.
    pub(crate) fn of_table(unit: &'static str, least: f64, greatest: f64) -> Scale {
        let scale = Scale::below(unit, greatest, TABLE_FROM);
        if least * scale.factor < LEAST_IN_TABLE { Scale { factor: 1.0, unit } } else { scale }
    }

    fn below(unit: &'static str, greatest: f64, limit: f64) -> Scale {
        let mut scale = Scale { factor: 1.0, unit };
        let times = TIMES.iter().skip_while(|&&time| time != unit).skip(1);
        for &unit in times {
            if greatest * scale.factor < limit {
                break;
            }
            let factor = scale.factor / 1e3;
            scale = Scale { factor, unit };
        }
        scale
    }

    /// A figure without its unit.
    pub(crate) fn show(self, figure: f64) -> String {
        show(figure * self.factor)
    }

    /// A median, with its band if there are enough samples for one.
    pub(crate) fn show_spread(self, spread: Spread) -> String {
        let [median, least, greatest] =
            [spread.median, spread.least, spread.greatest].map(|figure| self.show(figure));
        if least == greatest || !spread.has_band() {
            median
        } else {
            format!("{median} ({least}–{greatest})")
        }
    }

    /// All figures of a spread in this unit.
    pub(crate) fn apply(self, spread: Spread) -> Spread {
        Spread {
            median: spread.median * self.factor,
            least: spread.least * self.factor,
            greatest: spread.greatest * self.factor,
            ..spread
        }
    }
}

/// Median of `count` figures in their order; of an even number, the mean of the two in the middle.
pub(crate) fn middle(count: usize, at: impl Fn(usize) -> Option<f64>) -> Option<f64> {
    let lower = at(count.checked_sub(1)? / 2)?;
    let upper = at(count / 2)?;
    Some((lower + upper) / 2.0)
}

/// Samples on each side that a verdict, or a band from minimum to maximum, needs.
pub(crate) const SAMPLES_MIN: usize = 5;

/// The 2.5th and the 97.5th percentile of a function of medians, when each side's samples are
/// resampled with replacement (bootstrap).
pub(crate) fn bootstrap<const N: usize>(
    sides: [&[f64]; N],
    of: impl Fn([f64; N]) -> f64,
) -> (f64, f64) {
    const DRAWS: usize = 2000;
    let mut random = Random::new(1);
    let mut draw = |from: &[f64]| {
        let drawn = (0..from.len()).map(|_| from[random.below(from.len() as u64) as usize]);
        median(drawn.collect())
    };
    let mut drawn: Vec<f64> = (0..DRAWS).map(|_| of(sides.map(&mut draw))).collect();
    drawn.sort_by(f64::total_cmp);
    (drawn[DRAWS / 40], drawn[DRAWS - 1 - DRAWS / 40])
}

/// Median of figures none of which is missing.
pub(crate) fn median(figures: Vec<f64>) -> f64 {
    Spread::of(figures).map_or(f64::NAN, |spread| spread.median)
}

/// Median and band.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Minimum.
    pub least: f64,
    /// Maximum.
    pub greatest: f64,
    /// Number of figures.
    pub count: usize,
}

impl Spread {
    /// Spread of figures none of which is missing.
    pub(crate) fn of(mut figures: Vec<f64>) -> Option<Spread> {
        figures.sort_by(f64::total_cmp);
        Some(Spread {
            median: middle(figures.len(), |place| figures.get(place).copied())?,
            least: *figures.first()?,
            greatest: *figures.last()?,
            count: figures.len(),
        })
    }

    /// True if there are enough samples for a band from minimum to maximum.
    pub(crate) fn has_band(&self) -> bool {
        self.count >= SAMPLES_MIN
    }

    /// Best figure: two runs of the same program agree in it better than in the median, because
    /// disturbances only make it slower.
    pub fn best(&self, better: Better) -> f64 {
        match better {
            Better::More => self.greatest,
            _ => self.least,
        }
    }
}

/// A figure with its unit: `353 ms`.
pub(crate) fn with_unit(figure: f64, unit: &'static str) -> String {
    let scale = Scale::below(unit, rounded(figure).0, ALONE_FROM);
    match scale.unit {
        "per second" => format!("{}/s", show(figure)),
        unit => format!("{} {unit}", scale.show(figure)),
    }
}

/// A figure for people: three digits, with thousands separators.
pub fn show(figure: f64) -> String {
    let size = figure.abs();
    if size < 1e-6 {
        return "0".to_owned();
    }
    // Rounding may add a digit: 9.996 is 10.0.
    match rounded(figure).1 {
        3.. => grouped(figure),
        exponent => {
            let decimals = (2 - exponent).clamp(0, 6) as usize;
            format!("{figure:.decimals$}")
        }
    }
}

/// A figure rounded to three digits, and the power of ten of its first one.
fn rounded(figure: f64) -> (f64, i32) {
    let text = format!("{figure:.2e}");
    let exponent = text.split_once('e').and_then(|(_, power)| power.parse().ok());
    (text.parse().unwrap_or(figure), exponent.unwrap_or(0))
}

/// A count with thousands separators. A half is rounded to even, as by `{:.0}`.
pub(crate) fn grouped(figure: f64) -> String {
    let text = count_of(figure.abs().round_ties_even() as u64);
    if figure < 0.0 { format!("-{text}") } else { text }
}

/// A quotient: two decimals, or three if it is small.
pub(crate) fn show_ratio(ratio: f64) -> String {
    if ratio < 0.1 { format!("{ratio:.3}") } else { format!("{ratio:.2}") }
}

/// `1 noisy sample`, `2 noisy samples`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_groups() {
        let shown = [0.0, 0.0412, 0.5, 1.234, 12.34, 123.4, 1234.0, 1_234_567.0, -1234.0].map(show);
        let expected =
            ["0", "0.0412", "0.500", "1.23", "12.3", "123", "1,234", "1,234,567", "-1,234"];
        assert_eq!(shown, expected);
    }

    /// Seen: "1000" without a comma, "10.00" with four digits, and "1,000 µs". Cause: digits were
    /// counted before rounding. Cure: rounding comes first.
    #[test]
    fn rounding_keeps_three_digits() {
        assert_eq!(
            [999.6, 9.996, 0.09996, 99.95, -9.996].map(show),
            ["1,000", "10.0", "0.100", "100", "-10.0"]
        );
        assert_eq!(with_unit(999.6, "µs"), "1.00 ms");
    }

    /// Seen: "ahead of nginx in p99 latency (353,108; nginx 377,225)", without a unit.
    #[test]
    fn unit_of_a_single_figure() {
        for (figure, unit, said) in [
            (353_108.0, "µs", "353 ms"),
            (203.4, "µs", "203 µs"),
            (1_500_000.0, "µs", "1.50 s"),
            (37.9, "ns", "37.9 ns"),
            (43_030.0, "per second", "43,030/s"),
            (131.0, "% of the knee", "131 % of the knee"),
            (30_000.0, "bytes", "30,000 bytes"),
        ] {
            assert_eq!(with_unit(figure, unit), said);
        }
    }

    #[test]
    fn unit_of_long_times() {
        let unit = |unit, least, greatest| Scale::of_table(unit, least, greatest).unit;
        assert_eq!([unit("µs", 1.0, 9_999.0), unit("µs", 78.0, 609_223.0)], ["µs", "ms"]);
        assert_eq!([unit("ns", 1e9, 3e10), unit("per second", 1.0, 1e6)], ["s", "per second"]);
        // In ms, 0.0203 would hide the difference of a short request from others.
        assert_eq!(unit("µs", 20.3, 22_142.0), "µs");
        assert_eq!(Scale::of_table("µs", 78.1, 609_223.0).show(78.1), "0.0781");
    }

    #[test]
    fn bootstrap_interval() {
        let worse_by = |[old, new]: [f64; 2]| new / old;
        let (from, to) = bootstrap([&[1.0, 1.1, 0.9, 1.0, 1.05], &[2.0; 5]], worse_by);
        assert!(from <= 2.0 && 2.0 <= to && from < to, "{from} {to}");
        assert_eq!(bootstrap([&[1.0; 5], &[2.0; 5]], worse_by), (2.0, 2.0));
    }

    #[test]
    fn median_of_an_even_number() {
        let of = |figures: &[f64]| median(figures.to_vec());
        assert_eq!((of(&[4.0, 1.0]), of(&[1.0, 9.0, 2.0, 3.0])), (2.5, 2.5));
        assert_eq!((of(&[7.0]), of(&[1.0, 9.0, 2.0])), (7.0, 2.0));
    }

    /// Seen: columns of "0.00 (0.00–0.00)", and "1 noisy samples".
    #[test]
    fn bands_and_plurals() {
        let spread = |least, median, greatest| Spread { median, least, greatest, count: 5 };
        let scale = Scale::of_table("%", 0.0, 1.0);
        assert_eq!(scale.show_spread(spread(0.0, 0.0, 0.0)), "0");
        assert_eq!(scale.show_spread(spread(1e-9, 0.5, 1.0)), "0.500 (0–1.00)");
        // Seen: bands of two samples. Cause: any two figures have a minimum and a maximum.
        let few = Spread { count: SAMPLES_MIN - 1, ..spread(0.1, 0.5, 1.0) };
        assert_eq!(scale.show_spread(few), "0.500");
        assert_eq!(
            [0, 1, 2].map(|count| counted(count, "sample")),
            ["0 samples", "1 sample", "2 samples"]
        );
        assert_eq!([0.0024, 0.444].map(show_ratio), ["0.002", "0.44"]);
    }
}
