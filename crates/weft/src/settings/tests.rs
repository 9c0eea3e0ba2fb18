use super::*;
use std::collections::BTreeSet;

#[test]
fn every_setting_has_one_name_and_its_help() {
    let names: BTreeSet<_> = SETTINGS.iter().map(|setting| setting.name).collect();
    assert_eq!(names.len(), SETTINGS.len(), "a name is there twice");
    for setting in SETTINGS {
        let Setting {
            name,
            help,
            more,
            heading,
            ..
        } = setting;
        assert!(HEADINGS.contains(heading), "{name}: {heading}");
        assert!(!help.is_empty() && !help.ends_with('.'), "{name}: {help}");
        assert!(
            help.len() <= 80,
            "{name}: the short help is {} bytes long",
            help.len()
        );
        assert!(more.is_empty() || more.ends_with('.'), "{name}: {more}");
        assert!(!name.contains('_'), "{name}");
    }
}

#[test]
fn every_default_is_a_value_that_could_have_been_typed() {
    let mut config = ServeConfig::default();
    for setting in SETTINGS {
        if let Default::Text(text) = setting.default {
            setting.set(&mut config, text).unwrap();
        }
    }
}

/// The libraries know best; the table repeats what they say, so that help can show it.
#[test]
fn the_defaults_are_those_of_the_libraries() {
    let mut config = ServeConfig::default();
    for setting in SETTINGS {
        if let Default::Text(text) = setting.default {
            setting.set(&mut config, text).unwrap();
        }
    }
    let limits = ::serve::limits::Limits::default();
    let timeouts = [
        config.head_timeout,
        config.body_timeout,
        config.idle_timeout,
    ];
    assert_eq!(
        timeouts,
        [
            limits.head_timeout,
            limits.body_timeout,
            limits.idle_timeout
        ]
    );
    assert_eq!(config.send_timeout, limits.send_timeout);
    assert_eq!(config.send_rate_min_bytes_per_s, limits.send_rate_min);
    assert_eq!(config.drain_timeout, limits.drain_deadline);
    let site = web::SiteConfig::default();
    assert_eq!(config.recheck, site.recheck_every);
    assert_eq!(config.index, site.index);
    assert_eq!(config.memory_file_max_bytes, site.memory_file_len_max);
    assert!(config.precompressed == site.precompressed && config.listing == site.listing);
    assert_eq!(config.request_limits, web::RequestLimits::default());
    assert_eq!(
        config.server_name,
        web::ServiceConfig::default().server_name
    );
}
