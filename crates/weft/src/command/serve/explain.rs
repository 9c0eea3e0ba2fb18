//! `weft check-config --explain URL`: the reply that a request would get, and why.

use std::fmt::Write;
use std::sync::Arc;

use ::serve::listen::Address;
use session::Now;
use web::{Explanation, Handle, Peer, Session};

use super::ServeConfig;
use super::engine::{open_hosts, service_config};
use super::prepare::Limits;
use crate::os::machine::Machine;

/// Descriptors for the few files of one request.
const NOFILE: u64 = 1024;

/// Explains the reply to a GET of `url`, without starting a server.
///
/// # Errors
/// A sentence if the URL is none, or a site cannot be opened.
pub(crate) fn explain(config: &ServeConfig, url: &str) -> Result<String, String> {
    let wrong = || format!("--explain: '{url}' is not a URL such as https://example.org/page");
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    let (authority, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let target = target.split('#').next().unwrap_or_default();
    let target = if target.starts_with('/') {
        target.to_owned()
    } else {
        format!("/{target}")
    };
    let limits = Limits::derive(config, &Machine::this(), NOFILE);
    let hosts = open_hosts(config, &limits, None)?;
    let handle = Handle::new(hosts, service_config(config)).map_err(|error| error.to_string())?;
    let handle = Arc::new(handle);
    let session = Session::new(Arc::clone(&handle), Peer::Unix);
    let https_port = config.listen.iter().find_map(Address::port);
    let session = match (scheme, config.https_redirect.first(), https_port) {
        ("https", ..) => session.over_tls(None),
        ("http", Some(_), Some(port)) => session.redirecting_to_https(port),
        ("http", ..) => session,
        _ => return Err(wrong()),
    };
    let explained =
        Explanation::of(&handle, session, Now::read(), authority, &target).ok_or_else(wrong)?;
    let mut text = String::new();
    let mut row = |name: &str, value: &str| _ = writeln!(text, "{name:<6} {value}");
    row(
        "host",
        match explained.host.as_deref() {
            None => "none has this name",
            Some("") => "the default",
            Some(name) => name,
        },
    );
    if let Some(rule) = &explained.rule {
        row("rule", rule);
    }
    if let Some(file) = &explained.file {
        row("file", &file.display().to_string());
    }
    for (nth, line) in explained.head.lines().enumerate() {
        row(if nth == 0 { "reply" } else { "" }, line);
    }
    Ok(text)
}
