//! Fibers without memory for a stack. Limits hold for a whole process, so the test runs this
//! program again, as a child.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fiber::net::{Input, TcpStream};
use fiber::{Flow, Runtime, Source, Stackless};

/// A stackless fiber that gives way when it is dropped, as a destructor may.
struct GivesWay {
    stream: TcpStream,
    dropped: Arc<AtomicBool>,
}

impl Stackless for GivesWay {
    fn source(&self) -> Source<'_> {
        self.stream.source()
    }

    fn received(&mut self, _: io::Result<Input>) -> Flow {
        Flow::Done
    }
}

impl Drop for GivesWay {
    fn drop(&mut self) {
        fiber::yield_now();
        self.dropped.store(true, Ordering::SeqCst);
    }
}

/// No more address space: what is mapped stays, and nothing is added.
fn use_up_memory() {
    let now = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = now.split(' ').next().unwrap().parse().unwrap();
    let limit = Some(pages * 4096 + (1 << 20));
    let maximum = rustix::process::getrlimit(rustix::process::Resource::As).maximum;
    let limits = rustix::process::Rlimit {
        current: limit,
        maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::As, limits).unwrap();
}

fn stackless_without_a_stack() {
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut near = near;
    let dropped = Arc::new(AtomicBool::new(false));
    let steps = GivesWay {
        stream: TcpStream::from(OwnedFd::from(far)),
        dropped: Arc::clone(&dropped),
    };
    let waits = fiber::spawn_stackless(steps);
    // It has had a stack for its beginning, and waits for input without one.
    (0..3).for_each(|_| fiber::yield_now());
    use_up_memory();
    let mut parked = Vec::new();
    // Also those stacks that the processor kept.
    while let Ok(fiber) = fiber::Builder::new().spawn(fiber::park) {
        parked.push(fiber);
    }
    near.write_all(b"input").unwrap();
    let why = waits.join().unwrap_err();
    let why = why.downcast_ref::<String>().unwrap();
    assert!(why.contains("no memory for fiber stacks"), "{why}");
    assert!(dropped.load(Ordering::SeqCst));
    parked.iter().for_each(|fiber| fiber.cancel());
    parked.into_iter().for_each(|fiber| fiber.join().unwrap());
}

/// Seen (in review): a segmentation fault. Cause: the destructors of a stackless fiber that ends
/// for lack of a stack ran as if inside the fiber, whose last stack was another's by then, and
/// giving way there jumped into it. Cure: they run as on a plain thread.
#[test]
fn stackless_without_stack_memory() {
    const NAME: &str = "stackless_without_stack_memory";
    if std::env::var_os("CHILD").is_some() {
        let left_before = fiber::resources().buffers_left;
        let runtime = Runtime::builder().processors(1).start().unwrap();
        runtime.run(stackless_without_a_stack);
        drop(runtime);
        assert_eq!(fiber::resources().buffers_left, left_before);
        return;
    }
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program);
    child.args(["--exact", NAME, "--nocapture", "--test-threads=1"]);
    let output = child.env("CHILD", "1").output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {message}", output.status);
}
