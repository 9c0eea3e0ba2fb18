//! Check, before the run, that this process can open the connections of the plan: limits on
//! descriptors and ports. Without it the run would count a million failed system calls.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::LoadError;
use crate::io::netstack::CONNECTIONS_PER_PAIR;
use crate::plan::{Network, Plan};
use crate::units::count_of;
use crate::worker::opens_on_demand;

/// Descriptors of a thread besides connections: its ring, or its epoll instance.
const PER_THREAD: u64 = 2;
/// Further descriptors: output files and others of the process.
const SPARE: u64 = 16;

/// Raises the soft limit on descriptors to the hard one, and refuses a plan that needs more.
pub(crate) fn check(plan: &Plan) -> Result<(), LoadError> {
    // On demand, the server decides how many are open at a time.
    let fixed = |ports: Option<u64>| ports.filter(|_| !opens_on_demand(plan));
    let no = match plan.network {
        Network::Kernel => {
            let open = fs::read_dir("/proc/self/fd").map_or(3, |files| files.count() as u64);
            refusal(plan, open, raised_nofile(), fixed(ports_of_range()))
        }
        Network::Netstack(_) => refusal_of_netstack(plan, fixed(Some(CONNECTIONS_PER_PAIR))),
    };
    no.map_or(Ok(()), |no| Err(LoadError(no)))
}

fn refusal(plan: &Plan, open: u64, nofile: u64, ports: Option<u64>) -> Option<String> {
    let connections = connections_of(plan);
    let wanted = connections + u64::from(plan.threads) * PER_THREAD + open + SPARE;
    let said = count_of(connections);
    if nofile < wanted {
        return Some(format!(
            "{said} connections need {} open files, but the limit is {}: raise it \
             (ulimit -n {wanted}, LimitNOFILE= in a systemd unit), or use fewer --connections",
            count_of(wanted),
            count_of(nofile)
        ));
    }
    let ports = ports.filter(|_| plan.targets.iter().all(|target| target.address().is_some()))?;
    (ports * pairs_of(plan) < connections).then(|| {
        format!(
            "{said} connections need as many ports, and net.ipv4.ip_local_port_range has {} for each \
             pair of addresses: add addresses (--source), or widen it",
            count_of(ports)
        )
    })
}

fn refusal_of_netstack(plan: &Plan, ports: Option<u64>) -> Option<String> {
    let connections = connections_of(plan);
    let ports = ports?;
    (ports * pairs_of(plan) < connections).then(|| {
        format!(
            "{} connections need as many ports, and the netstack has {} for each pair of addresses: \
             give it more of them (--address FIRST-LAST/PREFIX)",
            count_of(connections),
            count_of(ports)
        )
    })
}

fn connections_of(plan: &Plan) -> u64 {
    u64::from(plan.connections) + u64::from(plan.idle.connections)
}

/// Number of address pairs. Connection n goes from source n mod s to target n mod t, so lcm(s, t)
/// pairs are in use. A UDP port is one socket's, whatever its peer is.
fn pairs_of(plan: &Plan) -> u64 {
    let sources = plan.sources.len().max(1) as u64;
    let targets = if plan.is_udp() { 1 } else { plan.targets.len() as u64 };
    sources * targets / greatest_common_divisor(sources, targets)
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        _ => greatest_common_divisor(b, a % b),
    }
}

/// Raises the limit on descriptors, and returns it. The soft limit of 1024 protects programs that
/// use select(2).
fn raised_nofile() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // The limit afterwards shows the result.
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Number of ports that connect(2) picks from; it holds for IPv6 as well. ip(7)
fn ports_of_range() -> Option<u64> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut ends = text.split_whitespace().map(|end| end.parse::<u64>().ok());
    let first = ends.next()??;
    let last = ends.next()??;
    Some((last + 1).saturating_sub(first))
}

/// Packets of this network namespace that were dropped because their connections could not be
/// tracked, as when the table of connections is full; 0 where no firewall rule needs one.
pub fn table_drops() -> u64 {
    fs::read_to_string("/proc/net/stat/nf_conntrack").map_or(0, |text| sum_of_drops(&text))
}

/// Sum of a column of hexadecimal numbers: one row per processor, below a row of names.
fn sum_of_drops(text: &str) -> u64 {
    let mut rows = text.lines().map(str::split_whitespace);
    let at = rows.next().and_then(|mut names| names.position(|name| name == "drop"));
    let number =
        |mut row: std::str::SplitWhitespace<'_>| u64::from_str_radix(row.nth(at?)?, 16).ok();
    rows.filter_map(number).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Idle, LoadTarget};

    fn plan(connections: u32, idle: u32, sources: usize, targets: usize) -> Plan {
        Plan {
            connections,
            idle: Idle { connections: idle, byte_every: None },
            sources: vec!["127.0.0.1".parse().unwrap(); sources],
            targets: vec![LoadTarget::Tcp("127.0.0.1:1".parse().unwrap()); targets],
            threads: 2,
            ..Plan::default()
        }
    }

    #[test]
    fn drops_of_all_processors_are_summed() {
        let text = "entries  found drop early_drop\n00033ade  00000000 00000a43 0000001b\n\
                    00033ade  00000000 00000b7b 0000001b\n";
        assert_eq!(sum_of_drops(text), 0xa43 + 0xb7b);
        assert_eq!(sum_of_drops(""), 0);
    }

    #[test]
    fn descriptors_needed_by_a_plan() {
        let needs = 900 + 100 + 2 * PER_THREAD + 3 + SPARE;
        assert_eq!(refusal(&plan(900, 100, 0, 1), 3, needs, None), None);
        let no = refusal(&plan(900, 100, 0, 1), 3, needs - 1, None).unwrap();
        assert!(no.contains("1,000 connections need 1,023 open files"), "{no}");
        assert!(no.contains("the limit is 1,022") && no.contains("ulimit -n 1023"), "{no}");
        // The largest numbers that can be typed: no sum of them wraps.
        assert!(refusal(&plan(u32::MAX, u32::MAX, 0, 1), 3, 20_000, None).is_some());
    }

    #[test]
    fn ports_per_address_pair() {
        let no = |sources, targets, connections| {
            refusal(&plan(connections, 0, sources, targets), 3, u64::MAX, Some(100))
        };
        assert_eq!(no(0, 1, 100), None);
        assert!(no(0, 1, 101).unwrap().contains("101 connections need as many ports"));
        assert_eq!(no(3, 2, 600), None);
        assert!(no(3, 2, 601).is_some());
        // Two sources and two targets alternate in step: two pairs, not four.
        assert_eq!(no(2, 2, 200), None);
        assert!(no(2, 2, 201).is_some());
    }
}
