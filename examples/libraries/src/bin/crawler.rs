//! `crawler URL`: follows the links of a site by `ureq`, twenty pages at once, over a transport on
//! fibers.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use fiber::JoinSet;
use fiber::net::TcpStream;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};
use ureq::{Agent, Error, Timeout};

const AT_ONCE: usize = 20;

#[derive(Debug)]
struct FiberConnector;

#[derive(Debug)]
struct FiberTransport {
    stream: TcpStream,
    buffers: LazyBuffers,
}

impl Connector for FiberConnector {
    type Out = FiberTransport;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<FiberTransport>, Error> {
        let limit = duration(details.timeout);
        let stream = fiber::timeout(limit, || TcpStream::connect(&details.addrs[..]));
        Ok(Some(FiberTransport {
            stream: stream.map_err(|error| failure(error, details.timeout.reason))?,
            buffers: LazyBuffers::new(
                details.config.input_buffer_size(),
                details.config.output_buffer_size(),
            ),
        }))
    }
}

impl Transport for FiberTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let output = &self.buffers.output()[..amount];
        let sent = fiber::timeout(duration(timeout), || self.stream.write_all(output));
        sent.map_err(|error| failure(error, timeout.reason))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let input = self.buffers.input_append_buf();
        let count = fiber::timeout(duration(timeout), || self.stream.read(input));
        let count = count.map_err(|error| failure(error, timeout.reason))?;
        self.buffers.input_appended(count);
        Ok(count > 0)
    }

    fn is_open(&mut self) -> bool {
        let unasked = self.stream.try_receive(|_| ());
        unasked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }
}

fn duration(timeout: NextTimeout) -> Duration {
    timeout.not_zero().map_or(Duration::MAX, |after| *after)
}

fn failure(error: std::io::Error, reason: Timeout) -> Error {
    if error.kind() == ErrorKind::TimedOut { Error::Timeout(reason) } else { error.into() }
}

fn main() {
    let root = std::env::args().nth(1).expect("usage: crawler http://ADDRESS");
    let root = root.trim_end_matches('/').to_owned();
    fiber::run(move || {
        let config = Agent::config_builder().timeout_global(Some(Duration::from_secs(10))).build();
        let agent = Agent::with_parts(config, FiberConnector, DefaultResolver::default());
        let mut known = BTreeSet::from(["/".to_owned()]);
        let mut waiting = vec!["/".to_owned()];
        let (mut fetched, mut len, mut broken) = (0, 0, 0);
        let mut at_work = JoinSet::new();
        loop {
            while let Some(path) = if at_work.len() < AT_ONCE { waiting.pop() } else { None } {
                let (agent, url) = (agent.clone(), format!("{root}{path}"));
                at_work.spawn(move || (fetch(&agent, &url), path));
            }
            let Some(done) = at_work.join_next() else {
                break;
            };
            match done.unwrap() {
                (Ok(body), path) => {
                    fetched += 1;
                    len += body.len();
                    let new = links(&path, &body).into_iter();
                    waiting.extend(new.filter(|link| known.insert(link.clone())));
                }
                (Err(error), path) => {
                    broken += 1;
                    eprintln!("{path}: {error}");
                }
            }
        }
        println!("{fetched} pages, {len} bytes, {broken} broken links");
    });
}

fn fetch(agent: &Agent, url: &str) -> Result<String, Error> {
    let body = agent.get(url).call()?.body_mut().read_to_vec()?;
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// Paths on this server that a page links to.
fn links(path: &str, body: &str) -> Vec<String> {
    let folder = &path[..=path.rfind('/').expect("a path")];
    let quoted: Vec<_> = body.split(['"', '\'']).collect();
    let mut found = Vec::new();
    for pair in quoted.windows(2) {
        let link = pair[1].split(['#', '?']).next().expect("one at least");
        let is_link = pair[0].ends_with("href=") || pair[0].ends_with("src=");
        if is_link && !link.is_empty() && !link.contains(':') && !link.starts_with("//") {
            let base = if link.starts_with('/') { "" } else { folder };
            found.push(without_dots(&format!("{base}{link}")));
        }
    }
    found
}

/// A path without its segments `.` and `..`.
fn without_dots(path: &str) -> String {
    let mut segments = Vec::new();
    for segment in path[1..].split('/') {
        match segment {
            "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let slash = if path.ends_with("/.") || path.ends_with("/..") { "/" } else { "" };
    format!("/{}{slash}", segments.join("/")).replace("//", "/")
}
