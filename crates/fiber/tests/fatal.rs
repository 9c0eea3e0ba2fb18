//! Mistakes that end the process, and their messages. A fiber that runs off its stack is one
//! of them. Each case runs this test program again, as a child that is expected to die.

extern crate weftwork_fiber as fiber;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `test` of this program in a child, which dies of `signal`, and returns its standard error.
#[track_caller]
fn stderr_of_crash(signal: i32, test: &str) -> String {
    let output = command(test).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let status = output.status;
    assert_eq!(status.signal(), Some(signal), "{status:?}: {message}");
    message
}

/// `test` of this program in a child, where `CHILD` is set.
fn command(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let arguments = ["--exact", test, "--nocapture", "--test-threads=1"];
    command.args(arguments).env("CHILD", "1");
    command
}

fn is_child() -> bool {
    std::env::var_os("CHILD").is_some()
}

#[allow(unconditional_recursion, reason = "that is the point")]
fn endless(n: usize) -> usize {
    let room = std::hint::black_box([n; 32]);
    endless(n + 1) + room[n % 32]
}

#[test]
fn overflow_names_the_fiber() {
    if is_child() {
        fiber::run(|| {
            let builder = fiber::Builder::new().name("greedy");
            builder.spawn(|| endless(0)).unwrap().join().unwrap();
        });
    }
    let message = stderr_of_crash(libc::SIGABRT, "overflow_names_the_fiber");
    assert!(message.contains("fiber 'greedy'"), "{message}");
    assert!(message.contains("has overflowed its stack of 60 KiB"), "{message}");
    assert!(message.contains("fatal.rs:"), "the place of the spawn is missing: {message}");
    assert!(message.contains("stack_size"), "{message}");
}

#[test]
fn thread_overflow_goes_to_std() {
    if is_child() {
        fiber::run(|| ());
        let _ = std::thread::spawn(|| endless(0)).join();
    }
    let message = stderr_of_crash(libc::SIGABRT, "thread_overflow_goes_to_std");
    assert!(message.contains("has overflowed its stack"), "{message}");
    assert!(!message.contains("fiber '"), "{message}");
}

#[test]
fn another_bad_access_is_a_plain_fault() {
    if is_child() {
        fiber::run(|| {
            // SAFETY: none; the process is meant to die of it.
            unsafe { std::ptr::with_exposed_provenance::<u8>(64).read_volatile() }
        });
    }
    let message = stderr_of_crash(libc::SIGSEGV, "another_bad_access_is_a_plain_fault");
    assert!(!message.contains("overflowed"));
}

struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("in a destructor");
    }
}

#[test]
fn result_drop_panic_aborts() {
    if is_child() {
        // One processor, so that the handle has gone before the result comes.
        let runtime = fiber::Runtime::builder().processors(1).start().unwrap();
        runtime.run(|| {
            drop(fiber::spawn(|| PanicsOnDrop));
            fiber::sleep(std::time::Duration::from_secs(5));
        });
    }
    let message = stderr_of_crash(libc::SIGABRT, "result_drop_panic_aborts");
    assert!(message.contains("the result of a fiber panicked"), "{message}");
}

/// Seen: a panic reported "thread 'processor-0' panicked", and not which of ten thousand fibers on
/// that thread it was. Cause: std knows only threads. Cure: a line before its message.
#[test]
fn a_panic_names_the_fiber() {
    if is_child() {
        fiber::run(|| {
            let unlucky = fiber::Builder::new().name("unlucky").spawn(|| panic!("broken"));
            assert!(unlucky.unwrap().join().is_err());
            assert!(fiber::spawn(|| panic!("broken too")).join().is_err());
        });
        let _ = std::thread::spawn(|| panic!("of a thread")).join();
        std::process::exit(0);
    }
    let output = command("a_panic_names_the_fiber").output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{message}");
    let lines: Vec<_> = message.lines().filter(|line| !line.is_empty()).collect();
    let named: Vec<_> = lines.iter().filter(|line| line.starts_with("fiber ")).collect();
    assert!(named[0].starts_with("fiber 'unlucky' (number "), "{message}");
    assert!(named[0].contains("fatal.rs:"), "the place of the spawn is missing: {message}");
    assert!(named[1].starts_with("fiber '<unnamed>' (number "), "{message}");
    assert_eq!(named.len(), 2, "a thread is no fiber: {message}");
    for said in ["broken", "broken too", "of a thread"] {
        assert!(lines.contains(&said), "the message of std is missing: {message}");
    }
}

/// Seen: with standard error on a full disk, or a pipe that nothing reads any more, one panic of a
/// fiber ended the process. Cause: the line that names the fiber was written by a macro that panics
/// when it cannot write, within the panic hook.
#[test]
fn unprintable_panic_ends_its_fiber() {
    if is_child() {
        fiber::run(|| assert!(fiber::spawn(|| panic!("broken")).join().is_err()));
        std::process::exit(7);
    }
    let full = std::fs::File::options().write(true).open("/dev/full");
    let status = command("unprintable_panic_ends_its_fiber")
        .stdout(Stdio::null())
        .stderr(full.unwrap())
        .status();
    assert_eq!(status.unwrap().code(), Some(7));
}

/// Seen (in review): a program that has a handler for SIGURG (for urgent data, or because a library
/// of it is written in Go) got no signals once a runtime with a stall detector had started.
/// Cause: its handler was replaced. Cure: signals that are not the monitor's are passed on to it.
#[test]
fn monitor_leaves_signals_of_others() {
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn told(_: i32) {
        TOLD.fetch_add(1, Ordering::Relaxed);
    }
    if is_child() {
        // SAFETY: all-zero is a valid `sigaction`; the handler adds to a static, which is allowed.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = told as *const () as usize;
            assert_eq!(libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut()), 0);
        }
        // SAFETY: a signal that has a handler, to this thread.
        let raise = || assert_eq!(unsafe { libc::raise(libc::SIGURG) }, 0);
        raise();
        let patience = std::time::Duration::from_millis(10);
        let builder = fiber::Runtime::builder().processors(1).stall_detector(patience);
        let runtime = builder.on_stall(|_| ()).start().unwrap();
        raise();
        drop(runtime);
        std::process::exit(TOLD.load(Ordering::Relaxed) as i32);
    }
    let output = command("monitor_leaves_signals_of_others").output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
}
