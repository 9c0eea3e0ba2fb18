//! The facts that the doctor reads from the machine.

use crate::os::machine::{self, CgroupVersion, Limit, Machine};

/// Facts about a machine; `None` if the kernel does not report one.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) kernel: String,
    pub(crate) io_uring: Result<Features, Refusal>,
    pub(crate) guard_install: bool,
    pub(crate) installed_bytes: Option<u64>,
    pub(crate) cgroup_memory: Option<(CgroupVersion, u64)>,
    pub(crate) transparent_huge_pages: Option<String>,
    pub(crate) map_count_max: Option<u64>,
    pub(crate) cpus_installed: Option<usize>,
    pub(crate) cpus_allowed: Option<usize>,
    pub(crate) cgroup_cpus: Option<f64>,
    pub(crate) nofile: Limit,
    pub(crate) memlock: Limit,
    pub(crate) tasks_max: Option<u64>,
    pub(crate) user_threads_max: Option<u64>,
    pub(crate) threads_max: Option<u64>,
    pub(crate) pid_max: Option<u64>,
    pub(crate) somaxconn: Option<u64>,
    pub(crate) syn_backlog_max: Option<u64>,
    pub(crate) syn_cookies: Option<u64>,
    pub(crate) connection_table: Option<ConnectionTable>,
    pub(crate) local_ports: Option<(u64, u64)>,
    pub(crate) congestion_control: Option<String>,
    pub(crate) unsent_max: Option<u64>,
    pub(crate) has_ipv6: bool,
}

/// The kernel's table of connections, which firewall rules use (`nf_conntrack`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionTable {
    pub(crate) count: u64,
    pub(crate) max: u64,
    /// Time for which a closed connection stays in the table.
    pub(crate) time_wait_s: u64,
    /// Packets dropped since boot because it was full.
    pub(crate) dropped: u64,
}

/// Features that the runtime can use, and whether this kernel has them.
pub(crate) type Features = Vec<(&'static str, bool)>;

/// Reason why no io_uring can be created, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) cause: String,
    pub(crate) remedy: String,
}

impl Facts {
    /// Reads this machine.
    pub(crate) fn read() -> Facts {
        let machine = Machine::this();
        let word = |path| machine.text(path).map(|text| text.trim().to_owned());
        Facts {
            kernel: word("proc/sys/kernel/osrelease").unwrap_or_default(),
            io_uring: ring(),
            guard_install: fiber::guard_install_supported(),
            installed_bytes: machine.installed_bytes(),
            cgroup_memory: machine.cgroup_memory_limit_bytes(),
            transparent_huge_pages: word("sys/kernel/mm/transparent_hugepage/enabled"),
            map_count_max: machine.number("proc/sys/vm/max_map_count"),
            cpus_installed: word("sys/devices/system/cpu/online").and_then(|list| cpus(&list)),
            cpus_allowed: allowed(&machine),
            cgroup_cpus: machine.cgroup_cpus(),
            nofile: machine::nofile(),
            memlock: machine::memlock(),
            tasks_max: machine.cgroup_tasks_max(),
            user_threads_max: machine.user_threads_max(),
            threads_max: machine.number("proc/sys/kernel/threads-max"),
            pid_max: machine.number("proc/sys/kernel/pid_max"),
            somaxconn: machine.number("proc/sys/net/core/somaxconn"),
            syn_backlog_max: machine.number("proc/sys/net/ipv4/tcp_max_syn_backlog"),
            syn_cookies: machine.number("proc/sys/net/ipv4/tcp_syncookies"),
            connection_table: connection_table(&machine),
            local_ports: word("proc/sys/net/ipv4/ip_local_port_range").and_then(|two| pair(&two)),
            congestion_control: word("proc/sys/net/ipv4/tcp_congestion_control"),
            unsent_max: machine.number("proc/sys/net/ipv4/tcp_notsent_lowat"),
            has_ipv6: std::net::TcpListener::bind("[::1]:0").is_ok(),
        }
    }
}

/// `None` if no rule uses it.
fn connection_table(machine: &Machine) -> Option<ConnectionTable> {
    let number = |name| machine.number(&format!("proc/sys/net/netfilter/nf_conntrack_{name}"));
    Some(ConnectionTable {
        count: number("count").filter(|count| *count > 0)?,
        max: number("max")?,
        time_wait_s: number("tcp_timeout_time_wait")?,
        dropped: load::table_drops(),
    })
}

fn ring() -> Result<Features, Refusal> {
    fiber::probe().map(|ring| ring.features).map_err(|denied| Refusal {
        cause: format!("{} ({})", denied.cause, denied.error),
        remedy: denied.cause.remedy().to_owned(),
    })
}

// Number of CPUs in the affinity mask. proc_pid_status(5)
fn allowed(machine: &Machine) -> Option<usize> {
    let status = machine.text("proc/self/status")?;
    cpus(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)
}

/// Number of CPUs in a list such as `0-3,8`.
fn cpus(list: &str) -> Option<usize> {
    let counts = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let first: usize = first.parse().ok()?;
        let last: usize = last.parse().ok()?;
        Some((last + 1).saturating_sub(first))
    });
    counts.sum()
}

fn pair(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(cpus("0-3,8\n"), Some(5));
        assert_eq!(cpus("0"), Some(1));
        assert_eq!(cpus(""), None);
        assert_eq!(pair("32768\t60999"), Some((32768, 60999)));
    }
}
