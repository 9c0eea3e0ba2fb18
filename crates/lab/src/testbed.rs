//! The testbed, in which samples are taken: a core for each side, a network of its own, priorities,
//! control groups, scratch folders. All of it is undone however the laboratory ends.
//!
//! Without root there are the cores and the scratch folder; [`Testbed::lacks`] says what is
//! missing.

mod group;
mod journal;
mod link;
pub(crate) mod processes;
mod remote;
pub(crate) mod sys;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::Advice;
use rustix::process::{Pid, Resource, Rlimit, WaitOptions};

pub(crate) use group::CPU_PERIOD_US;
pub use group::Controller;
use group::Groups;
use journal::Journal;
pub use journal::guard;
pub(crate) use link::{Link, LinkPlan, SERVER, Wire};
pub use remote::GeneratorHost;
use remote::Remote;

/// Ports of servers, below the clients' range: a connection in TIME_WAIT must never block the next
/// server's port.
const SERVER_PORTS: std::ops::Range<u16> = 2001..10_000;

/// Longest time until a relay has its interfaces.
const RELAY_PATIENCE: Duration = Duration::from_secs(10);

/// Settings of the laboratory's network namespace.
const SYSCTLS: &[(&str, &str)] = &[
    // bbr paces with timers; on loopback that turned one server's 168,000 requests/s into 75,000.
    // cubic cannot be chosen inside a new namespace, reno can.
    ("ipv4/tcp_congestion_control", "reno"),
    ("ipv4/ip_local_port_range", "10240 65000"),
    ("core/somaxconn", "16384"),
    ("ipv4/tcp_max_syn_backlog", "16384"),
    // One connection per request uses up 25,000 ports a second; both settings free them.
    ("ipv4/tcp_tw_reuse", "1"),
    ("ipv4/tcp_max_tw_buckets", "4096"),
];

/// The two sides of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The system under test.
    Server,
    /// The generator.
    Generator,
    /// One of the generators of a server [with both cores](ServerLimits::has_both_cores).
    Among(usize),
    /// A second generator on the same core, with priority over the first.
    Ahead,
}

/// Limits on a server's resources.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServerLimits {
    /// True for no limits, but both cores: generators use the CPU time that it leaves.
    pub(crate) has_both_cores: bool,
    /// Memory, page cache included.
    pub(crate) memory_bytes: Option<u64>,
    /// Share of its core, in percent.
    pub(crate) cpu_percent: Option<u64>,
    /// Reads of the disk that holds the scratch folder.
    pub(crate) disk_reads_per_s: Option<u64>,
    /// Signals that may be queued.
    pub(crate) signals: Option<u64>,
}

/// Cores, networks, control groups and scratch folder of a run.
pub struct Testbed {
    // In the order of drop: the journal kills processes that use the folder.
    /// The generator's machine, if it is another one.
    remote: Option<Remote>,
    journal: Journal,
    scratch: PathBuf,
    cores: [usize; 2],
    /// True for root: priorities and, unless the generator is elsewhere, a network of its own.
    is_root: bool,
    groups: Groups,
    ports: std::ops::Range<u16>,
    links: u32,
    swept: usize,
}

impl Testbed {
    /// Takes the testbed: removes what killed laboratories have left, makes a scratch folder below
    /// `scratch`, and starts the guard. As root, with `own_network`, this thread enters a new
    /// network namespace; later calls cannot use the machine's network.
    ///
    /// `guard` is the command that runs [`guard()`] on the journal whose path is its last argument.
    ///
    /// # Errors
    /// Too few cores, or a folder that is not there or cannot be written.
    pub fn take(scratch: &Path, guard: Option<Command>, own_network: bool) -> io::Result<Testbed> {
        let cores = two_cores()?;
        // Orphans of a server become our children, to be waited for and counted.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let is_root = rustix::process::geteuid().is_root();
        let (mut journal, swept) = Journal::begin(&journals(is_root))?;
        // A folder that is misspelled would be made, on another disk.
        fs::metadata(scratch).map_err(with_path(scratch))?;
        let scratch = scratch.join(format!("weft-lab-{}", std::process::id()));
        journal.note_folder(&scratch)?;
        fs::create_dir_all(&scratch).map_err(with_path(&scratch))?;
        if let Some(mut guard) = guard {
            // Outside of the terminal's process group, so that Ctrl-C does not reach it.
            std::os::unix::process::CommandExt::process_group(&mut guard, 0);
            guard.arg(journal.path()).stdin(Stdio::null()).stdout(Stdio::null());
            guard.stderr(Stdio::null()).spawn()?;
        }
        if is_root && own_network {
            enter_own_network()?;
        }
        raise_file_limit()?;
        Ok(Testbed {
            remote: None,
            journal,
            scratch,
            cores,
            is_root,
            groups: Groups::new(is_root),
            ports: SERVER_PORTS,
            links: 0,
            swept,
        })
    }

