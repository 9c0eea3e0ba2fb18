//! The edges of numbers: few that are large, and many that are small. Each operation is tried at
//! the ends of its type and beside them, against a model that counts in 128 bits, and ends with the
//! right answer or a clear refusal.

extern crate weftwork_fiber as fiber;

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fiber::net::{TcpListener, UnixStream};
use fiber::sync::{Barrier, Condvar, Event, Mutex, RwLock, Semaphore, mpmc, mpsc};
use fiber::{BackendChoice, Builder, Runtime};
use proptest::prelude::*;

fn on_each_back_end(test: impl Fn() + Clone + Send + Sync + 'static) {
    for backend in [BackendChoice::Uring, BackendChoice::Epoll] {
        let builder = Runtime::builder().processors(2).backend(backend);
        let runtime = builder.start().unwrap();
        runtime.run(test.clone());
        assert_eq!(runtime.shutdown(Duration::MAX), 0);
    }
}

/// Numbers at the ends of the types that they pass through, and beside them.
fn edges() -> impl Strategy<Value = u64> {
    const ENDS: [u64; 7] = [0, 1 << 10, 1 << 16, 1 << 31, 1 << 32, 1 << 62, 1 << 63];
    let end = prop::sample::select(&ENDS[..]);
    (end, 0u64..3, any::<bool>()).prop_map(
        |(end, by, is_below)| {
            if is_below { end.wrapping_sub(by) } else { end + by }
        },
    )
}

fn durations() -> impl Strategy<Value = Duration> {
    let secs = edges().prop_map(|secs| Duration::from_secs(secs.max(3600)));
    let millis = edges().prop_map(|millis| Duration::from_millis(millis.max(3_600_000)));
    prop_oneof![Just(Duration::MAX), secs, millis]
}

