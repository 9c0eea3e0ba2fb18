use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use super::zone;

/// Address to listen at, as typed.
///
/// | typed | means |
/// |---|---|
/// | `127.0.0.1:8080`, `[::1]:8080` | that address |
/// | `0.0.0.0:8080` | every IPv4 interface |
/// | `[fe80::1%eth0]:8080` | a link-local address of that interface |
/// | `[::]:8080` | every interface, IPv4 as well |
/// | `8080`, `:8080`, `*:8080` | every interface; IPv4 alone if the kernel has no IPv6 |
/// | `localhost:8080` | every address that the name resolves to when the server starts |
/// | `unix:/run/weft.sock`, `unix:/run/weft.sock?mode=0660` | a Unix socket, and its mode |
///
/// Port 0 asks the kernel for a free port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// A host name, resolved when it is bound; the empty name is every interface.
    Name {
        /// The name, or nothing.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix stream socket.
    Unix {
        /// The file of the socket.
        path: PathBuf,
        /// Its permission bits. Connecting needs write permission. unix(7)
        mode: u32,
    },
}

impl Address {
    /// The port, if it has one.
    pub fn port(&self) -> Option<u16> {
        match self {
            Address::Tcp(address) => Some(address.port()),
            Address::Name { port, .. } => Some(*port),
            Address::Unix { .. } => None,
        }
    }
}

/// Default mode of a Unix socket: every user may connect, as to a TCP port of this machine, and as
/// with `SocketMode=` of systemd.socket(5).
const MODE_DEFAULT: u32 = 0o666;

impl FromStr for Address {
    type Err = io::Error;

    /// # Errors
    /// `InvalidInput`; the text shows a valid form.
    fn from_str(text: &str) -> io::Result<Address> {
        if let Some(rest) = text.strip_prefix("unix:") {
            return parse_unix(text, rest);
        }
        if text.contains("://") || text.contains('/') {
            return refuse(text, "write HOST:PORT or unix:PATH, without http:// or a path");
        }
        if let Ok(address) = text.parse() {
            return Ok(Address::Tcp(address));
        }
        if let Some(in_zone) = zone::parse(text) {
            return match in_zone {
                Ok(address) => Ok(Address::Tcp(address.into())),
                Err(advice) => refuse(text, &advice),
            };
        }
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Address::Name { host: String::new(), port: parse_port(text, text)? });
        }
        parse_name(text)
    }
}

fn parse_name(text: &str) -> io::Result<Address> {
    let Some((host, port)) = text.rsplit_once(':') else {
        if text.contains(char::is_whitespace) {
            return refuse(text, "write one address alone, as in 127.0.0.1:8080 or :8080");
        }
        return refuse(text, &format!("say which port, as in {text}:8080"));
    };
    if text.starts_with('[') {
        return refuse(text, "write an IPv6 address and port as in [::1]:8080");
    }
    if host.contains(':') {
        return refuse(text, "put an IPv6 address into brackets, as in [::1]:8080");
    }
    let port = parse_port(text, port)?;
    let host = if host == "*" { "" } else { host };
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if !host.bytes().all(is_name_byte) {
        return refuse(text, &format!("{host:?} is not a host name"));
    }
    Ok(Address::Name { host: host.to_owned(), port })
}

fn parse_port(text: &str, port: &str) -> io::Result<u16> {
    // u16::from_str accepts a sign; a port has none.
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse() {
        Ok(port) if digits => Ok(port),
        _ => refuse(text, &format!("{port:?} is not a port: write a number from 0 to 65535")),
    }
}

fn parse_unix(text: &str, rest: &str) -> io::Result<Address> {
    let (path, query) = match rest.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (rest, None),
    };
    if path.is_empty() || path.ends_with('/') || path.contains('\0') {
        return refuse(text, "write the path of the socket, as in unix:/run/weft.sock");
    }
    if path.starts_with('@') {
        return refuse(text, "a socket without a file has no permissions: give a path");
    }
    let mode = match query {
        None => MODE_DEFAULT,
        Some(query) => match query.strip_prefix("mode=").and_then(parse_mode) {
            Some(mode) => mode,
            None => {
                return refuse(text, "after ? comes mode= and octal digits, as in ?mode=0660");
            }
        },
    };
    Ok(Address::Unix { path: path.into(), mode })
}

fn parse_mode(digits: &str) -> Option<u32> {
    let octal = !digits.is_empty() && digits.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let mode = u32::from_str_radix(digits, 8).ok()?;
    (octal && mode <= 0o777).then_some(mode)
}

fn refuse<T>(text: &str, advice: &str) -> io::Result<T> {
    let message = format!("`{text}` is not an address: {advice}");
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

/// Inverse of [`FromStr`].
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Name { host, port } => write!(f, "{host}:{port}"),
            Address::Unix { path, mode: MODE_DEFAULT } => write!(f, "unix:{}", path.display()),
            Address::Unix { path, mode } => write!(f, "unix:{}?mode={mode:04o}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Address {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    fn unix(path: &str, mode: u32) -> Address {
        Address::Unix { path: path.into(), mode }
    }

    fn every_interface(port: u16) -> Address {
        Address::Name { host: String::new(), port }
    }

    #[test]
    fn address_syntax() {
        assert_eq!(parse("127.0.0.1:8080"), Address::Tcp("127.0.0.1:8080".parse().unwrap()));
        assert_eq!(parse("[::]:80"), Address::Tcp("[::]:80".parse().unwrap()));
        assert_eq!(parse("[fe80::1%2]:80"), Address::Tcp("[fe80::1%2]:80".parse().unwrap()));
        assert_eq!(parse("8080"), every_interface(8080));
        assert_eq!(parse(":8080"), every_interface(8080));
        assert_eq!(parse("*:8080"), every_interface(8080));
        assert_eq!(parse("localhost:8080"), Address::Name { host: "localhost".into(), port: 8080 });
        assert_eq!(parse("unix:/run/weft.sock"), unix("/run/weft.sock", 0o666));
        assert_eq!(parse("unix:weft.sock?mode=0660"), unix("weft.sock", 0o660));
    }

    #[test]
    fn display_is_read_back() {
        for text in
            ["127.0.0.1:80", "[::1]:8080", ":8080", "localhost:1", "unix:/a", "unix:/a?mode=0600"]
        {
            assert_eq!(parse(text).to_string(), text);
        }
    }

    #[test]
    fn advice_on_wrong_addresses() {
        let check = |text: &str, advice: &str| {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains(advice), "{error}");
        };
        check("", "say which port");
        check("127.0.0.1", "127.0.0.1:8080");
        check("::1:8080", "brackets");
        check("[::1]", "[::1]:8080");
        check("[::g]:80", "IPv6");
        check("http://localhost:80", "without http://");
        check("localhost:80/", "without http://");
        check("70000", "0 to 65535");
        check("localhost:", "0 to 65535");
        check("localhost:+80", "0 to 65535");
        check("local host:80", "not a host name");
        check("unix:", "unix:/run/weft.sock");
        check("unix:/run/", "unix:/run/weft.sock");
        check("unix:@weft", "give a path");
        check("unix:/a?mode=", "?mode=0660");
        check("unix:/a?mode=+66", "?mode=0660");
        check("unix:/a?mode=999", "?mode=0660");
        check("unix:/a?mode=1777", "?mode=0660");
        check("unix:/a?owner=me", "?mode=0660");
    }
}
