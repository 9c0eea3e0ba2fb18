//! Landlock: rights to files, TCP ports, signals and abstract sockets. landlock(7)

use std::env;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd,
    RestrictionStatus, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope, make_bitflags,
};

use super::{Needs, Right};

/// The newest version that was tested. An older kernel applies the parts that it supports.
const TRIED: ABI = ABI::V7;

const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::ReadFile);
const LIST: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});
const WRITE: BitFlags<AccessFs> = make_bitflags!(AccessFs::WriteFile);
const REPLACE: BitFlags<AccessFs> = make_bitflags!(
    AccessFs::{ReadFile | ReadDir | WriteFile | Truncate | MakeReg | RemoveFile}
);

/// Paths read by every server: its own figures and the machine's.
const OWN: &[(&str, BitFlags<AccessFs>)] = &[
    ("/proc/self", LIST),
    ("/proc/meminfo", READ),
    ("/proc/stat", READ),
    // Reasons why there is no io_uring.
    ("/proc/sys/kernel/io_uring_disabled", READ),
    ("/proc/sys/kernel/io_uring_group", READ),
    ("/sys/devices/system/cpu", LIST),
    ("/sys/fs/cgroup", LIST),
    // Names of functions in backtraces.
    ("/proc/self/exe", READ),
    ("/usr/lib", READ),
    ("/lib", READ),
    ("/dev/tty", READ),
    ("/dev/null", make_bitflags!(AccessFs::{ReadFile | WriteFile})),
];

/// Granted rights.
#[derive(Debug)]
pub(super) struct Granted {
    version: i32,
    is_client: bool,
    rules: Vec<(PathBuf, BitFlags<AccessFs>)>,
    /// Rules are tied to inodes, and /proc creates a new one for a name that is not held open.
    _pinned: Vec<PathFd>,
}

/// Gives up all other rights.
///
/// # Errors
/// The feature that the kernel lacks.
pub(super) fn restrict(needs: &Needs) -> Result<Granted, String> {
    let own = OWN.iter().map(|(path, access)| (PathBuf::from(path), *access));
    let rules: Vec<_> = needs.files.iter().flat_map(|(right, path)| rules(*right, path)).collect();
    let all: Vec<_> = own.chain(rules.iter().cloned()).collect();
    let status = enforce(&all, needs.is_client);
    let (status, pinned) = status.map_err(|error| format!("no Landlock: {error}"))?;
    match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, LandlockStatus::NotEnabled) => {
            Err("Landlock is not enabled (lsm= of the kernel's command line)".to_owned())
        }
        (RulesetStatus::NotEnforced, _) => Err("the kernel has no Landlock".to_owned()),
        (_, LandlockStatus::Available { effective_abi, kernel_abi }) => Ok(Granted {
            version: kernel_abi.unwrap_or(effective_abi as i32),
            is_client: needs.is_client,
            rules,
            _pinned: pinned,
        }),
        _ => unreachable!("an enforced Landlock is available"),
    }
}

fn enforce(
    rules: &[(PathBuf, BitFlags<AccessFs>)],
    is_client: bool,
) -> Result<(RestrictionStatus, Vec<PathFd>), RulesetError> {
    let mut ports = AccessNet::from_all(TRIED);
    if is_client {
        ports.remove(AccessNet::ConnectTcp);
    }
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(TRIED))?
        .handle_access(ports)?
        .scope(scopes())?
        .create()?;
    let mut pinned = Vec::new();
    for (path, access) in rules {
        // A missing path gets no rule.
        let Ok(opened) = PathFd::new(path) else {
            continue;
        };
        ruleset = granted(ruleset, &opened, *access)?;
        if path.starts_with("/proc") {
            pinned.push(opened);
        }
    }
    // Terminals are opened again, for non-blocking writes.
    ruleset = granted(ruleset, &io::stdout(), WRITE)?;
    ruleset = granted(ruleset, &io::stderr(), WRITE)?;
    Ok((ruleset.restrict_self()?, pinned))
}

/// True for a FIFO of mkfifo(3): pipes are in a file system of their own, for which Landlock
/// accepts no rule.
fn has_name(fifo: &impl AsFd) -> bool {
    // PIPEFS_MAGIC of statfs(2)
    rustix::fs::fstatfs(fifo).is_ok_and(|system| system.f_type != 0x5049_5045)
}

