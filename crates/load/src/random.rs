//! Random numbers, reproducible from a seed on every machine and in every version.
//!
//! The generator is xoshiro256++ (Blackman and Vigna, "Scrambled linear pseudorandom number
//! generators", 2021). Its paper defines its output, so a file set made from the same seed years
//! later has the same bytes. Not for secrets.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// Creates the stream of this seed.
    pub fn new(seed: u64) -> Random {
        Random(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Creates stream number `stream` of this seed, independent of the others. One stream per file,
    /// thread or agent.
    pub fn stream(seed: u64, stream: u64) -> Random {
        // Neighbouring seeds are spread by the seeding itself (SplitMix64); the odd factor keeps
        // stream 1 of seed 0 away from stream 0 of seed 1.
        Random::new(seed ^ (stream.wrapping_add(1)).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// Returns 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number in `[0, 1)`, in steps of 2⁻⁵³.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Returns a number in `(0, 1]`, whose logarithm exists.
    #[inline]
    pub fn unit_above_zero(&mut self) -> f64 {
        1.0 - self.unit()
    }

    /// Returns a whole number in `0..bound`; 0 if `bound` is 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        // Lemire, "Fast random integer generation in an interval" (2019), without the rejection
        // step: the bias is below bound/2^64, which no test of ours could see.
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Draws the number of tries until one succeeds, if one in `mean` does: a geometric
    /// distribution, without memory.
    pub fn tries(&mut self, mean: u32) -> u32 {
        // By inversion. `ln_1p(-1)` is minus infinity, so that a mean of 1 gives 1; `as` saturates.
        let fails_ln = (-1.0 / f64::from(mean.max(1))).ln_1p();
        ((self.unit_above_zero().ln() / fails_ln).floor() + 1.0) as u32
    }

    /// Shuffles `items` (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_replays_the_stream() {
        let draw = |mut random: Random| [random.bits(), random.bits(), random.bits()];
        assert_eq!(draw(Random::new(7)), draw(Random::new(7)));
        assert_ne!(draw(Random::new(7)), draw(Random::new(8)));
        assert_ne!(draw(Random::stream(7, 0)), draw(Random::stream(7, 1)));
        assert_ne!(draw(Random::stream(0, 1)), draw(Random::stream(1, 0)));
    }

    #[test]
    fn the_bytes_of_a_seed_never_change() {
        // Existing file sets were made from these numbers; others would not match their checksums.
        let mut random = Random::new(42);
        assert_eq!(random.bits(), 15_021_278_609_987_233_951);
        let mut bytes = [0; 4];
        random.fill(&mut bytes);
        assert_eq!(bytes, random_bytes_of_seed_42());
    }

    fn random_bytes_of_seed_42() -> [u8; 4] {
        let mut random = Random::new(42);
        random.bits();
        random.bits().to_le_bytes()[..4].try_into().unwrap()
    }

    #[test]
    fn units_and_bounds() {
        let mut random = Random::new(1);
        for _ in 0..10_000 {
            let unit = random.unit();
            assert!((0.0..1.0).contains(&unit), "{unit}");
            let above = random.unit_above_zero();
            assert!(above > 0.0 && above <= 1.0, "{above}");
            assert!(random.below(7) < 7);
        }
        assert_eq!(random.below(0), 0);
        assert_eq!(random.below(1), 0);
    }

    #[test]
    fn tries_have_their_mean_and_no_memory() {
        const COUNT: usize = 100_000;
        let mut random = Random::new(5);
        for mean in [2, 5, 100] {
            let drawn: Vec<u32> = (0..COUNT).map(|_| random.tries(mean)).collect();
            let sum: u64 = drawn.iter().map(|&tries| u64::from(tries)).sum();
            let ratio = sum as f64 / COUNT as f64 / f64::from(mean);
            assert!((0.98..1.02).contains(&ratio), "{ratio} of {mean}");
            // One in `mean` of those that remain ends there.
            for at in [1, mean] {
                let here = drawn.iter().filter(|&&tries| tries == at).count() as f64;
                let later = drawn.iter().filter(|&&tries| tries >= at).count() as f64;
                let share = here / later * f64::from(mean);
                assert!((0.8..1.2).contains(&share), "{share} of {mean} at {at}");
            }
        }
        assert!((0..1000).all(|_| random.tries(1) == 1 && random.tries(0) == 1));
        assert!((0..1000).all(|_| random.tries(u32::MAX) > 1000));
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..1000).collect();
        Random::new(3).shuffle(&mut items);
        assert_ne!(items, (0..1000).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..1000).collect::<Vec<_>>());
    }
}
