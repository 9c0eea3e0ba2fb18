//! `weft check-config --explain URL`: the reply that a request would get, with the reasons.

use std::fmt::Write;
use std::sync::Arc;

use session::Now;
use web::{Explanation, Handle, Peer, RuleList, Session};

use super::ServeConfig;
use super::engine::{https_port, open_hosts, service_config};
use super::prepare::Limits;
use super::redirects;
use crate::os::machine::Machine;
use crate::settings::layer::SettingText;
use crate::settings::layers::Resolved;

/// Descriptors for the few files of one request.
const NOFILE: u64 = 1024;

/// Explains the reply to a GET of `url`, without starting a server: the host, the file, the header,
/// and the settings that determine them, with their places.
///
/// # Errors
/// A sentence if the URL is invalid, or a site cannot be opened.
pub(crate) fn explain(resolved: &Resolved<ServeConfig>, url: &str) -> Result<String, String> {
    let config = &resolved.config;
    let wrong = || format!("--explain: '{url}' is not a URL such as https://example.org/page");
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    let (authority, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let target = target.split('#').next().unwrap_or_default();
    let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
    let limits = Limits::derive(config, &Machine::this(), NOFILE);
    let hosts = open_hosts(config, &limits, None, None)?;
    let handle = Handle::new(hosts, service_config(config)).map_err(|error| error.to_string())?;
    let handle = Arc::new(handle);
    let session = Session::new(Arc::clone(&handle), Peer::Unix);
    let to_https = https_port(config, &[]);
    let session = match (scheme, to_https) {
        ("https", _) => session.over_tls(None),
        ("http", Some(port)) => session.redirecting_to_https(port),
        ("http", None) => session,
        _ => return Err(wrong()),
    };
    let explained =
        Explanation::of(&handle, session, Now::read(), authority, &target).ok_or_else(wrong)?;
    let mut text = String::new();
    let mut row = |name: &str, value: &str| _ = writeln!(text, "{name:<6} {value}");
    let Some((number, host)) = explained.host.and_then(|at| Some((at, config.sites().nth(at)?)))
    else {
        row("host", "none has this name");
        rows_of_head(&mut row, &explained);
        return Ok(text);
    };
    row("host", host.names.first().map_or("the default", |name| name.as_str()));
    // Without a default host, all sites are those of named hosts.
    let layer = match number + usize::from(config.only_named_hosts) {
        0 => resolved.top().clone(),
        nth => resolved.host(nth - 1),
    };
    let said = |setting: &str, at: usize| {
        let said = layer.get(setting).and_then(|said| said.get(at));
        said.map(SettingText::show)
    };
    for (list, at) in explained.rules.iter().copied() {
        let rule = if list == RuleList::Redirects {
            let (source, line) = redirects::place(&host.redirects, at)?;
            line.or_else(|| said("redirect", source))
        } else {
            said(setting(list), at)
        };
        rule.iter().for_each(|rule| row("rule", rule));
    }
    let to_https = explained.is_moved_to_https.then(|| said("https-redirect", 0)).flatten();
    let has_hsts = explained.head.contains("\r\nStrict-Transport-Security: ");
    let hsts = said("hsts", 0).filter(|_| has_hsts);
    let of_transport = to_https.iter().chain(&hsts);
    of_transport.for_each(|rule| row("rule", rule));
    if let Some(file) = &explained.file {
        row("file", &file.display().to_string());
    }
    rows_of_head(&mut row, &explained);
    Ok(text)
}

fn rows_of_head(row: &mut impl FnMut(&str, &str), explained: &Explanation) {
    for (nth, line) in explained.head.lines().enumerate() {
        row(if nth == 0 { "reply" } else { "" }, line);
    }
}

/// The setting that defines a list of rules.
fn setting(list: RuleList) -> &'static str {
    match list {
        RuleList::Names => "names",
        RuleList::Aliases => "aliases",
        RuleList::Redirects => "redirect",
        RuleList::Deny => "deny",
        RuleList::BasicAuth => "basic-auth",
        RuleList::SpaFallback => "spa",
        RuleList::Compress => "compress",
        RuleList::ErrorPages => "error-page",
        RuleList::MimeTypes => "mime-type",
        RuleList::Headers => "header",
        RuleList::CacheRules => "cache",
        RuleList::Cors => "cors",
    }
}
