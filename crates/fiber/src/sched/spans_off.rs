//! In place of `spans`, without the feature `tracing`: nothing, at no cost.

#[derive(Clone, Debug, Default)]
pub(crate) struct Chosen;

#[derive(Default)]
pub(crate) struct Spans;

impl Spans {
    pub(crate) fn new(_: Chosen) -> Spans {
        Spans
    }

    #[inline(always)]
    pub(crate) fn around<R>(&self, _: impl Fn(&mut dyn FnMut()), resume: impl FnOnce() -> R) -> R {
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
