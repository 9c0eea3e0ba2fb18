//! From facts to verdicts: a pure function, one line of the report per paragraph.

use super::facts::{ConnectionTable, Refusal};
use super::{Facts, Finding, Verdict};
use crate::os::machine::{CgroupVersion, Limit};
use crate::value::{show_count, show_size};

/// Judges all facts, in the order of the report.
pub(crate) fn judge(facts: &Facts) -> Vec<Finding> {
    let sections = [
        ("Kernel", kernel(facts)),
        ("Processors", processors(facts)),
        ("Memory", memory(facts)),
        ("Limits", limits(facts)),
        ("Network", network(facts)),
    ];
    let named = sections.into_iter().map(|(section, mut findings)| {
        findings.iter_mut().for_each(|one| one.section = section);
        findings
    });
    named.flatten().collect()
}

/// A good finding; [`judge`] sets its section.
fn ok(name: &'static str, value: impl Into<String>) -> Finding {
    Finding { section: "", name, verdict: Verdict::Ok, value: value.into(), advice: None }
}

fn warn(name: &'static str, value: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Warn, advice: Some(advice.into()), ..ok(name, value) }
}

fn bad(name: &'static str, value: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Bad, ..warn(name, value, advice) }
}

/// `advice` with the commands that set a sysctl, now and permanently.
fn sysctl(advice: &str, setting: &str) -> String {
    format!(
        "{advice}\n  sysctl -w '{setting}'\n  echo '{setting}' >> /etc/sysctl.d/90-weft.conf    \
         # also after a reboot"
    )
}

// openat2(2) needs 5.6, the ring flags DEFER_TASKRUN and SINGLE_ISSUER 6.1. io_uring_setup(2)
const KERNEL_MIN: (u32, u32) = (5, 6);
const KERNEL_FOR_RING: (u32, u32) = (6, 1);

fn kernel(facts: &Facts) -> Vec<Finding> {
    let release = &facts.kernel;
    let version = match release_number(release) {
        Some(number) if number < KERNEL_MIN => {
            bad("version", release, "weft opens files with openat2(2), which came with Linux 5.6.")
        }
        Some(number) if number < KERNEL_FOR_RING => warn(
            "version",
            release,
            "The io_uring back end needs Linux 6.1 or newer; before it, epoll is used.",
        ),
        _ => ok("version", release),
    };
    let ring = match &facts.io_uring {
        Ok(features) => ring(features),
        Err(Refusal { cause, remedy }) => {
            let advice = format!("weft serves with epoll, which costs more per request. {remedy}");
            warn("io_uring", format!("denied: {cause}"), advice)
        }
    };
    let guards = match (facts.guard_install, facts.map_count_max) {
        (true, _) => ok("stack guards", "MADV_GUARD_INSTALL: no mapping per fiber"),
        (false, mappings) => {
            // Before 6.13 a guard splits its mapping in two, and the fiber crate uses at most half
            // of vm.max_map_count: that allows a quarter as many fibers.
            let fibers = show_count(mappings.unwrap_or(65_530) / 4);
            let advice = format!(
                "This kernel (before 6.13) needs two mappings for each fiber's stack, enough for \
                 {fibers} fibers. For more:"
            );
            let value = "mprotect: two mappings per fiber";
            warn("stack guards", value, sysctl(&advice, "vm.max_map_count=1048576"))
        }
    };
    vec![version, ring, guards]
}

