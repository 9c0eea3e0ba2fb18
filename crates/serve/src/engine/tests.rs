//! An engine for tests of the common guarantees.

mod smallest;
