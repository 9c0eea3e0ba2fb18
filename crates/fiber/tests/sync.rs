//! Locks and channels, for fibers and plain threads, on either back end.

extern crate weftwork_fiber as fiber;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::TryLockError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fiber::sync::mpsc::{RecvTimeoutError, TryRecvError, TrySendError};
use fiber::sync::{
    Barrier, Condvar, Event, LazyLock, Mutex, Once, OnceLock, RwLock, Semaphore, mpmc, mpsc,
};
use fiber::{Builder, select, spawn, yield_now};

#[macro_use]
mod harness;

const SHORT: Duration = Duration::from_millis(2);
const LONG: Duration = Duration::from_secs(60);

contract! {
    a_mutex_excludes_fibers_and_threads
    a_mutex_held_over_a_suspension_suspends_who_waits
    a_waiter_is_overtaken_once
    a_time_out_takes_nothing
    a_mutex_is_poisoned_by_a_panic_of_its_owner
    a_writer_is_not_starved_by_readers
    readers_share
    notify_one_wakes_who_has_waited_longest
    a_condition_times_out
    permits_are_given_in_order
    no_permits_are_granted_behind_a_grant
    too_many_permits_are_refused_with_a_line
    a_barrier_lets_all_go_at_once_again_and_again
    an_event_stays_set_until_it_is_reset
    what_is_made_once_is_made_once
    a_message_goes_to_one_receiver
    a_full_channel_holds_its_senders_back
    hand_to_hand_waits_for_the_other
    a_closed_channel_says_so
    a_receive_times_out_and_loses_nothing
    fibers_and_threads_talk
    select_is_fair_among_those_that_are_ready
    select_of_both_directions_meets
    select_falls_to_its_default
    select_hears_of_a_closed_channel
}

/// Fibers of this runtime and plain threads at the same time.
fn everywhere(fibers: usize, threads: usize, work: impl Fn(usize) + Send + Sync + 'static) {
    let work = Arc::new(work);
    let threads: Vec<_> = (0..threads)
        .map(|n| {
            let work = Arc::clone(&work);
            std::thread::spawn(move || work(n))
        })
        .collect();
    let fibers: Vec<_> = (0..fibers)
        .map(|n| {
            let work = Arc::clone(&work);
            spawn(move || work(n))
        })
        .collect();
    fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
    fiber::offload(|| threads.into_iter().for_each(|thread| thread.join().unwrap()));
}

/// Lets the fibers that are ready go as far as they get, on whatever processor.
fn until(condition: impl Fn() -> bool) {
    while !condition() {
        fiber::sleep(Duration::from_millis(1));
    }
}

/// Starts a fiber that says so, for [`until_all_wait`].
fn spawn_on_one<T: Send + 'static>(
    begun: &Arc<AtomicUsize>,
    wait: impl FnOnce() -> T + Send + 'static,
) -> fiber::JoinHandle<T> {
    let begun = Arc::clone(begun);
    let begin = move || {
        begun.fetch_add(1, Ordering::SeqCst);
        wait()
    };
    Builder::new().processor(0).spawn(begin).unwrap()
}

/// Waits until `count` have begun, and all of them wait: they share a processor, and no other fiber
/// runs there before.
fn until_all_wait(begun: &AtomicUsize, count: usize) {
    until(|| begun.load(Ordering::SeqCst) == count);
    let after_them = Builder::new().processor(0).spawn(|| ());
    after_them.unwrap().join().unwrap();
}

fn a_mutex_excludes_fibers_and_threads() {
    let total = Arc::new(Mutex::new(0));
    let sum = Arc::clone(&total);
    everywhere(20, 3, move |_| {
        for round in 0..200 {
            let mut sum = sum.lock().unwrap();
            let seen = *sum;
            if round % 16 == 0 {
                yield_now();
            }
            *sum = seen + 1;
        }
    });
    assert_eq!(*total.lock().unwrap(), 23 * 200);
}

fn a_mutex_held_over_a_suspension_suspends_who_waits() {
    let lock = Arc::new(Mutex::new(()));
    let guard = lock.lock().unwrap();
    let other = Arc::clone(&lock);
    let waiter = spawn(move || drop(other.lock().unwrap()));
    fiber::sleep(SHORT);
    assert!(!waiter.is_finished());
    drop(guard);
    waiter.join().unwrap();
}