    pub(crate) fn is_root(&self) -> bool {
        self.is_root
    }

    /// Deficiencies of this machine, as sentences, with their effect on the figures.
    pub fn lacks(&self) -> Vec<String> {
        let lacks_network = !self.is_root || self.remote.is_some();
        let lacks = [
            (
                !self.is_root,
                "without root, other programs get the cores as well: figures are noisier",
            ),
            (
                lacks_network,
                "without a network of its own, congestion control and packet filters of this \
                 machine are part of the figures",
            ),
        ];
        let lacks = lacks.into_iter().filter(|(is_so, _)| *is_so);
        lacks.map(|(_, lack)| lack.to_owned()).collect()
    }

    /// Reason why no control group of this kind is available, if any.
    pub(crate) fn lacks_group(&self, controller: Controller) -> Option<String> {
        self.groups.lacks(controller)
    }

    /// Reason why links between networks are unavailable, if any.
    pub(crate) fn lacks_links(&self) -> Option<String> {
        link::lacks(self.is_root)
    }

    /// Reason why a server cannot have priority over generators on its cores, if any.
    pub(crate) fn lacks_both_cores(&self) -> Option<String> {
        sys::lacks_real_time()
    }

    /// Makes a link between the generator and a server. `programs` is `weft-programs`.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(crate) fn link(&mut self, plan: LinkPlan, programs: &Path) -> io::Result<Link> {
        if let Some(why) = self.lacks_links() {
            return Err(io::Error::other(why));
        }
        self.links += 1;
        let names = link::names(self.links);
        let relay = match plan.wire {
            Wire::Bad { loss_per_mille, delay_ms } => {
                Some(self.relay(programs, &names, loss_per_mille, delay_ms)?)
            }
            Wire::Veth { .. } | Wire::Tap { .. } => None,
        };
        Link::new(names, plan, self.cores, relay)
    }

    /// Starts a relay and waits for its interfaces.
    fn relay(
        &mut self,
        programs: &Path,
        [near, far]: &[String; 2],
        loss_per_mille: u64,
        delay_ms: u64,
    ) -> io::Result<Launched> {
        let log = self.scratch.join("relay.log");
        let loss = loss_per_mille.to_string();
        let delay = delay_ms.to_string();
        let mut argv = vec![programs.as_os_str().to_owned()];
        argv.extend(["relay", &loss, &delay, near, far].map(OsString::from));
        let mut relay = self.launch_beside(&argv, &log)?;
        let deadline = Instant::now() + RELAY_PATIENCE;
        loop {
            let said = fs::read_to_string(&log)?;
            if said.contains("ready") {
                return Ok(relay);
            }
            if relay.ended()?.is_some() || Instant::now() > deadline {
                return Err(io::Error::other(format!("the relay: {}", said.trim())));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Number of killed laboratories whose remains were removed.
    pub fn swept(&self) -> usize {
        self.swept
    }

    /// Description for reports; `shares_cores` if servers have both cores.
    pub fn words(&self, shares_cores: bool) -> String {
        let [server, generator] = self.cores;
        if let Some(remote) = &self.remote {
            let address = remote.address;
            let name = &remote.host.name;
            return format!("server on core {server} at {address}, generator on {name} by ssh");
        }
        let cores = if shares_cores {
            format!("server on cores {server} and {generator}, generators behind it")
        } else {
            format!("server on core {server}, generator on core {generator}")
        };
        let network = if self.is_root {
            "a network namespace of its own (loopback, reno)"
        } else {
            "the machine's loopback"
        };
        format!("{cores}, {network}")
    }

    /// Scratch folder, removed at the end. Other users may read it: servers drop privileges.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Returns a port that no server had before.
    ///
    /// # Errors
    /// When there are none left, after eight thousand.
    pub fn port(&mut self) -> io::Result<u16> {
        let port = self.ports.next();
        port.ok_or_else(|| io::Error::other("no server port is left: start again with --resume"))
    }

    /// Starts a program on the generator's core, without limits.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn launch_beside(&mut self, argv: &[OsString], log: &Path) -> io::Result<Launched> {
        self.launch(Side::Generator, argv, log, ServerLimits::default(), None)
    }

    /// Starts a program on its side's core, with its output and errors in `log`, and in this
    /// network instead of the laboratory's, if one is given.
    ///
    /// # Errors
    /// If it cannot be started or limited.
    pub(crate) fn launch(
        &mut self,
        side: Side,
        argv: &[OsString],
        log: &Path,
        limits: ServerLimits,
        network: Option<BorrowedFd<'_>>,
    ) -> io::Result<Launched> {
        let [program, arguments @ ..] = argv else {
            return Err(io::Error::other("there is no program to start"));
        };
        let log = File::create(log)?;
        let note = |group: &Path| self.journal.note_group(group);
        let groups = self.groups.make(&limits, &self.scratch, note)?;
        let join = |group: &PathBuf| {
            let members = group.join("cgroup.procs");
            Ok(File::options().write(true).open(members)?.into())
        };
        let joined: io::Result<Vec<OwnedFd>> = groups.iter().map(join).collect();
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        let [server, generator] = self.cores;
        let settling = sys::Settling {
            cores: match side {
                Side::Server if limits.has_both_cores => vec![server, generator],
                Side::Server => vec![server],
                Side::Generator | Side::Ahead => vec![generator],
                Side::Among(core) => vec![self.cores[core]],
            },
            first: self.is_root,
            real_time: match side {
                Side::Server => limits.has_both_cores,
                Side::Ahead => sys::lacks_real_time().is_none(),
                Side::Generator | Side::Among(_) => false,
            },
            groups: joined?,
            signals_max: limits.signals,
            network: network.map(|it| it.try_clone_to_owned()).transpose()?,
        };
        sys::settle(&mut command, settling);
        let child = start(&mut command)?;
        self.journal.note_session(child.id())?;
        Ok(Launched { child, groups })
    }
}

/// A launched program. Drop kills it, with its whole session.
pub(crate) struct Launched {
    child: Child,
    groups: Vec<PathBuf>,
}

impl Launched {
    /// Its process id, which is its session's as well.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Number of disk reads that it caused, if a control group counts them.
    pub(crate) fn disk_reads(&self) -> Option<u64> {
        self.groups.iter().find_map(|group| group::disk_reads(group))
    }

    /// Its exit status, once it has ended.
    ///
    /// # Errors
    /// None for a child process.
    pub(crate) fn ended(&mut self) -> io::Result<Option<std::process::ExitStatus>> {
        self.child.try_wait()
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        let members = processes::of_sessions(&[self.pid()]);
        journal::kill_all(&members);
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The other members are this process's children now, unless they were waited for already.
        let members = members.iter();
        for member in members.filter_map(|one| Pid::from_raw(one.pid as i32)) {
            let _ = rustix::process::waitpid(Some(member), WaitOptions::empty());
        }
        for group in &self.groups {
            // The journal still lists a group that remains.
            let _ = journal::remove_group(group);
        }
    }
}

/// Starts a program; an error names it.
pub(crate) fn start(command: &mut Command) -> io::Result<Child> {
    command.spawn().map_err(|error| {
        let program = command.get_program().display();
        io::Error::new(error.kind(), format!("cannot start {program}: {error}"))
    })
}

/// Prefixes the error with its path.
pub(crate) fn with_path(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Drops a file from the page cache. Only clean pages go, so it must be synced first.
pub(crate) fn drop_from_page_cache(file: &Path) -> io::Result<()> {
    rustix::fs::fadvise(File::open(file)?, 0, None, Advice::DontNeed)?;
    Ok(())
}

/// Type of the file system that holds `path`: ext4, tmpfs, overlay…
pub(crate) fn filesystem_of(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?, words.next()?))
    });
    // A later mount hides an earlier one at the same point, and max_by_key takes the last.
    let above = mounts.filter(|(point, _)| path.starts_with(point));
    above.max_by_key(|(point, _)| point.len()).map(|(_, kind)| kind.to_owned())
}

