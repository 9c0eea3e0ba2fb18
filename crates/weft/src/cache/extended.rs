//! The options of `-o`: names with or without a value, with commas between, as getsubopt(3) reads
//! them.

use super::options::Fate;

/// An option of `-o`.
pub(crate) struct Extended {
    pub(crate) name: &'static str,
    /// What its value is called; `None` is a switch, which `no_` before it turns off.
    pub(crate) value: Option<&'static str>,
    pub(crate) help: &'static str,
    pub(crate) fate: Fate,
}

const fn ext(name: &'static str, value: Option<&'static str>, help: &'static str) -> Extended {
    Extended {
        name,
        value,
        help,
        fate: Fate::Works,
    }
}

const fn idle(name: &'static str, value: Option<&'static str>, why: &'static str) -> Extended {
    Extended {
        name,
        value,
        help: "",
        fate: Fate::Idle(why),
    }
}

const fn refused(name: &'static str, value: Option<&'static str>, why: &'static str) -> Extended {
    Extended {
        name,
        value,
        help: "",
        fate: Fate::Refused(why),
    }
}

const ONE_QUEUE: &str = "there are no hot, warm and cold lists here";
const NO_REBALANCE: &str = "memory moves between sizes by itself";
const TABLE_GROWS: &str = "the table grows by itself, a piece at a time";
const BUFFERS: &str = "buffers are taken only while bytes are on their way";
const NO_DISK: &str =
    "there is no external storage: give the cache more memory, or run more of them";
const NO_PROXY: &str =
    "weft is not a proxy: put memcached's or nutcracker in front (docs/cache.md)";

/// Every option of memcached 1.6.18's `-o`.
pub(crate) const EXTENDED: &[Extended] = &[
    ext(
        "maxconns_fast",
        None,
        "at the limit of connections, refuse new ones with an error (default: on). When off, they wait",
    ),
    ext(
        "idle_timeout",
        Some("seconds"),
        "close connections that are silent for this long (default: 0, never)",
    ),
    ext(
        "hashpower",
        Some("num"),
        "begin with a table for 2^num items (default: 16). It grows by itself",
    ),
    ext(
        "lru_crawler",
        None,
        "look for expired items in the background (default: on). When off, it looks less often",
    ),
    ext(
        "track_sizes",
        None,
        "keep the sizes that \"stats sizes\" shows (default: off)",
    ),
    ext(
        "ssl_chain_cert",
        Some("file"),
        "the certificate and those that lead to a known one, PEM",
    ),
    ext(
        "ssl_key",
        Some("file"),
        "the private key, if it is not in ssl_chain_cert",
    ),
    ext("ssl_keyformat", Some("name"), "PEM or DER (default: PEM)"),
    ext(
        "ssl_verify_mode",
        Some("num"),
        "certificates of clients: 0 not asked for, 1 optional, 2 or 3 required (default: 0)",
    ),
    ext(
        "ssl_ca_cert",
        Some("file"),
        "certificates of the authorities that sign the clients' certificates, PEM",
    ),
    ext(
        "ssl_ciphers",
        Some("list"),
        "cipher suites by OpenSSL's names, with colons between",
    ),
    ext(
        "ssl_min_version",
        Some("num"),
        "oldest protocol: 2 is TLS 1.2, 3 is TLS 1.3 (default: 2)",
    ),
    ext("ssl_session_cache", None, "resume sessions (default: off)"),
    idle("hashexpand", None, TABLE_GROWS),
    idle(
        "hash_algorithm",
        Some("name"),
        "keys are hashed with a secret random seed",
    ),
    idle(
        "tail_repair_time",
        Some("seconds"),
        "no client can keep an item from being evicted",
    ),
    idle(
        "lru_crawler_sleep",
        Some("microseconds"),
        "the crawler gives way after each bounded piece of work",
    ),
    idle(
        "lru_crawler_tocrawl",
        Some("num"),
        "the crawler gives way after each bounded piece of work",
    ),
    idle("read_buf_mem_limit", Some("megabytes"), BUFFERS),
    idle("read_obj_mem_limit", Some("megabytes"), BUFFERS),
    idle("resp_obj_mem_limit", Some("megabytes"), BUFFERS),
    idle("lru_maintainer", None, ONE_QUEUE),
    idle("hot_lru_pct", Some("num"), ONE_QUEUE),
    idle("warm_lru_pct", Some("num"), ONE_QUEUE),
    idle("hot_max_factor", Some("num"), ONE_QUEUE),
    idle("warm_max_factor", Some("num"), ONE_QUEUE),
    idle("temporary_ttl", Some("seconds"), ONE_QUEUE),
    idle("slab_reassign", None, NO_REBALANCE),
    idle("slab_automove", Some("num"), NO_REBALANCE),
    idle("slab_automove_ratio", Some("num"), NO_REBALANCE),
    idle("slab_automove_window", Some("num"), NO_REBALANCE),
    idle("slab_automove_freeratio", Some("num"), NO_REBALANCE),
    idle(
        "slab_chunk_max",
        Some("kilobytes"),
        "the store decides how a large item is laid out",
    ),
    idle(
        "chunked_items",
        None,
        "the store decides how a large item is laid out",
    ),
    idle(
        "inline_ascii_resp",
        None,
        "replies are made when they are sent",
    ),
    idle(
        "watcher_logbuf_size",
        Some("kilobytes"),
        "the log of a watcher has a bound of its own",
    ),
    idle(
        "worker_logbuf_size",
        Some("kilobytes"),
        "the log of a watcher has a bound of its own",
    ),
    idle(
        "ssl_wbuf_size",
        Some("kilobytes"),
        "a record is as long as what there is to send, up to 16 KiB",
    ),
    idle("modern", None, "what it turns on is always on here"),
    idle("drop_privileges", None, "there is no seccomp filter"),
    refused("slab_sizes", Some("list"), "sizes are made by -f and -n"),
    refused(
        "ssl_kernel_tls",
        None,
        "TLS is done here, not in the kernel",
    ),
    refused(
        "sock_cookie_id",
        Some("num"),
        "sockets carry no mark: filter by address or by user",
    ),
    refused("ext_path", Some("file"), NO_DISK),
    refused("ext_page_size", Some("num"), NO_DISK),
    refused("ext_wbuf_size", Some("num"), NO_DISK),
    refused("ext_threads", Some("num"), NO_DISK),
    refused("ext_item_size", Some("num"), NO_DISK),
    refused("ext_item_age", Some("num"), NO_DISK),
    refused("ext_low_ttl", Some("num"), NO_DISK),
    refused("ext_drop_unread", None, NO_DISK),
    refused("ext_recache_rate", Some("num"), NO_DISK),
    refused("ext_compact_under", Some("num"), NO_DISK),
    refused("ext_drop_under", Some("num"), NO_DISK),
    refused("ext_max_frag", Some("num"), NO_DISK),
    refused("ext_max_sleep", Some("num"), NO_DISK),
    refused("proxy_config", Some("file"), NO_PROXY),
];