/// One fiber takes the lock again and again without a pause between; the waiter gets it all the
/// same.
fn a_waiter_is_overtaken_once() {
    let lock = Arc::new(Mutex::new(0));
    let served = Arc::new(AtomicBool::new(false));
    let (waiter_lock, flag) = (Arc::clone(&lock), Arc::clone(&served));
    let mut guard = lock.lock().unwrap();
    let waiter = spawn(move || {
        let turns = *waiter_lock.lock().unwrap();
        flag.store(true, Ordering::Relaxed);
        turns
    });
    while !served.load(Ordering::Relaxed) {
        *guard += 1;
        drop(guard);
        guard = lock.lock().unwrap();
        yield_now();
    }
    drop(guard);
    waiter.join().unwrap();
}

fn a_time_out_takes_nothing() {
    let lock = Mutex::new(());
    let guard = lock.lock().unwrap();
    let late = lock.lock_timeout(SHORT);
    assert!(matches!(late, Err(TryLockError::WouldBlock)));
    assert!(matches!(lock.try_lock(), Err(TryLockError::WouldBlock)));
    drop(guard);
    assert!(lock.lock_timeout(SHORT).is_ok());
    assert!(lock.try_lock().is_ok());

    let semaphore = Semaphore::new(1);
    let permit = semaphore.acquire();
    assert!(semaphore.acquire_timeout(SHORT).is_none());
    drop(permit);
    assert_eq!(semaphore.available(), 1);

    let shelf = RwLock::new(());
    let reading = shelf.read().unwrap();
    assert!(matches!(shelf.write_timeout(SHORT), Err(TryLockError::WouldBlock)));
    assert!(shelf.read_timeout(SHORT).is_ok(), "the writer is still in the queue");
    drop(reading);
    assert!(shelf.try_write().is_ok());
}

fn a_mutex_is_poisoned_by_a_panic_of_its_owner() {
    let lock = Arc::new(Mutex::new(1));
    let other = Arc::clone(&lock);
    let owner = spawn(move || {
        let mut value = other.lock().unwrap();
        *value = 2;
        panic!("half way");
    });
    assert!(owner.join().is_err());
    assert!(lock.is_poisoned());
    assert_eq!(*lock.lock().unwrap_err().into_inner(), 2);
    assert!(matches!(lock.try_lock(), Err(TryLockError::Poisoned(_))));
    lock.clear_poison();
    assert_eq!(*lock.lock().unwrap(), 2);

    let shelf = RwLock::new(());
    let reader = catch_unwind(AssertUnwindSafe(|| {
        let _read = shelf.read().unwrap();
        panic!("a reader changes nothing");
    }));
    assert!(reader.is_err() && shelf.write().is_ok());
    let writer = catch_unwind(AssertUnwindSafe(|| {
        let _write = shelf.write().unwrap();
        panic!("half way");
    }));
    assert!(writer.is_err() && shelf.read().is_err());
}

/// While one reader has the lock a writer comes, and then readers without end: they are queued
/// behind the writer.
fn a_writer_is_not_starved_by_readers() {
    let shelf = Arc::new(RwLock::new(0));
    let first = shelf.read().unwrap();
    let writing = Arc::clone(&shelf);
    let writer = spawn(move || *writing.write().unwrap() = 1);
    until(|| shelf.try_read().is_err());
    let reading = Arc::clone(&shelf);
    let reader = spawn(move || *reading.read().unwrap());
    fiber::sleep(SHORT);
    assert!(!reader.is_finished(), "the reader passed the writer");
    drop(first);
    assert_eq!(reader.join().unwrap(), 1);
    writer.join().unwrap();
}

fn readers_share() {
    let shelf = Arc::new(RwLock::new(7));
    let meeting = Arc::new(Barrier::new(4));
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let (shelf, meeting) = (Arc::clone(&shelf), Arc::clone(&meeting));
            spawn(move || {
                let value = shelf.read().unwrap();
                meeting.wait();
                *value
            })
        })
        .collect();
    for reader in readers {
        assert_eq!(reader.join().unwrap(), 7);
    }
}

fn notify_one_wakes_who_has_waited_longest() {
    let pair = Arc::new((Mutex::new((0, Vec::new())), Condvar::new()));
    let waiters: Vec<_> = (0..3)
        .map(|n| {
            let other = Arc::clone(&pair);
            let waiter = spawn(move || {
                let mut state = other.0.lock().unwrap();
                state.0 += 1;
                let mut state = other.1.wait(state).unwrap();
                state.1.push(n);
            });
            until(|| pair.0.lock().unwrap().0 == n + 1);
            waiter
        })
        .collect();
    for served in 1..=3 {
        pair.1.notify_one();
        until(|| pair.0.lock().unwrap().1.len() == served);
    }
    assert_eq!(pair.0.lock().unwrap().1, [0, 1, 2]);
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
}

