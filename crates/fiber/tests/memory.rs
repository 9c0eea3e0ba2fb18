//! Memory of fibers, and fibers without memory for a stack. Both concern a whole process, so each
//! test runs this program again, as a child.

extern crate weftwork_fiber as fiber;

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fiber::net::{Input, TcpStream};
use fiber::{Builder, Fiber, Flow, Runtime, Source, Stackless};

/// A stackless fiber that yields when it is dropped, as a destructor may.
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
    let limits = rustix::process::Rlimit { current: limit, maximum };
    rustix::process::setrlimit(rustix::process::Resource::As, limits).unwrap();
}

fn stackless_without_a_stack() {
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut near = near;
    let dropped = Arc::new(AtomicBool::new(false));
    let steps =
        GivesWay { stream: TcpStream::from(OwnedFd::from(far)), dropped: Arc::clone(&dropped) };
    let waits = fiber::spawn_stackless(steps);
    // It has had a stack for its beginning, and waits for input without one.
    (0..3).for_each(|_| fiber::yield_now());
    use_up_memory();
    let mut parked = Vec::new();
    // Also those stacks that the processor kept.
    while let Ok(fiber) = Builder::new().spawn(fiber::park) {
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
/// for lack of a stack ran as if inside the fiber. Its last stack belonged to another fiber by
/// then, and a yield jumped into it. Cure: they run as on a plain thread.
#[test]
fn stackless_without_stack_memory() {
    in_child("stackless_without_stack_memory", || {
        let left_before = fiber::resources().buffers_left;
        let runtime = Runtime::builder().processors(1).start().unwrap();
        runtime.run(stackless_without_a_stack);
        drop(runtime);
        assert_eq!(fiber::resources().buffers_left, left_before);
    });
}

/// Calls `f` in a process that runs nothing but the test of this name.
fn in_child(name: &str, f: fn()) {
    if std::env::var_os("CHILD").is_some() {
        return f();
    }
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program);
    child.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    let output = child.env("CHILD", "1").output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {message}", output.status);
}

const COUNT: usize = 16_000;

/// Bytes of resident memory, without the kernel's page tables.
fn resident() -> usize {
    let now = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = now.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Growth of resident memory for each of many fibers, which wait.
fn growth(start: impl Fn() -> Fiber + Send + 'static) -> usize {
    let runtime = Runtime::builder().processors(1).start().unwrap();
    let grown = runtime.run(move || {
        let start_hundred = || {
            (0..100).for_each(|_| drop(start()));
            fiber::yield_now();
        };
        start_hundred();
        let before = resident();
        (0..COUNT / 100).for_each(|_| start_hundred());
        resident() - before
    });
    assert!(runtime.fiber_count() >= COUNT + 100);
    std::mem::forget(runtime);
    grown / COUNT
}

/// 4,096 bytes are the page of its stack.
#[test]
fn parked_fiber_is_small() {
    in_child("parked_fiber_is_small", || {
        let start = || Builder::new().spawn_detached(fiber::park).unwrap();
        let each = growth(start);
        assert!(each <= 4352, "{each} bytes");
    });
}

struct Parks;

impl Stackless for Parks {
    fn begin(&mut self) -> Flow {
        Flow::Park
    }

    fn resumed(&mut self) -> Flow {
        Flow::Done
    }
}

#[test]
fn waiting_stackless_fiber_is_small() {
    in_child("waiting_stackless_fiber_is_small", || {
        let start = || Builder::new().spawn_stackless_detached(Parks).unwrap();
        let each = growth(start);
        assert!(each <= 384, "{each} bytes");
    });
}

/// Uses up most of a stack.
fn go_deep() {
    std::hint::black_box(&mut [1_u8; 40 * 1024]);
}

/// Pages of stacks that a processor has cached go once it is idle, those of others at once.
#[test]
fn deep_fibers_give_pages_back() {
    in_child("deep_fibers_give_pages_back", || {
        let runtime = Runtime::builder().processors(1).start().unwrap();
        let before = runtime.run(|| {
            let before = resident();
            let go_deep_and_park = || {
                go_deep();
                fiber::park();
            };
            let start = |_| fiber::spawn(go_deep_and_park);
            let fibers: Vec<_> = (0..1000).map(start).collect();
            fiber::yield_now();
            fibers.iter().for_each(|fiber| fiber.fiber().unpark());
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
            before
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        while resident() > before + 1000 * 2 * 4096 {
            assert!(Instant::now() < deadline, "{} bytes", resident() - before);
            std::thread::yield_now();
        }
    });
}

/// Seen (in review): a program that had once had a million fibers at a time kept 4 GB for good.
/// Cause: a free stack keeps its uppermost page, however many are free. Cure: of many, an idle
/// processor gives those of the coldest back.
#[test]
fn a_peak_of_fibers_gives_memory_back() {
    const PEAK: usize = 20_000;
    in_child("a_peak_of_fibers_gives_memory_back", || {
        let runtime = Runtime::builder().processors(1).start().unwrap();
        let before = runtime.run(|| {
            let before = resident();
            let fibers: Vec<_> = (0..PEAK).map(|_| fiber::spawn(fiber::park)).collect();
            assert!(resident() > before + PEAK * 4096 / 2, "a stack is a page at least");
            fibers.iter().for_each(|fiber| fiber.fiber().unpark());
            fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
            before
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        while resident() > before + PEAK * 4096 / 2 {
            assert!(Instant::now() < deadline, "{} bytes", resident() - before);
            std::thread::yield_now();
        }
    });
}
