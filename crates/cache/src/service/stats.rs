//! `stats`, with memcached's names. All names of 1.6.45 are present, because monitors read them:
//! those of memcached's own internals (segmented lists, buffers, extstore) are 0.

use std::sync::atomic::Ordering;

use super::counters::Count;
use super::{Auth, Binding, Peer, Service, watch};
use crate::store::{ClassStats, Seconds, Stats};

/// Names without a counterpart here; always 0.
const ZEROS: &str = "
    response_obj_oom response_obj_count response_obj_bytes read_buf_count read_buf_bytes
    read_buf_bytes_free read_buf_oom slab_reassign_chunk_rescues slab_reassign_evictions_nomem
    slab_reassign_inline_reclaim slab_reassign_busy_items slab_reassign_busy_nomem
    slab_reassign_busy_deletes slab_global_page_pool malloc_fails unexpected_napi_ids
    round_robin_fallback lru_maintainer_juggles lru_bumps_dropped lrutail_reflocked
    evicted_active moves_to_cold moves_to_warm moves_within_lru direct_reclaims";

/// The same for `stats items`.
const ITEM_ZEROS: &str = "
    age_hot age_warm evicted_active crawler_items_checked lrutail_reflocked moves_to_cold
    moves_within_lru direct_reclaims hits_to_hot hits_to_warm hits_to_cold hits_to_temp";

/// The same for `stats settings`.
const SETTING_ZEROS: &str = "
    num_threads_per_udp slab_automove_ratio slab_automove_window slab_automove_freeratio
    slab_chunk_max tail_repair_time hot_lru_pct warm_lru_pct hot_max_factor warm_max_factor
    temporary_ttl worker_logbuf_size read_buf_mem_limit num_napi_ids ext_item_size ext_item_age
    ext_low_ttl ext_recache_rate ext_wbuf_size ext_compact_under ext_drop_under ext_max_sleep
    ext_max_frag ssl_wbuf_size ssl_verify_mode ssl_keyformat";

/// TLS settings that are not shown: files and cipher names.
const SETTING_NULLS: &[&str] = &["ssl_chain_cert", "ssl_key", "ssl_ciphers", "ssl_ca_cert"];

/// Takes one name and value.
pub(crate) type Sink<'a> = dyn FnMut(&str, &str) + 'a;

/// `stats reset`
pub(crate) fn reset(service: &Service) {
    service.store().reset_stats();
    service.counters.reset();
    service.detail.reset();
}

/// Shows one group of numbers; `false` if there is no such group.
pub(crate) fn group_of(service: &Service, group: &[u8], now: Seconds, sink: &mut Sink<'_>) -> bool {
    match group {
        b"" => general(service, now, sink),
        b"settings" => settings(service, sink),
        b"items" => service.store().class_stats(now).iter().for_each(|class| items(class, sink)),
        b"slabs" => slabs(service, now, sink),
        b"sizes" => sizes(service, sink),
        b"sizes_enable" => sizes_status(service, true, sink),
        b"sizes_disable" => sizes_status(service, false, sink),
        b"conns" => conns(service, now, sink),
        b"extstore" => {}
        _ => return false,
    }
    true
}

/// Writes `name value` pairs of anything that can be displayed.
macro_rules! show {
    ($sink:expr, $from:expr => $($field:ident)*) => {
        $($sink(stringify!($field), &$from.$field.to_string());)*
    };
    ($sink:expr, $($name:literal: $value:expr),* $(,)?) => {
        $($sink($name, &$value.to_string());)*
    };
}

fn general(service: &Service, now: Seconds, sink: &mut Sink<'_>) {
    let process = service.host.process();
    // Called once: it takes the lock of each slab class, and clients ask often.
    let stats = service.store().stats();
    let seconds =
        |time: std::time::Duration| format!("{}.{:06}", time.as_secs(), time.subsec_micros());
    let (connections, opened) = service.connections.counts();
    let settings = &service.settings;
    show!(sink,
        "pid": process.pid,
        "uptime": now - 2,
        "time": service.unix_seconds(now),
        "version": settings.version,
        "libevent": "none",
        "pointer_size": usize::BITS,
        "rusage_user": seconds(process.rusage_user),
        "rusage_system": seconds(process.rusage_system),
        "max_connections": settings.connections_max,
        "curr_connections": connections,
        "total_connections": opened,
        "rejected_connections": process.rejected_connections,
        "connection_structures": process.connection_structures.max(connections),
        "reserved_fds": process.reserved_fds,
    );
    commands(service, &stats, sink);
    show!(sink,
        "bytes_read": process.bytes_read,
        "bytes_written": process.bytes_written,
        "limit_maxbytes": stats.limit_maxbytes,
        "accepting_conns": 1,
        "listen_disabled_num": process.listen_disabled_num,
        "time_in_listen_disabled_us": 0,
        "threads": settings.threads,
        "conn_yields": service.counters.get(Count::Yields),
        "idle_kicks": process.idle_kicks,
    );
    memory(service, &stats, sink);
    let watchers = &service.watchers;
    show!(sink,
        "log_worker_dropped": 0,
        "log_worker_written": watchers.written.load(Ordering::Relaxed),
        "log_watcher_skipped": watchers.skipped.load(Ordering::Relaxed),
        "log_watcher_sent": watchers.sent.load(Ordering::Relaxed),
        "log_watchers": watchers.count(),
        "detail_uncounted": service.detail.uncounted(),
    );
    ZEROS.split_whitespace().for_each(|name| sink(name, "0"));
}

