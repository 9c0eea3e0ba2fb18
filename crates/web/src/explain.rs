//! Explanations: the host, rule, file and reply of one request, for people.

use std::path::PathBuf;

use session::{Next, Now, Outbox, Session as _, work_here};

use crate::answer::{rewritten, route};
use crate::config::RequestLimits;
use crate::handle::Handle;
use crate::request::{Target, parse};
use crate::session::Session;

/// How a request is answered, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// First name of the host that answers; empty for the default host. `None`: no host does.
    pub host: Option<String>,
    /// The redirect or rewrite that the path matches.
    pub rule: Option<String>,
    /// The file that answers, without the suffix of a compressed neighbour.
    pub file: Option<PathBuf>,
    /// Status line and header of the reply.
    pub head: String,
}

impl Explanation {
    /// Explains the reply of a session of `handle` to a GET of `target` (path and query) from the
    /// host `authority`. It may read files.
    ///
    /// `None` if `authority` and `target` are those of no request.
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
            rule: None,
            file: None,
            head: String::from_utf8_lossy(&bytes[..head_len]).into_owned(),
        };
        let service = handle.service();
        if let Some((host, _)) = service.host(head.host()) {
            let name = host.names.first().map(ToString::to_string);
            explanation.host = Some(name.unwrap_or_default());
            let mut buffer = Vec::new();
            let found = route(host, &head, &mut buffer);
            explanation.rule = found.as_ref().map(|found| host.redirects.show(found));
            let target = found
                .as_ref()
                .map_or(head.target, |found| rewritten(&head, found));
            if let Target::Path(raw) = target
                && explanation.head.starts_with("HTTP/1.1 200 ")
                && let Ok(path) = raw.normalize(&mut buffer)
            {
                explanation.file = host.site.file_at(path);
            }
        }
        Some(explanation)
    }
}
