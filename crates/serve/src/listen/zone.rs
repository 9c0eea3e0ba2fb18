//! Zone of a link-local address: an interface by name or number. RFC 4007 11

use std::ffi::{CStr, CString};
use std::net::{Ipv6Addr, SocketAddrV6};

/// Parses an address such as `[fe80::1%eth0]:8080`; `None` if the text does not have this form.
pub(super) fn parse(text: &str) -> Option<Result<SocketAddrV6, String>> {
    let (ip, rest) = text.strip_prefix('[')?.split_once('%')?;
    let (zone, port) = rest.rsplit_once("]:")?;
    let ip: Ipv6Addr = ip.parse().ok()?;
    let port: u16 = port.parse().ok()?;
    Some(match number(zone) {
        Some(number) => Ok(SocketAddrV6::new(ip, port, 0, number)),
        None => Err(format!("this machine has no interface {zone:?}")),
    })
}

fn number(zone: &str) -> Option<u32> {
    let name = CString::new(zone).ok()?;
    // SAFETY: the name is a C string. if_nametoindex(3)
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => None,
        number => Some(number),
    }
}

/// Name of an interface, or its number if it no longer exists.
pub(super) fn name(number: u32) -> String {
    let mut buffer = [0 as libc::c_char; libc::IF_NAMESIZE];
    // SAFETY: the buffer is as long as if_indextoname(3) demands.
    let name = unsafe { libc::if_indextoname(number, buffer.as_mut_ptr()) };
    if name.is_null() {
        return number.to_string();
    }
    // SAFETY: the call succeeded, so `buffer` holds a C string.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::{Address, bound::url};

    /// Seen: `--listen '[fe80::1%eth0]:80'` was refused, and the URL printed for the address by
    /// number had no zone. Every machine has the interface `lo`, with number 1.
    #[test]
    fn zone_by_name_and_number() {
        for zone in ["lo", "1"] {
            let Ok(Address::Tcp(address)) = format!("[fe80::1%{zone}]:8080").parse() else {
                panic!("{zone} is an interface");
            };
            assert_eq!(address.to_string(), "[fe80::1%1]:8080");
            assert_eq!(url(address, false), "http://[fe80::1%25lo]:8080/");
        }
        let refused = "[fe80::1%no such]:80".parse::<Address>().unwrap_err();
        assert!(refused.to_string().contains("no interface \"no such\""), "{refused}");
        for text in ["[fe80::1%lo]", "[fe80::1%lo]:http", "[nowhere%lo]:80", "fe80::1%lo:80"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
