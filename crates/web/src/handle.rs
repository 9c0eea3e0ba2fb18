use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

use crate::config::{ConfigError, ServiceConfig};
use crate::counters::{Counters, Metric};
use crate::error_page::Page;
use crate::site::Site;
use crate::status::Status;

/// State shared by all sessions of a server: the current site, the current configuration, and
/// counters.
///
/// A reload swaps both at once. Every request that begins afterwards gets the new ones, on old
/// connections too; none waits for a lock.
#[derive(Debug)]
pub struct Handle {
    service: ArcSwap<Service>,
    counters: Counters,
    /// Seeds the boundaries of multipart replies, so that no file can contain one on purpose.
    seed: RandomState,
}

impl Handle {
    /// Serves `site` as `config` says.
    ///
    /// # Errors
    /// If the configuration cannot be used; see [`ServiceConfig::check`].
    pub fn new(site: Arc<Site>, config: ServiceConfig) -> Result<Handle, ConfigError> {
        Ok(Handle {
            service: ArcSwap::from_pointee(Service::new(site, config)?),
            counters: Counters::default(),
            seed: RandomState::new(),
        })
    }

    /// Answers all further requests from `site` as `config` says. Counters keep their values.
    ///
    /// # Errors
    /// If the configuration cannot be used; the old one stays then.
    pub fn reload(&self, site: Arc<Site>, config: ServiceConfig) -> Result<(), ConfigError> {
        self.service.store(Arc::new(Service::new(site, config)?));
        Ok(())
    }

    /// The current site.
    pub fn site(&self) -> Arc<Site> {
        self.service.load().site.clone()
    }

    /// Replies by status, bytes, and refused requests by reason, since the start.
    pub fn counters(&self) -> impl Iterator<Item = Metric> + '_ {
        self.counters.samples()
    }

    /// Held for the length of one call only: what it guards lives on until then. No lock, and no
    /// count that processors share.
    #[inline]
    pub(crate) fn service(&self) -> Guard<Arc<Service>> {
        self.service.load()
    }

    pub(crate) fn counts(&self) -> &Counters {
        &self.counters
    }

    /// 128 bits that no client can foresee, the same for the same `about`.
    pub(crate) fn nonce(&self, about: &str) -> [u64; 2] {
        [
            self.seed.hash_one((0_u8, about)),
            self.seed.hash_one((1_u8, about)),
        ]
    }
}

/// A site, a configuration, and the texts that are made of them once.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) site: Arc<Site>,
    pub(crate) config: ServiceConfig,
    /// `Server: weft` and CRLF, or nothing.
    pub(crate) server_line: Vec<u8>,
    /// The built-in page of each status that has one; see [`Service::page`].
    pages: Vec<Page>,
    /// The built-in 403 of a directory without an index file.
    pub(crate) no_index: Page,
}

impl Service {
    fn new(site: Arc<Site>, config: ServiceConfig) -> Result<Service, ConfigError> {
        config.check()?;
        let server_line = match &config.server_name {
            Some(name) => format!("Server: {name}\r\n").into_bytes(),
            None => Vec::new(),
        };
        let pages = Status::ALL.into_iter().map(Page::built_in).collect();
        Ok(Service {
            site,
            config,
            server_line,
            pages,
            no_index: Page::no_index(),
        })
    }

    pub(crate) fn page(&self, status: Status) -> &Page {
        &self.pages[status as usize]
    }
}