fn a_condition_times_out() {
    let (lock, condition) = (Mutex::new(false), Condvar::new());
    let guard = lock.lock().unwrap();
    let (guard, ended) = condition.wait_timeout(guard, SHORT).unwrap();
    assert!(ended.timed_out() && !*guard);
    let waited = condition.wait_timeout_while(guard, SHORT, |ready| !*ready);
    let (guard, ended) = waited.unwrap();
    assert!(ended.timed_out());
    let waited = condition.wait_timeout_while(guard, SHORT, |_| false);
    assert!(!waited.unwrap().1.timed_out());
}

fn permits_are_given_in_order() {
    let semaphore = Arc::new(Semaphore::new(1));
    let order = Arc::new(Mutex::new(Vec::new()));
    let all = semaphore.acquire();
    let begun = Arc::new(AtomicUsize::new(0));
    let waiters = [(1, 2usize), (2, 1)].map(|(place, count)| {
        let (semaphore, order) = (Arc::clone(&semaphore), Arc::clone(&order));
        let waiter = spawn_on_one(&begun, move || {
            let _permits = semaphore.acquire_many(count);
            order.lock().unwrap().push(count);
        });
        until_all_wait(&begun, place);
        waiter
    });
    assert!(semaphore.try_acquire().is_none());
    drop(all);
    fiber::sleep(SHORT);
    assert!(
        semaphore.try_acquire().is_none(),
        "the free permit is kept for the first waiter, which needs two"
    );
    semaphore.release(1);
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    assert_eq!(*order.lock().unwrap(), [2, 1]);
    assert_eq!(semaphore.available(), 2);
}

/// Found by review: a request for no permits waited behind a fiber that kept its permit. Cause: a
/// permit that was handed on to the first waiter served no other.
fn no_permits_are_granted_behind_a_grant() {
    let semaphore = Arc::new(Semaphore::new(0));
    let begun = Arc::new(AtomicUsize::new(0));
    let waiters = [(1, 1usize), (2, 0), (3, 0)].map(|(place, count)| {
        let semaphore = Arc::clone(&semaphore);
        let waiter = spawn_on_one(&begun, move || semaphore.acquire_many(count).forget());
        until_all_wait(&begun, place);
        waiter
    });
    semaphore.release(1);
    let all = || waiters.iter().try_for_each(|waiter| waiter.wait());
    fiber::timeout(LONG / 12, all).unwrap();
}

/// Found by review: a number whose double overflows was taken for a smaller one.
fn too_many_permits_are_refused_with_a_line() {
    let semaphore = Arc::new(Semaphore::new(0));
    let begun = Arc::new(AtomicUsize::new(0));
    let waiting = Arc::clone(&semaphore);
    let waiter = spawn_on_one(&begun, move || waiting.acquire().forget());
    until_all_wait(&begun, 1);
    for count in [usize::MAX, (usize::MAX >> 1) + 2] {
        let release = AssertUnwindSafe(|| semaphore.release(count));
        let told = catch_unwind(release).unwrap_err();
        let told = told.downcast_ref::<String>().expect("a panic with a message");
        assert_eq!(told, "more permits than PERMITS_MAX");
    }
    assert!(!waiter.is_finished());
    semaphore.release(1);
    waiter.join().unwrap();
}

fn a_barrier_lets_all_go_at_once_again_and_again() {
    let barrier = Arc::new(Barrier::new(6));
    let (arrived, leaders) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&leaders);
    everywhere(4, 2, move |_| {
        for round in 1..=50 {
            arrived.fetch_add(1, Ordering::Relaxed);
            if barrier.wait().is_leader() {
                count.fetch_add(1, Ordering::Relaxed);
            }
            assert!(arrived.load(Ordering::Relaxed) >= round * 6, "the barrier opened early");
            barrier.wait();
        }
    });
    assert_eq!(leaders.load(Ordering::Relaxed), 50);
}

fn an_event_stays_set_until_it_is_reset() {
    let event = Arc::new(Event::new());
    assert!(!event.wait_timeout(SHORT));
    let begun = Arc::new(AtomicUsize::new(0));
    let waiters = [(); 3].map(|()| {
        let event = Arc::clone(&event);
        spawn_on_one(&begun, move || event.wait_timeout(LONG))
    });
    until_all_wait(&begun, 3);
    event.set();
    event.wait();
    event.reset();
    assert!(!event.is_set());
    for waiter in waiters {
        assert!(waiter.join().unwrap());
    }
}

