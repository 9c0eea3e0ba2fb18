//! Listening sockets: addresses as typed, sockets as drivers use them.
//!
//! ```text
//!  "[::]:8080"            --listen, TOML, WEFT_LISTEN          systemd: LISTEN_FDS
//!       │ FromStr                                                    │
//!       ▼                                                            ▼
//!   Address ──── bind() ────▶ Bound { address, socket } ◀──── inherited()
//!                               │                │
//!                               ▼                ▼
//!                             urls()        accept loops
//! ```
//!
//! Sockets are returned listening, close-on-exec and in blocking mode; a driver that polls sets
//! `O_NONBLOCK` itself.

mod address;
mod bound;
mod error;
#[cfg(feature = "event")]
mod group;
mod handshakes;
mod holder;
mod inherited;
mod tcp;
#[cfg(test)]
mod tests;
mod unix;
mod zone;

use std::net::{Ipv4Addr, SocketAddr};

pub use address::Address;
pub use bound::Bound;
#[cfg(feature = "netstack")]
pub(crate) use bound::url;
pub use error::BindError;
pub(crate) use handshakes::handshakes_under_way;
pub use inherited::{Inherited, inherited};

/// The process that holds the TAP interface `name` in this network namespace, for an error message.
/// `None` if there is none, or it belongs to another user.
pub fn tap_holder(name: &str) -> Option<String> {
    holder::of_tap(name).map(|holder| holder.to_string())
}

/// Listens at `address`. A host name listens at every address that it resolves to, so one `Address`
/// may give several sockets, which share one port.
///
/// `backlog` is the length of the listen queue; `None` is the maximum (`net.core.somaxconn`).
///
/// # Errors
/// A [`BindError`] whose text gives the remedy.
pub fn bind(address: &Address, backlog: Option<u32>) -> Result<Vec<Bound>, BindError> {
    bind_beside(&[], address, backlog)
}

/// Like [`bind`], but skips an address at which one of `others` already listens: systemd may hold
/// the port that the configuration names.
///
/// # Errors
/// A [`BindError`] whose text gives the remedy.
pub fn bind_beside(
    others: &[Bound],
    address: &Address,
    backlog: Option<u32>,
) -> Result<Vec<Bound>, BindError> {
    let backlog = Backlog::from(backlog);
    let is_taken = |address| others.iter().any(|bound| bound.takes(address));
    match address {
        Address::Tcp(exact) if is_taken(*exact) => Ok(Vec::new()),
        Address::Tcp(exact) => Ok(vec![tcp::bind(*exact, backlog, address)?]),
        Address::Name { host, port } if host.is_empty() => {
            let four = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), *port);
            if is_taken(four) {
                Ok(Vec::new())
            } else {
                Ok(vec![tcp::bind_every_interface(*port, backlog, address)?])
            }
        }
        Address::Name { host, port } => tcp::bind_name(host, *port, backlog, address, is_taken),
        Address::Unix { path, .. } if others.iter().any(|bound| bound.is_at(path)) => {
            Ok(Vec::new())
        }
        Address::Unix { path, mode } => Ok(vec![unix::bind(path, *mode, backlog)?]),
    }
}

/// Argument of `listen(2)`, which caps it at `net.core.somaxconn`.
#[derive(Clone, Copy, Debug)]
struct Backlog(i32);

impl From<Option<u32>> for Backlog {
    fn from(backlog: Option<u32>) -> Backlog {
        Backlog(backlog.map_or(i32::MAX, |len| len.min(i32::MAX as u32) as i32))
    }
}
