//! Hosts: the site that answers a request, by the name in its `Host` field.

use std::sync::Arc;

use session::HostName;

use crate::rate::RateLimit;
use crate::redirect::Redirects;
use crate::site::Site;

/// A site and the names under which it answers.
#[derive(Clone, Debug)]
pub struct VirtualHost {
    /// Names of the host; none for the default host.
    pub names: Vec<HostName>,
    /// Names that are redirected to the first of `names`.
    pub aliases: Vec<HostName>,
    /// The files.
    pub site: Arc<Site>,
    /// Rules that apply before files are looked up.
    pub redirects: Arc<Redirects>,
    /// Value of `Strict-Transport-Security` in replies over TLS. RFC 6797
    pub hsts: Option<String>,
    /// Limit on a request body in bytes; `None`: the service's limit.
    pub body_len_max: Option<u64>,
    /// Limit on the requests of an address.
    pub rate_limit: HostRate,
}

/// Limit on the requests of an address to a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostRate {
    /// The service's limit, counted over all hosts that share it.
    #[default]
    Shared,
    /// A limit of this host, counted for it alone.
    Own(RateLimit),
    /// No limit.
    Unlimited,
}

impl From<Arc<Site>> for VirtualHost {
    fn from(site: Arc<Site>) -> VirtualHost {
        VirtualHost {
            names: Vec::new(),
            aliases: Vec::new(),
            site,
            redirects: Arc::default(),
            hsts: None,
            body_len_max: None,
            rate_limit: HostRate::Shared,
        }
    }
}

/// The hosts of a server.
#[derive(Clone, Debug)]
pub struct Hosts {
    /// The host for requests without a name or with an unknown one. `None`: they get a 421.
    pub default: Option<VirtualHost>,
    /// Hosts with names.
    pub named: Vec<VirtualHost>,
}

impl From<Arc<Site>> for Hosts {
    fn from(site: Arc<Site>) -> Hosts {
        Hosts { default: Some(site.into()), named: Vec::new() }
    }
}
