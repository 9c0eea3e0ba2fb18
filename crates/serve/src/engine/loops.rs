//! What the engines share whose kernel threads wait for many connections at once.
//!
//! `house` (what all threads have in common) · `entrance`, `doors`, `gate`, `dealer` (how
//! connections come in) · `lookout` (what a loop hears: its dispatcher, its timers, and whose
//! turn it is) · `steps` (how far a connection goes) · `wire`, `output` (its socket, and what goes
//! out on it) · `bell` (what others know of a loop) · `at_work` (what the server has of all of
//! them) · `threads` · `counters`.

mod at_work;
mod bell;
mod counters;
mod dealer;
mod doors;
mod entrance;
mod gate;
mod house;
mod lookout;
mod output;
mod steps;
#[cfg(test)]
pub(crate) mod tests;
mod threads;
mod wire;

pub(crate) use at_work::Loops;
pub(crate) use bell::Loop;
pub(crate) use dealer::Deals;
pub(crate) use doors::{Accepted, Doors, Sockets, all_sockets, sockets};
pub(crate) use entrance::Entrance;
pub(crate) use gate::Gate;
pub(crate) use house::{House, OpenDispatcher, drop_session};
pub(crate) use lookout::{DOORS, Lookout, Seated, Watch, place_of};
pub(crate) use output::{output, tell};
pub(crate) use steps::{LONG_LEN, LongUntil, SHARE_OF_TURN, STEPS_MAX, is_put_off, take_steps};
pub(crate) use threads::LoopThreads;
pub(crate) use wire::{Waits, Wire};

/// As much is received at a time: all that has come meanwhile, as a rule, and little enough for a
/// processor's cache.
pub(crate) const ROOM_LEN: usize = 64 * 1024;
