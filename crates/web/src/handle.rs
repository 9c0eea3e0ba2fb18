use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::{ArcSwap, Guard};
use http2::{EndpointLimits, RepeatedField};
use session::{HostIndex, HostName, Now};

use crate::challenge::Challenges;
use crate::config::{RATE_LIMITS_MAX, ServiceConfig};
use crate::counters::{Counters, Metric};
use crate::error_page::Page;
use crate::host::{HostRate, Hosts, VirtualHost};
use crate::password::Turns;
use crate::popular::{PopularPath, PopularPaths};
use crate::rate::{LimitedHost, Limiter, RateLimit};
use crate::site::{ConfigError, Site};
use crate::status::Status;

/// State shared by all sessions of a server: the current site, the current configuration, and
/// counters.
///
/// A reload swaps both at once. Later requests get the new ones, on old connections too, without a
/// lock.
#[derive(Debug)]
pub struct Handle {
    service: ArcSwap<Service>,
    /// Number of services so far.
    services: AtomicU64,
    counters: Counters,
    turns: Arc<Turns>,
    challenges: Challenges,
    /// `None`: paths are not counted.
    popular: Option<PopularPaths>,
    /// Seeds the boundaries of multipart replies, so that no file can contain one by design.
    seed: RandomState,
}

impl Handle {
    /// Serves one site, or several hosts, as `config` says.
    ///
    /// # Errors
    /// If the configuration is invalid (see [`ServiceConfig::check`]), or if two hosts have the
    /// same name.
    pub fn new(hosts: impl Into<Hosts>, config: ServiceConfig) -> Result<Handle, ConfigError> {
        Ok(Handle {
            service: ArcSwap::from_pointee(Service::new(hosts.into(), config, &[])?),
            services: AtomicU64::new(1),
            counters: Counters::default(),
            turns: Arc::new(Turns::new()),
            challenges: Challenges::default(),
            popular: None,
            seed: RandomState::new(),
        })
    }

    /// The same, and counts which paths are requested most.
    pub fn counting_paths(self) -> Handle {
        Handle { popular: Some(PopularPaths::new()), ..self }
    }

    /// Replaces hosts and configuration for all further requests. Counters keep their values.
    ///
    /// # Errors
    /// Same as [`Handle::new`]; the old hosts and configuration then stay.
    pub fn reload(
        &self,
        hosts: impl Into<Hosts>,
        config: ServiceConfig,
    ) -> Result<(), ConfigError> {
        let old = self.service.load();
        let mut service = Service::new(hosts.into(), config, &old.limiters)?;
        service.number = self.services.fetch_add(1, Relaxed);
        self.service.store(Arc::new(service));
        Ok(())
    }

    /// The current site of the default host, or of the first one.
    pub fn site(&self) -> Arc<Site> {
        Arc::clone(&self.service.load().hosts[0].site)
    }

    /// Challenges of the certificate authority.
    pub fn challenges(&self) -> &Challenges {
        &self.challenges
    }

    /// Replies by status, bytes, and refused requests by reason, since start.
    pub fn counters(&self) -> impl Iterator<Item = Metric> + '_ {
        let passwords = self.turns.results().map(|(labels, value)| Metric {
            name: "weft_http_passwords_verified_total",
            help: "Passwords of basic authentication that were verified, by result.",
            labels,
            value,
        });
        let popular = self.popular.iter().flat_map(|popular| {
            let missed = "Replies that the table of paths did not count because it was locked.";
            let replaced = "Paths replaced by others in the table of paths.";
            [
                ("weft_http_paths_missed_total", missed, popular.missed()),
                ("weft_http_paths_replaced_total", replaced, popular.replaced()),
            ]
        });
        let popular = popular.map(|(name, help, value)| Metric { name, help, labels: "", value });
        self.counters.samples().chain(passwords).chain(popular)
    }

    /// The most requested paths, unordered; none without [`Handle::counting_paths`]. Above some
    /// hundred replies per second, one in 128 is counted, with weight 128.
    pub fn popular_paths(&self, now: Now) -> Vec<PopularPath> {
        let list = |popular: &PopularPaths| popular.list(now.since_epoch.as_secs());
        self.popular.as_ref().map_or_else(Vec::new, list)
    }

    /// The current service. Hold the guard for one call only: the service lives until it is
    /// dropped. Takes no lock and no shared reference count.
    #[inline]
    pub(crate) fn service(&self) -> Guard<Arc<Service>> {
        self.service.load()
    }

    pub(crate) fn counts(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn popular(&self) -> Option<&PopularPaths> {
        self.popular.as_ref()
    }

    pub(crate) fn turns(&self) -> &Arc<Turns> {
        &self.turns
    }

    /// 128 bits that no client can predict, equal for equal `about`.
    pub(crate) fn nonce(&self, about: &str) -> [u64; 2] {
        [self.seed.hash_one((0_u8, about)), self.seed.hash_one((1_u8, about))]
    }
}

/// Hosts, a configuration, and texts made from them once.
#[derive(Debug)]
pub(crate) struct Service {
    /// Changes with each reload: results of another service are not valid here.
    pub(crate) number: u64,
    /// The default host, if any, then the named hosts; at least one.
    hosts: Vec<VirtualHost>,
    /// `None`: the default host answers every request.
    names: Option<HostIndex<(usize, bool)>>,
    /// True if the first host answers requests for unknown names.
    has_default: bool,
    pub(crate) config: ServiceConfig,
    /// `Server: weft` and CRLF, or nothing.
    pub(crate) server_line: Vec<u8>,
    /// The same for HTTP/2.
    pub(crate) server_field: Option<RepeatedField>,
    /// Limits of connections of HTTP/2.
    pub(crate) endpoint_limits: Arc<EndpointLimits>,
    /// The built-in page of each status that has one; see [`Service::page`].
    pages: Vec<Page>,
    /// The built-in 403 of a directory without an index file.
    pub(crate) no_index: Page,
    /// Debts of addresses, one table per limit. They survive a reload that keeps the limit.
    limiters: Vec<Arc<Limiter>>,
    /// Index of the limiter for hosts without a limit of their own.
    shared_limiter: Option<usize>,
    /// Limiter of each host, by host index; empty if no host has its own limit.
    host_limiters: Vec<Option<(usize, LimitedHost)>>,
}

