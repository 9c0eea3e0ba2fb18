//! Processes in /proc.

use std::fs;

/// The needed fields of /proc/PID/stat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) is_zombie: bool,
    session: u32,
    start_ticks: u64,
}

/// Processes of these sessions.
pub(crate) fn of_sessions(leaders: &[u32]) -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut members: Vec<_> =
        numbers.filter_map(read).filter(|process| leaders.contains(&process.session)).collect();
    members.sort_by_key(|process| process.pid);
    members
}

/// Start time of a process, in clock ticks; `None` without such a process.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    Some(read(pid)?.start_ticks)
}

fn read(pid: u32) -> Option<Process> {
    parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// proc_pid_stat(5)
fn parse(pid: u32, stat: &str) -> Option<Process> {
    // The name may contain spaces and parentheses; field 3 follows it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Process {
        pid,
        is_zombie: matches!(field(3)?, "Z" | "X"),
        session: field(6)?.parse().ok()?,
        start_ticks: field(22)?.parse().ok()?,
    })
}

/// Clock ticks of a process in user and kernel mode, as sampled by the kernel.
pub(crate) fn ticks(pid: u32) -> Option<[u64; 2]> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse().ok();
    Some([field(14)?, field(15)?])
}

/// Time that a process's threads were ready without a core, in nanoseconds: the second field of
/// schedstat.
pub(crate) fn run_delay_ns(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let delays = threads.filter_map(|thread| {
        // A thread that has ended meanwhile is left out.
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    delays.sum()
}

/// Number of kernel threads that run blocking operations of this process's rings.
pub(crate) fn ring_workers(pid: u32) -> usize {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    names.filter(|name| name.starts_with("iou-wrk-")).count()
}

/// Resident memory of a process, including its page tables, which grow with its mappings.
pub(crate) fn resident_bytes(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(kib(&rollup, "Rss:")? * 1024 + kib(&status, "VmPTE:")? * 1024)
}

/// Bytes that a process read from the disk, without hits of the page cache. proc(5)
pub(crate) fn storage_read_bytes(pid: u32) -> Option<u64> {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    kib(&io, "read_bytes:")
}

fn kib(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_with_parentheses() {
        let line = "42 (a) R (b) S 1 42 7 0 -1 4194560 0 0 0 0 10 20 30 20 0 0 1 0 5555 0 0";
        let found = parse(42, line).unwrap();
        let expected = Process { pid: 42, is_zombie: false, session: 7, start_ticks: 5555 };
        assert_eq!(found, expected);
        assert_eq!(parse(42, "42 (a) Z 1 42"), None);
    }

    #[test]
    fn this_process_is_in_its_session() {
        let me = std::process::id();
        let session = read(me).unwrap().session;
        assert!(of_sessions(&[session]).iter().any(|process| process.pid == me));
        assert!(resident_bytes(me).unwrap() > 0);
        assert!(storage_read_bytes(me).is_some() && ticks(me).is_some());
    }
}
