//! Commands for operators, and the refusals of some.

use std::sync::atomic::Ordering;

use super::stats;
use crate::conversation::{Context, Dump, State};
use crate::number::{parse_exptime, parse_f64, parse_i32, parse_u32, parse_u64};
use crate::service::counters::Count;
use crate::service::watch::Kinds;
use crate::service::{Peer, StopMode};
use crate::words::{BAD_EXPTIME, BAD_FORMAT, ERROR, Tokens};

/// Smallest memory limit that is accepted (`cache_memlimit`), in MB.
const MEMORY_MB_MIN: u64 = 8;

/// Largest memory limit that is accepted: a larger number was meant as bytes.
const MEMORY_MB_MAX: u64 = 1_000_000_000;

/// One past the last slab class that memcached may have.
const CLASSES_MAX: u32 = 64;

pub(crate) fn run(cx: &mut Context<'_>, state: &mut State, tokens: &Tokens<'_>) {
    match tokens.command() {
        b"stats" => stats::command(cx, state, tokens),
        b"version" => {
            let version = &cx.service.settings.version;
            cx.out.put_with(|to| {
                to.extend_from_slice(b"VERSION ");
                to.extend_from_slice(version.as_bytes());
                to.extend_from_slice(b"\r\n");
            });
        }
        b"verbosity" => verbosity(cx, tokens),
        b"refresh_certs" => refresh_certs(cx),
        b"flush_all" => flush_all(cx, tokens),
        b"shutdown" => shutdown(cx, state, tokens),
        b"cache_memlimit" => cache_memlimit(cx, tokens),
        b"lru" => lru(cx, tokens),
        b"lru_crawler" => lru_crawler(cx, state, tokens),
        b"slabs" => slabs(cx, tokens),
        b"watch" => watch(cx, state, tokens),
        _ => cx.answer(ERROR, tokens.is_noreply()),
    }
}

fn refresh_certs(cx: &mut Context<'_>) {
    match cx.service.host.refresh_certificates() {
        None => cx.out.put(ERROR),
        Some(Ok(())) => cx.out.put(b"OK\r\n"),
        Some(Err(why)) => cx.out.put(format!("SERVER_ERROR {why}\r\n").as_bytes()),
    }
}

fn verbosity(cx: &mut Context<'_>, tokens: &Tokens<'_>) {
    const VERBOSITY_MAX: u32 = 2;
    let [_, level, ..] = tokens.parts() else {
        return cx.out.put(BAD_FORMAT);
    };
    let reply = match parse_u32(level) {
        None => BAD_FORMAT,
        Some(level) => {
            let level = level.min(VERBOSITY_MAX);
            let tuning = &cx.service.tuning;
            tuning.verbosity.store(level, Ordering::Relaxed);
            b"OK\r\n"
        }
    };
    cx.answer(reply, tokens.is_noreply());
}

/// `flush_all [delay] [noreply]`
fn flush_all(cx: &mut Context<'_>, tokens: &Tokens<'_>) {
    let is_quiet = tokens.is_noreply();
    let delay = match tokens.parts() {
        [_] | [_, b"noreply"] => Some(0),
        [_, delay, ..] => parse_exptime(delay),
        [] => unreachable!("a command has a name"),
    };
    let reply = match delay {
        _ if !cx.service.settings.allows_flush => b"CLIENT_ERROR flush_all not allowed\r\n",
        None => BAD_EXPTIME,
        Some(delay) => {
            cx.flush(delay);
            &b"OK\r\n"[..]
        }
    };
    cx.answer(reply, is_quiet);
}

fn shutdown(cx: &mut Context<'_>, state: &mut State, tokens: &Tokens<'_>) {
    if !cx.service.settings.allows_shutdown {
        return cx.out.put(b"SERVER_ERROR: shutdown not enabled\r\n");
    }
    let how = match tokens.parts() {
        [_] => StopMode::Now,
        [_, b"graceful"] => StopMode::Graceful,
        _ => return cx.out.put(b"CLIENT_ERROR invalid shutdown mode\r\n"),
    };
    *state = State::Closed;
    cx.service.host.shut_down(how);
}

fn cache_memlimit(cx: &mut Context<'_>, tokens: &Tokens<'_>) {
    let ([_, mb] | [_, mb, _]) = tokens.parts() else {
        return cx.out.put(ERROR);
    };
    let reply: &[u8] = match parse_u64(mb).map(|mb| u64::from(mb as u32)) {
        None => ERROR,
        Some(..MEMORY_MB_MIN) => b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n",
        Some(mb) if mb > MEMORY_MB_MAX => {
            b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n"
        }
        Some(mb) => match cx.service.store().set_memory_max(mb << 20) {
            Ok(()) => b"OK\r\n",
            Err(_) => b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n",
        },
    };
    cx.answer(reply, tokens.is_noreply());
}

/// `lru tune|mode|temp_ttl` configure memcached's segmented lists, which do not exist here: a
/// command that memcached would accept gets the same reply, and changes nothing.
fn lru(cx: &mut Context<'_>, tokens: &Tokens<'_>) {
    const OK: &[u8] = b"OK\r\n";
    let reply: &[u8] = match tokens.parts() {
        [_, b"tune", hot, warm, hot_factor, warm_factor, ..] => {
            let percents = parse_u32(hot).zip(parse_u32(warm));
            let factors = parse_f64(hot_factor).zip(parse_f64(warm_factor));
            match (percents, factors) {
                (Some((hot, warm)), Some(_)) if u64::from(hot) + u64::from(warm) > 80 => {
                    b"ERROR hot and warm pcts must not exceed 80\r\n"
                }
                (Some(_), Some((hot, warm))) if hot <= 0.0 || warm <= 0.0 => {
                    b"ERROR hot/warm age factors must be greater than 0\r\n"
                }
                (Some(_), Some(_)) => OK,
                _ => ERROR,
            }
        }
        [_, b"mode", b"flat" | b"segmented", ..] => OK,
        [_, b"temp_ttl", ttl, ..] => parse_i32(ttl).map_or(ERROR, |_| OK),
        _ => ERROR,
    };
    cx.out.put(reply);
}

