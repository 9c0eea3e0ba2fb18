//! Files that requests can reach, to detect secrets among them: keys, passwords, settings. Every
//! host counts: its root may be above the files of another one.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use web::SiteConfig;

use super::ServeConfig;
use super::certificates::state_dir;
use super::engine::site_config;

/// Files that requests can reach.
pub(super) struct Published {
    /// By the resolved paths of their roots.
    sites: HashMap<PathBuf, Vec<SiteConfig>>,
    error_pages: HashSet<PathBuf>,
}

/// A kind and a path: a private key, a password file, or the directory of ACME's keys.
pub(super) type Secret = (&'static str, PathBuf);

/// The one kind that the server creates itself, possibly later.
const STATE: &str = "directory of ACME's keys";

/// The secrets of a host.
pub(super) fn secrets(config: &ServeConfig) -> Vec<Secret> {
    let passwords = config.site.basic_auth.iter().map(|(_, path)| ("password file", path.clone()));
    tls_secrets(config).into_iter().chain(passwords).chain(acme_secrets(config)).collect()
}

/// The secrets of a host's TLS.
pub(super) fn tls_secrets(config: &ServeConfig) -> Vec<Secret> {
    let (what, keys) = match &config.tls_key[..] {
        [] => ("certificate with its key", &config.tls_cert),
        _ => ("private key", &config.tls_key),
    };
    let keys = keys.iter().map(|path| (what, path));
    let of_tickets = config.tls_ticket_keys.iter().map(|path| ("key for tickets", path));
    keys.chain(of_tickets).map(|(what, path)| (what, path.clone())).collect()
}

/// The secrets of a host's ACME.
pub(super) fn acme_secrets(config: &ServeConfig) -> Vec<Secret> {
    let external = config.acme_external.iter().map(|path| ("key of the account", path.clone()));
    external.chain(config.acme.is_some().then(|| (STATE, state_dir(config)))).collect()
}

impl Published {
    /// The files of all hosts of a server.
    pub(super) fn by(whole: &ServeConfig) -> Published {
        let mut published = Published { sites: HashMap::new(), error_pages: HashSet::new() };
        for site in whole.sites().map(site_config) {
            let pages = site.error_pages.iter();
            let pages = pages.filter_map(|(_, page)| site.root.join(page).canonicalize().ok());
            published.error_pages.extend(pages);
            if let Ok(root) = site.root.canonicalize() {
                published.sites.entry(root).or_default().push(site);
            }
        }
        published
    }

    /// Finds a secret of a host that a request could reach.
    ///
    /// # Errors
    /// A sentence that names it.
    pub(super) fn check(&self, config: &ServeConfig) -> Result<(), String> {
        self.check_each(&secrets(config))
    }

    /// The same for given secrets, as far as they exist.
    ///
    /// # Errors
    /// A sentence that names the first.
    pub(super) fn check_each<'a>(
        &self,
        secrets: impl IntoIterator<Item = &'a Secret>,
    ) -> Result<(), String> {
        let mut there = secrets.into_iter().filter(|(what, path)| *what == STATE || path.exists());
        let found = there.find_map(|(what, path)| {
            let site = self.reach(path)?;
            Some(format!("the {what} {} would be served{site}", path.display()))
        });
        found.map_or(Ok(()), Err)
    }

    /// A sentence for each other file of the configuration that requests can reach.
    pub(super) fn warnings(&self, whole: &ServeConfig) -> Vec<String> {
        let log = whole.log_file().map(|path| ("access log", path));
        let settings = whole.config.as_ref().map(|path| ("settings file", path));
        let redirects = whole.sites().flat_map(ServeConfig::redirect_files);
        let redirects = redirects.map(|path| ("file of redirects", path));
        let mut known = HashSet::new();
        let files = log.into_iter().chain(settings).chain(redirects);
        let files = files.filter(|(_, path)| known.insert(*path));
        let warnings = files.filter_map(|(what, path)| {
            let site = self.reach(path)?;
            Some(format!("the {what} {} is served{site}", path.display()))
        });
        warnings.collect()
    }

    /// Text about how a request reaches a file, with the remedy; `None` if none does.
    fn reach(&self, file: &Path) -> Option<String> {
        // A link below a root may lead out of it.
        let absolute = std::path::absolute(file).ok()?;
        let link = absolute.parent()?.canonicalize().ok()?;
        let link = link.join(absolute.file_name()?);
        // A missing file may be created there later.
        let target = file.canonicalize().unwrap_or_else(|_| link.clone());
        if self.error_pages.contains(&target) {
            return Some(": it is an error page".to_owned());
        }
        let places = [(&target, false), (&link, true)];
        places.into_iter().find_map(|(place, is_link)| {
            place.ancestors().find_map(|root| {
                let name = place.strip_prefix(root).ok()?.to_str()?;
                let sites = self.sites.get(root)?;
                let shows =
                    |site: &&SiteConfig| (site.follow_links_out || !is_link) && site.shows(name);
                sites.iter().find(shows)?;
                let root = root.display();
                Some(format!(": move it out of {root}, or deny = \"/{name}\" there"))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use ::serve::access_log::Target;

    use super::*;
    use crate::value::RedirectSource;

    #[test]
    fn settings_and_log_that_are_served_are_told() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| {
            let path = root.path().join(name);
            std::fs::write(&path, "").unwrap();
            path
        };
        let mut config = ServeConfig {
            config: Some(path("weft.toml")),
            access_log: Some(Target::File(path("access.log"))),
            redirects: vec![RedirectSource::File(path("_redirects"))],
            ..ServeConfig::default()
        };
        config.site.root = root.path().to_owned();
        let warnings = Published::by(&config).warnings(&config);
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert!(warnings[1].starts_with("the settings file /") && warnings[1].contains("deny"));
        config.site.deny = vec!["_*".to_owned(), "/weft.toml".to_owned()];
        assert_eq!(Published::by(&config).warnings(&config).len(), 1);
    }

    #[test]
    fn keys_of_acme_are_not_made_beneath_a_root() {
        let root = tempfile::tempdir().unwrap();
        let mut config = ServeConfig {
            acme: Some("mail@example.org".to_owned()),
            acme_state: Some(root.path().join("state")),
            ..ServeConfig::default()
        };
        config.site.root = root.path().to_owned();
        let why = Published::by(&config).check(&config).unwrap_err();
        assert!(why.contains("keys ") && why.contains("/state would be served: move"), "{why}");
        config.acme_state = Some(root.path().join(".state"));
        assert_eq!(Published::by(&config).check(&config), Ok(()));
    }
}
