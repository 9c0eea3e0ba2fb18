//! Goodness-of-fit tests: whether a sample fits a distribution.
//!
//! Seeds are fixed, so a test passes always or never. The significance is 0.1 %: a correct
//! generator fails with one seed in a thousand; then change the seed.

/// Largest gap between the sample's cumulative distribution and `cumulative` (Kolmogorov and
/// Smirnov), divided by the limit at 0.1 %: below 1 fits.
pub(crate) fn kolmogorov_smirnov(mut sample: Vec<f64>, cumulative: impl Fn(f64) -> f64) -> f64 {
    sample.sort_by(f64::total_cmp);
    let n = sample.len() as f64;
    let gaps = sample.iter().enumerate().map(|(at, &x)| {
        let expected = cumulative(x);
        let before = at as f64 / n;
        let after = (at + 1) as f64 / n;
        (expected - before).abs().max((after - expected).abs())
    });
    // The limit distribution's 99.9 % point is 1.9495 (Smirnov 1948).
    gaps.fold(0.0, f64::max) / (1.9495 / n.sqrt())
}

/// Pearson's chi-squared of observed counts against probabilities, divided by the limit at 0.1 %:
/// below 1 fits. Every expected count should be at least 5.
pub(crate) fn chi_squared(observed: &[u64], probabilities: &[f64]) -> f64 {
    assert_eq!(observed.len(), probabilities.len());
    let total: u64 = observed.iter().sum();
    let terms = observed.iter().zip(probabilities).map(|(&seen, p)| {
        let expected = total as f64 * p;
        assert!(expected >= 5.0, "a cell with {expected} expected is too thin");
        (seen as f64 - expected).powi(2) / expected
    });
    terms.sum::<f64>() / chi_squared_limit(observed.len() - 1)
}

/// 99.9 % point of chi-squared by Wilson and Hilferty's approximation (1931); its error is below 1
/// % from 3 degrees of freedom on.
fn chi_squared_limit(degrees: usize) -> f64 {
    const NORMAL_99_9: f64 = 3.0902;
    let k = degrees as f64;
    let root = 1.0 - 2.0 / (9.0 * k) + NORMAL_99_9 * (2.0 / (9.0 * k)).sqrt();
    k * root.powi(3)
}

#[test]
fn the_limits_are_those_of_the_tables() {
    // NIST's table of critical values: 27.877 at 9 degrees, 149.449 at 100.
    assert!((chi_squared_limit(9) / 27.877 - 1.0).abs() < 0.01);
    assert!((chi_squared_limit(100) / 149.449 - 1.0).abs() < 0.01);
}

#[test]
fn a_loaded_die_is_found() {
    let fair = [1.0 / 6.0; 6];
    assert!(chi_squared(&[1000, 1010, 990, 1005, 1003, 992], &fair) < 1.0);
    assert!(chi_squared(&[1000, 1010, 990, 1005, 1003, 1192], &fair) > 1.0);
    let even: Vec<f64> = (0..1000).map(|i| (f64::from(i) + 0.5) / 1000.0).collect();
    assert!(kolmogorov_smirnov(even.clone(), |x| x) < 1.0);
    assert!(kolmogorov_smirnov(even, |x| x * x) > 1.0);
}
