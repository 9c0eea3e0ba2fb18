use super::*;
use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

/// A log to a file in a temporary directory, and its reports.
struct World {
    folder: tempfile::TempDir,
    log: AccessLog,
    reports: Receiver<String>,
}

const NEVER: Duration = Duration::from_secs(3600);
const LONG: Duration = Duration::from_secs(60);

fn open_at(folder: tempfile::TempDir, path: PathBuf, options: &Options) -> World {
    let (tell, reports) = channel();
    let report = move |text: &str| drop(tell.send(text.to_owned()));
    let log = AccessLog::open(Target::File(path), options, report).unwrap();
    World { folder, log, reports }
}

fn open(options: &Options) -> World {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    open_at(folder, path, options)
}

/// Options without a noticeable delay.
fn prompt() -> Options {
    Options { flush_interval: Duration::from_millis(1), ..Options::default() }
}

impl World {
    fn path(&self) -> PathBuf {
        self.folder.path().join("access.log")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.path()).unwrap()
    }
}

/// Waits for an effect of another thread.
fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !happened() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn close_writes_all_lines_in_order() {
    let world = open(&Options { flush_interval: NEVER, ..Options::default() });
    world.log.write(b"one\n");
    world.log.write(b"two\nthree\n");
    assert!(world.log.close(LONG));
    assert_eq!(world.text(), "one\ntwo\nthree\n");
}

#[test]
fn line_is_written_within_the_flush_interval() {
    let world = open(&Options::default());
    world.log.write(b"line\n");
    eventually("the line is not written", || !world.text().is_empty());
    // Repeat, once the writer sleeps.
    world.log.write(b"line\n");
    eventually("the second line is not written", || world.text() == "line\nline\n");
}

#[test]
fn half_a_buffer_is_written_at_once() {
    let world = open(&Options { flush_interval: NEVER, ..Options::default() });
    let line = [b"x".repeat(1023), b"\n".to_vec()].concat();
    for _ in 0..world.log.shared.buffer_len_max / 2 / line.len() {
        world.log.write(&line);
    }
    // One or two may have gone to a neighbour while the writer held this thread's buffer.
    eventually("half a buffer is not written", || {
        world.log.write(&line);
        !world.text().is_empty()
    });
    assert_eq!(world.log.lines_dropped(), 0);
}

#[test]
fn paced_log_writes_once_an_interval() {
    const LEN_MAX: usize = 64 * 1024;
    let world = open(&Options { flush_interval: NEVER, queued_len_max: LEN_MAX, is_paced: true });
    let line = [b"x".repeat(99), b"\n".to_vec()].concat();
    (0..2 * LEN_MAX / 100).for_each(|_| world.log.write(&line));
    assert!(world.log.lines_dropped() > 0);
    assert_eq!(world.text(), "");
    world.log.close(LONG);
    assert!((1..=LEN_MAX).contains(&world.text().len()));
}

#[test]
fn lines_of_many_threads() {
    const THREADS: usize = 8;
    const LINES: usize = 5_000;
    let world = open(&prompt());
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let log = &world.log;
            scope.spawn(move || {
                for line in 0..LINES {
                    log.write(format!("thread {thread} line {line}\n").as_bytes());
                }
            });
        }
    });
    assert!(world.log.close(LONG));
    assert_eq!(world.log.lines_dropped(), 0);
    let text = world.text();
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for line in text.lines() {
        *seen.entry(line).or_default() += 1;
    }
    assert_eq!(seen.len(), THREADS * LINES);
    assert!(seen.values().all(|times| *times == 1));
    assert!(seen.contains_key(format!("thread 7 line {}", LINES - 1).as_str()));
}

#[test]
fn reopen_after_rotation() {
    let world = open(&prompt());
    let old = world.folder.path().join("access.log.1");
    world.log.write(b"old\n");
    eventually("the first line is not written", || world.text() == "old\n");
    fs::rename(world.path(), &old).unwrap();
    world.log.reopen().unwrap();
    world.log.write(b"new\n");
    assert!(world.log.close(LONG));
    assert_eq!((fs::read_to_string(old).unwrap(), world.text()), ("old\n".into(), "new\n".into()));
}

#[test]
fn failed_reopen_keeps_the_old_file() {
    let world = open(&prompt());
    let moved = world.folder.path().join("moved");
    fs::rename(world.path(), &moved).unwrap();
    fs::create_dir(world.path()).unwrap();
    assert!(world.log.reopen().is_err());
    world.log.write(b"line\n");
    assert!(world.log.close(LONG));
    assert_eq!(fs::read_to_string(moved).unwrap(), "line\n");
}

#[test]
fn full_disk_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    symlink("/dev/full", &path).unwrap();
    let world = open_at(folder, path.clone(), &prompt());
    world.log.write(b"one\n");
    let report = world.reports.recv_timeout(LONG).unwrap();
    assert!(report.contains("No space left on device"), "{report}");
    // Seen: `0 lines were lost` while all of them waited for a disk that stayed full.
    assert!(report.ends_with("0 lines are lost, 1 wait"), "{report}");
    eventually("it is tried again", || world.log.write_errors() >= 3);

    // The disk has space again: queued lines are written.
    fs::remove_file(&path).unwrap();
    world.log.write(b"two\n");
    world.log.reopen().unwrap();
    assert!(world.log.close(LONG));
    assert_eq!(world.text(), "one\ntwo\n");
    assert_eq!(world.log.lines_dropped(), 0);
    assert_eq!(world.reports.try_iter().count(), 0, "more than one report within a minute");
}

