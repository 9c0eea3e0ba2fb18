//! The load generator on another machine, started there by the system's `ssh`.
//!
//! ```text
//!   this machine                    the other one
//!   ssh ── kept open ────────────▶  a shell: makes a folder, tells the time when it is asked, and
//!                                   removes the folder when its input ends
//!   ssh ── for each generator ───▶  weft load: killed when its input ends
//! ```
//!
//! Both inputs end with the laboratory, however that ends, so nothing is left there.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::journal::Journal;
use super::{Launched, Testbed, start, sys, with_path};

/// The user's machine for the generator.
#[derive(Clone, Debug)]
pub struct GeneratorHost {
    /// `[USER@]HOST`, as ssh takes it.
    pub name: String,
    /// Command of ssh, with options.
    pub ssh: Vec<String>,
    /// Local address for servers; `None`: the address that ssh uses.
    pub address: Option<Ipv4Addr>,
}

/// Options of ssh: no prompts, detection of a dead connection, no shared connection.
const OPTIONS: &str = "-T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 \
                       -o ServerAliveCountMax=3 -o ControlPath=none --";

/// Script that prints the client's address and a new folder, and then the time for each line.
const KEEP: &str = "umask 077; d=$(mktemp -d \"${TMPDIR:-/tmp}/weft-load-XXXXXX\") || exit 1; \
                    clean() { rm -rf \"$d\"; }; trap clean EXIT; trap \"exit 1\" HUP INT TERM; \
                    echo \"weft: ${SSH_CONNECTION%% *} $d\"; while read -r _; do date +%s%N; done";
/// Prefix of its first line; the address follows.
const MARK: &str = "weft: ";
/// Script that writes its input to a file, and runs the command after it.
const COPY: &str = "umask 077; cat >\"$1\" && chmod 700 \"$1\" && shift && \"$@\" </dev/null";
/// Script that runs a program, and kills it when the input ends. The waiting process does not hold
/// the output open, for whose end ssh waits.
const RUN: &str = "exec 3<&0; \"$@\" 3<&- & p=$!; \
                   { while read -r _; do :; done <&3; kill -9 $p; } >/dev/null 2>&1 & w=$!; \
                   exec 3<&-; wait $p; s=$?; kill $w 2>/dev/null; exit $s";

/// Exit code of ssh for its own failures.
const FAILED: i32 = 255;
/// Longest wait for an answer; ssh gives up earlier.
const REPLY_PATIENCE: Duration = Duration::from_secs(20);
const COPY_PATIENCE: Duration = Duration::from_secs(120);
/// Number of requests for the time; the fastest answer counts.
const TIMES: u32 = 5;
const KEEP_LOG: &str = "ssh.log";
/// Name of weft there.
const WEFT: &str = "weft";
const UNFIT: &str = ": it needs a processor of the same kind, a C library as new, and a TMPDIR for \
                     programs; --weft FILE names one for both machines, such as the static one";
/// Manifest of a file set, the only part that the generator reads.
const MANIFEST: &str = load::workload::fileset::MANIFEST;

/// The connected other machine.
pub(super) struct Remote {
    pub(super) host: GeneratorHost,
    pub(super) address: Ipv4Addr,
    /// Folder there, and the files in it.
    folder: String,
    copied: Vec<String>,
    scratch: PathBuf,
    core: usize,
    keeper: Launched,
    /// Lines from the first script.
    lines: Receiver<String>,
}

