//! Parsing of values in the command line of `weft load`.

use std::net::IpAddr;

use ::load::plan::Stage;
use ::load::report::count_of;
use ::load::sweep;
use ::load::workload::template::Template;
use netstack::ip::Prefix;

use crate::value;

/// Stages of a changing rate. Not a `Vec`, which clap would take for a repeatable flag.
pub(super) type Stages = Box<[Stage]>;
/// A range of addresses.
pub(super) type Prefixes = Box<[Prefix]>;

/// Maximum number of repetitions; a larger one is a typing error.
pub(super) const REPETITIONS_MAX: u64 = 10_000;

/// Largest count; above it a 64-bit floating-point number is too coarse.
pub(super) const REQUESTS_MAX: u64 = 1_000_000_000_000_000;

/// Most addresses; more are a typing error, since each has tens of thousands of ports.
const ADDRESSES_MAX: u128 = 4096;

/// A percentage.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err(format!("'{text}' is not a percentage; write a number from 0 to 100")),
    }
}

/// A count: `64`, `10k`, `1M`.
pub(super) fn count(text: &str) -> Result<u32, String> {
    count_up_to(text, u64::from(u32::MAX)).map(|count| count as u32)
}

/// A count up to a limit.
pub(super) fn count_up_to(text: &str, most: u64) -> Result<u64, String> {
    let whole = rate_or_0(text).ok().filter(|count| count.fract() == 0.0);
    match whole {
        Some(count) if count <= most as f64 => Ok(count as u64),
        Some(_) => Err(format!("'{text}' is too many; at most {}", count_of(most))),
        None => Err(format!("'{text}' is not a number; write one such as 64, 10k or 1M")),
    }
}

/// Keys of a cache.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Keys {
    /// This many, with generated names.
    Count(u32),
    /// With these names.
    Named(Template),
}

/// `100k`, or `user:{1..1000}`.
pub(super) fn keys(text: &str) -> Result<Keys, String> {
    match Template::parse(text, u64::from(u32::MAX))? {
        Some(template) => Ok(Keys::Named(template)),
        None => count(text).map(Keys::Count),
    }
}

/// A number of requests per connection.
pub(super) fn requests_per_connection(text: &str) -> Result<u32, String> {
    value::count(text, 1..=u32::MAX as usize).map(|count| count as u32)
}

/// A header field: name and value.
pub(super) fn header(field: &str) -> Result<(String, String), String> {
    match field.split_once(':') {
        Some((name, text)) if !name.is_empty() && !field.contains(['\r', '\n']) => {
            Ok((name.trim().to_owned(), text.trim().to_owned()))
        }
        _ => Err(format!("'{field}' is not a header field; write 'Name: value'")),
    }
}

/// `0..10k:30s,10k:1m`.
pub(super) fn course(text: &str) -> Result<Stages, String> {
    let stage = |text: &str| {
        let (rates, lasts) = text.split_once(':').ok_or_else(|| {
            format!("'{text}': write RATE:TIME or FROM..TO:TIME, such as 0..10k:30s")
        })?;
        let (from, to) = rates.split_once("..").unwrap_or((rates, rates));
        Ok(Stage {
            lasts: value::duration(lasts)?,
            from_per_s: rate_or_0(from)?,
            to_per_s: rate_or_0(to)?,
        })
    };
    text.split(',').map(|text| stage(text.trim())).collect()
}

fn rate_or_0(text: &str) -> Result<f64, String> {
    match text {
        "0" => Ok(0.0),
        text => sweep::rate(text),
    }
}

/// `10.9.0.2/24`, or `10.9.0.2-10.9.0.99/24`.
pub(super) fn address_range(text: &str) -> Result<Prefixes, String> {
    let Some((first, last)) = text.split_once('-') else {
        return text.parse().map(|one| [one].into());
    };
    let last: Prefix = last.parse()?;
    let first = first.parse();
    let first: IpAddr = first.map_err(|_| format!("'{text}' does not begin with an IP address"))?;
    let prefix = |address| Prefix { address, ..last };
    let range = match (first, last.address) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            u128::from(u32::from(first))..=u32::from(last).into()
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => first.into()..=last.into(),
        _ => {
            return Err(format!("'{text}' mixes IPv4 and IPv6"));
        }
    };
    let at = |number: u128| match first {
        IpAddr::V4(_) => IpAddr::V4((number as u32).into()),
        IpAddr::V6(_) => IpAddr::V6(number.into()),
    };
    match range.end().checked_sub(*range.start()) {
        None => Err(format!("'{text}' ends before it begins")),
        Some(ADDRESSES_MAX..) => Err(format!("'{text}' is more than {ADDRESSES_MAX} addresses")),
        Some(_) => Ok(range.map(at).map(prefix).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_range_includes_both_ends() {
        let read = |text: &str| {
            let prefixes = address_range(text).unwrap();
            let shown: Vec<String> = prefixes.iter().map(Prefix::to_string).collect();
            shown.join(" ")
        };
        assert_eq!(read("10.9.0.2/24"), "10.9.0.2/24");
        assert_eq!(
            read("10.9.0.254-10.9.1.1/16"),
            "10.9.0.254/16 10.9.0.255/16 10.9.1.0/16 10.9.1.1/16"
        );
        assert_eq!(read("fd00::1-fd00::2/64"), "fd00::1/64 fd00::2/64");
        assert_eq!(read("10.9.0.2-10.9.0.2/24"), "10.9.0.2/24");
        assert_eq!(address_range("10.0.0.0-10.0.15.255/8").unwrap().len(), 4096);
        for (text, why) in [
            ("10.9.0.2", "10.9.0.2/24"),
            ("10.9.0.2-10.9.0.9", "10.9.0.2/24"),
            ("here-10.9.0.9/24", "an IP address"),
            ("10.9.0.9-10.9.0.2/24", "ends before it begins"),
            ("10.9.0.9-fd00::1/64", "mixes IPv4 and IPv6"),
            ("10.0.0.0-10.0.16.0/8", "more than 4096"),
            ("::-ffff:ffff::/1", "more than 4096"),
        ] {
            let said = address_range(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