fn commands(service: &Service, stats: &Stats, sink: &mut Sink<'_>) {
    let counters = &service.counters;
    let hits = stats.get_hits + counters.get(Count::PeekHits);
    let misses = stats.get_misses + counters.get(Count::PeekMisses);
    show!(sink,
        "cmd_get": hits + misses,
        "cmd_set": stats.cmd_set,
        "cmd_flush": counters.get(Count::Flush),
        "cmd_touch": stats.touch_hits + stats.touch_misses,
        "cmd_meta": counters.get(Count::Meta),
        "get_hits": hits,
        "get_misses": misses,
    );
    show!(sink, stats =>
        get_expired get_flushed delete_misses delete_hits incr_misses incr_hits decr_misses
        decr_hits cas_misses cas_hits cas_badval touch_hits touch_misses
    );
    show!(sink,
        "store_too_large": counters.get(Count::StoreTooLarge),
        "store_no_memory": counters.get(Count::StoreNoMemory),
        "auth_cmds": counters.get(Count::AuthCommands),
        "auth_errors": counters.get(Count::AuthErrors),
    );
}

fn memory(service: &Service, stats: &Stats, sink: &mut Sink<'_>) {
    let has_crawl = service.tuning.has_client_crawl.load(Ordering::Relaxed);
    let is_crawling = has_crawl || service.store().is_sweeping();
    show!(sink,
        "hash_power_level": stats.hash_power_level,
        "hash_bytes": stats.hash_bytes,
        // The table grows bucket by bucket with the writes, and delays no client.
        "hash_is_expanding": 0,
        "ghost_bytes": stats.ghost_bytes,
        "slab_reassign_rescues": stats.slab_reassign_rescues,
        "slab_reassign_last_busy_status": "none",
        "slab_reassign_running": u8::from(stats.slab_reassign_running),
        "slabs_moved": stats.slabs_moved,
        "lru_crawler_running": u8::from(is_crawling),
        "lru_crawler_starts": service.counters.get(Count::CrawlerStarts),
    );
    show!(sink, stats =>
        bytes curr_items total_items expired_unfetched evicted_unfetched evictions reclaimed
        crawler_reclaimed crawler_items_checked limbo_chunks upload_bytes uploads_refused
    );
}

fn settings(service: &Service, sink: &mut Sink<'_>) {
    let settings = &service.settings;
    let config = service.store().config();
    let yes = |is: bool| if is { "yes" } else { "no" };
    let or_null = |text: &Option<String>| text.clone().unwrap_or_else(|| "NULL".to_owned());
    show!(sink,
        "maxbytes": service.store().stats().limit_maxbytes,
        "maxconns": settings.connections_max,
        "tcpport": settings.tcp_port,
        "udpport": settings.udp_port,
        "inter": or_null(&settings.interface),
        "verbosity": service.verbosity(),
        "oldest": 0,
        "evictions": if config.evicts { "on" } else { "off" },
        "domain_socket": or_null(&settings.unix_socket),
        "umask": format!("{:o}", settings.unix_mask),
        "shutdown_command": yes(settings.allows_shutdown),
        "growth_factor": format!("{:.2}", config.chunk_growth),
        "chunk_size": config.chunk_space_min,
        "num_threads": settings.threads,
        "stat_key_prefix": char::from(settings.prefix_delimiter),
        "detail_enabled": yes(service.detail.is_on()),
        "reqs_per_event": 20,
        "cas_enabled": yes(config.counts_cas),
        "tcp_backlog": settings.backlog,
        "binding_protocol": match settings.binding {
            Binding::Auto => "auto-negotiate",
            Binding::Ascii => "ascii",
            Binding::Binary => "binary",
        },
        "auth_enabled_sasl": yes(matches!(settings.auth, Auth::Sasl(_))),
        "auth_enabled_ascii": yes(matches!(settings.auth, Auth::Ascii(_))),
        "item_size_max": config.item_len_max,
        "client_flags_size": size_of::<u32>(),
        "maxconns_fast": yes(settings.refuses_at_connections_max),
        "hashpower_init": config.hash_power,
        "slab_reassign": "yes",
        "slab_automove": 1,
        "lru_crawler": yes(service.crawl_pause().is_some()),
        "lru_crawler_sleep": service.tuning.crawl_pause_us.load(Ordering::Relaxed),
        "lru_crawler_tocrawl": service.tuning.crawl_items_max.load(Ordering::Relaxed),
        "flush_enabled": yes(settings.allows_flush),
        "dump_enabled": yes(settings.allows_dump),
        "lru_maintainer_thread": "no",
        "lru_segmented": "no",
        "temp_lru": "no",
        "idle_timeout": settings.idle_timeout_s,
        "watcher_logbuf_size": watch::QUEUE_LEN_MAX,
        "track_sizes": yes(service.tuning.tracks_sizes.load(Ordering::Relaxed)),
        "inline_ascii_response": "no",
        "ssl_enabled": yes(settings.tls),
        "ssl_session_cache": "no",
        "ssl_kernel_tls": "no",
        "ssl_min_version": "tlsv1.2",
        "ext_drop_unread": "no",
        "hash_algorithm": "foldhash",
        "memory_file": or_null(&settings.memory_file),
    );
    SETTING_ZEROS.split_whitespace().for_each(|name| sink(name, "0"));
    SETTING_NULLS.iter().for_each(|name| sink(name, "NULL"));
}

