//! Needs of a server's sandbox: files that it opens after its start, by access right.

use std::env;
use std::fs::File;
use std::path::PathBuf;

use super::certificates;
use super::table::ServeConfig;
use crate::common::sockets;
use crate::os::sandbox::{Needs, Right};

/// The files of a configuration. A new setting that names a file must be added here; those of
/// `common` are included already.
pub(super) fn needs(config: &ServeConfig) -> Needs {
    let listen = [&config.listen[..], &config.https_redirect].concat();
    let log = config.log_file().cloned();
    let log = log.into_iter().map(|path| (Right::Log, path));
    let read = config.config.iter().cloned().chain(of_tls(config));
    let read = read.map(|path| (Right::File, path));
    let of_sites = config.sites().flat_map(of_site);
    let has_acme = config.all().any(|host| host.acme.is_some());
    let of_acme = has_acme.then(|| of_acme(config));
    let files = log.chain(read).chain(sockets(&listen)).chain(of_sites);
    Needs {
        files: files.chain(of_acme.into_iter().flatten()).collect(),
        is_client: has_acme,
        ..Needs::default()
    }
}

/// Files of ACME: its state, the DNS configuration, and lists of authorities.
fn of_acme(config: &ServeConfig) -> Vec<(Right, PathBuf)> {
    let state = certificates::state_dir(config).join("acme");
    let external = config.acme_external.clone();
    let trusted = ["SSL_CERT_FILE", "SSL_CERT_DIR"].map(env::var_os);
    let trusted = trusted.into_iter().flatten().map(PathBuf::from);
    // The files of the DNS are in one directory, and any may be replaced.
    let dns = PathBuf::from("/etc/resolv.conf");
    let files = external.into_iter().chain([dns]).map(|file| (Right::File, file));
    let lists = ["/etc/ssl", "/etc/pki", "/usr/share/ca-certificates", "/usr/local/share"];
    let lists = lists.map(PathBuf::from).into_iter().chain(trusted);
    let lists = lists.map(|list| (Right::Tree, list));
    [(Right::State, state)].into_iter().chain(files).chain(lists).collect()
}

/// A warning about a TLS file that root has read, but the user of `--user` cannot read when it
/// changes.
pub(super) fn unreadable(config: &ServeConfig) -> Option<String> {
    let user = &config.common.user.as_ref()?.user;
    let mut files = of_tls(config);
    let file = files.find(|file| File::open(file).is_err())?;
    Some(format!(
        "user '{user}' cannot read {} again when it is renewed: give it to a group of that user",
        file.display()
    ))
}

fn of_tls(config: &ServeConfig) -> impl Iterator<Item = PathBuf> {
    let pairs = config.all().flat_map(|host| host.tls_cert.iter().chain(&host.tls_key));
    let others = config.tls_ticket_keys.iter().chain(&config.tls_client_ca);
    pairs.chain(others).cloned()
}

fn of_site(host: &ServeConfig) -> Vec<(Right, PathBuf)> {
    // Followed links may lead anywhere.
    let anywhere = host.site.follow_links_out.then(|| PathBuf::from("/"));
    let trees = [host.site.root.clone()].into_iter().chain(anywhere);
    // Relative ones are in the root.
    let error_pages = host.site.error_pages.iter().filter(|(_, page)| page.is_absolute());
    let error_pages = error_pages.map(|(_, page)| page);
    let passwords = host.site.basic_auth.iter().map(|(_, file)| file);
    let read = error_pages.chain(passwords);
    let read = read.chain(host.redirect_files()).cloned();
    let trees = trees.map(|tree| (Right::Tree, tree));
    trees.chain(read.map(|file| (Right::File, file))).collect()
}

#[cfg(test)]
mod tests {
    use ::serve::access_log::Target;

    use super::*;
    use crate::value::{self, RedirectSource};

    /// Seen: certbot's keys belong to root; the server started without a warning, each SIGHUP of
    /// logrotate was "not reloaded", and the certificate expired.
    #[test]
    fn files_that_a_user_cannot_read_are_told() {
        let user = value::account("www-data").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key.pem");
        let mut config = ServeConfig { tls_key: vec![key.clone()], ..ServeConfig::default() };
        assert_eq!(unreadable(&config), None);
        config.common.user = Some(user);
        let told = unreadable(&config).unwrap();
        assert!(told.starts_with("user 'www-data' cannot read /"), "{told}");
        std::fs::write(&key, "").unwrap();
        assert_eq!(unreadable(&config), None);
    }

    /// Seen: a file of ticket keys was read at the start, but not after a change. Cause: the
    /// setting was missing in this list.
    #[test]
    fn each_file_of_a_configuration_is_granted() {
        let path = |name: &str| PathBuf::from(format!("/a/{name}"));
        let mut config = ServeConfig {
            access_log: Some(Target::File(path("log"))),
            config: Some(path("settings")),
            tls_cert: vec![path("cert")],
            tls_key: vec![path("key")],
            tls_ticket_keys: vec![path("tickets")],
            tls_client_ca: Some(path("authorities")),
            redirects: vec![RedirectSource::File(path("redirects"))],
            acme: Some("a@example.org".to_owned()),
            acme_state: Some(path("state")),
            acme_external: Some(path("external")),
            ..ServeConfig::default()
        };
        config.site.root = path("root");
        config.site.error_pages = vec![(404, path("page")), (500, "in-root".into())];
        config.site.basic_auth = vec![("/**".to_owned(), path("passwords"))];
        let needs = needs(&config);
        assert!(needs.is_client);
        let of = |wanted| {
            let granted = needs.files.iter().filter(|(right, _)| *right == wanted);
            let names = granted.filter_map(|(_, path)| path.strip_prefix("/a").ok());
            let mut names: Vec<_> = names.map(|name| name.display().to_string()).collect();
            names.sort();
            names.join(" ")
        };
        assert_eq!(of(Right::Tree), "root");
        assert_eq!(of(Right::Log), "log");
        assert_eq!(of(Right::State), "state/acme");
        let read = "authorities cert external key page passwords redirects settings tickets";
        assert_eq!(of(Right::File), read);
    }
}
