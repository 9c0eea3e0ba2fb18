//! The client of a connection, by its socket or a PROXY header; and the limit of its address. It
//! exists only if a setting needs it.

use std::net::SocketAddr;

use session::{Now, Session};

use super::Machine;
use super::machine::State;
use crate::addresses::AddressSlot;
use crate::counters::Closed;
use crate::proxy::{self, Beginning};

/// The client of a connection.
pub(super) struct Origin {
    client: Option<SocketAddr>,
    /// Slot among the connections of its address, if that has a limit.
    _place: Option<AddressSlot>,
}

impl<S: Session> Machine<S> {
    /// Takes the address of the socket. A proxy must send a header first.
    #[cold]
    pub(super) fn identify(&mut self, peer: Option<SocketAddr>) {
        let proxies = self.shared.limits.proxy_protocol.as_ref();
        if proxies.is_some_and(|proxies| proxies.from.contains(peer)) {
            self.set_origin(peer, None);
            self.state = State::Proxy;
        } else {
            self.take_place(peer);
        }
    }

    /// Takes input at the start of a connection from a proxy.
    #[cold]
    pub(super) fn take_proxy_header(&mut self, input: &[u8], now: Now) {
        self.held.extend_from_slice(input);
        let limits = &self.shared.limits;
        let is_required =
            (limits.proxy_protocol.as_ref()).is_none_or(|proxies| proxies.is_required);
        let peer = self.client();
        match proxy::read(&self.held) {
            Beginning::Partial => return,
            Beginning::Absent if !is_required => {
                self.shared.counters.proxied(0);
                self.take_place(peer);
            }
            Beginning::Absent | Beginning::Malformed => {
                self.state = State::Close(Closed::ProxyHeader)
            }
            Beginning::Header(header) => {
                self.shared.counters.proxied(header.version);
                // An idle connection holds no memory after its header.
                self.held = self.held.split_off(header.len);
                self.take_place(header.client.or(peer));
            }
        }
        if self.state == State::Handshake && !self.held.is_empty() {
            self.begin_handshake(now);
        }
    }

    /// Continues with the client's connection, unless its address has too many.
    fn take_place(&mut self, client: Option<SocketAddr>) {
        let addresses = self.shared.addresses.as_ref();
        let counted =
            addresses.zip(client).filter(|(addresses, client)| addresses.counts(client.ip()));
        let place = counted.map(|(addresses, client)| addresses.enter(client.ip()));
        self.state = match place {
            Some(None) => State::Close(Closed::AddressLimit),
            _ if self.is_tls => State::Handshake,
            _ => State::Open,
        };
        self.set_origin(client, place.flatten());
    }

    fn set_origin(&mut self, client: Option<SocketAddr>, place: Option<AddressSlot>) {
        self.origin = Some(Box::new(Origin { client, _place: place }));
    }

    /// The client's address, if a setting needs it.
    pub(super) fn client(&self) -> Option<SocketAddr> {
        self.origin.as_ref()?.client
    }
}
