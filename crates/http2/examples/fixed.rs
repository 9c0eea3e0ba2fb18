//! The smallest server on an [`Endpoint`]: prior knowledge (h2c) over blocking sockets, a thread
//! for each connection, and a fixed reply. `/N` has a body of N bytes.
//!
//! ```text
//! cargo run -p weftwork-http2 --example fixed -- 127.0.0.1:8080
//! curl --http2-prior-knowledge http://127.0.0.1:8080/100000 | wc -c
//! ```
//!
//! A real server keeps reading while a write blocks: this one reads no RST_STREAM as long as the
//! peer takes nothing.

extern crate weftwork_http2 as http2;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use http2::{
    Endpoint, EndpointLimits, ErrorCode, RepeatedField, ReplyHead, RequestHead, StreamEvent,
    StreamKey,
};

/// Bytes read at a time, and length of output that is sent before more input is used.
const BUFFER_LEN: usize = 64 * 1024;

static BODY: [u8; BUFFER_LEN] = [b'x'; BUFFER_LEN];

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0"))?;
    println!("http://{}/", listener.local_addr()?);
    let limits = Arc::new(EndpointLimits::default());
    for stream in listener.incoming() {
        let stream = stream?;
        let limits = limits.clone();
        std::thread::spawn(move || {
            stream.set_nodelay(true)?;
            Connection::new(limits, stream).serve()
        });
    }
    Ok(())
}

struct Connection {
    socket: TcpStream,
    endpoint: Endpoint,
    head: RequestHead,
    out: Vec<u8>,
    server: RepeatedField,
    kind: RepeatedField,
}

impl Connection {
    fn new(limits: Arc<EndpointLimits>, socket: TcpStream) -> Connection {
        let mut out = Vec::new();
        Connection {
            socket,
            endpoint: Endpoint::new(limits, Instant::now(), &mut out),
            head: RequestHead::new(32 * 1024, 100),
            out,
            server: RepeatedField::new(b"server", b"fixed"),
            kind: RepeatedField::new(b"content-type", b"text/plain"),
        }
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut held = Vec::new();
        let mut buffer = vec![0; BUFFER_LEN];
        self.flush()?;
        loop {
            let len = self.socket.read(&mut buffer)?;
            if len == 0 {
                return Ok(());
            }
            held.extend_from_slice(&buffer[..len]);
            let mut used = 0;
            loop {
                let input = &held[used..];
                let now = Instant::now();
                let taken = self.endpoint.receive(input, now, &mut self.head, &mut self.out);
                used += taken.used;
                match taken.event {
                    Some(event) => self.handle(event),
                    None => break,
                }
            }
            held.drain(..used);
            self.send_bodies()?;
            self.flush()?;
            if self.endpoint.is_finished() {
                return self.linger();
            }
        }
    }

    fn handle(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Request { stream, .. } => {
                let path = std::str::from_utf8(self.head.path()).unwrap_or_default();
                let len = path[1..].parse().unwrap_or(400);
                let len = if self.head.method() == b"HEAD" { 0 } else { len };
                self.reply(stream, 200, len);
            }
            StreamEvent::HeadTooLong { stream } => self.reply(stream, 431, 0),
            StreamEvent::BodyTooLong { stream } => {
                self.endpoint.reset(stream, ErrorCode::NO_ERROR, &mut self.out);
            }
            StreamEvent::BodyEnded { .. } | StreamEvent::Reset { .. } => {}
            StreamEvent::Failed { code, why, .. } => eprintln!("{code}: {why}"),
        }
    }

    fn reply(&mut self, stream: StreamKey, status: u16, len: u64) {
        let digits = len.to_string();
        let head = ReplyHead {
            status,
            repeated: &[&self.server, &self.kind],
            fields: &[(b"content-length", digits.as_bytes())],
            ..ReplyHead::default()
        };
        self.endpoint.reply(stream, &head, len, &mut self.out);
    }

    fn send_bodies(&mut self) -> io::Result<()> {
        while let Some(mut piece) = self.endpoint.next_piece(BODY.len() as u64) {
            while let Some(len) = self.endpoint.write_frame(&mut piece, &mut self.out) {
                self.out.extend_from_slice(&BODY[..len as usize]);
            }
            if self.out.len() >= BUFFER_LEN {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Lets the peer read GOAWAY: a close with unread input would reset the connection.
    fn linger(&mut self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)?;
        io::copy(&mut self.socket, &mut io::sink()).map(drop)
    }
}
