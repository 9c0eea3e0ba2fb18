//! One request and its reply: the small part of HTTP that an admin endpoint needs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};

use super::{Reply, Route};

/// Time limit for receiving a request, and again for sending the reply, on a thread of its own.
pub(super) const PEER_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest request head; a longer one is answered with 431.
pub(super) const HEAD_LEN_MAX: usize = 8 * 1024;

pub(super) const PLAIN: &str = "text/plain; charset=utf-8";

pub(super) fn serve(stream: &OwnedFd, routes: &[Route], patience: Duration) {
    let mut head = Vec::new();
    let reply = match receive_head(stream, &mut head, Instant::now() + patience) {
        Ok(true) => answer(&head, routes),
        Ok(false) => render(PLAIN, &status_only(431), false),
        Err(_) => return,
    };
    let deadline = Instant::now() + patience;
    // Closing a socket with unread input resets the connection, and the reply may be lost. So wait
    // for the end of the peer's input first. RFC 9112 section 9.6
    let _ = send_all(stream, &reply, deadline)
        .and_then(|()| Ok(rustix::net::shutdown(stream, Shutdown::Write)?))
        .and_then(|()| drain(stream, deadline));
}

/// Reads until the empty line; `false` if it does not arrive within [`HEAD_LEN_MAX`].
pub(super) fn receive_head(
    stream: &OwnedFd,
    head: &mut Vec<u8>,
    deadline: Instant,
) -> io::Result<bool> {
    let mut piece = [0; 1024];
    loop {
        let len = receive(stream, &mut piece, deadline)?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&piece[..len]);
        if head.windows(4).any(|four| four == b"\r\n\r\n") {
            return Ok(true);
        }
        if head.len() > HEAD_LEN_MAX {
            return Ok(false);
        }
    }
}

fn drain(stream: &OwnedFd, deadline: Instant) -> io::Result<()> {
    let mut piece = [0; 1024];
    for _ in 0..64 {
        if receive(stream, &mut piece, deadline)? == 0 {
            break;
        }
    }
    Ok(())
}

fn receive(stream: &OwnedFd, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
    loop {
        match rustix::io::read(stream, &mut *buffer) {
            Err(Errno::AGAIN) => wait(stream.as_fd(), PollFlags::IN, deadline)?,
            Err(Errno::INTR) => {}
            read => return Ok(read?),
        }
    }
}

fn send_all(stream: &OwnedFd, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::net::send(stream, bytes, SendFlags::NOSIGNAL) {
            Err(Errno::AGAIN) => wait(stream.as_fd(), PollFlags::OUT, deadline)?,
            Err(Errno::INTR) => {}
            sent => bytes = &bytes[sent?..],
        }
    }
    Ok(())
}

fn wait(stream: BorrowedFd<'_>, events: PollFlags, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).map_err(io::Error::other)?;
    let mut polled = [PollFd::from_borrowed_fd(stream, events)];
    match rustix::event::poll(&mut polled, Some(&left)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The whole reply to a request head.
fn answer(head: &[u8], routes: &[Route]) -> Vec<u8> {
    let Some((method, target)) = parse_request_line(head) else {
        return render(PLAIN, &status_only(400), false);
    };
    let is_head = method == "HEAD";
    if !is_head && method != "GET" {
        return render(PLAIN, &status_only(405), false);
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let Some(route) = routes.iter().find(|route| route.path == path) else {
        return render(PLAIN, &status_only(404), is_head);
    };
    match catch_unwind(AssertUnwindSafe(|| (route.handler)(query))) {
        Ok(reply) => render(route.content_type, &reply, is_head),
        // The panic was printed with its location; the server continues.
        Err(_) => render(PLAIN, &status_only(500), is_head),
    }
}

/// Method and target. RFC 9112 section 3
fn parse_request_line(head: &[u8]) -> Option<(&str, &str)> {
    let line = head.split(|&byte| byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let whole = words.next().is_none() && target.starts_with('/');
    (whole && version.starts_with("HTTP/1.")).then_some((method, target))
}

fn status_only(status: u16) -> Reply {
    Reply::new(status, format!("{}\n", reason(status)))
}

pub(super) fn render(content_type: &str, reply: &Reply, is_head: bool) -> Vec<u8> {
    let Reply { status, body, .. } = reply;
    let content_type = reply.content_type.unwrap_or(content_type);
    let date = httpdate::fmt_http_date(SystemTime::now());
    let allow = if *status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    let mut bytes = format!(
        "HTTP/1.1 {status} {}\r\nDate: {date}\r\nContent-Type: {content_type}\r\n\
         Content-Length: {}\r\n{allow}Cache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        reason(*status),
        body.len()
    )
    .into_bytes();
    if !is_head {
        bytes.extend_from_slice(body);
    }
    bytes
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Status",
    }
}
