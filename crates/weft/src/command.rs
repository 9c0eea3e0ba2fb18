//! The commands of `weft`.

pub(crate) mod cache;
pub(crate) mod doctor;
#[cfg_attr(not(feature = "lab"), path = "command/without_lab.rs")]
pub(crate) mod lab;
pub(crate) mod load;
pub(crate) mod serve;
pub(crate) mod top;
