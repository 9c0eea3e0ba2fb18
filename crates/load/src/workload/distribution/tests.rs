//! Distributions fit their definitions; their texts are parsed, or refused with reasons.

pub(crate) mod goodness_of_fit;

use proptest::prelude::*;

use super::*;
use goodness_of_fit::{chi_squared, kolmogorov_smirnov};

const DRAWS: usize = 100_000;

fn distribution(text: &str) -> Distribution {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn popularity(text: &str) -> Popularity {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// Expected probability of drawing at most `x`.
impl Distribution {
    fn cumulative(&self, x: f64) -> f64 {
        match *self {
            Distribution::Fixed(value) => f64::from(u8::from(x >= value)),
            Distribution::Uniform { low, high } => ((x - low) / (high - low)).clamp(0.0, 1.0),
            Distribution::EtcKey => ETC_KEY.extreme_value_cumulative(x),
            Distribution::EtcValue => etc_value_cumulative(x),
        }
    }
}

impl Shape {
    fn pareto_tail(&self, x: f64) -> f64 {
        let z = ((x - self.location) / self.scale).max(0.0);
        (1.0 + self.shape * z).max(0.0).powf(-1.0 / self.shape)
    }

    fn extreme_value_cumulative(&self, x: f64) -> f64 {
        let z = (x - self.location) / self.scale;
        (-(1.0 + self.shape * z).max(0.0).powf(-1.0 / self.shape)).exp()
    }
}

fn etc_value_cumulative(x: f64) -> f64 {
    let small: f64 = ETC_VALUE_SMALL.iter().sum();
    if x < 0.0 {
        return 0.0;
    }
    let counted = ETC_VALUE_SMALL.iter().take(x as usize + 1);
    counted.sum::<f64>() + (1.0 - small) * (1.0 - ETC_VALUE_TAIL.pareto_tail(x))
}

#[test]
fn continuous_distributions_fit() {
    for text in ["uniform:10-100", "etc-key"] {
        let distribution = distribution(text);
        let mut random = Random::new(11);
        let sample: Vec<f64> = (0..DRAWS).map(|_| distribution.draw(&mut random)).collect();
        let gap = kolmogorov_smirnov(sample, |x| distribution.cumulative(x));
        assert!(gap < 1.0, "{text}: {gap:.2} times the gap that is allowed");
    }
}

#[test]
fn wrong_parameter_fails_the_fit() {
    let mut random = Random::new(11);
    let drawn = distribution("uniform:10-100");
    let sample: Vec<f64> = (0..DRAWS).map(|_| drawn.draw(&mut random)).collect();
    let claimed = distribution("uniform:10-101");
    assert!(kolmogorov_smirnov(sample, |x| claimed.cumulative(x)) > 1.0);
}

#[test]
fn etc_values_fit_the_paper() {
    let mut random = Random::new(5);
    let mut small = [0_u64; 16];
    let mut tail = Vec::new();
    for _ in 0..DRAWS {
        let value = Distribution::EtcValue.draw(&mut random);
        small[(value as usize).min(15)] += 1;
        if value >= 15.0 {
            tail.push(value);
        }
    }
    let mut probabilities = ETC_VALUE_SMALL.to_vec();
    probabilities.push(1.0 - ETC_VALUE_SMALL.iter().sum::<f64>());
    let fit = chi_squared(&small, &probabilities);
    assert!(fit < 1.0, "{fit}");
    assert!(kolmogorov_smirnov(tail, |x| 1.0 - ETC_VALUE_TAIL.pareto_tail(x)) < 1.0);
}

#[test]
fn etc_means_are_those_of_the_paper() {
    // The mean of the GEV for keys is about 36 bytes; the cumulative function agrees with the
    // draws.
    let mut random = Random::new(6);
    let keys = (0..DRAWS).map(|_| Distribution::EtcKey.draw_size(&mut random, 1, 250));
    let mean = keys.sum::<usize>() as f64 / DRAWS as f64;
    assert!((35.0..38.0).contains(&mean), "{mean}");
    let below_500 = Distribution::EtcValue.cumulative(500.0);
    let drawn = (0..DRAWS).filter(|_| Distribution::EtcValue.draw(&mut random) <= 500.0);
    let share = drawn.count() as f64 / DRAWS as f64;
    assert!((share - below_500).abs() < 0.01, "{share} against {below_500}");
}

#[test]
fn zipf_fits_for_any_exponent() {
    for exponent in [0.0, 0.5, 0.99, 1.0, 1.000_000_1, 1.2, 2.0, 5.0] {
        let fit = zipf_fit(1000, exponent, exponent);
        assert!(fit < 1.0, "zipf:{exponent}: {fit:.2} times what is allowed");
    }
}

#[test]
fn wrong_zipf_exponent_fails_the_fit() {
    assert!(zipf_fit(1000, 1.0, 1.02) > 1.0);
}

/// Chi-squared of draws with one exponent against the weights of another.
fn zipf_fit(items: u64, drawn: f64, claimed: f64) -> f64 {
    let mut random = Random::new(23);
    let zipf = Zipf::new(items, drawn);
    let mut counts = vec![0_u64; items as usize];
    for _ in 0..DRAWS {
        counts[zipf.draw(&mut random) as usize - 1] += 1;
    }
    let weights: Vec<f64> = (1..=items).map(|rank| (rank as f64).powf(-claimed)).collect();
    let sum: f64 = weights.iter().sum();
    // Ranks that are too rare for a cell of their own share one with their successors.
    let mut seen = vec![0];
    let mut probabilities = vec![0.0];
    for (&count, weight) in counts.iter().zip(&weights) {
        if probabilities.last().is_some_and(|p| p * DRAWS as f64 >= 10.0) {
            seen.push(0);
            probabilities.push(0.0);
        }
        *seen.last_mut().unwrap() += count;
        *probabilities.last_mut().unwrap() += weight / sum;
    }
    if probabilities.last().is_some_and(|p| p * (DRAWS as f64) < 10.0) {
        let count = seen.pop().unwrap();
        let p = probabilities.pop().unwrap();
        *seen.last_mut().unwrap() += count;
        *probabilities.last_mut().unwrap() += p;
    }
    chi_squared(&seen, &probabilities)
}

#[test]
fn zipf_range_of_one_and_a_billion() {
    let mut random = Random::new(1);
    let one = Zipf::new(1, 1.0);
    let many = Zipf::new(1_000_000_000, 0.99);
    for _ in 0..10_000 {
        assert_eq!(one.draw(&mut random), 1);
        assert!((1..=1_000_000_000).contains(&many.draw(&mut random)));
    }
}

#[test]
fn weighted_draws_fit_their_weights() {
    let weights = [0.5, 3.0, 0.0, 1.0, 10.0, 0.1];
    let weighted = Weighted::new(&weights);
    let mut random = Random::new(9);
    let mut counts = [0_u64; 6];
    for _ in 0..DRAWS {
        counts[weighted.draw(&mut random)] += 1;
    }
    assert_eq!(counts[2], 0, "an item without weight is never drawn");
    let of = |list: &[f64]| -> Vec<f64> { [0, 1, 3, 4, 5].map(|i| list[i] / 14.6).to_vec() };
    let seen = [0, 1, 3, 4, 5].map(|i| counts[i]);
    assert!(chi_squared(&seen, &of(&weights)) < 1.0);
}

#[test]
fn hot_items_get_their_share() {
    let mut random = Random::new(2);
    let mut chooser = popularity("hot:0.2").chooser(10);
    let mut counts = [0_u64; 10];
    for _ in 0..DRAWS {
        counts[chooser.choose(&mut random) as usize] += 1;
    }
    let mut probabilities = [0.8 / 9.0; 10];
    probabilities[0] = 0.2;
    assert!(chi_squared(&counts, &probabilities) < 1.0);
}

#[test]
fn sequential_and_uniform() {
    let mut random = Random::new(2);
    let mut chooser = popularity("sequential").chooser(3);
    let round: Vec<u64> = (0..7).map(|_| chooser.choose(&mut random)).collect();
    assert_eq!(round, [0, 1, 2, 0, 1, 2, 0]);
    let mut chooser = popularity("uniform").chooser(5);
    let mut counts = [0_u64; 5];
    for _ in 0..DRAWS {
        counts[chooser.choose(&mut random) as usize] += 1;
    }
    assert!(chi_squared(&counts, &[0.2; 5]) < 1.0);
}

#[test]
fn uniform_sizes_reach_both_ends_alike() {
    let mut random = Random::new(4);
    let sizes = distribution("uniform:10-13");
    let mut counts = [0_u64; 4];
    for _ in 0..DRAWS {
        counts[sizes.draw_size(&mut random, 0, usize::MAX) - 10] += 1;
    }
    assert!(chi_squared(&counts, &[0.25; 4]) < 1.0);
}

#[test]
fn sizes_stay_inside_their_bounds() {
    let mut random = Random::new(4);
    for wide in ["uniform:0-1000", "etc-key"].map(distribution) {
        for _ in 0..1000 {
            assert!((20..=40).contains(&wide.draw_size(&mut random, 20, 40)));
        }
    }
}

#[test]
fn texts_are_read_as_the_table_says() {
    let same = |text, expected| assert_eq!(distribution(text), expected, "{text}");
    same("100", Distribution::Fixed(100.0));
    same("fixed:100", Distribution::Fixed(100.0));
    same("fb_key", Distribution::EtcKey);
    same("fb_value", Distribution::EtcValue);
    assert_eq!(popularity("hot:0.2"), Popularity::Hot { share: 0.2, items: 1 });
    assert_eq!(popularity("hot:0.9,100"), Popularity::Hot { share: 0.9, items: 100 });
}

#[test]
fn errors_show_a_right_text() {
    let refused = |text: &str, hint: &str| {
        let error = text.parse::<Distribution>().expect_err(text);
        assert!(error.contains(hint), "{text}: {error}");
    };
    refused("zopf:1", "is not a distribution; write");
    refused("uniform:100-10", "100 is above 10");
    refused("uniform:10", "write both ends, such as uniform:10-100");
    refused("fixed:", "write it like fixed:100");
    refused("fixed:-1", "must be a number from 0 up");
    refused("inf", "must be a number from 0 up");
    let refused = |text: &str, hint: &str| {
        let error = text.parse::<Popularity>().expect_err(text);
        assert!(error.contains(hint), "{text}: {error}");
    };
    refused("zipf", "write it like zipf:0.99");
    refused("zipf:-1", "must be a number from 0 up");
    refused("hot:2", "from 0 to 1");
    refused("hot:0.5,0", "the number of hot items");
    refused("uniform:3", "is not a popularity");
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,30}") {
        let _ = text.parse::<Distribution>();
        let _ = text.parse::<Popularity>();
    }
}
