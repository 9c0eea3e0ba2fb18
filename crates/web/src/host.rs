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
    /// Rules that hold before the files.
    pub redirects: Arc<Redirects>,
    /// Value of `Strict-Transport-Security`, which replies over TLS carry. RFC 6797
    pub hsts: Option<String>,
    /// Bytes of a request body; `None`: as many as in the service's limits.
    pub body_len_max: Option<u64>,
    /// Limit on the requests of an address.
    pub rate_limit: HostRate,
}

/// Limit on the requests of an address to a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostRate {
    /// The service's, which counts the requests to all hosts that have it.
    #[default]
    Shared,
    /// One that counts the requests to this host alone.
    Own(RateLimit),
    /// None.
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
    /// The host of requests whose name no other host has, and of those without a name. `None`: they
    /// are answered with 421.
    pub default: Option<VirtualHost>,
    /// Hosts with names.
    pub named: Vec<VirtualHost>,
}

impl From<Arc<Site>> for Hosts {
    fn from(site: Arc<Site>) -> Hosts {
        Hosts { default: Some(site.into()), named: Vec::new() }
    }
}