impl Testbed {
    /// Connects to the machine and copies `weft` there. From then on servers listen at a local
    /// address that is reachable from there.
    ///
    /// # Errors
    /// A sentence about what is missing.
    pub fn reach(&mut self, at: &GeneratorHost, weft: &Path, stop: &AtomicBool) -> io::Result<()> {
        let host = at.clone();
        let name = &host.name;
        let core = self.cores[1];
        let log = self.scratch.join(KEEP_LOG);
        let words = by_shell(KEEP, &[]);
        let pipes = [Stdio::piped(), Stdio::piped()];
        let mut keeper = host.ssh(&mut self.journal, core, &words, pipes, &log)?;
        let said = BufReader::new(keeper.child.stdout.take().expect("piped"));
        let (tell, lines) = mpsc::channel();
        thread::spawn(move || said.lines().map_while(Result::ok).try_for_each(|it| tell.send(it)));
        // A login shell may print its own lines first.
        let first = loop {
            let line = lines.recv_timeout(REPLY_PATIENCE).map_err(|_| {
                let said = last_words(&log);
                let ssh = host.ssh.join(" ");
                io::Error::other(format!(
                    "no generator on {name}: {said}: first `{ssh} -o BatchMode=yes {name} true` \
                     must work, without a question"
                ))
            })?;
            if let Some((_, first)) = line.split_once(MARK) {
                break first.to_owned();
            }
        };
        let (from, folder) = first.split_once(' ').unwrap_or_default();
        let from = host.address.map_or(from.to_owned(), |address| address.to_string());
        let is_ours = |address: &Ipv4Addr| {
            !address.is_unspecified() && UdpSocket::bind((*address, 0)).is_ok()
        };
        let address = from.parse().ok().filter(is_ours).ok_or_else(|| {
            io::Error::other(format!(
                "'{from}' is no IPv4 address of this machine, at which servers could be reached \
                 from {name}: name one with --address"
            ))
        })?;
        let folder = folder.to_owned();
        let scratch = self.scratch.clone();
        let copied = Vec::new();
        let remote = Remote { host, address, folder, copied, scratch, core, keeper, lines };
        remote.copy(&mut self.journal, weft, WEFT, stop)?;
        self.remote = Some(remote);
        self.clocks().map(drop)
    }

    /// Address at which servers listen.
    pub(crate) fn address(&self) -> Ipv4Addr {
        self.remote.as_ref().map_or(Ipv4Addr::LOCALHOST, |remote| remote.address)
    }

    /// True if the generator is on another machine.
    pub(crate) fn is_remote(&self) -> bool {
        self.remote.is_some()
    }

    /// Runs weft with these arguments on the other machine, with its output in `out`. Files of the
    /// scratch folder among the arguments are copied first.
    ///
    /// # Errors
    /// If it cannot be started, or a file cannot be copied.
    pub(crate) fn launch_remote(
        &mut self,
        words: &[String],
        out: &Path,
        log: &Path,
        stop: &AtomicBool,
    ) -> io::Result<Launched> {
        let Testbed { remote: Some(remote), journal, scratch, .. } = self else {
            return Err(io::Error::other("the generator is on this machine"));
        };
        let argv = [&[remote.path(WEFT)], &remote.take_along(journal, scratch, words, stop)?[..]];
        let argv = argv.concat();
        let pipes = [Stdio::piped(), File::create(out)?.into()];
        remote.host.ssh(journal, remote.core, &by_shell(RUN, &argv), pipes, log)
    }

    /// Copies files of the scratch folder among these arguments to the other machine, if there is
    /// one, so that a generator does not start late.
    ///
    /// # Errors
    /// When a file cannot be copied.
    pub(crate) fn prepare_remote(&mut self, words: &[String], stop: &AtomicBool) -> io::Result<()> {
        let Testbed { remote: Some(remote), journal, scratch, .. } = self else {
            return Ok(());
        };
        remote.take_along(journal, scratch, words, stop).map(drop)
    }

    /// Returns one moment by the clocks of this machine and of the generator's.
    ///
    /// # Errors
    /// When that machine does not answer.
    pub(crate) fn clocks(&mut self) -> io::Result<[SystemTime; 2]> {
        let Some(remote) = &mut self.remote else {
            return Ok([SystemTime::now(); 2]);
        };
        let mut quickest = (Duration::MAX, [UNIX_EPOCH; 2]);
        for _ in 0..TIMES {
            let asked = SystemTime::now();
            let stdin = remote.keeper.child.stdin.as_mut();
            let is_sent = stdin.is_some_and(|stdin| stdin.write_all(b"\n").is_ok());
            let said = remote.lines.recv_timeout(REPLY_PATIENCE).ok().filter(|_| is_sent);
            let Some(said) = said else {
                // Close it: a late answer would be taken for the next request's.
                remote.keeper.child.stdin = None;
                return Err(remote.lost(&remote.scratch.join(KEEP_LOG)));
            };
            let took = asked.elapsed().unwrap_or_default();
            // A `date` without nanoseconds prints ten digits.
            let there = said.parse().ok().filter(|_| said.len() >= 19);
            let there = there.map(|ns| UNIX_EPOCH + Duration::from_nanos(ns));
            let there = there.ok_or_else(|| {
                io::Error::other(format!(
                    "`date +%s%N` on {} says {said}, not nanoseconds: it needs GNU's",
                    remote.host.name
                ))
            })?;
            quickest = quickest.min((took, [asked + took / 2, there]));
        }
        Ok(quickest.1)
    }
}

