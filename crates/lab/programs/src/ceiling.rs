//! Bare responders: the least cost of a reply on this machine, with epoll and with a ring, shown
//! beside real servers in the laboratory's figures.
//!
//! `weft-programs ceiling event|ring web|cache HOST:PORT FOLDER` has one thread. It serves the
//! files of the folder from memory, or it is a cache with one value for all keys. It lacks what
//! makes a server: limits, time-outs, validation of input.

mod event;
mod replies;
mod ring;

use std::convert::Infallible;
use std::net::{SocketAddrV4, TcpListener};
use std::path::Path;

use replies::Replies;

/// Serves until it is killed.
///
/// # Errors
/// A mistake in the arguments, or a failed system call.
pub(crate) fn run(words: &[String]) -> Result<Infallible, String> {
    let [way, protocol, address, folder] = words else {
        return Err("usage: ceiling event|ring web|cache HOST:PORT FOLDER".to_owned());
    };
    let replies = match &**protocol {
        "web" => {
            Replies::of_files(Path::new(folder)).map_err(|error| format!("{folder}: {error}"))?
        }
        "cache" => Replies::of_a_cache(),
        _ => return Err(format!("unknown protocol '{protocol}'")),
    };
    let address: SocketAddrV4 = address.parse().map_err(|_| format!("no address '{address}'"))?;
    let serve = match &**way {
        "event" => event::serve,
        "ring" => ring::serve,
        _ => return Err(format!("unknown way '{way}'")),
    };
    let served = listen(address).and_then(|listener| serve(&listener, replies));
    served.map_err(|error| error.to_string())
}

pub(crate) fn listen(address: SocketAddrV4) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    // std's backlog of 128 is too short for a thousand connections at once.
    rustix::net::listen(&listener, 16_384)?;
    Ok(listener)
}

/// Bytes received at once.
pub(crate) const INPUT_BYTES: usize = 16 * 1024;
/// Longest request; a longer one ends its connection.
const REQUEST_BYTES_MAX: usize = 1 << 20;
