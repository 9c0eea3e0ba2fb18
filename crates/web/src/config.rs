use http2::EndpointLimits;
use session::Networks;

use crate::log::LogFormat;
use crate::rate::RateLimit;
use crate::site::ConfigError;

/// Configuration of the protocol; the site has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceConfig {
    /// Limits on requests.
    pub limits: RequestLimits,
    /// Value of `Server`; `None` sends no such field. RFC 9110 10.2.4
    pub server_name: Option<String>,
    /// Format of access-log lines.
    pub log_format: LogFormat,
    /// Proxies that name their clients in a field; `None`: the client is the peer.
    pub proxies: Option<Proxies>,
    /// Limit on the requests of an address: 429. `None`: unlimited.
    pub rate_limit: Option<RateLimit>,
    /// True if plain connections may begin with HTTP/2 (prior knowledge, RFC 9113 3.3).
    pub http2: bool,
}

/// Proxies, and the field in which they name their clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxies {
    /// Peers whose field is trusted.
    pub from: Networks,
    /// The field to read. The other one is ignored: a proxy that sets one passes the other on as
    /// the client wrote it.
    pub field: ForwardedField,
}

/// A field that names clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedField {
    /// `X-Forwarded-For: 192.0.2.7, 10.0.0.1`
    #[default]
    XForwardedFor,
    /// `Forwarded: for=192.0.2.7;proto=https, for="[2001:db8::1]:4711"`
    Forwarded,
}

impl Default for ServiceConfig {
    fn default() -> ServiceConfig {
        ServiceConfig {
            limits: RequestLimits::default(),
            server_name: Some("weft".to_owned()),
            log_format: LogFormat::default(),
            proxies: None,
            rate_limit: None,
            http2: true,
        }
    }
}

/// Limits on one request. A request over a limit gets the status named beside it.
///
/// A driver's input buffer must hold a whole head ([`head_len_max`](RequestLimits::head_len_max));
/// a body is taken piece by piece, however long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Bytes of a request line without its CRLF: 414. RFC 9112 3 asks for 8000 at least.
    pub request_line_len_max: usize,
    /// Bytes of a whole head, from the request line to the blank line: 431.
    pub head_len_max: usize,
    /// Header fields of one request: 431.
    pub field_count_max: usize,
    /// Bytes of a request body, which is read and discarded: 413.
    pub body_len_max: u64,
    /// Bytes of chunk extensions in one body, in total: 400. Otherwise a peer could send a megabyte
    /// of extensions with each byte of body.
    pub chunk_extensions_len_max: usize,
    /// Bytes of a chunked body's trailer section: 431.
    pub trailers_len_max: usize,
    /// Empty lines before a request line: 400. RFC 9112 2.2 asks for one at least.
    pub blank_lines_max: usize,
}

impl Default for RequestLimits {
    fn default() -> RequestLimits {
        RequestLimits {
            request_line_len_max: 8 * 1024,
            head_len_max: 16 * 1024,
            field_count_max: 100,
            body_len_max: 1024 * 1024,
            chunk_extensions_len_max: 4 * 1024,
            trailers_len_max: 4 * 1024,
            blank_lines_max: 4,
        }
    }
}

impl RequestLimits {
    /// The same limits for HTTP/2. RFC 9113 6.5.2 counts a head differently; the result is never
    /// stricter than HTTP/1.1.
    pub(crate) fn endpoint(&self) -> EndpointLimits {
        let overhead = 32 * self.field_count_max.saturating_add(4);
        let head_len_max = self.head_len_max.saturating_add(overhead).min(HEAD_LEN_MOST);
        let usual = EndpointLimits::default();
        EndpointLimits {
            head_len_max: head_len_max as u32,
            // Pseudo-fields count too.
            fields_max: self.field_count_max.saturating_add(5),
            block_len_max: usual.block_len_max.max(head_len_max),
            body_len_max: self.body_len_max,
            ..usual
        }
    }

    /// No limits, for requests that were within the limits on arrival.
    pub(crate) const NONE: RequestLimits = RequestLimits {
        request_line_len_max: usize::MAX / 2,
        head_len_max: usize::MAX / 2,
        field_count_max: usize::MAX,
        body_len_max: u64::MAX,
        chunk_extensions_len_max: usize::MAX,
        trailers_len_max: usize::MAX,
        blank_lines_max: usize::MAX,
    };
}

impl ServiceConfig {
    /// Rejects settings that would break replies or refuse every request.
    ///
    /// # Errors
    /// Names the setting, its value, and the allowed values.
    pub fn check(&self) -> Result<(), ConfigError> {
        if let Some(name) = &self.server_name {
            let is_field_value = |c: char| c == ' ' || c.is_ascii_graphic();
            if name.trim() != name || name.is_empty() || !name.chars().all(is_field_value) {
                return Err(ConfigError(format!(
                    "server name {name:?} cannot stand in a header field: use visible ASCII \
                     characters, or switch it off"
                )));
            }
        }
        let RequestLimits { request_line_len_max, head_len_max, .. } = self.limits;
        if request_line_len_max < REQUEST_LINE_LEN_LEAST
            || !(request_line_len_max..=HEAD_LEN_MOST).contains(&head_len_max)
        {
            return Err(ConfigError(format!(
                "limits leave no room for a request: request line {request_line_len_max} bytes \
                 (at least {REQUEST_LINE_LEN_LEAST}), whole head {head_len_max} bytes \
                 (at least as much as the request line, at most {HEAD_LEN_MOST})"
            )));
        }
        Ok(())
    }
}

/// Most distinct limits on requests.
pub const RATE_LIMITS_MAX: usize = 16;

/// Smallest request-line limit: even short paths need it.
const REQUEST_LINE_LEN_LEAST: usize = 64;

/// Largest head limit: more than any driver buffers, and within 32 bits (see `request::Fields`).
const HEAD_LEN_MOST: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_name_holds_no_header_line() {
        let named = |name: &str| ServiceConfig {
            server_name: Some(name.to_owned()),
            ..ServiceConfig::default()
        };
        assert_eq!(named("weft/0.1 (lab)").check(), Ok(()));
        for name in ["", " weft", "a\r\nSet-Cookie: x", "wéft"] {
            let error = named(name).check().unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")), "{error}");
        }
    }

    #[test]
    fn limits_admit_a_request() {
        let checked = |head_len_max| {
            let limits = RequestLimits { head_len_max, ..RequestLimits::default() };
            let config = ServiceConfig { limits, ..ServiceConfig::default() };
            config.check().map_err(|error| error.to_string())
        };
        assert!(checked(100).unwrap_err().contains("whole head 100 bytes"));
        assert!(checked(1 << 32).unwrap_err().contains("at most 1073741824"));
        assert_eq!(checked(1 << 30), Ok(()));
        for (request_line_len_max, is_taken) in [(63, false), (64, true)] {
            let mut config = ServiceConfig::default();
            config.limits.request_line_len_max = request_line_len_max;
            assert_eq!(config.check().is_ok(), is_taken, "{request_line_len_max}");
        }
    }
}