fn ring(features: &[(&'static str, bool)]) -> Finding {
    let names = |wanted: bool| {
        let names = features.iter().filter(|(_, has)| *has == wanted).map(|(name, _)| *name);
        names.collect::<Vec<_>>().join(", ")
    };
    let missing = names(false);
    Finding {
        advice: (!missing.is_empty()).then(|| format!("Newer kernels also have: {missing}.")),
        ..ok("io_uring", format!("allowed: {}", names(true)))
    }
}

fn release_number(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn processors(facts: &Facts) -> Vec<Finding> {
    let affinity = match (facts.cpus_allowed, facts.cpus_installed) {
        (Some(allowed), Some(installed)) => {
            ok("affinity", format!("{allowed} of {installed} CPUs"))
        }
        _ => ok("affinity", "unknown"),
    };
    let quota = match facts.cgroup_cpus {
        None => ok("cgroup quota", "none"),
        Some(cpus) if cpus < 1.0 => warn(
            "cgroup quota",
            format!("{cpus:.2} CPUs"),
            "Below one CPU the kernel stops the whole server for part of every period, and \
             its requests wait. In the unit:\n  CPUQuota=100%",
        ),
        Some(cpus) => ok("cgroup quota", format!("{cpus:.2} CPUs")),
    };
    vec![affinity, quota]
}

const MEMORY_MIN_BYTES: u64 = 32 << 20;
const MEMORY_GOOD_BYTES: u64 = 128 << 20;

fn memory(facts: &Facts) -> Vec<Finding> {
    let installed = match facts.installed_bytes {
        Some(bytes) => ok("installed", show_size(bytes)),
        None => ok("installed", "unknown"),
    };
    let limit = match facts.cgroup_memory {
        None => ok("cgroup limit", "none"),
        Some((version, bytes)) => cgroup_memory(version, bytes),
    };
    let pages = facts.transparent_huge_pages.as_deref().unwrap_or("unknown");
    let pages = match chosen(pages) {
        "always" => ok("huge pages", "always (weft keeps its stacks out of them)"),
        other => ok("huge pages", other),
    };
    let mappings = facts.map_count_max.map_or("unknown".to_owned(), show_count);
    vec![installed, limit, pages, ok("mappings", format!("{mappings} per process"))]
}

fn cgroup_memory(version: CgroupVersion, bytes: u64) -> Finding {
    let (unit, file) = match version {
        CgroupVersion::V1 => ("MemoryLimit=256M", "v1"),
        CgroupVersion::V2 => ("MemoryMax=256M", "v2"),
    };
    let value = format!("{} (cgroup {file})", show_size(bytes));
    match bytes {
        ..MEMORY_MIN_BYTES => bad(
            "cgroup limit",
            value,
            format!("The kernel will kill a server under load. In the unit:\n  {unit}"),
        ),
        MEMORY_MIN_BYTES..MEMORY_GOOD_BYTES => warn(
            "cgroup limit",
            value,
            format!(
                "Space for few cached files; each connection takes some KiB, and its socket buffers more. In the unit:\n  {unit}"
            ),
        ),
        _ => ok("cgroup limit", value),
    }
}

/// The selected choice, in brackets: `always [madvise] never`.
fn chosen(choices: &str) -> &str {
    let inside = choices.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(choices, |(inside, _)| inside)
}

// One descriptor per connection and per open file of the site, plus some spare.
const NOFILE_MIN: u64 = 1024;
const NOFILE_GOOD: u64 = 65_536;
// Each connection counts as a thread; below this number `--engine thread` is of little use.
const THREADS_GOOD: u64 = 10_000;

fn limits(facts: &Facts) -> Vec<Finding> {
    vec![nofile(facts.nofile), memlock(facts), threads(facts)]
}

fn nofile(limit: Limit) -> Finding {
    let value = format!("{} (weft raises {} itself)", shown(limit.hard), shown(limit.soft));
    let value = if limit.soft == limit.hard { shown(limit.hard) } else { value };
    let advice = "Every connection and every open file takes one. In the unit:\n  \
                  LimitNOFILE=1048576\nfor a login shell, in /etc/security/limits.conf:\n  \
                  *  hard  nofile  1048576";
    match limit.hard.unwrap_or(u64::MAX) {
        ..NOFILE_MIN => bad("open files", value, advice),
        NOFILE_MIN..NOFILE_GOOD => warn("open files", value, advice),
        _ => ok("open files", value),
    }
}

fn memlock(facts: &Facts) -> Finding {
    const NEEDED_BYTES: u64 = 8 << 20;
    let limit = facts.memlock.soft;
    let value = limit.map_or("unlimited".to_owned(), show_size);
    // Since 5.12 a ring's memory counts for the memory cgroup; from 6.14 on for this limit too.
    let counts_rings =
        release_number(&facts.kernel).is_some_and(|number| !((5, 12)..(6, 14)).contains(&number));
    match limit {
        Some(bytes) if counts_rings && bytes < NEEDED_BYTES => warn(
            "locked memory",
            value,
            "On this kernel the memory of io_uring counts against it. In the unit:\n  LimitMEMLOCK=infinity",
        ),
        _ => ok("locked memory", value),
    }
}

fn threads(facts: &Facts) -> Finding {
    let limits = [
        (facts.tasks_max, "the cgroup", "In the unit:\n  TasksMax=infinity".to_owned()),
        (
            facts.user_threads_max,
            "this user's limit",
            "In the unit:\n  LimitNPROC=infinity".to_owned(),
        ),
        (facts.threads_max, "kernel.threads-max", sysctl("", "kernel.threads-max=1000000")),
        (facts.pid_max, "kernel.pid_max", sysctl("", "kernel.pid_max=4194304")),
    ];
    let known = limits.into_iter().filter_map(|(max, who, advice)| Some((max?, who, advice)));
    match known.min_by_key(|(max, ..)| *max) {
        None => ok("threads", "unknown"),
        Some((max, who, advice)) => {
            let value = format!("{} by {who}", show_count(max));
            let why = "--engine thread needs one per connection; --engine fiber does not.";
            match max {
                ..THREADS_GOOD => warn("threads", value, format!("{why}\n{}", advice.trim_start())),
                _ => ok("threads", value),
            }
        }
    }
}

fn shown(limit: Option<u64>) -> String {
    limit.map_or("unlimited".to_owned(), show_count)
}

fn network(facts: &Facts) -> Vec<Finding> {
    let ipv6 = if facts.has_ipv6 { "yes" } else { "no; --listen :PORT is IPv4 only here" };
    let queues = [accept_queue(facts), syn_queue(facts), connection_table(facts), unsent(facts)];
    let others = [ports(facts), congestion(facts), ok("IPv6", ipv6)];
    queues.into_iter().chain(others).collect()
}

const BACKLOG_GOOD: u64 = 1024;

fn accept_queue(facts: &Facts) -> Finding {
    match facts.somaxconn {
        Some(max @ ..BACKLOG_GOOD) => warn(
            "accept queue",
            show_count(max),
            sysctl(
                "Connections beyond it are dropped, and clients retry after a second.",
                "net.core.somaxconn=4096",
            ),
        ),
        Some(max) => ok("accept queue", format!("{} (net.core.somaxconn)", show_count(max))),
        None => ok("accept queue", "unknown"),
    }
}

fn syn_queue(facts: &Facts) -> Finding {
    let cookies = facts.syn_cookies.unwrap_or(1) > 0;
    match facts.syn_backlog_max {
        Some(max @ ..BACKLOG_GOOD) if !cookies => warn(
            "SYN queue",
            format!("{}, SYN cookies off", show_count(max)),
            sysctl("A SYN flood locks all clients out.", "net.ipv4.tcp_syncookies=1"),
        ),
        Some(max) => {
            let cookies = if cookies { "SYN cookies on" } else { "SYN cookies off" };
            ok("SYN queue", format!("{}, {cookies}", show_count(max)))
        }
        None => ok("SYN queue", "unknown"),
    }
}

fn connection_table(facts: &Facts) -> Finding {
    const NAME: &str = "connections";
    let Some(ConnectionTable { count, max, time_wait_s, dropped }) = facts.connection_table else {
        return ok(NAME, "none is tracked for a firewall");
    };
    let space = format!("tracked: {} of {}", show_count(count), show_count(max));
    let advice = format!(
        "Firewall rules keep each connection in a table (nf_conntrack), closed ones for another \
         {time_wait_s} s. When it is full, new connections wait for seconds."
    );
    let value = match dropped {
        0 => format!(
            "{space}, enough for {} new ones a second",
            show_count(max / time_wait_s.max(1))
        ),
        _ => format!("{space}; {} packets dropped since the boot", show_count(dropped)),
    };
    let more = format!("net.netfilter.nf_conntrack_max={}", 4 * max);
    let is_filling = count > max / 4 * 3;
    if dropped == 0 && !is_filling {
        return ok(NAME, value);
    }
    // The drops may date from before the current table size.
    let verdict = if is_filling { Verdict::Warn } else { Verdict::Ok };
    Finding { verdict, ..warn(NAME, value, sysctl(&advice, &more)) }
}

/// Unsent bytes that the kernel may hold, from which the order of replies is fixed too early.
const UNSENT_MANY: u64 = 1 << 20;

fn unsent(facts: &Facts) -> Finding {
    match facts.unsent_max {
        // No fault: it is the kernel's default, and irrelevant without HTTP/2.
        Some(UNSENT_MANY..) => Finding {
            advice: Some(sysctl(
                "Over HTTP/2, urgent replies stand behind all that a socket's buffer holds.",
                "net.ipv4.tcp_notsent_lowat=131072",
            )),
            ..shown_unsent(facts.unsent_max)
        },
        max => shown_unsent(max),
    }
}

fn shown_unsent(max: Option<u64>) -> Finding {
    const NAME: &str = "unsent bytes";
    const NO_LIMIT: u64 = u32::MAX as u64;
    match max {
        Some(NO_LIMIT) => ok(NAME, "no limit"),
        Some(max) => ok(NAME, format!("{} (net.ipv4.tcp_notsent_lowat)", show_count(max))),
        None => ok(NAME, "unknown"),
    }
}

const PORTS_GOOD: u64 = 20_000;

fn ports(facts: &Facts) -> Finding {
    match facts.local_ports {
        Some((first, last)) if last.saturating_sub(first) < PORTS_GOOD => warn(
            "client ports",
            format!("{first} to {last}"),
            sysctl(
                "A load generator or proxy on this machine may run out of ports; a server does not.",
                "net.ipv4.ip_local_port_range=16384 60999",
            ),
        ),
        Some((first, last)) => ok("client ports", format!("{first} to {last}")),
        None => ok("client ports", "unknown"),
    }
}

fn congestion(facts: &Facts) -> Finding {
    match facts.congestion_control.as_deref() {
        // bbr paces by timers, which over loopback makes the same server vary by a factor of two
        // from one run to the next.
        Some("bbr") => Finding {
            advice: Some(
                "A good choice for the internet. Over loopback its pacing makes measurements vary; \
                 measure in a network namespace with reno."
                    .to_owned(),
            ),
            ..ok("congestion", "bbr")
        },
        Some(other) => ok("congestion", other),
        None => ok("congestion", "unknown"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(count: u64, dropped: u64) -> ConnectionTable {
        ConnectionTable { count, max: 262_144, time_wait_s: 120, dropped }
    }

    /// A machine on which everything is ok.
    fn good() -> Facts {
        Facts {
            kernel: "6.18.44-generic".to_owned(),
            io_uring: Ok(vec![("fast poll", true)]),
            guard_install: true,
            installed_bytes: Some(8 << 30),
            cgroup_memory: None,
            transparent_huge_pages: Some("always [madvise] never".to_owned()),
            map_count_max: Some(65_530),
            cpus_installed: Some(4),
            cpus_allowed: Some(2),
            cgroup_cpus: None,
            nofile: Limit { soft: Some(1024), hard: Some(1 << 20) },
            memlock: Limit { soft: Some(8 << 20), hard: Some(8 << 20) },
            tasks_max: None,
            user_threads_max: None,
            threads_max: Some(100_000),
            pid_max: Some(4_194_304),
            somaxconn: Some(4096),
            syn_backlog_max: Some(2048),
            syn_cookies: Some(1),
            connection_table: Some(table(5_000, 0)),
            local_ports: Some((32_768, 60_999)),
            congestion_control: Some("cubic".to_owned()),
            unsent_max: Some(131_072),
            has_ipv6: true,
        }
    }

    /// Findings that are not ok on a good machine after `change`.
    fn faults(change: impl FnOnce(&mut Facts)) -> Vec<(&'static str, Verdict, String)> {
        let mut facts = good();
        change(&mut facts);
        let found = judge(&facts).into_iter().filter(|one| one.verdict != Verdict::Ok);
        found.map(|one| (one.name, one.verdict, one.advice.unwrap())).collect()
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Facts), name: &str, verdict: Verdict, advice: &str) {
        let found = faults(change);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].0, found[0].1), (name, verdict));
        assert!(found[0].2.contains(advice), "{}", found[0].2);
    }

    #[test]
    fn good_machine() {
        assert_eq!(faults(|_| ()), []);
    }

    #[test]
    fn advice_of_each_fault() {
        use Verdict::{Bad, Warn};
        check(|facts| facts.kernel = "5.4.0".to_owned(), "version", Bad, "openat2");
        check(|facts| facts.kernel = "5.15.0".to_owned(), "version", Warn, "6.1");
        let refused = Err(Refusal { cause: "a filter".to_owned(), remedy: "allow it".to_owned() });
        check(|facts| facts.io_uring = refused, "io_uring", Warn, "allow it");
        check(|facts| facts.guard_install = false, "stack guards", Warn, "vm.max_map_count=");
        check(|facts| facts.cgroup_cpus = Some(0.5), "cgroup quota", Warn, "CPUQuota=100%");
        let limit = Limit { soft: Some(512), hard: Some(512) };
        check(|facts| facts.nofile = limit, "open files", Bad, "LimitNOFILE=1048576");
        let limit = Limit { soft: Some(1024), hard: Some(4096) };
        check(|facts| facts.nofile = limit, "open files", Warn, "LimitNOFILE=1048576");
        check(|facts| facts.tasks_max = Some(4915), "threads", Warn, "TasksMax=infinity");
        // Seen: no warning for a user limited to 30 threads, while `--engine thread` assumed 8,192.
        // Cause: only limits of the machine were read. Cure: the user's limit is read too.
        check(|facts| facts.user_threads_max = Some(30), "threads", Warn, "LimitNPROC=infinity");
        check(|facts| facts.pid_max = Some(4096), "threads", Warn, "kernel.pid_max=4194304");
        check(|facts| facts.somaxconn = Some(128), "accept queue", Warn, "somaxconn=4096");
        let full = |facts: &mut Facts| facts.connection_table = Some(table(200_000, 0));
        check(full, "connections", Warn, "nf_conntrack_max=1048576");
        check(|facts| facts.local_ports = Some((50_000, 60_000)), "client ports", Warn, "sysctl");
        let memory = |bytes| Some((CgroupVersion::V2, bytes));
        check(|facts| facts.cgroup_memory = memory(16 << 20), "cgroup limit", Bad, "MemoryMax=");
        check(|facts| facts.cgroup_memory = memory(64 << 20), "cgroup limit", Warn, "MemoryMax=");
    }

    #[test]
    fn drops_of_the_past_are_told() {
        let found = |dropped| {
            let table = Some(table(5_000, dropped));
            connection_table(&Facts { connection_table: table, ..good() })
        };
        assert!(found(0).value.ends_with("2,184 new ones a second") && found(0).advice.is_none());
        assert!(found(7).value.ends_with("; 7 packets dropped since the boot"));
        assert!(found(7).verdict == Verdict::Ok && found(7).advice.unwrap().contains("sysctl"));
    }

    #[test]
    fn unsent_bytes_are_told() {
        let advice = |max| unsent(&Facts { unsent_max: max, ..good() }).advice;
        assert!(advice(Some(u64::from(u32::MAX))).unwrap().contains("HTTP/2"));
        assert_eq!((advice(Some(131_072)), advice(None)), (None, None));
    }

    #[test]
    fn locked_memory_by_kernel_version() {
        let low = Limit { soft: Some(65_536), hard: Some(65_536) };
        let found = |kernel: &str| {
            let found = faults(|facts| {
                facts.memlock = low;
                facts.kernel = kernel.to_owned();
            });
            found.iter().any(|(name, ..)| *name == "locked memory")
        };
        assert!(found("5.10.0") && found("6.14.0"));
        assert!(!found("5.12.0") && !found("6.12.9"));
    }

    #[test]
    fn machine_with_unknown_facts() {
        let found = faults(|facts| {
            facts.installed_bytes = None;
            facts.threads_max = None;
            facts.pid_max = None;
            facts.somaxconn = None;
            facts.connection_table = None;
            facts.local_ports = None;
            facts.cpus_allowed = None;
            facts.kernel = String::new();
        });
        assert_eq!(found, []);
    }
}
