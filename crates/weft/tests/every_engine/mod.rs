//! Every engine in every combination, for the suites that all of them pass.
//!
//! Engines, dispatchers and ways to accept make 35 combinations. Running all promises on all of
//! them would take twice as long as on a selection, and find little more. `on_every_engine` covers
//! each dispatcher under event loops, and each kind of dispatcher (by level, by edge, signals, a
//! ring) under a pipeline. Suites that depend on reports (conversations, and slow or greedy
//! clients) also run on `on_every_other_combination`. Together they cover all.

pub(crate) use event::{Mechanism, Overflow};
pub(crate) use fiber::BackendChoice;
pub(crate) use serve::Engine;
pub(crate) use serve::engine::Accept;
use serve::engine::{EventOptions, PipelineOptions};

/// Makes one test for each function and engine; the function is called with the engine.
macro_rules! on_every_engine {
    ($($test:ident)*) => {
        on_each_engine! {
            { $($test)* }
            fiber_uring: fibers(1, BackendChoice::Uring);
            fiber_uring_two_processors: fibers(2, BackendChoice::Uring);
            fiber_epoll: fibers(2, BackendChoice::Epoll);
            thread: Engine::Thread;
            event_select: events(Mechanism::Select, Accept::Own);
            event_poll: events(Mechanism::Poll, Accept::Own);
            event_fdm: events(Mechanism::FDM, Accept::Own);
            event_lap: events(Mechanism::Lap, Accept::Own);
            event_rtsig: events(Mechanism::RtSig(Overflow::Poll), Accept::Own);
            event_rtsig_kept_poll: events(Mechanism::RtSig(Overflow::KeptPoll), Accept::Own);
            event_rtsig_select: events(Mechanism::RtSig(Overflow::Select), Accept::Own);
            event_rtsig_signalfd: events(Mechanism::RtSig(Overflow::Signalfd), Accept::Own);
            event_epoll: events(Mechanism::Epoll, Accept::Own);
            event_epoll_edge: events(Mechanism::EpollEdge, Accept::Own);
            event_uring: events(Mechanism::Uring, Accept::Own);
            event_distributed: events(Mechanism::EpollEdge, Accept::Distributed);
            event_level_distributed: events(Mechanism::Epoll, Accept::Distributed);
            pipeline: pipeline(Mechanism::EpollEdge, 16, 8);
            pipeline_narrow: pipeline(Mechanism::EpollEdge, 1, 1);
            pipeline_epoll: pipeline(Mechanism::Epoll, 4, 2);
            pipeline_poll: pipeline(Mechanism::Poll, 1024, 32);
            pipeline_rtsig: pipeline(Mechanism::RtSig(Overflow::Poll), 1024, 32);
            pipeline_uring: pipeline(Mechanism::Uring, 1024, 32);
        }
    };
}

/// The same for the combinations of engine and dispatcher that `on_every_engine` leaves out.
macro_rules! on_every_other_combination {
    ($($test:ident)*) => {
        on_each_engine! {
            { $($test)* }
            event_select_distributed: events(Mechanism::Select, Accept::Distributed);
            event_poll_distributed: events(Mechanism::Poll, Accept::Distributed);
            event_fdm_distributed: events(Mechanism::FDM, Accept::Distributed);
            event_lap_distributed: events(Mechanism::Lap, Accept::Distributed);
            event_rtsig_distributed: events(Mechanism::RtSig(Overflow::Poll), Accept::Distributed);
            event_rtsig_select_distributed: events(Mechanism::RtSig(Overflow::Select), Accept::Distributed);
            event_rtsig_signalfd_distributed: events(Mechanism::RtSig(Overflow::Signalfd), Accept::Distributed);
            event_uring_distributed: events(Mechanism::Uring, Accept::Distributed);
            pipeline_select: pipeline(Mechanism::Select, 1024, 32);
            pipeline_fdm: pipeline(Mechanism::FDM, 1024, 32);
            pipeline_lap: pipeline(Mechanism::Lap, 1024, 32);
            pipeline_rtsig_select: pipeline(Mechanism::RtSig(Overflow::Select), 1024, 32);
            pipeline_rtsig_signalfd: pipeline(Mechanism::RtSig(Overflow::Signalfd), 1024, 32);
        }
    };
}

macro_rules! on_each_engine {
    ($tests:tt $($name:ident: $engine:expr;)*) => {
        $(on_one_engine! { $name, $engine, $tests })*
    };
}

macro_rules! on_one_engine {
    ($name:ident, $engine:expr, { $($test:ident)* }) => {
        mod $name {
            #[allow(unused_imports, reason = "each engine needs some of them")]
            use crate::every_engine::*;

            $(#[test] fn $test() { super::$test(&$engine) })*
        }
    };
}

pub(crate) fn events(dispatcher: Mechanism, accept: Accept) -> Engine {
    Engine::Event(EventOptions {
        loops: 2,
        dispatcher,
        accept,
        accepts_many: dispatcher != Mechanism::Poll && accept == Accept::Own,
        has_file_threads: accept == Accept::Own,
    })
}

pub(crate) fn fibers(processors: usize, backend: BackendChoice) -> Engine {
    Engine::Fiber { processors, backend }
}

/// A pipeline with two threads for each stage, or one if the queue limit is 1.
pub(crate) fn pipeline(dispatcher: Mechanism, queue_limit: usize, batch_max: usize) -> Engine {
    let threads = queue_limit.min(2);
    Engine::Pipeline(PipelineOptions {
        read_threads: threads,
        session_threads: threads,
        write_threads: threads,
        queue_limit,
        batch_max,
        dispatcher,
    })
}
