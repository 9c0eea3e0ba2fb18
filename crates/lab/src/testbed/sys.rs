//! System calls without a safe wrapper in the standard library or rustix: the only unsafe code of
//! this crate.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::{CpuSet, LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// Settings that a child applies to itself between `fork` and `exec`.
#[derive(Default)]
pub(crate) struct Settling {
    /// Cores that it may use; empty: all.
    pub(crate) cores: Vec<usize>,
    /// True for priority over all other processes of that core, where permitted.
    pub(crate) first: bool,
    /// True for real-time priority: others have the CPU time that it leaves.
    pub(crate) real_time: bool,
    /// Writable descriptors of `cgroup.procs`, one for each group that it joins.
    pub(crate) groups: Vec<OwnedFd>,
    /// Limit on queued signals.
    pub(crate) signals_max: Option<u64>,
    /// Its network, if it is not this thread's.
    pub(crate) network: Option<OwnedFd>,
}

/// Applies settings to `command` at its start: a session of its own, death with this process,
/// cores, priority, limits.
pub(crate) fn settle(command: &mut Command, settling: Settling) {
    let parent = rustix::process::getpid();
    let mut cpus = CpuSet::new();
    settling.cores.iter().for_each(|&core| cpus.set(core));
    let autogroup = CString::new("/proc/self/autogroup").expect("no NUL");
    let child = move || {
        rustix::process::setsid()?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the call: then no signal is sent. prctl(2)
        if rustix::process::getppid() != Some(parent) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if cpus.count() > 0 {
            rustix::thread::sched_setaffinity(None, &cpus)?;
        }
        let files = rustix::process::getrlimit(Resource::Nofile);
        let all = Rlimit { current: files.maximum, maximum: files.maximum };
        rustix::process::setrlimit(Resource::Nofile, all)?;
        if let Some(signals) = settling.signals_max {
            let limit = Rlimit { current: Some(signals), maximum: Some(signals) };
            rustix::process::setrlimit(Resource::Sigpending, limit)?;
        }
        if let Some(network) = &settling.network {
            enter_network(network)?;
        }
        if settling.first {
            // Set both: with sched_autogroup_enabled, a nice value counts within a session, and the
            // session's own value between sessions. sched(7)
            rustix::process::setpriority_process(None, -20)?;
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            if let Ok(file) = rustix::fs::open(autogroup.as_c_str(), flags, Mode::empty()) {
                let _ = rustix::io::write(&file, b"-20");
            }
        }
        if settling.real_time {
            set_real_time(Some(SERVER_PRIORITY))?;
        }
        for group in &settling.groups {
            // 0 stands for the writing process. cgroups(7)
            rustix::io::write(group, b"0")?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe functions may be called, because another
    // thread may have held a lock at the fork. The closure makes system calls on values that were
    // made before; it neither allocates nor locks. (An `ErrorKind` is stored in place.)
    unsafe { command.pre_exec(child) };
}

/// Real-time priority of a server; the thread that reads its clocks has a higher one.
const SERVER_PRIORITY: libc::c_int = 1;
const READER_PRIORITY: libc::c_int = 2;

/// Sets this thread's real-time priority, which its children inherit; `None` returns to normal.
/// Unlike a nice value it also preempts a program within its time slice. sched(7)
fn set_real_time(priority: Option<libc::c_int>) -> io::Result<()> {
    const THIS_THREAD: libc::pid_t = 0;
    let policy = match priority {
        Some(_) => libc::SCHED_FIFO,
        None => libc::SCHED_OTHER,
    };
    // The kernel's `struct sched_param`; some C libraries have a longer one.
    let priority = priority.unwrap_or(0);
    // SAFETY: the kernel reads an `int`, which lives until after the call. sched_setscheduler(2)
    let failed = unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, THIS_THREAD, policy, &raw const priority)
    };
    match failed {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Priority of this thread over all servers, until drop.
pub(crate) struct Ahead(PhantomData<*const ()>);

impl Ahead {
    pub(crate) fn go() -> io::Result<Ahead> {
        set_real_time(Some(READER_PRIORITY))?;
        Ok(Ahead(PhantomData))
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        let _ = set_real_time(None);
    }
}

/// Reason why [real-time](Settling::real_time) programs cannot be started, if any.
pub(super) fn lacks_real_time() -> Option<String> {
    let denied = Ahead::go().err()?;
    Some(format!("programs in real time need root: {denied}"))
}

/// Moves this thread, and its later children, into a new network.
pub(super) fn leave_network() -> io::Result<()> {
    // SAFETY: the flag is not `FILES`: descriptors stay shared between threads.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
    Ok(())
}

/// Makes a network, which lives as long as its descriptor and the processes in it.
pub(super) fn new_network() -> io::Result<OwnedFd> {
    let home = this_network()?;
    leave_network()?;
    let made = this_network();
    enter_network(&home)?;
    made
}

/// Runs a function in another network, and returns this thread to its own.
pub(super) fn in_network(
    network: &OwnedFd,
    work: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let home = this_network()?;
    enter_network(network)?;
    let worked = work();
    enter_network(&home)?;
    worked
}

fn this_network() -> io::Result<OwnedFd> {
    Ok(File::open("/proc/thread-self/ns/net")?.into())
}

fn enter_network(network: &OwnedFd) -> io::Result<()> {
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(())
}

/// `ethtool -K INTERFACE tso off gso off gro off tx off rx off sg off`
pub(super) fn turn_offloads_off(interface: &str) -> io::Result<()> {
    // ETHTOOL_SGRO, SGSO, STSO, SSG, STXCSUM, SRXCSUM in linux/ethtool.h
    const COMMANDS: [u32; 6] = [0x2c, 0x24, 0x1f, 0x19, 0x17, 0x15];
    let socket = std::net::UdpSocket::bind(("0.0.0.0", 0))?;
    for command in COMMANDS {
        // struct ethtool_value: command and value.
        let mut off = [command, 0];
        // SAFETY: all zeros are a valid `ifreq`, which is plain old data.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (place, byte) in request.ifr_name.iter_mut().zip(interface.bytes().take(15)) {
            *place = byte as libc::c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut off).cast();
        // SAFETY: SIOCETHTOOL reads an `ifreq`, and behind its pointer an `ethtool_value`; both
        // live until after the call. netdevice(7)
        let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// `ip link set lo up`
pub(super) fn raise_loopback() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind(("0.0.0.0", 0))?;
    // SAFETY: all zeros are a valid `ifreq`, which is plain old data.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads an `ifreq`, which lives until after the call. netdevice(7)
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// CPU time of a process: of all its threads, including kernel helpers and threads that have ended.
pub(crate) fn cpu_time(process: u32) -> io::Result<Duration> {
    let mut clock: libc::clockid_t = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let process = process as libc::pid_t;
    // SAFETY: both calls write to variables of the right type that live until after them.
    let failed = unsafe {
        match libc::clock_getcpuclockid(process, &raw mut clock) {
            0 => libc::clock_gettime(clock, &raw mut time) != 0,
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    };
    if failed {
        Err(io::Error::last_os_error())
    } else {
        Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }
}
