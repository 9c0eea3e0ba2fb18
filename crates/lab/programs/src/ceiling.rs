//! Servers that do next to nothing: what an answer costs at the least on this machine, with epoll
//! and with a ring. Real servers stand beside them in the laboratory's figures.
//!
//! `weft-programs ceiling event|ring web|cache HOST:PORT FOLDER` has one thread and serves the
//! files of the folder from memory; or it is a cache with one value for all keys. What it leaves
//! out is what makes a server: limits, time-outs, checks of what it is sent.

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
/// What is wrong with the words, or what the system refused.
pub(crate) fn run(words: &[String]) -> Result<Infallible, String> {
    let [way, protocol, address, folder] = words else {
        return Err("want: ceiling event|ring web|cache HOST:PORT FOLDER".to_owned());
    };
    let replies = match &**protocol {
        "web" => {
            Replies::of_files(Path::new(folder)).map_err(|error| format!("{folder}: {error}"))?
        }
        "cache" => Replies::of_a_cache(),
        _ => return Err(format!("no protocol '{protocol}'")),
    };
    let address: SocketAddrV4 = address.parse().map_err(|_| format!("no address '{address}'"))?;
    let serve = match &**way {
        "event" => event::serve,
        "ring" => ring::serve,
        _ => return Err(format!("no way '{way}'")),
    };
    let served = listen(address).and_then(|listener| serve(&listener, replies));
    served.map_err(|error| error.to_string())
}

pub(crate) fn listen(address: SocketAddrV4) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    // std asks for 128 places: too few for a thousand connections at once.
    rustix::net::listen(&listener, 16_384)?;
    Ok(listener)
}

/// Bytes received at once.
pub(crate) const INPUT_BYTES: usize = 16 * 1024;
/// A request that is longer ends its connection.
const REQUEST_BYTES_MAX: usize = 1 << 20;