impl Service {
    fn new(
        hosts: Hosts,
        config: ServiceConfig,
        old: &[Arc<Limiter>],
    ) -> Result<Service, ConfigError> {
        config.check()?;
        let has_default = hosts.default.is_some();
        let hosts: Vec<_> = hosts.default.into_iter().chain(hosts.named).collect();
        let mut names = None;
        for (at, host) in hosts.iter().enumerate().skip(has_default.into()) {
            let names = names.get_or_insert_with(HostIndex::default);
            for (of_host, is_alias) in [(&host.names, false), (&host.aliases, true)] {
                let added = |name: &&HostName| !names.add(name, (at, is_alias));
                if let Some(name) = of_host.iter().find(added) {
                    return Err(ConfigError(format!("two hosts have the name '{name}'")));
                }
            }
        }
        if hosts.is_empty() {
            return Err(ConfigError("there is no host".to_owned()));
        }
        let mut limiters: Vec<Arc<Limiter>> = Vec::new();
        let mut limiter = |limit: &RateLimit| {
            let known = limiters.iter().position(|known| known.limit == *limit);
            known.unwrap_or_else(|| {
                let old = old.iter().find(|old| old.limit == *limit).cloned();
                limiters.push(old.unwrap_or_else(|| Arc::new(Limiter::new(limit.clone()))));
                limiters.len() - 1
            })
        };
        let shared_limiter = config.rate_limit.as_ref().map(&mut limiter);
        let mut host_limiters = Vec::new();
        if hosts.iter().any(|host| host.rate_limit != HostRate::Shared) {
            host_limiters.reserve_exact(hosts.len());
            for host in &hosts {
                host_limiters.push(match &host.rate_limit {
                    HostRate::Shared => shared_limiter.map(|at| (at, LimitedHost::default())),
                    HostRate::Own(limit) => {
                        let name = host.names.first().map_or("", HostName::as_str);
                        Some((limiter(limit), LimitedHost::named(name)))
                    }
                    HostRate::Unlimited => None,
                });
            }
        }
        if limiters.len() > RATE_LIMITS_MAX {
            return Err(ConfigError(format!(
                "{} limits on requests differ, and a server has {RATE_LIMITS_MAX} at most, each \
                 of which takes 512 KiB: give hosts the same one, which counts for each host apart",
                limiters.len()
            )));
        }
        let server_line = match &config.server_name {
            Some(name) => format!("Server: {name}\r\n").into_bytes(),
            None => Vec::new(),
        };
        let server_field = config.server_name.as_ref();
        let server_field = server_field.map(|name| RepeatedField::new(b"server", name.as_bytes()));
        let pages = Status::ALL.into_iter().map(Page::built_in).collect();
        Ok(Service {
            number: 0,
            hosts,
            names,
            has_default,
            endpoint_limits: Arc::new(config.limits.endpoint()),
            config,
            server_line,
            server_field,
            pages,
            no_index: Page::no_index(),
            limiters,
            shared_limiter,
            host_limiters,
        })
    }

    /// True if any limit needs the client's address.
    #[inline]
    pub(crate) fn asks_for_clients(&self) -> bool {
        !self.limiters.is_empty() || self.config.proxies.is_some()
    }

    /// The limiter for requests to `name`, the value of a `Host` field.
    pub(crate) fn limiter(&self, name: Option<&[u8]>) -> Option<(&Limiter, LimitedHost)> {
        let shared = || self.shared_limiter.map(|at| (at, LimitedHost::default()));
        let found = if self.host_limiters.is_empty() {
            shared()
        } else {
            let host = self.host_at(name);
            host.map_or_else(shared, |(at, _)| self.host_limiters[at])
        };
        found.map(|(at, host)| (&*self.limiters[at], host))
    }

    pub(crate) fn page(&self, status: Status) -> &Page {
        &self.pages[status as usize]
    }

    /// The host for requests of unknown name: the one that answers for every name.
    #[inline]
    pub(crate) fn sole(&self) -> Option<&VirtualHost> {
        self.names.is_none().then(|| &self.hosts[0])
    }

    /// Limit on a request body for `name`: the host's own, or the service's.
    pub(crate) fn body_len_max(&self, name: Option<&[u8]>) -> u64 {
        let own = self.host(name).and_then(|(host, _)| host.body_len_max);
        own.unwrap_or(self.config.limits.body_len_max)
    }

    /// The host for requests to `name`, the value of a `Host` field, and whether `name` is one of
    /// its aliases. `None`: no host has the name.
    #[inline]
    pub(crate) fn host(&self, name: Option<&[u8]>) -> Option<(&VirtualHost, bool)> {
        let (at, is_alias) = self.host_at(name)?;
        Some((&self.hosts[at], is_alias))
    }

    /// The same, by the host's index among the default host, if any, and the named hosts.
    #[inline]
    pub(crate) fn host_at(&self, name: Option<&[u8]>) -> Option<(usize, bool)> {
        let Some(names) = &self.names else {
            return Some((0, false));
        };
        match name.and_then(|name| names.find(name)) {
            Some(found) => Some(*found),
            None => self.has_default.then_some((0, false)),
        }
    }
}