/// One operation of a test on a semaphore.
#[derive(Clone, Copy, Debug)]
enum Step {
    Release(usize),
    TryTake(usize),
    /// Another thread waits for one more permit than there are, while permits are released.
    ReleaseToWaiter(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let near_max = (0usize..3).prop_map(|by| Semaphore::PERMITS_MAX + 1 - by);
    let count = prop_oneof![edges().prop_map(|n| n as usize), near_max, 0usize..5].boxed();
    let step = prop_oneof![
        count.clone().prop_map(Step::Release),
        count.clone().prop_map(Step::TryTake),
        count.prop_map(Step::ReleaseToWaiter),
    ];
    prop::collection::vec(step, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Seen: `release(usize::MAX)` wrapped round, and took a permit away.
    #[test]
    fn semaphore_limit(steps in steps()) {
        const MAX: u128 = Semaphore::PERMITS_MAX as u128;
        let semaphore = Semaphore::new(0);
        let mut permits = 0u128;
        let released = |count| catch_unwind(AssertUnwindSafe(|| semaphore.release(count))).is_ok();
        for step in steps {
            match step {
                Step::Release(count) => {
                    let fits = permits + count as u128 <= MAX;
                    prop_assert_eq!(released(count), fits, "{} more than {}", count, permits);
                    permits += if fits { count as u128 } else { 0 };
                }
                Step::TryTake(count) => {
                    let taken = semaphore.try_acquire_many(count).map(|permit| permit.forget());
                    prop_assert_eq!(taken.is_some(), count as u128 <= permits);
                    permits -= if taken.is_some() { count as u128 } else { 0 };
                }
                Step::ReleaseToWaiter(count) if permits < MAX => {
                    let wanted = permits as usize + 1;
                    let fits = permits + count as u128 <= MAX;
                    std::thread::scope(|scope| {
                        let waiter = scope.spawn(|| semaphore.acquire_many(wanted).forget());
                        // The waiter is queued when a request for no permits is refused.
                        while semaphore.try_acquire_many(0).is_some() {
                            std::thread::yield_now();
                        }
                        assert_eq!(released(count), fits, "{count} more than {permits}");
                        if !fits || count == 0 {
                            semaphore.release(1);
                            permits += 1;
                        }
                        waiter.join().unwrap();
                    });
                    permits += if fits { count as u128 } else { 0 };
                    permits -= wanted as u128;
                }
                Step::ReleaseToWaiter(_) => {}
            }
            prop_assert_eq!(semaphore.available() as u128, permits);
        }
    }

    /// Seen: `read_at` at `u64::MAX` read from the file's own position, and moved it.
    #[test]
    fn no_offset_is_taken_for_another(offset in edges(), len in 1usize..9) {
        on_each_back_end(move || {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(b"0123456789").unwrap();
            let (near, _far) = UnixStream::pair().unwrap();
            let sent = near.send_cached_file(file.as_fd(), offset, u64::MAX, None);
            let cached = fiber::fs::is_cached(file.as_fd(), offset..offset.saturating_add(1));
            let mut file = fiber::fs::File::from(file);
            let mut got = vec![0; len];
            let read = file.read_at(&mut got, offset);
            let is_offset = i64::try_from(offset).is_ok();
            let rest = b"0123456789".get(offset.min(10) as usize..).unwrap_or_default();
            let read = refused(read).map(|len| len as u64);
            for (got, most) in [(read, len), (refused(sent), 10)] {
                // Beyond the length that a file can have, the kernel may say so.
                let is_beyond = offset > 1 << 60 && got.is_none();
                let expected = is_offset.then_some(rest.len().min(most) as u64);
                assert!(is_beyond || got == expected, "{got:?} from {offset}");
            }
            assert_eq!(cached, !rest.is_empty() || offset == u64::MAX, "cached at {offset}");
            // The position is at the end, where it was.
            assert_eq!(file.read(&mut got).unwrap(), 0, "moved by {offset}");
            // A hole as large as disks are, or beyond what a file system can.
            let written = file.write_at(&got[..1], offset);
            assert!(written.is_err() || (is_offset && written.unwrap() == 1), "written at {offset}");
            assert_eq!(file.read_exact_at(&mut got, u64::MAX).unwrap_err().kind(), ErrorKind::InvalidInput);
        });
    }

    /// Every wait with a time-out, which never comes.
    #[test]
    fn no_duration_is_too_long(long in durations()) {
        on_each_back_end(move || {
            let semaphore = Semaphore::new(1);
            assert!(semaphore.acquire_timeout(long).is_some());
            let (sender, receiver) = mpmc::bounded(1);
            sender.send_timeout(1, long).unwrap();
            let next = sender.clone();
            let full = fiber::spawn(move || next.send_timeout(2, long).unwrap());
            assert_eq!(receiver.recv_timeout(long).unwrap(), 1);
            assert_eq!(receiver.recv_timeout(long).unwrap(), 2);
            full.join().unwrap();
            let empty = fiber::spawn(move || receiver.recv_timeout(long).unwrap());
            fiber::yield_now();
            sender.send(3).unwrap();
            assert_eq!(empty.join().unwrap(), 3);
            let (lock, changed) = (Mutex::new(false), Condvar::new());
            fiber::scope(|scope| {
                scope.spawn(|| {
                    *lock.lock().unwrap() = true;
                    changed.notify_all();
                });
                let is_set = |set: &mut bool| !*set;
                let guard = lock.lock_timeout(long).unwrap();
                drop(changed.wait_timeout_while(guard, long, is_set).unwrap());
            });
            assert!(RwLock::new(()).write_timeout(long).is_ok());
            let event = Event::new();
            event.set();
            assert!(event.wait_timeout(long));
            let parked = fiber::spawn(move || fiber::park_timeout(long));
            let sleeper = fiber::spawn(move || fiber::sleep(long));
            let accepts = fiber::spawn(move || {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                fiber::timeout(long, || listener.accept()).map(drop)
            });
            let (near, far) = UnixStream::pair().unwrap();
            near.set_read_timeout(Some(long)).unwrap();
            let reads = fiber::spawn(move || (&near).read(&mut [0; 1]).unwrap());
            (0..3).for_each(|_| fiber::yield_now());
            (&far).write_all(b"x").unwrap();
            parked.fiber().unpark();
            sleeper.cancel();
            accepts.cancel();
            parked.join().unwrap();
            sleeper.join().unwrap();
            assert!(fiber::is_cancellation(&accepts.join().unwrap().unwrap_err()));
            assert_eq!(reads.join().unwrap(), 1);
        });
    }

    /// Seen: `stack_size(usize::MAX)` panicked, because the largest stack there may be did not fit
    /// its own description.
    #[test]
    fn any_stack_size(size in edges()) {
        on_each_back_end(move || {
            let fiber = Builder::new().stack_size(size as usize).spawn(|| 7).unwrap();
            assert_eq!(fiber.join().unwrap(), 7);
        });
    }

    #[test]
    fn any_capacity_and_processor_count(number in edges()) {
        let number = number as usize;
        on_each_back_end(move || {
            let (sender, receiver) = mpsc::sync_channel(number.max(1));
            sender.send(1).unwrap();
            assert_eq!(receiver.recv().unwrap(), 1);
            let _ = Barrier::new(number);
            assert_eq!(Builder::new().processor(number).spawn(|| 7).unwrap().join().unwrap(), 7);
        });
        for builder in [Runtime::builder().processors(number), Runtime::builder().max_processors(number)] {
            if number > 8192 {
                assert_eq!(builder.start().unwrap_err().kind(), ErrorKind::InvalidInput);
            }
        }
    }
}

/// The result, or `None` if the kernel or this crate rejected an argument.
fn refused<T>(result: io::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if error.kind() == ErrorKind::InvalidInput => None,
        Err(error) if error.raw_os_error() == Some(libc::EOVERFLOW) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Seen: a vectored write of more slices than `writev(2)` takes failed, where std writes the first
/// of them.
#[test]
fn any_number_of_slices() {
    on_each_back_end(|| {
        for count in [0, 1, 1023, 1024, 1025, 5000] {
            let (near, far) = UnixStream::pair().unwrap();
            let slices = vec![IoSlice::new(b"x"); count];
            let written = (&near).write_vectored(&slices).unwrap();
            assert_eq!(written, count.min(1024), "{count} slices");
            drop(near);
            assert_eq!(io::copy(&mut &far, &mut io::sink()).unwrap(), written as u64);
        }
    });
}

/// Buffers of more than 4 GiB, of which no page is touched that nothing is written to.
#[test]
fn buffer_longer_than_a_transfer() {
    on_each_back_end(|| {
        let len = (1 << 32) + 1;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let file = fiber::fs::File::from(file);
        let Some(mut buffer) = zeroed(len) else {
            return; // This machine has no such address space.
        };
        assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 10);
        let (near, far) = UnixStream::pair().unwrap();
        (&far).write_all(b"weft").unwrap();
        assert_eq!((&near).read(&mut buffer).unwrap(), 4);
        assert_eq!(&buffer[..10], b"weft456789");
        near.set_write_timeout(Some(Duration::from_millis(1))).unwrap();
        let written = (&near).write(&buffer);
        assert!(written.is_ok_and(|len| len > 0), "a part is written");
    });
}

fn zeroed(len: usize) -> Option<Vec<u8>> {
    let layout = std::alloc::Layout::array::<u8>(len).unwrap();
    // SAFETY: the layout is not empty, and a vector of this length and capacity frees it with the
    // same one.
    unsafe {
        let memory = std::alloc::alloc_zeroed(layout);
        (!memory.is_null()).then(|| Vec::from_raw_parts(memory, len, len))
    }
}

/// Many that wait for one thing, each of which gets it; and many timers at once.
#[test]
fn ten_thousand_wait_and_each_is_served() {
    const MANY: usize = 10_000;
    on_each_back_end(|| {
        let semaphore = Arc::new(Semaphore::new(0));
        let (event, barrier) = (Arc::new(Event::new()), Arc::new(Barrier::new(MANY + 1)));
        let soon = Instant::now() + Duration::from_millis(1);
        let waiters: Vec<_> = (0..MANY)
            .map(|_| {
                let (semaphore, event) = (Arc::clone(&semaphore), Arc::clone(&event));
                let barrier = Arc::clone(&barrier);
                fiber::spawn(move || {
                    fiber::sleep(soon.saturating_duration_since(Instant::now()));
                    assert!(semaphore.acquire_timeout(Duration::MAX).is_some());
                    event.wait();
                    barrier.wait();
                })
            })
            .collect();
        semaphore.release(1);
        semaphore.release(MANY);
        event.set();
        barrier.wait();
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        assert_eq!(semaphore.available(), MANY + 1);
    });
}