/// Cores that this process may use.
pub(crate) fn usable_cores() -> io::Result<Vec<usize>> {
    let usable = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| usable.is_set(core)).collect())
}

/// First two of these cores.
fn two_cores() -> io::Result<[usize; 2]> {
    match usable_cores()?[..] {
        [server, generator, ..] => Ok([server, generator]),
        _ => Err(io::Error::other(
            "two cores are needed, one for the server and one for the generator",
        )),
    }
}

fn enter_own_network() -> io::Result<()> {
    sys::leave_network()?;
    furnish_network()
}

/// Sets up this thread's network for the laboratory.
fn furnish_network() -> io::Result<()> {
    sys::raise_loopback()?;
    link::silence_ipv6();
    for (name, value) in SYSCTLS {
        let path = Path::new("/proc/sys/net").join(name);
        fs::write(&path, value).map_err(with_path(&path))?;
    }
    Ok(())
}

fn raise_file_limit() -> io::Result<()> {
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let all = Rlimit { current: maximum, maximum };
    Ok(rustix::process::setrlimit(Resource::Nofile, all)?)
}

/// Folder for the journals of this user's laboratories.
fn journals(is_root: bool) -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        _ if is_root => "/run/weft-lab".into(),
        Some(folder) => PathBuf::from(folder).join("weft-lab"),
        None => {
            let user = rustix::process::getuid().as_raw();
            std::env::temp_dir().join(format!("weft-lab-of-{user}"))
        }
    }
}

