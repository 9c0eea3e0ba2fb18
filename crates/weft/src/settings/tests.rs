use super::*;
use crate::command::cache::CacheConfig;
use crate::command::serve::ServeConfig;
use std::collections::BTreeSet;

fn check_rows<C: Config>() {
    let mut names = BTreeSet::new();
    for setting in rows::<C>() {
        let Setting { name, help, more, .. } = setting;
        assert!(names.insert(*name), "{name} is there twice");
        assert!(!help.is_empty(), "{name}");
        assert!(!help.ends_with('.'), "{name}: {help}");
        assert!(help.len() <= 80, "{name}: the help is {} bytes long", help.len());
        assert!(more.is_empty() || more.ends_with('.'), "{name}: {more}");
        if let Default::Text(text) = setting.default {
            let set = setting.set(&mut C::default(), text);
            set.unwrap_or_else(|why| panic!("the default of {name}: {why}"));
        }
    }
}

#[test]
fn every_setting_has_a_name_help_and_default() {
    check_rows::<ServeConfig>();
    check_rows::<CacheConfig>();
}

/// Seen: the help of `--index`, `--header` and others did not say that they can be repeated.
#[test]
fn a_flag_that_may_be_repeated_says_so() {
    let lists = rows::<ServeConfig>().filter(|row| matches!(row.kind, Kind::Many(..)));
    let silent = lists.filter(|row| !row.description().contains("may be repeated"));
    let silent: Vec<_> = silent.map(|row| row.name).collect();
    assert!(silent.is_empty(), "{silent:?}");
}

/// Seen: the manual did not say which variables hold certificates and keys.
#[test]
fn the_manual_names_variables_split_by_line() {
    let by_line = rows::<ServeConfig>().filter(|row| row.separator == Separator::Line);
    let names: Vec<_> = by_line.map(|row| row.name).collect();
    assert_eq!(
        names,
        [
            "deny",
            "basic-auth",
            "header",
            "cache",
            "redirect",
            "mime-type",
            "tls-cert",
            "tls-key",
            "tls-ticket-keys"
        ]
    );
    let manual = include_str!("../../../../docs/serve.md").replace('\n', " ");
    let said =
        "globs, headers, caching, redirects, MIME types, certificates and keys stand one per line";
    assert!(manual.contains(said));
}

#[test]
fn every_key_of_the_file_has_a_name_with_hyphens() {
    assert!(rows::<ServeConfig>().all(|row| !row.name.contains('_')));
}

/// The libraries define the defaults; the table repeats them, so that help can show them.
#[test]
fn the_defaults_are_those_of_the_libraries() {
    let config = layers::resolve::<ServeConfig>(&[], &[], Vec::new());
    let config = config.unwrap().config;
    let limits = ::serve::limits::Limits::default();
    let said = &config.connection_limits;
    let timeouts = [said.head_timeout, said.body_timeout, said.idle_timeout];
    assert_eq!(timeouts, [limits.head_timeout, limits.body_timeout, limits.idle_timeout]);
    assert_eq!(said.send_timeout, limits.send_timeout);
    assert_eq!(config.common.handshake_timeout, limits.handshake_timeout);
    assert_eq!(said.send_rate_min, limits.send_rate_min);
    assert_eq!(config.common.drain_timeout, limits.drain_deadline);
    let site = web::SiteConfig::default();
    assert_eq!(config.site.recheck_every, site.recheck_every);
    assert_eq!(config.index, site.index);
    assert_eq!(config.site.precompressed, site.precompressed);
    assert_eq!(config.site.listing, site.listing);
    assert_eq!(config.site.compress, site.compress);
    assert_eq!(config.request_limits, web::RequestLimits::default());
    assert_eq!(config.server_name, web::ServiceConfig::default().server_name);
}