/// One option as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given<'a> {
    pub(crate) name: &'static str,
    /// `false` after `no_`.
    pub(crate) is_on: bool,
    /// Its value; empty for a switch.
    pub(crate) value: &'a str,
    pub(crate) fate: Fate,
}

/// Reads one list.
///
/// # Errors
/// A sentence that names the option that is unknown, refused, lacks its value or has one too many.
pub(crate) fn read(list: &str) -> Result<Vec<Given<'_>>, String> {
    list.split(',')
        .filter(|word| !word.is_empty())
        .map(read_one)
        .collect()
}

/// The one option that memcached takes with and without its value.
const VALUE_OPTIONAL: &str = "slab_automove";

fn read_one(word: &str) -> Result<Given<'_>, String> {
    let (typed, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    let (row, is_on) = find(typed).ok_or_else(|| unknown(typed))?;
    if let Fate::Refused(why) = row.fate {
        return Err(format!("-o {typed} is not supported: {why}"));
    }
    let value = match (row.value, value) {
        (Some(what), None | Some("")) if is_on && row.name != VALUE_OPTIONAL => {
            return Err(format!("-o {typed} needs a value: {typed}=<{what}>"));
        }
        (None, Some(_)) => return Err(format!("-o {typed} takes no value")),
        (_, value) => value.unwrap_or_default(),
    };
    Ok(Given {
        name: row.name,
        is_on,
        value,
        fate: row.fate,
    })
}

fn find(typed: &str) -> Option<(&'static Extended, bool)> {
    let by_name = |name: &str| EXTENDED.iter().find(|row| row.name == name);
    match by_name(typed) {
        Some(row) => Some((row, true)),
        // no_slab_automove is written so although slab_automove has a value.
        None => Some((by_name(typed.strip_prefix("no_")?)?, false)),
    }
}

fn unknown(typed: &str) -> String {
    let alike = |row: &&Extended| (strsim::jaro_winkler(row.name, typed) * 1000.0) as u32;
    let nearest = EXTENDED
        .iter()
        .max_by_key(alike)
        .filter(|row| alike(row) > 850);
    let advice = match nearest {
        Some(row) => format!("did you mean {}?", row.name),
        None => "weft cache -h lists the options".to_owned(),
    };
    format!("-o {typed}: there is no such option; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_names_with_and_without_values() {
        let given = read("no_maxconns_fast,idle_timeout=10,,modern,no_slab_automove,slab_automove")
            .unwrap();
        let said: Vec<_> = given
            .iter()
            .map(|one| (one.name, one.is_on, one.value))
            .collect();
        assert_eq!(
            said,
            [
                ("maxconns_fast", false, ""),
                ("idle_timeout", true, "10"),
                ("modern", true, ""),
                ("slab_automove", false, ""),
                ("slab_automove", true, ""),
            ]
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |list, expected: &str| {
            let said = read(list).unwrap_err();
            assert!(said.contains(expected), "{list}: {said}");
        };
        check("modern,lru_crawller", "did you mean lru_crawler?");
        check("xyzzy", "-o xyzzy: there is no such option; weft cache -h");
        check("idle_timeout", "idle_timeout=<seconds>");
        check("slab_automove_ratio", "slab_automove_ratio=<num>");
        check("idle_timeout=", "idle_timeout=<seconds>");
        check("modern=1", "takes no value");
        check("ext_path=/mnt/x:1G", "no external storage");
        check("proxy_config=x.lua", "nutcracker");
    }
}
