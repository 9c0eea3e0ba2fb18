//! Journal of process sessions, folders and control groups that must not outlive the laboratory.
//! Each is noted before it is used.
//!
//! One function, [`sweep`], removes what a journal lists. It has three callers: the laboratory at
//! its end, a *guard* process as soon as the laboratory has ended in any way, and the next start,
//! in case the guard was killed as well. Each laboratory holds a lock on its journal, which the
//! kernel releases at its death, and which the others try.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal};

use super::processes;

/// Longest time until killed processes, and their control groups, are gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// The journal of this laboratory.
pub(super) struct Journal {
    file: File,
    path: PathBuf,
}

impl Journal {
    /// Begins a journal, after removing what dead laboratories have left; returns their number.
    pub(super) fn begin(folder: &Path) -> io::Result<(Journal, usize)> {
        fs::create_dir_all(folder)?;
        // Journals list what is removed, so no other user may write one.
        let found = fs::metadata(folder)?;
        if found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o022 != 0 {
            let folder = folder.display();
            return Err(io::Error::other(format!("{folder} can be written by other users")));
        }
        // Lock the folder: a journal without its lock yet would be taken for a dead laboratory's.
        let one_at_a_time = File::open(folder)?;
        rustix::fs::flock(&one_at_a_time, FlockOperation::LockExclusive)?;
        let mut swept = 0;
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let left = File::open(&path)?;
            if rustix::fs::flock(&left, FlockOperation::NonBlockingLockExclusive).is_ok() {
                sweep(&path)?;
                swept += 1;
            }
        }
        let path = folder.join(std::process::id().to_string());
        let file = OpenOptions::new().create_new(true).append(true).open(&path)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        Ok((Journal { file, path }, swept))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Notes the session that this process leads.
    pub(super) fn note_session(&mut self, leader: u32) -> io::Result<()> {
        let began = processes::start_ticks(leader).unwrap_or_default();
        self.note(&format!("session {leader} {began}\n"))
    }

    pub(super) fn note_folder(&mut self, folder: &Path) -> io::Result<()> {
        self.note(&format!("folder {}\n", folder.display()))
    }

    pub(super) fn note_group(&mut self, group: &Path) -> io::Result<()> {
        self.note(&format!("group {}\n", group.display()))
    }

    fn note(&mut self, line: &str) -> io::Result<()> {
        self.file.write_all(line.as_bytes())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Err(error) = sweep(&self.path) {
            let path = self.path.display();
            let _ = writeln!(io::stderr(), "weft lab: cannot remove what {path} lists: {error}");
        }
    }
}

/// Waits until the laboratory of this journal has ended, and removes what it left.
///
/// # Errors
/// If something cannot be removed. A missing journal means that all was removed, and is no error.
pub fn guard(journal: &Path) -> io::Result<()> {
    let file = match File::open(journal) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
    sweep(journal)
}

/// Ends and removes everything that a journal lists, then the journal.
fn sweep(journal: &Path) -> io::Result<()> {
    let text = match fs::read_to_string(journal) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    // A last line without its end was truncated by the writer's death.
    let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let lines: Vec<(&str, &str)> = whole.filter_map(|line| line.split_once(' ')).collect();
    let of = |kind: &'static str| {
        let lines = lines.iter().filter(move |(this, _)| *this == kind);
        lines.map(|(_, what)| *what)
    };
    end_sessions(of("session"));
    for group in of("group").map(Path::new) {
        remove_group(group)?;
    }
    for folder in of("folder") {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::remove_file(journal)
}

/// Kills the processes of sessions, each noted as "LEADER START".
fn end_sessions<'a>(noted: impl Iterator<Item = &'a str>) {
    let leaders = noted.filter_map(|noted| {
        let (leader, began) = noted.split_once(' ')?;
        let leader = leader.parse().ok()?;
        let began = began.parse::<u64>().ok()?;
        // The kernel does not reuse a session's id while the session has members. So if another
        // process has it now, no member is left.
        let is_another = processes::start_ticks(leader).is_some_and(|now| now != began);
        (!is_another).then_some(leader)
    });
    let leaders: Vec<u32> = leaders.collect();
    let deadline = Instant::now() + PATIENCE;
    while kill_all(&processes::of_sessions(&leaders)) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
}

/// Kills processes; false if all were dead already.
pub(super) fn kill_all(processes: &[processes::Process]) -> bool {
    let alive = processes.iter().filter(|process| !process.is_zombie);
    let alive: Vec<_> = alive.filter_map(|process| Pid::from_raw(process.pid as i32)).collect();
    for process in &alive {
        let _ = rustix::process::kill_process(*process, Signal::KILL);
    }
    !alive.is_empty()
}

/// Kills a control group's processes, and removes it.
pub(super) fn remove_group(group: &Path) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let members = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        for process in
            members.lines().filter_map(|line| line.parse().ok()).filter_map(Pid::from_raw)
        {
            let _ = rustix::process::kill_process(process, Signal::KILL);
        }
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // Its killed processes may still be exiting.
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_of_listed_and_missing() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("scratch");
        let journal = home.path().join("journal");
        fs::create_dir_all(folder.join("deep")).unwrap();
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let began = processes::start_ticks(sleeper.id()).unwrap();
        let kept = home.path().join("kept");
        fs::create_dir(&kept).unwrap();
        let lines = format!(
            "folder {}\nfolder /nowhere/at/all\ngroup /nowhere/either\nsession {} {}\nfolder {}",
            folder.display(),
            sleeper.id(),
            // Another process than the noted one has this id now.
            began + 1,
            kept.display()
        );
        fs::write(&journal, lines).unwrap();
        sweep(&journal).unwrap();
        assert!(!folder.exists() && !journal.exists());
        assert!(kept.exists(), "a line that was cut off is not believed");
        assert!(sleeper.try_wait().unwrap().is_none(), "it was not ours");
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        sweep(&journal).unwrap();
    }

    #[test]
    fn only_dead_journals_are_swept() {
        let home = tempfile::tempdir().unwrap();
        let scratch = home.path().join("scratch");
        fs::create_dir(&scratch).unwrap();
        let journals = home.path().join("journals");
        fs::create_dir(&journals).unwrap();
        let dead = journals.join("1");
        let living = journals.join("2");
        fs::write(&dead, format!("folder {}\n", scratch.display())).unwrap();
        fs::write(&living, format!("folder {}\n", home.path().display())).unwrap();
        let lock = File::open(&living).unwrap();
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
        let (journal, swept) = Journal::begin(&journals).unwrap();
        assert_eq!(swept, 1);
        assert!(!scratch.exists() && !dead.exists() && living.exists());
        let own = journal.path().to_owned();
        drop(journal);
        assert!(!own.exists());
    }
}
