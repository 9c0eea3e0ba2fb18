//! A confined process tries to break out: one process per engine, whose sessions try each way, on
//! the threads of the engine and on those for blocking work.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::ptr::null;
use std::{env, thread};

use ::serve::engine::{EventOptions, PipelineOptions};
use ::serve::listen::{self, Address};
use ::serve::{Engine, Server, Settings};
use event::Mechanism;
use fiber::BackendChoice;
use session::{Next, Now, Outbox, Phase, Received, Session, Work};

use super::*;

/// A directory with a root, a log, items, and a secret beside them.
#[derive(Clone)]
struct World(PathBuf);

impl World {
    fn new(at: &Path) -> World {
        let world = World(at.canonicalize().unwrap());
        for folder in ["sites/root", "log", "state", "acme", "secret"] {
            fs::create_dir_all(world.at(folder)).unwrap();
        }
        for file in ["sites/root/page", "state/items", "secret/key"] {
            fs::write(world.at(file), "text").unwrap();
        }
        world
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn needs(&self, has_rings: bool) -> Needs {
        let files = [
            (Right::Tree, "sites/root"),
            (Right::Log, "log/access.log"),
            (Right::Replace, "state/items"),
            (Right::State, "acme"),
        ];
        Needs {
            files: files.map(|(right, name)| (right, self.at(name))).to_vec(),
            has_rings,
            has_device: false,
            is_client: false,
        }
    }

    /// Actions of a normal server.
    fn go_on(&self) -> Vec<(&'static str, io::Result<()>)> {
        let read = |path: &Path| fs::read(path).map(drop);
        let append = |name| File::options().append(true).create(true).open(self.at(name));
        let replace = || {
            fs::write(self.at("state/items.new"), "new")?;
            File::open(self.at("state/items.new"))?.sync_all()?;
            fs::rename(self.at("state/items.new"), self.at("state/items"))
        };
        let thread = thread::Builder::new().spawn(|| ());
        vec![
            ("read a page", read(&self.at("sites/root/page"))),
            ("list the root", fs::read_dir(self.at("sites/root")).map(drop)),
            ("append to the log", append("log/access.log").map(drop)),
            ("replace the items", replace()),
            ("make a directory of state", fs::create_dir_all(self.at("acme/new"))),
            ("read its own figures", read("/proc/self/stat".as_ref())),
            ("read the machine's figures", read("/proc/meminfo".as_ref())),
            ("list its descriptors", fs::read_dir("/proc/self/fd").map(drop)),
            ("start a thread", thread.map(|thread| thread.join().unwrap())),
        ]
    }

    /// Actions that no server takes.
    fn break_out(&self) -> Vec<(&'static str, io::Result<()>)> {
        let read = |path: &Path| File::open(path).map(drop);
        let write = |name| File::options().write(true).open(self.at(name)).map(drop);
        let make = |name| File::create_new(self.at(name)).map(drop);
        let [secret, page] = ["secret/key", "sites/root/page"].map(|name| self.at(name));
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
        let of_parent = PathBuf::from(format!("/proc/{parent}/status"));
        let program = CString::new("/bin/true").unwrap();
        let text = program.as_ptr();
        let none = null::<libc::c_void>();
        let open = io::stdin();
        let socket = open.as_raw_fd();
        let limit = [0_u64; 2].as_ptr();
        macro_rules! call {
            ($call:ident $(, $argument:expr)*) => {
                // SAFETY: they fail before they access memory; the strings and numbers that some of
                // them read outlive the call.
                called(unsafe { libc::syscall(libc::$call, $($argument),*) })
            };
        }
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        vec![
            ("read a secret", read(&secret)),
            ("read the users", read("/etc/passwd".as_ref())),
            ("read of other processes", read(&of_parent)),
            ("list the disk", fs::read_dir("/").map(drop)),
            ("write to a page", write("sites/root/page")),
            ("make a page", make("sites/root/new")),
            ("make a file elsewhere", make("secret/new")),
            ("make a directory", fs::create_dir(self.at("state/new"))),
            ("make a link", symlink(&secret, self.at("state/link"))),
            ("link a secret", fs::hard_link(&secret, self.at("state/key"))),
            ("move a page", fs::rename(&page, self.at("state/page"))),
            ("remove a page", fs::remove_file(&page)),
            ("cut the log", File::create(self.at("log/access.log")).map(drop)),
            ("start a program", Command::new("/bin/true").spawn().map(drop)),
            ("become a program", call!(SYS_execve, text, none, none)),
            ("fork", call!(SYS_clone, libc::SIGCHLD, 0, 0, 0, 0)),
            ("make a namespace", call!(SYS_unshare, libc::CLONE_NEWUSER)),
            ("mount", call!(SYS_mount, text, text, none, 0, none)),
            ("change its root", call!(SYS_chroot, text)),
            ("trace its parent", call!(SYS_ptrace, libc::PTRACE_ATTACH, parent, 0, 0)),
            ("read its parent", call!(SYS_process_vm_readv, parent, none, 0, none, 0, 0)),
            ("signal its parent", call!(SYS_kill, parent, 0)),
            ("signal its parent's thread", call!(SYS_tgkill, parent, parent, 0)),
            ("become another user", call!(SYS_setuid, 12345)),
            ("change a limit", call!(SYS_prlimit64, 0, libc::RLIMIT_CORE, limit, none)),
            ("load a program of BPF", call!(SYS_bpf, 0, none, 0)),
            ("count events", call!(SYS_perf_event_open, none, 0, 0, 0, 0)),
            ("make a file of memory", call!(SYS_memfd_create, text, 0)),
            ("use the kernel's keys", call!(SYS_keyctl, 0, 0, 0, 0, 0)),
            ("serve page faults", call!(SYS_userfaultfd, 0)),
            ("make memory for code", call!(SYS_mmap, none, 4096, libc::PROT_EXEC, private, -1, 0)),
            ("make code of memory", call!(SYS_mprotect, none, 4096, libc::PROT_EXEC)),
            ("type into a terminal", call!(SYS_ioctl, socket, libc::TIOCSTI, text)),
            ("open a connection", TcpStream::connect("127.0.0.1:9").map(drop)),
            ("send a datagram", UdpSocket::bind("127.0.0.1:0").map(drop)),
            ("connect to a daemon", UnixStream::connect("/run/docker.sock").map(drop)),
            ("listen", call!(SYS_listen, socket, 1)),
        ]
    }

    /// Tries everything; one line per wrong result.
    fn report(&self, place: &str) -> String {
        let mut lines = String::new();
        for (what, result) in self.go_on() {
            if let Err(error) = result {
                lines += &format!("{place}: cannot {what}: {error}\n");
            }
        }
        for (what, result) in self.break_out() {
            if !is_denied(&result) {
                lines += &format!("{place}: can {what}: {result:?}\n");
            }
        }
        lines
    }
}

fn is_denied<T>(result: &io::Result<T>) -> bool {
    let error = result.as_ref().err().and_then(io::Error::raw_os_error);
    matches!(error, Some(libc::ENOSYS | libc::EACCES | libc::EPERM | libc::EXDEV))
}

fn called(returned: libc::c_long) -> io::Result<()> {
    if returned == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Answers input with two reports: from where blocking is allowed, and from where it is received.
struct SandboxedSession(World, String);

struct Report(World, String);

impl Work for Report {
    fn run(&mut self, _: Now) {
        self.1 = self.0.report("work") + "done\n";
    }
}

impl Session for SandboxedSession {
    type Work = Report;

    fn receive(&mut self, input: &[u8], _: Now, out: &mut Outbox) -> Received {
        let (used, next) = match input {
            [] => (0, Next::Receive(Phase::Idle)),
            _ if self.1.is_empty() => (0, Next::Work),
            _ => {
                self.1 += &self.0.report("receive");
                out.put(self.1.as_bytes());
                (input.len(), Next::Close)
            }
        };
        Received { used, next }
    }

    fn take_work(&mut self) -> Option<Report> {
        Some(Report(self.0.clone(), String::new()))
    }

    fn handle_worked(&mut self, work: Report, _: Now, _: &mut Outbox) -> Next {
        self.1 = work.1;
        Next::Flush
    }
}

fn engines() -> [(&'static str, Engine); 6] {
    let fiber = |backend| Engine::Fiber { processors: 1, backend };
    let uring = EventOptions { dispatcher: Mechanism::Uring, ..EventOptions::default() };
    [
        ("fiber:io=uring", fiber(BackendChoice::Uring)),
        ("fiber:io=epoll", fiber(BackendChoice::Epoll)),
        ("thread", Engine::Thread),
        ("event", Engine::Event(EventOptions::default())),
        ("event:dispatcher=uring", Engine::Event(uring)),
        ("pipeline", Engine::Pipeline(PipelineOptions::default())),
    ]
}

const CHILD: &str = "WEFT_TEST_SANDBOX_CHILD";
const FOLDER: &str = "WEFT_TEST_SANDBOX_FOLDER";

/// The body of the child process; not a test by itself.
#[test]
fn the_child() {
    let Ok(name) = env::var(CHILD) else {
        return;
    };
    let world = World(env::var(FOLDER).unwrap().into());
    let mut engines = engines().into_iter();
    let (_, engine) = engines.find(|(known, _)| *known == name).unwrap();
    let address = Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
    let mut listeners = listen::bind(&address, None).unwrap();
    engine.prepare(&mut listeners).unwrap();
    let address = listeners[0].address.to_string();
    let needs = world.needs(name.contains("uring"));
    Sandbox::enter(SandboxMode::Require, &needs).unwrap();
    if name == "fiber:io=uring" {
        // Operations of a ring are not separate system calls.
        let ways = [world.at("secret/key"), world.at("sites/root/page")];
        let by_ring = fiber::run(move || {
            let [secret, page] = ways;
            (fiber::fs::read(&page), fiber::fs::read(&secret), fiber::fs::remove_file(&page))
        });
        let (read, secret, removed) = by_ring;
        assert!(read.is_ok(), "{read:?}");
        assert!(is_denied(&secret) && is_denied(&removed), "{secret:?} {removed:?}");
    }
    let settings = Settings { engine, listeners, ..Settings::default() };
    let open = move |_: session::Opening<'_>| SandboxedSession(world.clone(), String::new());
    let _server = Server::start(settings, open).unwrap();
    println!("at {address}");
    // Ends with the parent.
    let _ = io::stdin().read(&mut [0]);
}

#[test]
fn no_engine_breaks_out() {
    for (name, _) in engines() {
        let folder = tempfile::tempdir().unwrap();
        let world = World::new(folder.path());
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "os::sandbox::tests::the_child", "--nocapture"])
            .env(CHILD, name)
            .env(FOLDER, &world.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| Some(line.ok()?.split_once("at ")?.1.to_owned()));
        let address = address.unwrap_or_else(|| panic!("{name} did not start"));
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"x").unwrap();
        let mut report = String::new();
        client.read_to_string(&mut report).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(report, "done\n", "{name}");
    }
}

#[test]
fn sandbox_that_is_off_holds_nothing() {
    let off = Sandbox::enter(SandboxMode::Off, &Needs::default()).unwrap();
    assert_eq!(off.describe(), "off");
    assert_eq!(off.first_outside(&[(Right::Tree, "/".into())]), None);
}
