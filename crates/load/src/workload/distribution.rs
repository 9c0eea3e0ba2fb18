//! Distributions of sizes, and of requests over items.
//!
//! A [`Distribution`] draws the size of a key or a value; a [`Popularity`] draws the item to
//! request next, of `n` items. Both are parsed from short texts:
//!
//! | text | meaning |
//! |---|---|
//! | `100` or `fixed:100` | always 100 |
//! | `uniform:10-100` | every number from 10 to 100 alike |
//! | `etc-key`, `etc-value` | sizes in bytes of Facebook's ETC pool |
//!
//! | text | which item |
//! |---|---|
//! | `uniform` | every item alike |
//! | `zipf:0.99` | rank `r` with a weight of `1/r^0.99` |
//! | `hot:0.2` or `hot:0.9,100` | a share of 0.2 to the first item, of 0.9 to the first 100; the rest alike |
//! | `sequential` | one after the other, round and round |
//!
//! ETC is the pool of Atikoglu et al., "Workload analysis of a large-scale key-value store"
//! (SIGMETRICS 2012). Mutilate's names for the two (`fb_key`, `fb_value`) are accepted as well.

use std::str::FromStr;

use crate::random::Random;

/// Distribution of a size in bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Distribution {
    /// Constant.
    Fixed(f64),
    /// Uniform over the range, both ends included.
    Uniform {
        /// Smallest.
        low: f64,
        /// Largest.
        high: f64,
    },
    /// ETC's key sizes: generalised extreme value.
    EtcKey,
    /// ETC's value sizes: small ones by a table, the others generalised Pareto.
    EtcValue,
}

/// Parameters of the families of extreme value theory.
struct Shape {
    /// Start (Pareto) or centre (extreme value).
    location: f64,
    /// Width.
    scale: f64,
    /// Weight of the tail; not 0.
    shape: f64,
}

/// ETC's key sizes in bytes (Atikoglu et al., section 5).
const ETC_KEY: Shape = Shape { location: 30.7984, scale: 8.20449, shape: 0.078688 };

/// ETC's value sizes from 15 bytes up (the same section).
const ETC_VALUE_TAIL: Shape = Shape { location: 15.0, scale: 214.476, shape: 0.348238 };

/// Probabilities of values of 0, 1, … 14 bytes in ETC (the same paper's table of small sizes).
const ETC_VALUE_SMALL: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837,
    0.00837, 0.08989, 0.00092, 0.00326, 0.01980,
];

impl Distribution {
    /// Draws a number.
    pub fn draw(&self, random: &mut Random) -> f64 {
        match *self {
            Distribution::Fixed(value) => value,
            Distribution::Uniform { low, high } => low + (high - low) * random.unit(),
            Distribution::EtcKey => ETC_KEY.extreme_value_below(random.unit_above_zero()),
            Distribution::EtcValue => etc_value(random),
        }
    }

    /// Draws a whole number, clamped to `min..=max`.
    pub(crate) fn draw_size(&self, random: &mut Random, min: usize, max: usize) -> usize {
        let drawn = match *self {
            // Both ends of a uniform range are as likely as the numbers between.
            Distribution::Uniform { low, high } => {
                let span = (high - low).max(0.0) as u64 + 1;
                return (low as usize + random.below(span) as usize).clamp(min, max);
            }
            _ => self.draw(random),
        };
        // `as` saturates: negative numbers and NaN become 0.
        (drawn.round() as usize).clamp(min, max)
    }
}

impl Shape {
    /// Value that is exceeded with probability `tail`.
    fn pareto_above(&self, tail: f64) -> f64 {
        self.location + self.scale * (tail.powf(-self.shape) - 1.0) / self.shape
    }

    /// Value that is not exceeded with probability `below`.
    fn extreme_value_below(&self, below: f64) -> f64 {
        let hazard = -below.ln();
        self.location + self.scale * (hazard.powf(-self.shape) - 1.0) / self.shape
    }
}

fn etc_value(random: &mut Random) -> f64 {
    let mut left = random.unit();
    for (size, probability) in ETC_VALUE_SMALL.iter().enumerate() {
        left -= probability;
        if left < 0.0 {
            return size as f64;
        }
    }
    ETC_VALUE_TAIL.pareto_above(random.unit_above_zero())
}

/// Distribution of requests over items.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Popularity {
    /// Uniform.
    Uniform,
    /// Rank `r` (from 1) with a weight of `1/r^exponent`.
    Zipf {
        /// 0 is uniform; 1 is Zipf's own law.
        exponent: f64,
    },
    /// Hot items share one part of the requests, all others the rest.
    Hot {
        /// Share of the requests that goes to hot items, from 0 to 1.
        share: f64,
        /// Number of hot items: the first ones.
        items: u64,
    },
    /// In order, repeatedly.
    Sequential,
}