fn what_is_made_once_is_made_once() {
    static LAZY: LazyLock<String> = LazyLock::new(|| "lazy".repeat(2));
    assert_eq!(*LAZY, "lazylazy");

    let cell = Arc::new((OnceLock::new(), AtomicUsize::new(0)));
    let shared = Arc::clone(&cell);
    everywhere(8, 2, move |n| {
        let value = *shared.0.get_or_init(|| {
            shared.1.fetch_add(1, Ordering::Relaxed);
            yield_now();
            n
        });
        assert_eq!(shared.0.get(), Some(&value));
    });
    assert_eq!(cell.1.load(Ordering::Relaxed), 1);
    assert!(cell.0.set(99).is_err());

    let once = Once::new();
    assert!(catch_unwind(AssertUnwindSafe(|| once.call_once(|| panic!("no")))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| once.call_once(|| ()))).is_err());
    once.call_once_force(|state| assert!(state.is_poisoned()));
    assert!(once.is_completed());
    let retried: OnceLock<u8> = OnceLock::new();
    assert!(catch_unwind(AssertUnwindSafe(|| retried.get_or_init(|| panic!("no")))).is_err());
    assert_eq!(*retried.get_or_init(|| 3), 3);
}

fn a_message_goes_to_one_receiver() {
    for (sender, receiver) in [mpmc::bounded(3), mpmc::unbounded(), mpmc::rendezvous()] {
        let got = Arc::new(Mutex::new(HashSet::new()));
        let (all, twice) = (Arc::clone(&got), Arc::new(AtomicUsize::new(0)));
        let double = Arc::clone(&twice);
        let ends = Mutex::new(vec![(sender, receiver); 6]);
        // 0 to 3 are fibers, and 0 and 1 also threads: each takes a pair of ends, and drops the one
        // it does not use.
        let role = AtomicUsize::new(0);
        everywhere(4, 2, move |_| {
            let (sender, receiver) = ends.lock().unwrap().pop().unwrap();
            let role = role.fetch_add(1, Ordering::Relaxed);
            if role.is_multiple_of(2) {
                drop(receiver);
                (0..100).for_each(|n| sender.send(role * 1000 + n).unwrap());
            } else {
                drop(sender);
                for message in receiver {
                    if !all.lock().unwrap().insert(message) {
                        double.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        assert_eq!(got.lock().unwrap().len(), 300);
        assert_eq!(twice.load(Ordering::Relaxed), 0);
    }
}

fn a_full_channel_holds_its_senders_back() {
    let (sender, receiver) = mpsc::sync_channel(2);
    sender.send(1).unwrap();
    sender.send(2).unwrap();
    assert_eq!(sender.try_send(3), Err(TrySendError::Full(3)));
    assert!(sender.send_timeout(3, SHORT).is_err());
    assert_eq!((receiver.len(), receiver.capacity()), (2, Some(2)));
    let waiting = spawn(move || sender.send(4));
    fiber::sleep(SHORT);
    assert!(!waiting.is_finished());
    assert_eq!(receiver.recv(), Ok(1));
    waiting.join().unwrap().unwrap();
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [2, 4]);
}

fn hand_to_hand_waits_for_the_other() {
    let (sender, receiver) = mpmc::rendezvous();
    assert_eq!(sender.try_send(1), Err(TrySendError::Full(1)));
    let waiting = spawn(move || sender.send(2));
    fiber::sleep(SHORT);
    assert!(!waiting.is_finished());
    assert_eq!(receiver.recv(), Ok(2));
    waiting.join().unwrap().unwrap();
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
}

fn a_closed_channel_says_so() {
    let (sender, receiver) = mpsc::channel();
    sender.send("kept").unwrap();
    drop(sender);
    assert_eq!(receiver.recv(), Ok("kept"), "a sent message is received");
    assert!(receiver.recv().is_err());

    let witness = Arc::new(());
    let (sender, receiver) = mpmc::bounded(1);
    sender.send(Arc::clone(&witness)).unwrap();
    let other = sender.clone();
    let waiting = spawn(move || other.send(Arc::new(())).is_err());
    fiber::sleep(SHORT);
    drop(receiver);
    assert!(waiting.join().unwrap(), "a waiting sender gets the error");
    assert_eq!(Arc::strong_count(&witness), 1, "messages without a receiver are dropped");
    assert!(sender.send(witness).is_err());
}

fn a_receive_times_out_and_loses_nothing() {
    let (sender, receiver) = mpmc::bounded(0);
    assert_eq!(receiver.recv_timeout(SHORT), Err(RecvTimeoutError::Timeout));
    let sending = spawn(move || {
        let sent = (0..200).filter(|&n| {
            if n % 50 == 0 {
                fiber::sleep(SHORT);
            }
            sender.send_timeout(n, Duration::from_micros(n)).is_ok()
        });
        sent.collect::<Vec<_>>()
    });
    let mut received = Vec::new();
    loop {
        match receiver.recv_timeout(Duration::from_micros(received.len() as u64)) {
            Ok(message) => received.push(message),
            Err(RecvTimeoutError::Timeout) => yield_now(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    assert_eq!(sending.join().unwrap(), received);
}

fn fibers_and_threads_talk() {
    let (question, questions) = mpsc::sync_channel(0);
    let (answer, answers) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        for n in questions {
            answer.send(n * 2).unwrap();
        }
    });
    for n in 0..200 {
        question.send(n).unwrap();
        assert_eq!(answers.recv(), Ok(n * 2));
    }
    drop(question);
    fiber::offload(|| thread.join().unwrap());
}

fn select_is_fair_among_those_that_are_ready() {
    let ends: Vec<_> = (0..3).map(|_| mpmc::bounded(400)).collect();
    for (sender, _) in &ends {
        (0..400).for_each(|n| sender.send(n).unwrap());
    }
    let mut count = [0; 3];
    for _ in 0..400 {
        select! {
            recv(ends[0].1) -> message => { message.unwrap(); count[0] += 1 }
            recv(ends[1].1) -> message => { message.unwrap(); count[1] += 1 }
            recv(ends[2].1) -> message => { message.unwrap(); count[2] += 1 }
        }
    }
    // 133 each is expected; as far off as 66 would be more than seven standard deviations.
    assert!(count.iter().all(|&n| n > 66), "{count:?}");
}

fn select_of_both_directions_meets() {
    let (left, from_left) = mpmc::rendezvous();
    let (right, from_right) = mpmc::rendezvous();
    let other = spawn(move || {
        let mut sum = 0;
        for _ in 0..200 {
            sum += select! {
                recv(from_left) -> n => n.unwrap(),
                send(right, 1) -> sent => { sent.unwrap(); 0 }
            };
        }
        sum
    });
    let (mut sent_sum, mut sent_count, mut received) = (0, 0, 0);
    for n in 0..200 {
        select! {
            send(left, n) -> sent => { sent.unwrap(); sent_sum += n; sent_count += 1; }
            recv(from_right) -> one => received += one.unwrap(),
        }
    }
    assert_eq!(other.join().unwrap(), sent_sum);
    assert_eq!(sent_count + received, 200);
}

fn select_falls_to_its_default() {
    let (sender, receiver) = mpmc::bounded::<u8>(1);
    let choose = || {
        select! {
            recv(receiver) -> message => message.ok(),
            default => None,
        }
    };
    assert_eq!(choose(), None);
    sender.send(5).unwrap();
    assert_eq!(choose(), Some(5));
    let timed_out = select! {
        recv(receiver) -> _ => false,
        default(SHORT) => true,
    };
    assert!(timed_out);
    sender.send(6).unwrap();
    let full = select! {
        send(sender, 7) -> _ => false,
        default(SHORT) => true,
    };
    assert!(full);
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [6], "only the selected send sends");
}

fn select_hears_of_a_closed_channel() {
    let (sender, receiver) = mpmc::bounded::<u8>(1);
    let (_open, silent) = mpmc::bounded::<u8>(1);
    let closing = spawn(move || {
        fiber::sleep(SHORT);
        drop(sender);
    });
    let heard = select! {
        recv(receiver) -> message => message.is_err(),
        recv(silent) -> _ => false,
    };
    assert!(heard);
    closing.join().unwrap();
}

/// Seen (in review): an operation that was added twice was in the channel's queue twice with one
/// node, and the queue then pointed into a frame that had ended.
#[test]
#[should_panic(expected = "an operation is added once")]
fn a_select_has_an_operation_once() {
    let (_sender, receiver) = mpmc::bounded::<u32>(1);
    let word = receiver.receiving();
    let mut select = fiber::sync::Select::new();
    select.receive(&word);
    select.receive(&word);
    select.wait_timeout(Duration::from_millis(1));
}

#[test]
fn guards_are_shown_as_what_they_guard() {
    let (mutex, lock) = (Mutex::new(7), RwLock::new("x"));
    let shown = mutex.lock().unwrap().to_string() + &lock.read().unwrap().to_string();
    assert_eq!(shown + &lock.write().unwrap().to_string(), "7xx");
}
