//! Load generators that tell the truth.
#![forbid(unsafe_code)]

pub mod distribution;
#[cfg(test)]
mod goodness;
pub mod random;