impl Remote {
    /// Copies missing files of the scratch folder. Returns the arguments, with the paths there.
    fn take_along(
        &mut self,
        journal: &mut Journal,
        scratch: &Path,
        words: &[String],
        stop: &AtomicBool,
    ) -> io::Result<Vec<String>> {
        let mut taken = Vec::new();
        for word in words {
            let path = Path::new(word);
            let Ok(inside) = path.strip_prefix(scratch) else {
                taken.push(word.clone());
                continue;
            };
            let name = inside.display().to_string().replace('/', "-");
            let file = if path.is_dir() { path.join(MANIFEST) } else { path.to_owned() };
            taken.push(self.path(&name));
            if !self.copied.contains(&name) {
                self.copy(journal, &file, &name, stop)?;
                self.copied.push(name);
            }
        }
        Ok(taken)
    }

    /// Path of a file there.
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    /// Copies a file; checks that it runs, if it is weft.
    fn copy(
        &self,
        journal: &mut Journal,
        file: &Path,
        name: &str,
        stop: &AtomicBool,
    ) -> io::Result<()> {
        let path = self.path(name);
        let (then, advice) = if name == WEFT {
            ([path.clone(), "--version".to_owned()], UNFIT)
        } else {
            (["true", ""].map(str::to_owned), "")
        };
        let words = by_shell(COPY, &[&[path], &then[..]].concat());
        let log = self.scratch.join("copy.log");
        let input = File::open(file).map_err(with_path(file))?;
        let pipes = [input.into(), Stdio::null()];
        let mut copying = self.host.ssh(journal, self.core, &words, pipes, &log)?;
        let deadline = Instant::now() + COPY_PATIENCE;
        let status = loop {
            match copying.ended()? {
                Some(status) => break status,
                None if Instant::now() > deadline => return Err(self.lost(&log)),
                None if stop.load(Ordering::Relaxed) => {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        match status.code() {
            Some(0) => Ok(()),
            Some(FAILED) | None => Err(self.lost(&log)),
            Some(_) => {
                let said = last_words(&log);
                let file = file.display();
                let name = &self.host.name;
                Err(io::Error::other(format!("{file} is of no use on {name}: {said}{advice}")))
            }
        }
    }

    fn lost(&self, log: &Path) -> io::Error {
        let name = &self.host.name;
        let said = last_words(log);
        io::Error::other(format!(
            "the connection to {name} is lost: {said}: once it is there again, the same command \
             with --resume goes on"
        ))
    }
}

impl GeneratorHost {
    /// Starts a shell's command line there, with this input and output, by a client on this core.
    fn ssh(
        &self,
        journal: &mut Journal,
        core: usize,
        words: &str,
        [input, out]: [Stdio; 2],
        log: &Path,
    ) -> io::Result<Launched> {
        let [program, options @ ..] = &self.ssh[..] else {
            return Err(io::Error::other("--ssh names no command"));
        };
        let mut command = Command::new(program);
        command.args(options).args(OPTIONS.split_whitespace()).args([&self.name, words]);
        command.stdin(input).stdout(out).stderr(File::create(log)?);
        sys::settle(&mut command, sys::Settling { cores: vec![core], ..Default::default() });
        let child = start(&mut command).map_err(|error| {
            let advice = "install OpenSSH's client, or name it with --ssh";
            io::Error::new(error.kind(), format!("{error}: {advice}"))
        })?;
        journal.note_session(child.id())?;
        Ok(Launched { child, groups: Vec::new() })
    }
}

/// Command line for the user's login shell, which may be any.
fn by_shell(script: &str, words: &[String]) -> String {
    let quoted = |word: &str| format!("'{}'", word.replace('\'', r"'\''"));
    let words = words.iter().map(|word| quoted(word));
    let words = [quoted(script), "sh".to_owned()].into_iter().chain(words);
    format!("exec sh -c {}", words.collect::<Vec<_>>().join(" "))
}

/// The last line of a log.
fn last_words(log: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    last.unwrap_or("it does not answer").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::alone;

    /// Replacement of ssh: its shell for the last argument survives it, as on another machine.
    const BY_A_SHELL: &str = "for last; do :; done; setsid --wait sh -c \"$last\"";
    /// Replacement of weft: prints its process id and arguments, then stays.
    const FAKE: &str =
        "#!/bin/sh\nprintf '%s|' $$ \"$@\"\n[ \"$1\" = --version ] || exec sleep 60\n";

    fn host(script: &str) -> GeneratorHost {
        let ssh = ["sh", "-c", script, "ssh"].map(str::to_owned).into();
        GeneratorHost { name: "there".to_owned(), ssh, address: Some(Ipv4Addr::LOCALHOST) }
    }

    #[test]
    fn nothing_stays_on_the_other_machine() {
        let _alone = alone();
        let home = tempfile::tempdir().unwrap();
        let mut testbed = Testbed::take(home.path(), None, false).unwrap();
        let [weft, out, log] = ["weft", "out", "log"].map(|name| home.path().join(name));
        fs::write(&weft, FAKE).unwrap();
        let stop = AtomicBool::new(false);
        testbed.reach(&host(BY_A_SHELL), &weft, &stop).unwrap();
        assert!(testbed.words(false).contains("generator on there"), "{}", testbed.words(false));

        let list = testbed.scratch().join("hot.paths");
        fs::write(&list, "/a").unwrap();
        let words = ["it's $HOME", "", &list.display().to_string()].map(str::to_owned);
        let generator = testbed.launch_remote(&words, &out, &log, &stop).unwrap();
        let folder = PathBuf::from(&testbed.remote.as_ref().unwrap().folder);
        let copy = folder.join("hot.paths");
        let end = format!("|it's $HOME||{}|", copy.display());
        let wait_until = |what: &str, is_so: &dyn Fn() -> bool| {
            let deadline = Instant::now() + Duration::from_secs(60);
            while !is_so() {
                assert!(Instant::now() < deadline, "not within a minute: {what}");
                thread::sleep(Duration::from_millis(5));
            }
        };
        wait_until("it has started", &|| fs::read_to_string(&out).unwrap().ends_with(&end));
        assert_eq!(fs::read_to_string(copy).unwrap(), "/a");
        let said = fs::read_to_string(&out).unwrap();
        let process = Path::new("/proc").join(said.split('|').next().unwrap());
        assert!(process.exists());
        drop((generator, testbed));
        wait_until("all is gone", &|| !folder.exists() && !process.exists());
    }

    #[test]
    fn machines_that_are_of_no_use() {
        let _alone = alone();
        let home = tempfile::tempdir().unwrap();
        let mut testbed = Testbed::take(home.path(), None, false).unwrap();
        let mut why = |host| {
            let reached = testbed.reach(&host, Path::new("/bin/false"), &AtomicBool::new(false));
            reached.unwrap_err().to_string()
        };
        let refused = why(host("echo refused >&2; exit 255"));
        assert!(refused.starts_with("no generator on there: refused: first `sh -c "), "{refused}");
        let address = Some(Ipv4Addr::new(192, 0, 2, 1));
        let elsewhere = why(GeneratorHost { address, ..host(BY_A_SHELL) });
        assert!(elsewhere.contains("'192.0.2.1' is no IPv4 address of this"), "{elsewhere}");
        let unfit = why(host(BY_A_SHELL));
        assert!(unfit.starts_with("/bin/false is of no use on there: "), "{unfit}");
        let none = why(GeneratorHost { ssh: vec!["/no/ssh".to_owned()], ..host("") });
        assert!(none.ends_with("install OpenSSH's client, or name it with --ssh"), "{none}");
    }
}
