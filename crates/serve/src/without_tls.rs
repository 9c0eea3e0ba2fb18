//! The module `tls` in a build without the feature.

/// TLS of a listener; it has no values.
#[derive(Clone, Copy, Debug)]
pub enum Tls {}
