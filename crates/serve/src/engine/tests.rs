//! An engine for the tests of what all engines promise.

mod smallest;
