//! Last-level caches and the CPUs that share them: help comes from near by.

use std::fs;
use std::sync::OnceLock;

/// The number of the last-level cache of the CPU that the caller runs on; 0 where the kernel does
/// not say.
pub(crate) fn last_level_cache() -> u32 {
    static CACHES: OnceLock<Vec<u32>> = OnceLock::new();
    // SAFETY: takes no pointers; -1 where there is no such call, which is no index.
    let cpu = unsafe { libc::sched_getcpu() };
    let caches = CACHES.get_or_init(read);
    let cache = usize::try_from(cpu).ok().and_then(|cpu| caches.get(cpu));
    cache.copied().unwrap_or(0)
}

/// Cache numbers by CPU, as far as CPUs are numbered without gaps.
fn read() -> Vec<u32> {
    (0..).map_while(of_cpu).collect()
}

/// Number of the highest-level cache of a CPU; the same for all CPUs that share it.
/// (Documentation/ABI/testing/sysfs-devices-system-cpu)
fn of_cpu(cpu: usize) -> Option<u32> {
    let folder = format!("/sys/devices/system/cpu/cpu{cpu}");
    fs::metadata(&folder).ok()?;
    let number = |index: usize, name: &str| {
        let text = fs::read_to_string(format!("{folder}/cache/index{index}/{name}")).ok()?;
        text.trim().parse::<u32>().ok()
    };
    let levels = (0..).map_while(|index| Some((number(index, "level")?, index)));
    let last = levels.max();
    Some(last.and_then(|(_, index)| number(index, "id")).unwrap_or(0))
}

/// The calling kernel thread, as gettid(2) says.
pub(crate) fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_cpu_that_may_run_us_is_known() {
        let caches = read();
        // SAFETY: as above.
        let cpu = unsafe { libc::sched_getcpu() };
        assert!((cpu as usize) < caches.len() || caches.is_empty());
    }
}
