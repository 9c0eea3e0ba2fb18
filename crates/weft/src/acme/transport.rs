//! Requests to an authority, over HTTPS.

use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;
use ureq::http::{HeaderMap, Response};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Body, Error};

use super::client::{CaReply, Method, Request};

/// Time for one request and its reply.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longest body of a reply.
const BODY_LEN_MAX: u64 = 1 << 20;

/// An HTTPS client that trusts this machine's authorities.
pub(super) fn agent() -> Result<Agent, String> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        return Err(
            "this machine has no list of authorities, so no server can be trusted: install the \
             package ca-certificates, or name a file in the environment as SSL_CERT_FILE"
                .to_owned(),
        );
    }
    let roots = found.certs.iter().map(|der| Certificate::from_der(der).to_owned());
    let tls = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(RootCerts::Specific(Arc::new(roots.collect())))
        .build();
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .https_only(true)
        .timeout_global(Some(PATIENCE))
        .user_agent(concat!("weft/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls)
        .build();
    Ok(config.new_agent())
}

/// Sends a request.
pub(super) fn exchange(agent: &Agent, request: &Request<'_>) -> Result<CaReply, String> {
    let url = request.url;
    let sent = match request.method {
        Method::Get => agent.get(url).call(),
        Method::Head => agent.head(url).call(),
        Method::Post => {
            let post = agent.post(url).content_type("application/jose+json");
            post.send(request.body)
        }
    };
    let read = sent.and_then(read);
    read.map_err(|error| format!("the authority cannot be reached: {url}: {error}"))
}

fn read(mut response: Response<Body>) -> Result<CaReply, Error> {
    let body = response.body_mut().with_config().limit(BODY_LEN_MAX).read_to_vec()?;
    let fields = response.headers();
    Ok(CaReply {
        status: response.status().as_u16(),
        nonce: field(fields, "replay-nonce"),
        location: field(fields, "location"),
        retry_after: field(fields, "retry-after").and_then(|text| retry_after(&text)),
        body,
    })
}

fn field(fields: &HeaderMap, name: &str) -> Option<String> {
    fields.get(name)?.to_str().ok().map(str::to_owned)
}

/// Parses seconds, or a date. RFC 9110 10.2.3
fn retry_after(text: &str) -> Option<Duration> {
    match text.trim().parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => {
            let date = httpdate::parse_http_date(text).ok()?;
            date.duration_since(std::time::SystemTime::now()).ok()
        }
    }
}