/// Writes `prefix:name value` of anything that can be displayed.
macro_rules! show_class {
    ($sink:expr, $prefix:expr, $from:expr => $($field:ident)*) => {
        $($sink(&format!("{}:{}", $prefix, stringify!($field)), &$from.$field.to_string());)*
    };
    ($sink:expr, $prefix:expr, $($name:literal: $value:expr),* $(,)?) => {
        $($sink(&format!("{}:{}", $prefix, $name), &$value.to_string());)*
    };
}

fn items(class: &ClassStats, sink: &mut Sink<'_>) {
    if class.number == 0 && class.evicted == 0 {
        return;
    }
    show_class!(sink, format_args!("items:{}", class.id),
        "number": class.number,
        // The small queue and the main queue are shown as memcached's hot and warm lists.
        "number_hot": class.number_small,
        "number_warm": class.number_main,
        "number_cold": 0,
    );
    show_class!(sink, format_args!("items:{}", class.id), class =>
        age mem_requested evicted evicted_nonzero evicted_time
    );
    show_class!(sink, format_args!("items:{}", class.id),
        "outofmemory": class.out_of_memory,
        "tailrepairs": 0,
    );
    show_class!(sink, format_args!("items:{}", class.id), class =>
        reclaimed expired_unfetched evicted_unfetched crawler_reclaimed
    );
    show_class!(sink, format_args!("items:{}", class.id),
        "moves_to_warm": class.promoted,
        "ghost_hits": class.ghost_hits,
    );
    for name in ITEM_ZEROS.split_whitespace() {
        sink(&format!("items:{}:{name}", class.id), "0");
    }
}

fn slabs(service: &Service, now: Seconds, sink: &mut Sink<'_>) {
    let classes = service.store().class_stats(now);
    for class in &classes {
        show_class!(sink, class.id, class =>
            chunk_size chunks_per_page total_pages total_chunks used_chunks free_chunks
            free_chunks_end get_hits cmd_set delete_hits incr_hits decr_hits cas_hits cas_badval
            touch_hits
        );
    }
    show!(sink,
        "active_slabs": classes.len(),
        "total_malloced": service.store().stats().total_malloced,
    );
}

/// Sizes are always counted; the setting only shows or hides them, as in memcached.
fn sizes(service: &Service, sink: &mut Sink<'_>) {
    if !service.tuning.tracks_sizes.load(Ordering::Relaxed) {
        return sink("sizes_status", "disabled");
    }
    for (size, count) in service.store().sizes() {
        sink(&size.to_string(), &count.to_string());
    }
}

fn sizes_status(service: &Service, is_on: bool, sink: &mut Sink<'_>) {
    service.tuning.tracks_sizes.store(is_on, Ordering::Relaxed);
    sink("sizes_status", if is_on { "enabled" } else { "disabled" });
}

fn conns(service: &Service, now: Seconds, sink: &mut Sink<'_>) {
    let listeners = service.connections.listeners();
    for (at, address) in listeners.iter().enumerate() {
        show_class!(sink, format_args!("listen{at}"),
            "addr": address,
            "state": "conn_listening",
        );
    }
    service.connections.for_each(|connection| {
        let last = connection.last_command.load(Ordering::Relaxed);
        let listener = connection.listener.and_then(|at| listeners.get(at));
        // A client of a Unix socket has no address: memcached shows the path of the socket.
        let path = listener.filter(|_| connection.peer == Peer::Unix);
        let address = path.map_or_else(|| connection.peer.to_string(), String::clone);
        show_class!(sink, connection.id, "addr": address);
        if let Some(listener) = listener {
            show_class!(sink, connection.id, "listen_addr": listener);
        }
        show_class!(sink, connection.id,
            "state": if last == now { "conn_parse_cmd" } else { "conn_read" },
            "secs_since_last_cmd": now.saturating_sub(last),
        );
    });
}
