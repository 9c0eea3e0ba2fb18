//! Runs each promise of a suite on each back end, with one and with two processors.

use std::time::Duration;

use fiber::{BackendChoice, Runtime};

/// Makes a test of each promise on each back end.
macro_rules! contract {
    ($($promise:ident)*) => {
        mod uring {
            $(#[test] fn $promise() {
                crate::harness::run(fiber::BackendChoice::Uring, super::$promise);
            })*
        }
        mod epoll {
            $(#[test] fn $promise() {
                crate::harness::run(fiber::BackendChoice::Epoll, super::$promise);
            })*
        }
    };
}

pub(crate) fn run(choice: BackendChoice, promise: fn()) {
    for processors in [1, 2] {
        let runtime = Runtime::builder().processors(processors).backend(choice).start().unwrap();
        runtime.run(promise);
        let left = runtime.shutdown(Duration::from_secs(60));
        assert_eq!(left, 0, "fibers left with {processors} processors");
    }
}