impl Popularity {
    /// Creates a chooser among `items` items, numbered from 0, the most popular one first.
    ///
    /// # Panics
    /// If there are no items.
    pub fn chooser(&self, items: u64) -> Chooser {
        assert!(items > 0, "nothing to choose from");
        match *self {
            Popularity::Zipf { exponent } => Chooser::Zipf(Zipf::new(items, exponent)),
            Popularity::Hot { share, items: hot } if hot < items => {
                Chooser::Hot { items, hot, share }
            }
            Popularity::Uniform | Popularity::Hot { .. } => Chooser::Uniform { items },
            Popularity::Sequential => Chooser::Sequential { items, next: 0 },
        }
    }
}

/// Generator of item numbers; made by [`Popularity::chooser`].
#[derive(Clone, Debug)]
pub enum Chooser {
    /// See [`Popularity::Uniform`].
    Uniform {
        /// Number of items.
        items: u64,
    },
    /// See [`Popularity::Zipf`].
    Zipf(Zipf),
    /// See [`Popularity::Hot`].
    Hot {
        /// Number of items.
        items: u64,
        /// Number of hot items.
        hot: u64,
        /// Share of the requests that goes to those.
        share: f64,
    },
    /// See [`Popularity::Sequential`].
    Sequential {
        /// Number of items.
        items: u64,
        /// Next item.
        next: u64,
    },
}

impl Chooser {
    /// Draws the next item's number.
    #[inline]
    pub fn choose(&mut self, random: &mut Random) -> u64 {
        match self {
            Chooser::Uniform { items } => random.below(*items),
            Chooser::Zipf(zipf) => zipf.draw(random) - 1,
            Chooser::Hot { items, hot, share } => {
                if random.unit() < *share {
                    random.below(*hot)
                } else {
                    *hot + random.below(*items - *hot)
                }
            }
            Chooser::Sequential { items, next } => {
                let this = *next;
                *next = (this + 1) % *items;
                this
            }
        }
    }
}

/// Zipf's law over ranks `1..=n` for any exponent from 0, in constant time and space, whatever `n`.
///
/// Rejection-inversion of Hörmann and Derflinger, "Rejection-inversion to generate variates from
/// monotone discrete distributions" (1996). The weight function `h(x) = x^-s` is integrated; its
/// integral `H` is inverted at a uniform point, and the few points that fall between the curve and
/// the histogram's steps are drawn again.
///
/// ```text
///   weight │▇▁                 the integral of x^-s from k-1/2 to k+1/2 is a little more than
///          │ ▇▆▂               the weight of k: what is above k^-s is drawn again
///          │   ▇▇▆▄▃▂▂▁▁
///          └────────────── k
/// ```
#[derive(Clone, Debug)]
pub struct Zipf {
    items: f64,
    exponent: f64,
    // H(3/2) - h(1): where the interval of rank 1 is cut so that it needs no rejection.
    integral_first: f64,
    // H(n + 1/2).
    integral_last: f64,
    // Points of an interval this far from its rank's left edge are always under the curve.
    sure: f64,
}

impl Zipf {
    /// Creates the law over ranks `1..=items`.
    ///
    /// # Panics
    /// If there are no items, or the exponent is negative or not a number.
    pub fn new(items: u64, exponent: f64) -> Zipf {
        assert!(items > 0, "a law over no items");
        assert!(exponent >= 0.0, "a Zipf exponent of {exponent}");
        let mut zipf = Zipf {
            items: items as f64,
            exponent,
            integral_first: 0.0,
            integral_last: 0.0,
            sure: 0.0,
        };
        zipf.integral_first = zipf.integral(1.5) - 1.0;
        zipf.integral_last = zipf.integral(zipf.items + 0.5);
        zipf.sure = 2.0 - zipf.integral_inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    /// Draws a rank.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let at =
                self.integral_last + random.unit() * (self.integral_first - self.integral_last);
            let x = self.integral_inverse(at);
            let rank = (x + 0.5).floor().clamp(1.0, self.items);
            if rank - x <= self.sure || at >= self.integral(rank + 0.5) - self.weight(rank) {
                return rank as u64;
            }
        }
    }

    fn weight(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    // H(x) = (x^(1-s) - 1) / (1-s), and ln x for s = 1, written so that it is exact near s = 1.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        log * exp_minus_1_over((1.0 - self.exponent) * log)
    }

    fn integral_inverse(&self, y: f64) -> f64 {
        // Rounding may push it a little below the least value of H.
        let t = (y * (1.0 - self.exponent)).max(-1.0);
        (y * ln_1_plus_over(t)).exp()
    }
}

/// `(e^x - 1) / x`, which is 1 at 0.
fn exp_minus_1_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.exp_m1() / x } else { 1.0 + x / 2.0 }
}

/// `ln(1 + x) / x`, which is 1 at 0.
fn ln_1_plus_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.ln_1p() / x } else { 1.0 - x / 2.0 }
}