/// Adds a rule for an open `file`, if it is in a directory tree: a pipe or a socket is not, and
/// needs no right.
fn granted(
    ruleset: RulesetCreated,
    file: &impl AsFd,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let Ok(stat) = rustix::fs::fstat(file) else {
        return Ok(ruleset);
    };
    use rustix::fs::FileType;
    let access = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => access,
        FileType::RegularFile | FileType::CharacterDevice => access & AccessFs::from_file(TRIED),
        FileType::Fifo if has_name(file) => access & AccessFs::from_file(TRIED),
        _ => return Ok(ruleset),
    };
    ruleset.add_rule(PathBeneath::new(file, access))
}

/// Targets that no message may reach: all outside, except systemd's socket, which may be abstract.
fn scopes() -> BitFlags<Scope> {
    let mut scopes = Scope::from_all(TRIED);
    let notified = env::var_os("NOTIFY_SOCKET");
    if notified.is_some_and(|socket| socket.as_encoded_bytes().starts_with(b"@")) {
        scopes.remove(Scope::AbstractUnixSocket);
    }
    scopes
}

impl Granted {
    pub(super) fn describe(&self) -> String {
        let held = match (self.version, self.is_client) {
            (..=3, _) | (4..=5, true) => "files",
            (4..=5, false) => "files and TCP",
            (_, true) => "files and signals",
            (_, false) => "files, TCP and signals",
        };
        format!("{held} (Landlock {})", self.version)
    }

    /// True if the rights that `right` requires for `path` now were granted.
    pub(super) fn covers(&self, right: Right, path: &Path) -> bool {
        let is_covered = |(path, access): &(PathBuf, BitFlags<AccessFs>)| {
            let mut rules = self.rules.iter();
            rules.any(|(granted, given)| path.starts_with(granted) && given.contains(*access))
        };
        rules(right, path).first().is_none_or(is_covered)
    }
}

/// Places covered by a right to a path; the first is needed immediately.
fn rules(right: Right, path: &Path) -> Vec<(PathBuf, BitFlags<AccessFs>)> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let real = path.canonicalize();
    let itself = real.as_deref().unwrap_or(&path);
    let folder = itself.parent().unwrap_or(itself).to_owned();
    let around = |access| {
        let folders = folders_around(&path).into_iter().filter(|folder| !is_broad(folder));
        let places = [itself.to_owned()].into_iter().chain(folders);
        places.map(|place| (place, access)).collect()
    };
    match right {
        Right::Tree => around(LIST),
        Right::File => around(READ),
        Right::Log if is_broad(&folder) || real.as_deref().is_ok_and(|file| !file.is_file()) => {
            // It is the only writable file there, so it must exist now.
            // No open waits for the reader of a FIFO. fifo(7)
            let mut options = OpenOptions::new();
            options.append(true).create(true).custom_flags(libc::O_NONBLOCK);
            let _ = options.open(itself);
            vec![(itself.to_owned(), WRITE)]
        }
        Right::Log => vec![(folder, WRITE | AccessFs::MakeReg)],
        Right::Remove if is_broad(&folder) => Vec::new(),
        Right::Remove => vec![(folder, READ | AccessFs::RemoveFile)],
        Right::Replace => vec![(folder, REPLACE)],
        Right::State => vec![(itself.to_owned(), REPLACE | AccessFs::MakeDir)],
    }
}

/// The directory of a path, and those of the targets of links on the way to it: a deployment puts
/// another directory or link there, as `current -> releases/42`, and a renewed certificate another
/// file. Links in `/` belong to the system.
fn folders_around(path: &Path) -> Vec<PathBuf> {
    let links = path.ancestors().filter(|at| at.is_symlink() && at.components().count() > 2);
    let targets = links.filter_map(|link| link.canonicalize().ok());
    let places = [path.to_owned()].into_iter().chain(targets);
    let folders = places.filter_map(|place| place.parent()?.canonicalize().ok());
    folders.collect()
}

/// True if a directory contains too much to be granted for the sake of one file in it: `/` and the
/// home of a person. The home of a service, such as /var/www, contains its site. login.defs(5),
/// `UID_MIN`
fn is_broad(folder: &Path) -> bool {
    let is_person = matches!(rustix::process::geteuid().as_raw(), 0 | 1000..);
    let home = env::home_dir().filter(|_| is_person);
    let home = home.and_then(|home| home.canonicalize().ok());
    folder.parent().is_none() || home.is_some_and(|home| home.starts_with(folder))
}
