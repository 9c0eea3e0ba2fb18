//! Shares of the process's memory: items, connections, the server's own.

use super::config::CacheConfig;
use crate::os::machine::Machine;
use crate::value::{show_count, show_counted, show_size};

/// Memory for connections, within the machine or the memory cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) connections_max: usize,
    /// Limit on replies, input and handshakes of all connections. `None` if the machine's memory is
    /// unknown.
    pub(super) held_max: Option<usize>,
    /// Sentences about flags that do not fit, and about a reduced limit.
    pub(super) warnings: Vec<String>,
}

// The program, its stacks and tables.
const OWN_BYTES: u64 = 8 << 20;
// Part of the memory that items never get, whatever -m says.
const REST_PART: u64 = 3;
// Parts of the memory left by items: half for idle connections, a quarter for replies, input and
// handshakes.
const CONNECTIONS_PART: u64 = 2;
const HELD_PART: u64 = 4;
const HELD_BYTES_MIN: u64 = 1 << 20;

impl Share {
    pub(super) fn derive(config: &CacheConfig, machine: &Machine) -> Share {
        let mut share = Share {
            connections_max: config.connections_max.min(config.common.engine.fixed_max()),
            ..Share::default()
        };
        let Some(memory) = machine.memory_bytes() else {
            return share;
        };
        let beside_items = memory.saturating_sub(config.store.memory_max);
        let rest = beside_items.saturating_sub(OWN_BYTES);
        if beside_items < OWN_BYTES + memory / HELD_PART / REST_PART {
            let fits = (memory - memory / REST_PART).saturating_sub(OWN_BYTES) >> 20;
            share.warnings.push(format!(
                "-m {} does not fit: this process has {} of memory; give -m {} or less, or raise \
                 the limit (MemoryMax= in a systemd unit)",
                config.store.memory_max >> 20,
                show_size(memory),
                fits.max(1)
            ));
        }
        let rest = rest.max(memory / REST_PART);
        share.held_max = Some((rest / HELD_PART).max(HELD_BYTES_MIN) as usize);
        let engine = &config.common.engine;
        let for_connections = Some(rest / CONNECTIONS_PART);
        let fitting = engine.connections_in(for_connections, config.service.tls, machine);
        if share.connections_max <= fitting {
            return share;
        }
        let has_memory = format!("this process has {} of memory", show_size(memory));
        if config.connections_are_default {
            let count = show_counted(fitting as u64, "connection");
            let less = format!("{has_memory}, so it takes no more than {count} at once");
            share.warnings.push(less);
            share.connections_max = fitting;
        } else {
            share.warnings.push(format!(
                "-c {}: {has_memory}, which may be too little for more than {}; give a lower -c or \
                 -m, or --engine event",
                show_count(config.connections_max as u64),
                show_counted(fitting as u64, "connection")
            ));
        }
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::machine::tests::machine;

    fn share(line: &str, megabytes: u64) -> Share {
        let config = CacheConfig::read(crate::command::cache::typed(line)).unwrap();
        let text = format!("MemTotal: {} kB\n", megabytes << 10);
        Share::derive(&config, &machine(&[("proc/meminfo", &text)]).1)
    }

    #[test]
    fn the_default_of_connections_follows_the_memory() {
        let little = share("-m 16 --engine thread", 40);
        assert!(little.connections_max < 200, "{little:?}");
        assert!(little.warnings[0].contains("40 MiB"), "{little:?}");
        let much = share("-m 16 --engine thread", 1024);
        assert_eq!((much.connections_max, much.warnings.len()), (1024, 0));
    }

    #[test]
    fn a_flag_that_does_not_fit_stays_and_is_warned_of() {
        let share = share("-m 16 -c 5000 --engine thread", 40);
        assert_eq!(share.connections_max, 5000);
        assert!(share.warnings[0].contains("lower -c"), "{share:?}");
    }

    #[test]
    fn items_that_take_all_memory_are_warned_of() {
        let all = share("-m 64", 40);
        assert!(all.warnings[0].contains("-m 64 does not fit"), "{all:?}");
        assert!(all.held_max.unwrap() <= 4 << 20);
        assert!(share("-m 64", 128).warnings.is_empty());
    }
}