/// Draws by given weights in constant time: Walker's alias method, tables built as by Vose, "A
/// linear algorithm for generating random numbers with a given distribution" (1991).
#[derive(Clone, Debug)]
pub struct Weighted {
    // Item i is taken with probability keep[i], else item other[i].
    keep: Vec<f64>,
    other: Vec<u32>,
}

impl Weighted {
    /// Creates the table of items `0..weights.len()`, each with its weight.
    ///
    /// # Panics
    /// If there are no items, more than `u32::MAX`, or the weights do not have a positive sum.
    pub fn new(weights: &[f64]) -> Weighted {
        let sum: f64 = weights.iter().sum();
        assert!(sum > 0.0, "weights that sum to {sum}");
        let count = u32::try_from(weights.len()).expect("more items than 32 bits count");
        let mut keep: Vec<f64> = weights.iter().map(|w| w / sum * f64::from(count)).collect();
        let mut other: Vec<u32> = (0..count).collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            (0..count).partition(|&i| keep[i as usize] < 1.0);
        while let (Some(&above), Some(below)) = (large.last(), small.pop()) {
            other[below as usize] = above;
            keep[above as usize] -= 1.0 - keep[below as usize];
            if keep[above as usize] < 1.0 {
                small.extend(large.pop());
            }
        }
        // The remaining weights are 1, apart from rounding.
        for left in small.into_iter().chain(large) {
            keep[left as usize] = 1.0;
        }
        Weighted { keep, other }
    }

    /// Draws an item's number.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> usize {
        let item = random.below(self.keep.len() as u64) as usize;
        if random.unit() < self.keep[item] { item } else { self.other[item] as usize }
    }
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Distribution, String> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        if let Ok(value) = text.parse::<f64>() {
            return Ok(Distribution::Fixed(at_least_0(text, value)?));
        }
        match name {
            "fixed" => {
                let [value] = numbers(text, rest, "fixed:100")?;
                Ok(Distribution::Fixed(at_least_0(text, value)?))
            }
            "uniform" => uniform(text, rest),
            "etc-key" | "fb_key" => Ok(Distribution::EtcKey),
            "etc-value" | "fb_value" => Ok(Distribution::EtcValue),
            _ => Err(format!(
                "'{text}' is not a distribution; write a number, uniform:10-100, etc-key or etc-value"
            )),
        }
    }
}

impl FromStr for Popularity {
    type Err = String;

    fn from_str(text: &str) -> Result<Popularity, String> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        match name {
            "uniform" if rest.is_empty() => Ok(Popularity::Uniform),
            "sequential" if rest.is_empty() => Ok(Popularity::Sequential),
            "zipf" => {
                let [exponent] = numbers(text, rest, "zipf:0.99")?;
                Ok(Popularity::Zipf { exponent: at_least_0(text, exponent)? })
            }
            "hot" => hot(text, rest),
            _ => Err(format!(
                "'{text}' is not a popularity; write uniform, zipf:0.99, hot:0.2, hot:0.9,100 or sequential"
            )),
        }
    }
}

fn uniform(text: &str, rest: &str) -> Result<Distribution, String> {
    let wrong = || format!("'{text}': write both ends, such as uniform:10-100");
    let (low, high) = rest.split_once('-').ok_or_else(wrong)?;
    let [low] = numbers(text, low, "uniform:10-100")?;
    let [high] = numbers(text, high, "uniform:10-100")?;
    if at_least_0(text, low)? <= high {
        Ok(Distribution::Uniform { low, high })
    } else {
        Err(format!("'{text}': {low} is above {high}; write the smaller one first"))
    }
}

fn hot(text: &str, rest: &str) -> Result<Popularity, String> {
    let (share, items) = rest.split_once(',').unwrap_or((rest, "1"));
    let [share] = numbers(text, share, "hot:0.2")?;
    let items = items.parse().ok().filter(|&items: &u64| items > 0);
    let items = items.ok_or_else(|| {
        format!("'{text}': after the comma goes the number of hot items, such as hot:0.9,100")
    })?;
    if (0.0..=1.0).contains(&share) {
        Ok(Popularity::Hot { share, items })
    } else {
        Err(format!("'{text}': the share is a number from 0 to 1, such as hot:0.2"))
    }
}

/// Parses exactly `N` finite numbers with commas between them.
fn numbers<const N: usize>(text: &str, list: &str, example: &str) -> Result<[f64; N], String> {
    let parsed: Option<Vec<f64>> = list
        .split(',')
        .map(|number| number.trim().parse().ok().filter(|n: &f64| n.is_finite()))
        .collect();
    let wrong = || format!("'{text}' is not understood; write it like {example}");
    parsed.and_then(|numbers| numbers.try_into().ok()).ok_or_else(wrong)
}

fn at_least_0(text: &str, value: f64) -> Result<f64, String> {
    if value >= 0.0 && value.is_finite() {
        Ok(value)
    } else {
        Err(format!("'{text}': {value} must be a number from 0 up"))
    }
}

#[cfg(test)]
pub(crate) mod tests;
