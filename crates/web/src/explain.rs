//! Explanations for people: the host, rule, file and reply of one request.

use std::path::PathBuf;

use session::{HostIndex, Next, Now, Outbox, Session as _, work_here};

use crate::answer::{rewritten, route};
use crate::challenge;
use crate::config::RequestLimits;
use crate::handle::Handle;
use crate::host::VirtualHost;
use crate::request::{Head, Target, parse};
use crate::session::Session;
use crate::site::{NO_FILE, RuleList};

/// Reply to a request, with its reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The host that answers: its index among the default host, if any, and the named hosts.
    /// `None`: no host answers.
    pub host: Option<usize>,
    /// Rules that apply, by list and index in it.
    pub rules: Vec<(RuleList, usize)>,
    /// The file that answers, without the suffix of a compressed variant.
    pub file: Option<PathBuf>,
    /// The request is redirected to HTTPS.
    pub is_moved_to_https: bool,
    /// Status line and header of the reply.
    pub head: String,
}

impl Explanation {
    /// Explains how a session of `handle` answers a GET of `target` (path and query) at the host
    /// `authority`. Files may be read.
    ///
    /// `None` if `authority` and `target` make no valid request.
    pub fn of(
        handle: &Handle,
        mut session: Session,
        now: Now,
        authority: &str,
        target: &str,
    ) -> Option<Explanation> {
        let request = format!(
            "HEAD {target} HTTP/1.1\r\nHost: {authority}\r\nAccept-Encoding: br, zstd, gzip\r\n\r\n"
        );
        let head = parse(request.as_bytes(), &RequestLimits::NONE).ok()??;
        let mut out = Outbox::new();
        let mut used = 0;
        loop {
            let received = session.receive(&request.as_bytes()[used..], now, &mut out);
            used += received.used;
            match received.next {
                Next::Work => drop(work_here(&mut session, now, &mut out)),
                _ => break,
            }
        }
        let bytes = session::replay::queued(&out);
        let head_len = memchr::memmem::find(&bytes, b"\r\n\r\n").unwrap_or(bytes.len());
        let mut explanation = Explanation {
            host: None,
            rules: Vec::new(),
            file: None,
            is_moved_to_https: false,
            head: String::from_utf8_lossy(&bytes[..head_len]).into_owned(),
        };
        let service = handle.service();
        if let (Some((at, _)), Some((host, is_alias))) =
            (service.host_at(head.host()), service.host(head.host()))
        {
            explanation.host = Some(at);
            let is_challenge = match head.target {
                Target::Path(raw) => {
                    let path = raw.normalize(&mut Vec::new()).map(str::to_owned);
                    path.is_ok_and(|path| path.starts_with(challenge::DIRECTORY))
                }
                Target::Server => false,
            };
            explanation.is_moved_to_https = session.redirects_to_https() && !is_challenge;
            let is_elsewhere = !is_challenge && (is_alias || session.redirects_to_https());
            explanation.add_rules(host, is_alias, is_elsewhere, &head, now);
        }
        Some(explanation)
    }

    fn add_rules(
        &mut self,
        host: &VirtualHost,
        is_alias: bool,
        is_elsewhere: bool,
        head: &Head<'_>,
        now: Now,
    ) {
        let (list, names) = if is_alias {
            (RuleList::Aliases, &host.aliases)
        } else {
            (RuleList::Names, &host.names)
        };
        let mut index = HostIndex::default();
        for (at, name) in names.iter().enumerate() {
            index.add(name, at);
        }
        let name = head.host().and_then(|name| index.find(name));
        self.rules.extend(name.map(|at| (list, *at)));
        let mut buffer = Vec::new();
        let status = self.head.get(9..12).and_then(|status| status.parse::<u16>().ok());
        // A password is asked for before the path's rule applies.
        let is_guarded = match head.target {
            Target::Path(raw) if status == Some(401) => {
                host.site.area(raw.normalize(&mut buffer).unwrap_or(NO_FILE)).is_some()
            }
            _ => false,
        };
        let found = if is_elsewhere || is_guarded { None } else { route(host, head, &mut buffer) };
        self.rules.extend(found.as_ref().map(|found| (RuleList::Redirects, found.rule)));
        let target = found.as_ref().map_or(head.target, |found| rewritten(head, found));
        if let Target::Path(raw) = target {
            let path = raw.normalize(&mut buffer).ok();
            let (file, rules) = host.site.explain(path, status.unwrap_or_default(), now);
            self.file = file;
            self.rules.extend(rules);
        }
    }
}