fn lru_crawler(cx: &mut Context<'_>, state: &mut State, tokens: &Tokens<'_>) {
    let tuning = &cx.service.tuning;
    let crawls = tuning.crawls.load(Ordering::Relaxed);
    let reply: &[u8] = match tokens.parts() {
        [_, b"enable"] if crawls => b"ERROR failed to start lru crawler thread\r\n",
        [_, b"enable"] => {
            tuning.crawls.store(true, Ordering::Relaxed);
            b"OK\r\n"
        }
        [_, b"disable"] if !crawls => b"ERROR failed to stop lru crawler thread\r\n",
        [_, b"disable"] => {
            tuning.crawls.store(false, Ordering::Relaxed);
            b"OK\r\n"
        }
        [_, b"sleep", pause] => match parse_u32(pause) {
            None => BAD_FORMAT,
            Some(1_000_001..) => b"CLIENT_ERROR sleep must be one second or less\r\n",
            Some(pause) => {
                tuning.crawl_pause_us.store(pause, Ordering::Relaxed);
                b"OK\r\n"
            }
        },
        [_, b"tocrawl", count] => match parse_u32(count) {
            None => BAD_FORMAT,
            Some(count) => {
                tuning.crawl_items_max.store(count, Ordering::Relaxed);
                b"OK\r\n"
            }
        },
        [_, b"crawl", _] if !crawls => b"CLIENT_ERROR lru crawler disabled\r\n",
        [_, b"crawl", classes] if !are_classes(classes) => b"BADCLASS invalid class id\r\n",
        [_, b"crawl", _] => {
            // Items of all classes are in one table, so a crawl visits all of them.
            cx.service.counters.add(Count::CrawlerStarts, 1);
            *state = State::Crawl;
            return;
        }
        [_, b"metadump", _] if !cx.service.settings.allows_dump => {
            b"ERROR metadump not allowed\r\n"
        }
        [_, b"mgdump", _] if !cx.service.settings.allows_dump => b"ERROR key dump not allowed\r\n",
        [_, kind @ (b"metadump" | b"mgdump"), classes]
            if *classes == b"hash" || are_classes(classes) =>
        {
            *state = State::Dump(Box::new(Dump::of_items(*kind == b"mgdump", classes)));
            return;
        }
        [_, b"metadump" | b"mgdump", _] => b"BADCLASS invalid class id\r\n",
        _ => ERROR,
    };
    cx.out.put(reply);
}

/// True for `all`, or numbers of slab classes.
fn are_classes(text: &[u8]) -> bool {
    text == b"all"
        || text
            .split(|&byte| byte == b',')
            .all(|class| parse_u32(class).is_some_and(|class| (1..CLASSES_MAX).contains(&class)))
}

/// `slabs …`: accepted without effect, since pages move to the classes that need them.
fn slabs(cx: &mut Context<'_>, tokens: &Tokens<'_>) {
    let reply: &[u8] = match tokens.parts() {
        [_, b"reassign", from, to] => match parse_i32(from).zip(parse_i32(to)) {
            None => BAD_FORMAT,
            Some((from, to)) if from == to => b"SAME src and dst class are identical\r\n",
            Some((from, to)) if !is_class(from) || !is_class(to) => {
                b"BADCLASS invalid src or dst class id\r\n"
            }
            Some(_) => b"NOSPARE source class has no spare pages\r\n",
        },
        [_, b"automove", mode, ..] => match parse_u32(mode) {
            None => BAD_FORMAT,
            Some(1 | 2) => b"OK\r\n",
            Some(0) => b"ERROR pages always move to the classes that need them\r\n",
            Some(_) => ERROR,
        },
        _ => ERROR,
    };
    cx.out.put(reply);
}

fn is_class(class: i32) -> bool {
    u32::try_from(class).is_ok_and(|class| (1..CLASSES_MAX).contains(&class))
}

fn watch(cx: &mut Context<'_>, state: &mut State, tokens: &Tokens<'_>) {
    if !cx.service.settings.allows_watch {
        return cx.out.put(b"CLIENT_ERROR watch commands not allowed\r\n");
    }
    let kinds = match &tokens.parts()[1..] {
        [] => Some(Kinds::FETCHERS),
        names => names
            .iter()
            .map(|name| Kinds::named(name))
            .try_fold(Kinds::NONE, |all, kind| kind.map(|kind| all.and(kind))),
    };
    let Some(kinds) = kinds else {
        return cx.out.put(ERROR);
    };
    if matches!(cx.connection.peer, Peer::Udp(_)) {
        // Event lines never end, but a datagram gets a single reply.
        return cx.out.put(b"CLIENT_ERROR watch commands not allowed over UDP\r\n");
    }
    match cx.service.watchers.add(kinds) {
        Some(watcher) => {
            cx.out.put(b"OK\r\n");
            *state = State::Watch { watcher, waits: false };
        }
        None => cx.out.put(b"WATCHER_TOO_MANY log watcher limit reached\r\n"),
    }
}
