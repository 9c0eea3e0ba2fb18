//! epoll(7), level-triggered: receive, answer, send.

use std::convert::Infallible;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::replies::Replies;
use super::{INPUT_BYTES, REQUEST_BYTES_MAX};

/// Number of the listener among the connections.
const LISTENER: u64 = u64::MAX;

struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    closes: bool,
    waits_to_send: bool,
}

pub(super) fn serve(listener: &TcpListener, mut replies: Replies) -> io::Result<Infallible> {
    listener.set_nonblocking(true)?;
    let poll = epoll::create(CreateFlags::CLOEXEC)?;
    let data = EventData::new_u64(LISTENER);
    epoll::add(&poll, listener, data, EventFlags::IN)?;
    // By descriptor.
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut ready = Vec::with_capacity(512);
    let mut buffer = vec![0; INPUT_BYTES];
    loop {
        ready.clear();
        epoll::wait(&poll, spare_capacity(&mut ready), None)?;
        for event in ready.drain(..) {
            let at = event.data.u64();
            if at == LISTENER {
                accept(listener, &poll, &mut connections)?;
                continue;
            }
            let place = &mut connections[at as usize];
            let Some(connection) = place else {
                continue;
            };
            if connection.turn(&mut replies, &mut buffer).is_err() {
                // Closing removes the descriptor from the interest list.
                *place = None;
                continue;
            }
            let waits = connection.sent < connection.output.len();
            if waits != connection.waits_to_send {
                connection.waits_to_send = waits;
                let wanted = if waits { EventFlags::OUT } else { EventFlags::IN };
                epoll::modify(&poll, &connection.stream, EventData::new_u64(at), wanted)?;
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    poll: impl std::os::fd::AsFd,
    connections: &mut Vec<Option<Connection>>,
) -> io::Result<()> {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let at = std::os::fd::AsRawFd::as_raw_fd(&stream) as usize;
        let data = EventData::new_u64(at as u64);
        epoll::add(&poll, &stream, data, EventFlags::IN)?;
        if connections.len() <= at {
            connections.resize_with(at + 1, || None);
        }
        connections[at] = Some(Connection {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            closes: false,
            waits_to_send: false,
        });
    }
}

impl Connection {
    /// Handles a ready connection; its end is an error.
    fn turn(&mut self, replies: &mut Replies, buffer: &mut [u8]) -> io::Result<()> {
        if !self.waits_to_send {
            let read = self.stream.read(buffer)?;
            if read == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.answer(replies, &buffer[..read]);
            if self.input.len() > REQUEST_BYTES_MAX {
                return Err(ErrorKind::FileTooLarge.into());
            }
        }
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.sent = 0;
        if self.closes { Err(ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }

    fn answer(&mut self, replies: &mut Replies, read: &[u8]) {
        // Most requests arrive whole.
        if self.input.is_empty() {
            let answered = replies.answer(read, &mut self.output);
            self.input.extend_from_slice(&read[answered.used..]);
            self.closes = answered.closes;
            return;
        }
        self.input.extend_from_slice(read);
        let answered = replies.answer(&self.input, &mut self.output);
        self.input.drain(..answered.used);
        self.closes = answered.closes;
    }
}
