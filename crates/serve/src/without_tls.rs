//! The module `tls` in a build without the feature.

/// TLS of a listener, which cannot exist.
#[derive(Clone, Copy, Debug)]
pub enum Tls {}