/// Lock of tests that take the testbed: a process has one journal.
#[cfg(test)]
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server and a folder are gone after a panic, as after Ctrl-C and kill -9, which crate
    /// weft's tests send. In a thread of its own, which as root enters another network.
    #[test]
    fn a_panic_leaves_nothing() {
        let _alone = alone();
        let home = tempfile::tempdir().unwrap();
        let below = home.path().to_owned();
        let (tell, told) = std::sync::mpsc::channel();
        let panics = move || {
            let mut testbed = Testbed::take(&below, None, true).unwrap();
            let log = below.join("log");
            let argv = ["sleep", "60"].map(OsString::from);
            let limits = ServerLimits::default();
            let sleeper = testbed.launch(Side::Server, &argv, &log, limits, None);
            // Its handle is not even dropped: the journal suffices.
            let sleeper = std::mem::ManuallyDrop::new(sleeper.unwrap());
            fs::write(testbed.scratch().join("file"), "").unwrap();
            let (folder, journal) =
                (testbed.scratch().to_owned(), testbed.journal.path().to_owned());
            tell.send((sleeper.pid(), folder, journal)).unwrap();
            panic!("on purpose");
        };
        assert!(thread::spawn(panics).join().is_err());
        let (sleeper, folder, journal) = told.recv().unwrap();
        assert!(!folder.exists() && !journal.exists());
        let alive = processes::of_sessions(&[sleeper]);
        assert!(alive.iter().all(|process| process.is_zombie), "{alive:?}");
        if let Some(sleeper) = Pid::from_raw(sleeper as i32) {
            let _ = rustix::process::waitpid(Some(sleeper), WaitOptions::empty());
        }
    }
}
