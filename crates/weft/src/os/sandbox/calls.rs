//! seccomp: the system calls that servers make. seccomp(2)
//!
//! Any other call fails with `ENOSYS`, as on an older kernel: libraries then do without it, and no
//! server dies of a call that a newer C library makes for the first time after a year.

use std::collections::BTreeMap;
use std::env;
use std::io;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use super::Needs;

// Missing in `libc`. cachestat(2), tcp(7), PR_GET_AUXV(2const)
const SYS_CACHESTAT: c_long = 451;
const SIOCOUTQNSD: libc::Ioctl = 0x894B;
const PR_GET_AUXV: libc::c_int = 0x4155_5856;

/// Calls allowed without conditions.
#[rustfmt::skip]
const PLAIN: &[c_long] = &[
    // Connections and data sent over them.
    libc::SYS_accept, libc::SYS_accept4, libc::SYS_recvfrom, libc::SYS_recvmsg, libc::SYS_recvmmsg,
    libc::SYS_sendto, libc::SYS_sendmsg, libc::SYS_sendmmsg, libc::SYS_sendfile,
    libc::SYS_shutdown, libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    // Waiting.
    libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2,
    libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_eventfd2, libc::SYS_pipe2, libc::SYS_signalfd4,
    libc::SYS_clock_nanosleep, libc::SYS_nanosleep, libc::SYS_restart_syscall,
    // Files.
    libc::SYS_read, libc::SYS_readv, libc::SYS_pread64, libc::SYS_preadv, libc::SYS_preadv2,
    libc::SYS_write, libc::SYS_writev, libc::SYS_pwrite64, libc::SYS_pwritev, libc::SYS_pwritev2,
    libc::SYS_openat, libc::SYS_openat2, libc::SYS_close, libc::SYS_lseek, libc::SYS_fcntl,
    libc::SYS_dup, libc::SYS_dup3, libc::SYS_fstat, libc::SYS_fstatfs, libc::SYS_newfstatat,
    libc::SYS_statx, libc::SYS_readlinkat, libc::SYS_getdents64, libc::SYS_getcwd, libc::SYS_faccessat,
    libc::SYS_faccessat2, libc::SYS_fadvise64, SYS_CACHESTAT, libc::SYS_fsync,
    libc::SYS_fdatasync, libc::SYS_ftruncate, libc::SYS_flock, libc::SYS_unlinkat,
    libc::SYS_mkdirat, libc::SYS_renameat, libc::SYS_renameat2,
    // Memory.
    libc::SYS_brk, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_mincore,
    // Threads and signals.
    libc::SYS_futex, libc::SYS_futex_waitv, libc::SYS_set_robust_list, libc::SYS_rseq,
    libc::SYS_membarrier, libc::SYS_sigaltstack, libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn, libc::SYS_rt_sigtimedwait, libc::SYS_gettid, libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity, libc::SYS_getcpu,
    libc::SYS_getpriority, libc::SYS_setpriority, libc::SYS_exit, libc::SYS_exit_group,
    // Figures. Libraries rely on those whose manual pages list no errors.
    libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_gettimeofday, libc::SYS_getrandom,
    libc::SYS_getpid, libc::SYS_getppid, libc::SYS_umask, libc::SYS_times, libc::SYS_getuid,
    libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid, libc::SYS_getrusage, libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// Older forms, which the C library still uses on some architectures.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const OLDER: &[c_long] = &[
    libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink,
    libc::SYS_unlink, libc::SYS_mkdir, libc::SYS_rename, libc::SYS_poll, libc::SYS_select,
    libc::SYS_epoll_wait, libc::SYS_dup2, libc::SYS_pipe, libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[c_long] = &[];

const RINGS: &[c_long] =
    &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// Requests of ioctl(2) that take a socket or ask for a terminal's size.
#[rustfmt::skip]
const IOCTLS: &[libc::Ioctl] = &[
    libc::FIONBIO, libc::FIONREAD, libc::FIOCLEX, libc::TIOCOUTQ, SIOCOUTQNSD, libc::TIOCGWINSZ,
    libc::TCGETS,
];

/// Requests of ioctl(2) about an interface. netdevice(7)
const DEVICE: &[libc::Ioctl] = &[libc::SIOCGIFMTU, libc::SIOCGIFHWADDR];

/// Forbids the other calls. Returns the number of those allowed.
///
/// # Errors
/// The feature that the kernel lacks.
pub(super) fn restrict(needs: &Needs) -> Result<usize, String> {
    let rules = rules(needs);
    let count = rules.len();
    let no_call = SeccompAction::Errno(libc::ENOSYS as u32);
    let missing = |error: &dyn std::fmt::Display| format!("no seccomp: {error}");
    let architecture = env::consts::ARCH.try_into();
    let filter = architecture.and_then(|architecture| {
        SeccompFilter::new(rules, no_call, SeccompAction::Allow, architecture)?.try_into()
    });
    let filter: BpfProgram = filter.map_err(|error| missing(&error))?;
    install(&filter).map_err(|error| missing(&error))?;
    Ok(count)
}

/// Installs a filter, with a flag that `seccompiler::apply_filter` lacks: without it kernels before
/// 5.16 turn on costly Spectre mitigations for each thread under a filter, which are meant for
/// programs that run untrusted code.
fn install(filter: &BpfProgram) -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    let program =
        libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut().cast() };
    let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the kernel copies the program, which outlives the call. seccomp(2)
    match unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn rules(needs: &Needs) -> BTreeMap<i64, Vec<SeccompRule>> {
    let rings = if needs.has_rings { RINGS } else { &[] };
    let plain = PLAIN.iter().chain(OLDER).chain(rings);
    let mut rules: BTreeMap<_, _> = plain.map(|call| (*call, Vec::new())).collect();
    let mut only = |call: c_long, allowed: Vec<SeccompRule>| rules.insert(call, allowed);
    // Only threads, no processes or namespaces. The flags of clone3(2) cannot be inspected: the C
    // library does without it.
    let thread = libc::CLONE_THREAD as u64;
    only(libc::SYS_clone, vec![rule(&[masked(0, thread, thread)])]);
    // No code is mapped, except plug-ins of the DNS. nss(5)
    let no_code = || rule(&[masked(2, libc::PROT_EXEC as u64, 0)]);
    let mut mapped = vec![no_code()];
    if needs.is_client {
        mapped.push(rule(&[masked(3, libc::MAP_ANONYMOUS as u64, 0)]));
    }
    only(libc::SYS_mmap, mapped);
    only(libc::SYS_mprotect, vec![no_code()]);
    let own = std::process::id();
    only(libc::SYS_tgkill, vec![rule(&[is(0, own.into())])]);
    // Limits may only be read.
    let none = condition(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0);
    only(libc::SYS_prlimit64, vec![rule(&[none])]);
    let options = [libc::PR_SET_NAME, libc::PR_SET_VMA, PR_GET_AUXV];
    only(libc::SYS_prctl, options.iter().map(|option| rule(&[is(0, *option as u64)])).collect());
    let device = if needs.has_device { DEVICE } else { &[] };
    only(
        libc::SYS_ioctl,
        IOCTLS.iter().chain(device).map(|request| rule(&[is(1, *request)])).collect(),
    );
    // A drain queries handshakes: sock_diag(7).
    let mut sockets =
        vec![rule(&[is(0, libc::AF_NETLINK as u64), is(2, libc::NETLINK_SOCK_DIAG as u64)])];
    if needs.has_device {
        let kind = masked(1, 0xF, libc::SOCK_DGRAM as u64);
        sockets.push(rule(&[is(0, libc::AF_INET as u64), kind]));
    }
    if env::var_os("NOTIFY_SOCKET").is_some() {
        let kind = masked(1, 0xF, libc::SOCK_DGRAM as u64);
        sockets.push(rule(&[is(0, libc::AF_UNIX as u64), kind]));
        only(libc::SYS_connect, Vec::new());
    }
    if needs.is_client {
        let families = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX, libc::AF_NETLINK];
        sockets = families.map(|family| rule(&[is(0, family as u64)])).to_vec();
        only(libc::SYS_connect, Vec::new());
        only(libc::SYS_bind, Vec::new());
    }
    only(libc::SYS_socket, sockets);
    rules
}

fn rule(conditions: &[SeccompCondition]) -> SeccompRule {
    SeccompRule::new(conditions.to_vec()).expect("the rule has conditions")
}

fn is(argument: u8, value: u64) -> SeccompCondition {
    condition(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

fn masked(argument: u8, mask: u64, value: u64) -> SeccompCondition {
    condition(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), value)
}

fn condition(
    argument: u8,
    len: SeccompCmpArgLen,
    compare: SeccompCmpOp,
    value: u64,
) -> SeccompCondition {
    SeccompCondition::new(argument, len, compare, value).expect("a call has six arguments")
}