#[test]
fn lines_lost_on_a_full_disk_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let world = open_at(folder, "/dev/full".into(), &prompt());
    world.log.write(b"one\ntwo\n");
    world.log.write(b"three\n");
    assert!(!world.log.close(Duration::from_millis(20)));
    // On a busy machine the writer ends a little later.
    let mut last = String::new();
    while !last.contains("3 lines are lost") {
        let next = world.reports.recv_timeout(LONG);
        last = next.unwrap_or_else(|_| panic!("the last report is {last}"));
    }
    assert_eq!(world.log.lines_dropped(), 3);
    world.log.write(b"after the end\n");
    assert_eq!(world.log.lines_dropped(), 4);
}

#[test]
fn blocked_pipe_drops_lines() {
    let (mut reader, pipe) = io::pipe().unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", pipe.as_raw_fd()));
    let options = Options { queued_len_max: 256 * 1024, ..prompt() };
    let world = open_at(tempfile::tempdir().unwrap(), path, &options);

    let line = [b"x".repeat(99), b"\n".to_vec()].concat();
    // A write that waited for space in the pipe would wait forever.
    let mut sent = 0;
    while world.log.lines_dropped() < 1000 {
        world.log.write(&line);
        sent += 1;
        assert!(sent < 1_000_000, "nothing is dropped");
    }
    let report = world.reports.recv_timeout(LONG).unwrap();
    assert!(report.contains("fast enough"), "{report}");

    // The reader resumes: only whole lines arrive, and all that were not dropped.
    let reading = thread::spawn(move || {
        let mut text = Vec::new();
        reader.read_to_end(&mut text).map(|_| text)
    });
    drop(pipe);
    assert!(world.log.close(LONG));
    let dropped = world.log.lines_dropped();
    drop(world);
    let text = reading.join().unwrap().unwrap();
    assert!(text.chunks(line.len()).all(|got| got == line));
    assert_eq!(text.len() / line.len(), sent - dropped as usize);
}

#[test]
fn close_does_not_wait_for_an_unread_pipe() {
    let (_reader, pipe) = io::pipe().unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", pipe.as_raw_fd()));
    let world = open_at(tempfile::tempdir().unwrap(), path, &prompt());
    for _ in 0..1000 {
        world.log.write(&[&[b'x'; 999], &b"\n"[..]].concat());
    }
    let start = Instant::now();
    assert!(!world.log.close(Duration::from_millis(50)));
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    eventually("nothing is dropped", || world.log.lines_dropped() > 0);
}

#[test]
fn partly_written_line_is_written_again() {
    let mut batch = Batch { lines: b"one\ntwo\nthree\n".to_vec(), written: 6 };
    batch.rewind_to_line();
    assert_eq!(batch.unwritten(), b"two\nthree\n");
    batch.written = 2;
    batch.rewind_to_line();
    assert_eq!(batch.unwritten(), b"one\ntwo\nthree\n");
}

#[test]
fn reports_once_a_minute() {
    let shared = SharedBuffers::new(&Options::default()).unwrap();
    let (tell, told) = channel();
    let mut reporter = LogReporter::new("access.log".into(), move |text: &str| {
        tell.send(text.to_owned()).unwrap();
    });
    let told = || told.try_iter().collect::<Vec<_>>().join("|");
    let start = Instant::now();
    let full = || Some(io::Error::from(rustix::io::Errno::NOSPC));
    let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));

    reporter.report_if_due(&shared, b"", start);
    assert_eq!(told(), "", "nothing has happened");
    reporter.trouble = full();
    reporter.report_if_due(&shared, b"", start);
    assert!(told().contains("cannot be written (No space left"));
    shared.count_dropped(b"a\nb\n");
    reporter.report_if_due(&shared, b"", start + second);
    assert_eq!(told(), "", "too soon");
    reporter.report_if_due(&shared, b"", start + minute);
    assert!(told().contains("2 lines are lost"));

    // The recovery follows too soon, and is reported when allowed.
    reporter.trouble = None;
    reporter.report_if_due(&shared, b"", start + minute + second);
    assert_eq!(told(), "");
    assert_eq!(reporter.due(), Some(start + minute * 2));
    reporter.report_if_due(&shared, b"", start + minute * 2);
    assert_eq!(told(), "the access log access.log is being written again");
    reporter.report_if_due(&shared, b"", start + minute * 4);
    assert_eq!((told(), reporter.due()), (String::new(), None));
}

#[test]
fn target_from_text() {
    assert_eq!("-".parse(), Ok(Target::Stdout));
    assert_eq!("/var/log/weft.log".parse(), Ok(Target::File("/var/log/weft.log".into())));
    assert_eq!(Target::File("a".into()).to_string(), "a");
}

#[test]
fn missing_directory_fails_at_the_start() {
    let missing = Target::File(Path::new("/nonexistent/access.log").into());
    assert!(AccessLog::open(missing, &Options::default(), |_| {}).is_err());
}

/// Measures the cost of a line: `cargo test --release -p weftwork-serve what_a_line_costs --
/// --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn what_a_line_costs() {
    const LINES: u32 = 2_000_000;
    let world = open_at(tempfile::tempdir().unwrap(), "/dev/null".into(), &Options::default());
    let line = [b"x".repeat(119), b"\n".to_vec()].concat();
    let start = Instant::now();
    for _ in 0..LINES {
        world.log.write(&line);
    }
    let each = start.elapsed() / LINES;
    println!("{each:?} for each line, {} dropped", world.log.lines_dropped());
}
