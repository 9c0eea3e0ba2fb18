//! In place of `spans`, without the feature `tracing`: nothing, at no cost.

use crate::sched::processor::Processor;

#[derive(Clone, Debug, Default)]
pub(crate) struct Chosen;

#[derive(Default)]
pub(crate) struct Spans;

#[derive(Default)]
pub(crate) struct Inside {}

impl Spans {
    pub(crate) fn new(_: Chosen) -> Spans {
        Spans
    }

    #[inline(always)]
    pub(crate) fn around<R>(&self, _: &Processor, resume: impl FnOnce() -> R) -> R {
        resume()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

#[inline(always)]
pub(crate) fn end_here() {}

#[inline(always)]
pub(crate) fn carry<F: FnOnce() -> T, T>(f: F) -> F {
    f
}
