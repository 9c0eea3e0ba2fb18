//! Event dispatching: Liu and Chen's figures for every dispatcher.

pub(super) mod cost;
pub(super) mod rate;
