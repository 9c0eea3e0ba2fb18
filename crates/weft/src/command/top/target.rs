//! Admin listener of the server to watch: its address as typed, or found from the process; and
//! requests to it.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use ::serve::listen::Address;

use crate::command::cache::CacheConfig;
use crate::command::serve::ServeConfig;
use crate::settings::layer::Layer;
use crate::settings::layers::{self, Fixed};

/// Time to connect, and again for each piece of the reply.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest reply.
const REPLY_LEN_MAX: u64 = 16 << 20;

/// Flags of a server's command line.
pub(crate) enum ServerFlags {
    Serve(Layer),
    Cache(Layer),
}

/// Parses a command line; `None` if it is not a server's.
pub(crate) type ReadServerFlags = fn(Vec<OsString>) -> Option<ServerFlags>;

/// A server's admin listener.
#[derive(Debug)]
pub(super) struct AdminTarget {
    address: Address,
    /// Its name for people.
    pub(super) name: String,
}

impl AdminTarget {
    /// Finds the listener: of a process, if a number was typed, else at this address. The address
    /// may include `http://` and `/metrics`, as printed by the server.
    ///
    /// # Errors
    /// A sentence with the remedy.
    pub(super) fn find(typed: &str, read: ReadServerFlags) -> Result<AdminTarget, String> {
        if typed.bytes().all(|byte| byte.is_ascii_digit()) {
            let admin = of_process(typed, read)?;
            return Ok(AdminTarget { name: format!("process {typed}"), ..AdminTarget::at(admin) });
        }
        let address = typed
            .strip_prefix("http://")
            .map_or(typed, |url| url.split_once('/').map_or(url, |(address, _)| address));
        let address = address.parse().map_err(|error: io::Error| error.to_string())?;
        Ok(AdminTarget::at(address))
    }

    fn at(address: Address) -> AdminTarget {
        // A wildcard address is replaced by the loopback address.
        let address = match address {
            Address::Name { host, port } if host.is_empty() => {
                Address::Name { host: "localhost".to_owned(), port }
            }
            other => other,
        };
        AdminTarget { name: address.to_string(), address }
    }

    /// Requests a path; returns the body of a 200.
    ///
    /// # Errors
    /// A sentence.
    pub(super) fn get(&self, path: &str) -> Result<String, String> {
        let reply = self.exchange(path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => format!("no answer within {} s", PATIENCE.as_secs()),
            _ => error.to_string(),
        })?;
        let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
        match head.split(' ').nth(1) {
            Some("200") => Ok(body.to_owned()),
            Some(status) if head.starts_with("HTTP/1.") => {
                Err(format!("{path} is answered with {status}: is that the address of --admin?"))
            }
            _ => Err("that is no HTTP: is it the address of --admin?".to_owned()),
        }
    }

    fn exchange(&self, path: &str) -> io::Result<String> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: weft-top\r\nConnection: close\r\n\r\n");
        let to = match &self.address {
            Address::Unix { path, .. } => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                return converse(stream, &request);
            }
            Address::Tcp(address) => vec![*address],
            Address::Name { host, port } => (&**host, *port).to_socket_addrs()?.collect(),
        };
        let mut last = io::ErrorKind::NotFound.into();
        for address in to {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(PATIENCE))?;
                    return converse(stream, &request);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn converse(mut stream: impl Read + Write, request: &str) -> io::Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut reply = Vec::new();
    stream.take(REPLY_LEN_MAX).read_to_end(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

/// First admin address of a process, from its command line, environment or file.
fn of_process(pid: &str, read: ReadServerFlags) -> Result<Address, String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    let name = name.map_err(|_| format!("there is no process {pid}; a port is written :{pid}"))?;
    let words = words_of(&format!("/proc/{pid}/cmdline"))
        .map_err(|error| format!("cannot read the command line of process {pid}: {error}"))?;
    // Relative paths in it refer to its directory, which only its user may read.
    let _ = std::env::set_current_dir(format!("/proc/{pid}/cwd"));
    let admin = match read(words) {
        Some(ServerFlags::Serve(flags)) if name.starts_with("weft") => {
            let variables = words_of(&format!("/proc/{pid}/environ")).unwrap_or_default();
            let variables = variables.into_iter().filter_map(|variable| {
                let text = variable.into_string().ok()?;
                let (name, value) = text.split_once('=')?;
                Some((name.into(), value.into()))
            });
            let (env, _) = layers::environment::<ServeConfig>(variables)?;
            Fixed { flags, env }.resolve::<ServeConfig>()?.config.common.admin
        }
        Some(ServerFlags::Cache(flags)) if name.starts_with("weft") => {
            CacheConfig::read(flags)?.common.admin
        }
        _ => {
            let name = name.trim_end();
            return Err(format!("process {pid} is {name}, not weft serve or weft cache"));
        }
    };
    match admin.into_iter().next() {
        None => Err(format!(
            "process {pid} has no admin listener: start it with --admin 127.0.0.1:9090, or admin = \
             \"127.0.0.1:9090\" in its file"
        )),
        Some(address) if address.port() == Some(0) => Err(format!(
            "the kernel chose the admin port of process {pid}: name the address that it printed"
        )),
        Some(address) => Ok(address),
    }
}

/// The words of a file with zero-terminated words. proc(5)
fn words_of(path: &str) -> io::Result<Vec<OsString>> {
    let text = fs::read(path)?;
    let words = text.split_inclusive(|byte| *byte == 0);
    let words = words.map(|word| word.strip_suffix(b"\0").unwrap_or(word).to_vec());
    Ok(words.map(OsString::from_vec).collect())
}
