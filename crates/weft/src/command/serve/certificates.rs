//! Certificates that the server obtains itself: names, authority and state.

use std::env;
use std::path::PathBuf;

use ::serve::listen::Address;

use super::ServeConfig;
use crate::acme::{self, Settings, State, Validation};

/// Settings of ACME, if a host uses it.
///
/// # Errors
/// A sentence about names that cannot have a certificate, or about an unreadable file.
pub(super) fn settings(config: &ServeConfig) -> Result<Option<Settings>, String> {
    let Some(mail) = config.all().find_map(|host| host.acme.clone()) else {
        return Ok(None);
    };
    let names = config.all().map(ServeConfig::names_for_acme);
    let names = names.filter(|names| !names.is_empty());
    let hosts: Vec<_> = names.map(acme::check_names).collect::<Result<_, _>>()?;
    let external = config.acme_external.as_deref().map(acme::read_external);
    let is_plain = |address: &Address| !matches!(address, Address::Tcp(_) | Address::Name { .. });
    let has_plain = !config.https_redirect.is_empty() || config.listen.iter().any(is_plain);
    let kinds = if has_plain {
        vec![Validation::Http, Validation::TlsAlpn]
    } else {
        vec![Validation::TlsAlpn]
    };
    Ok(Some(Settings {
        mail,
        state: State::new(&state_dir(config), &config.acme_directory),
        directory: config.acme_directory.clone(),
        external: external.transpose()?,
        hosts,
        kinds,
    }))
}

/// Checks that there are names to get certificates for.
///
/// # Errors
/// A sentence with the setting to add.
pub(super) fn check_names(whole: &ServeConfig) -> Result<(), String> {
    let has_names = whole.names_for_acme().len() + whole.hosts.len() > 0;
    if whole.acme.is_some() && !has_names {
        return Err(
            "acme needs the names of the server: acme_name = \"example.org\", or hosts with names"
                .to_owned(),
        );
    }
    Ok(())
}

/// The state directory: the configured one, else systemd's (systemd.exec(5)), else the default.
pub(super) fn state_dir(config: &ServeConfig) -> PathBuf {
    let of_systemd = || {
        let dirs = env::var_os("STATE_DIRECTORY")?;
        env::split_paths(&dirs).next()
    };
    let configured = config.acme_state.clone();
    configured.or_else(of_systemd).unwrap_or_else(|| "/var/lib/weft".into())
}
