//! All interleavings of small programs, by loom:
//!
//! ```console
//! $ RUSTFLAGS="--cfg loom" cargo test -p weftwork-fiber --lib --release models
//! ```
//!
//! A lost wake-up is a deadlock there, and a broken exclusion an access that loom's cell refuses. A
//! time-out is one that has passed, tried at every point. With three threads the number of
//! preemptions is bounded, as loom advises.

use std::sync::mpsc::{RecvTimeoutError, TrySendError};
use std::time::Instant;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::channel::{Channel, Slot};
use super::mutex::RawMutex;
use super::semaphore::RawSemaphore;
use super::short::{ShortLock, SpinLock};
use super::wait::parker::Processor;
use super::wait::{Node, Queue, Wait, Wakes};
use super::{Barrier, Condvar, Event, Mutex, Once, RwLock, Select};
use crate::base::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::switch::reason::WaitReason;

fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Data for one thread at a time.
struct Exclusive(UnsafeCell<u32>);

// SAFETY: that no two are in there together is what the models prove; loom panics otherwise.
unsafe impl Sync for Exclusive {}

impl Exclusive {
    fn new() -> Exclusive {
        Exclusive(UnsafeCell::new(0))
    }

    fn touch(&self) {
        // SAFETY: as above.
        self.0.with_mut(|count| unsafe { *count += 1 });
    }

    fn count(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|count| unsafe { *count })
    }
}

#[test]
fn the_short_lock_excludes() {
    check(3, || {
        let lock = Arc::new(SpinLock::new(0));
        let other = Arc::clone(&lock);
        let thread = thread::spawn(move || other.with(|count| *count += 1));
        lock.with(|count| *count += 1);
        thread.join().unwrap();
        assert_eq!(lock.with(|count| *count), 2);
    });
}

fn excludes(threads: u32, rounds: u32, preemptions: usize) {
    check(preemptions, move || {
        let shared = Arc::new((RawMutex::new(), Exclusive::new()));
        let work = move |shared: &(RawMutex, Exclusive)| {
            for _ in 0..rounds {
                if !shared.0.try_lock() {
                    shared.0.lock_slow(None);
                }
                shared.1.touch();
                shared.0.unlock();
            }
        };
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || work(&shared))
            })
            .collect();
        work(&shared);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(shared.1.count(), threads * rounds);
    });
}

#[test]
fn mutex_of_two() {
    excludes(2, 2, 4);
}

#[test]
fn mutex_of_three() {
    excludes(3, 1, 2);
}

/// The second waiter is behind one whose time is over: whichever wins that race, the second is
/// woken.
#[test]
fn mutex_timeout_meets_hand_over() {
    check(2, || {
        let shared = Arc::new((RawMutex::new(), Exclusive::new()));
        assert!(shared.0.try_lock());
        let (impatient, patient) = (Arc::clone(&shared), Arc::clone(&shared));
        let impatient = thread::spawn(move || {
            let locked = impatient.0.lock_slow(Some(Instant::now()));
            if locked {
                impatient.1.touch();
                impatient.0.unlock();
            }
            u32::from(locked)
        });
        let patient = thread::spawn(move || {
            assert!(patient.0.lock_slow(None));
            patient.1.touch();
            patient.0.unlock();
        });
        shared.1.touch();
        shared.0.unlock();
        let impatient = impatient.join().unwrap();
        patient.join().unwrap();
        assert!(shared.0.try_lock(), "the mutex is still locked");
        assert_eq!(shared.1.count(), 2 + impatient);
    });
}

fn wait_for(semaphore: &RawSemaphore, count: usize, deadline: Option<Instant>) -> bool {
    semaphore.acquire(count, deadline, WaitReason::Park)
}

#[test]
fn a_semaphore_keeps_count() {
    check(3, || {
        let shared = Arc::new((RawSemaphore::new(1), Exclusive::new()));
        let work = |shared: &(RawSemaphore, Exclusive)| {
            assert!(wait_for(&shared.0, 1, None));
            shared.1.touch();
            shared.0.release(1);
        };
        let others = [Arc::clone(&shared), Arc::clone(&shared)]
            .map(|shared| thread::spawn(move || work(&shared)));
        work(&shared);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(shared.1.count(), 3);
        assert_eq!(shared.0.available(), 1);
        assert!(shared.0.try_acquire(1), "a waiter is still recorded");
    });
}

/// Two fibers of one processor, of which the second cannot suspend, beside a thread that has the
/// lock twice, so that it is kept for one that was overtaken.
#[test]
fn mutex_serves_blocking_waiter() {
    check(3, || {
        let shared = Arc::new((RawMutex::new(), Exclusive::new()));
        let processor = Processor::default();
        let work = |shared: &(RawMutex, Exclusive)| {
            if !shared.0.try_lock() {
                assert!(shared.0.lock_slow(None));
            }
            shared.1.touch();
            shared.0.unlock();
        };
        assert!(shared.0.try_lock());
        let fibers = [true, false].map(|suspends| {
            let (shared, processor) = (Arc::clone(&shared), processor.clone());
            thread::spawn(move || processor.run(suspends, || work(&shared)))
        });
        shared.0.unlock();
        work(&shared);
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert_eq!(shared.1.count(), 3);
        assert!(shared.0.try_lock(), "the mutex is still locked or kept");
    });
}

/// Permits are granted to one fiber of a processor while another, which cannot suspend, wants so
/// many as well.
fn blocks_for(permits: usize, granted: usize, blocking: usize) {
    check(2, move || {
        let semaphore = Arc::new(RawSemaphore::new(permits));
        let processor = Processor::default();
        assert!(semaphore.try_acquire(permits));
        let fibers = [(true, granted), (false, blocking)].map(|(suspends, count)| {
            let (semaphore, processor) = (Arc::clone(&semaphore), processor.clone());
            thread::spawn(move || {
                processor.run(suspends, || {
                    assert!(wait_for(&semaphore, count, None));
                    semaphore.release(count);
                });
            })
        });
        semaphore.release(permits);
        assert!(wait_for(&semaphore, 1, None));
        semaphore.release(1);
        fibers.into_iter().for_each(|fiber| fiber.join().unwrap());
        assert!(semaphore.try_acquire(permits), "permits are lost or still kept");
        assert_eq!(semaphore.available(), 0);
    });
}

#[test]
fn a_permit_is_taken_back() {
    blocks_for(1, 1, 1);
}

#[test]
fn writer_takes_permits_back() {
    blocks_for(2, 1, 2);
}

#[test]
fn reader_takes_permit_back() {
    blocks_for(2, 2, 1);
}

/// The first waiter needs more than there will be; when its time is over, the next one continues.
#[test]
fn semaphore_waiter_gives_up() {
    check(3, || {
        let semaphore = Arc::new(RawSemaphore::new(1));
        let (greedy, modest) = (Arc::clone(&semaphore), Arc::clone(&semaphore));
        let greedy = thread::spawn(move || {
            if wait_for(&greedy, 2, Some(Instant::now())) {
                panic!("there is only one permit");
            }
        });
        let modest = thread::spawn(move || {
            assert!(wait_for(&modest, 1, None));
            modest.release(1);
        });
        greedy.join().unwrap();
        modest.join().unwrap();
        assert!(semaphore.try_acquire(1));
    });
}

#[test]
fn a_lock_is_for_readers_or_one_writer() {
    check(2, || {
        let shared = Arc::new((RwLock::new(()), Exclusive::new()));
        let readers = [Arc::clone(&shared), Arc::clone(&shared)].map(|shared| {
            thread::spawn(move || {
                let _read = shared.0.read().unwrap();
                shared.1.count()
            })
        });
        {
            let _write = shared.0.write().unwrap();
            shared.1.touch();
        }
        for reader in readers {
            assert!(reader.join().unwrap() <= 1);
        }
    });
}

#[test]
fn a_condition_that_is_notified_is_seen() {
    check(3, || {
        let shared = Arc::new((Mutex::new(false), Condvar::new()));
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            *other.0.lock().unwrap() = true;
            other.1.notify_one();
        });
        let ready = shared.1.wait_while(shared.0.lock().unwrap(), |ready| !*ready);
        drop(ready.unwrap());
        thread.join().unwrap();
    });
}

/// One notification, two waiters of which one is impatient: if it says that its time was over, the
/// other got it.
#[test]
fn notification_survives_time_out() {
    check(2, || {
        let shared = Arc::new((Mutex::new(0), Condvar::new()));
        let impatient = Arc::clone(&shared);
        let impatient = thread::spawn(move || {
            let mut tickets = impatient.0.lock().unwrap();
            if *tickets == 0 {
                let result = impatient.1.wait_timeout(tickets, std::time::Duration::ZERO);
                let (again, ended) = result.unwrap();
                tickets = again;
                if !ended.timed_out() && *tickets == 0 {
                    return; // Another fiber took the announced item.
                }
            }
            if *tickets > 0 {
                *tickets -= 1;
            }
        });
        *shared.0.lock().unwrap() += 1;
        shared.1.notify_one();
        *shared.0.lock().unwrap() += 1;
        shared.1.notify_one();
        let mut tickets =
            shared.1.wait_while(shared.0.lock().unwrap(), |tickets| *tickets == 0).unwrap();
        *tickets -= 1;
        drop(tickets);
        impatient.join().unwrap();
    });
}

#[test]
fn an_event_lets_everybody_go() {
    check(3, || {
        let event = Arc::new(Event::new());
        let waiters = [Arc::clone(&event), Arc::clone(&event)]
            .map(|event| thread::spawn(move || event.wait()));
        event.set();
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
}

#[test]
fn a_barrier_has_one_leader() {
    check(3, || {
        let barrier = Arc::new(Barrier::new(2));
        let other = Arc::clone(&barrier);
        let other = thread::spawn(move || other.wait().is_leader());
        let leads = barrier.wait().is_leader();
        assert_ne!(leads, other.join().unwrap());
    });
}

#[test]
fn once_runs_once() {
    check(3, || {
        let shared = Arc::new((Once::new(), Exclusive::new()));
        let call = |shared: &(Once, Exclusive)| {
            shared.0.call_once(|| shared.1.touch());
            assert_eq!(shared.1.count(), 1);
        };
        let other = Arc::clone(&shared);
        let other = thread::spawn(move || call(&other));
        call(&shared);
        other.join().unwrap();
    });
}

fn passes_in_order(capacity: Option<usize>) {
    check(3, move || {
        let channel = Arc::new(Channel::new(capacity));
        let sender = Arc::clone(&channel);
        let sender = thread::spawn(move || {
            sender.send(1, None).unwrap();
            sender.send(2, None).unwrap();
            sender.send(3, None).unwrap();
            sender.drop_sender();
        });
        assert_eq!(channel.receive(None), Ok(1));
        assert_eq!(channel.receive(None), Ok(2));
        assert_eq!(channel.receive(None), Ok(3));
        assert_eq!(channel.receive(None), Err(RecvTimeoutError::Disconnected));
        sender.join().unwrap();
    });
}

#[test]
fn a_channel_with_room_passes_in_order() {
    passes_in_order(Some(1));
}

/// Two blocks of one message each, both used again.
#[test]
fn two_blocks_keep_order() {
    passes_in_order(Some(2));
}

#[test]
fn rendezvous_channel_keeps_order() {
    passes_in_order(Some(0));
}

#[test]
fn unbounded_channel_keeps_order() {
    passes_in_order(None);
}

#[test]
fn a_message_is_sent_or_handed_back() {
    check(3, || {
        let channel = Arc::new(Channel::new(Some(0)));
        let sender = Arc::clone(&channel);
        let sender = thread::spawn(move || match sender.send(7, Some(Instant::now())) {
            Ok(()) => 1,
            Err(TrySendError::Full(7)) => 0,
            Err(other) => panic!("{other:?}"),
        });
        let received = channel.receive(Some(Instant::now()));
        assert_eq!(sender.join().unwrap(), usize::from(received.is_ok()));
    });
}

#[test]
fn receiver_drop_ends_waiting_send() {
    check(3, || {
        let channel = Arc::new(Channel::new(Some(0)));
        let sender = Arc::clone(&channel);
        let sender = thread::spawn(move || sender.send(7, None));
        channel.drop_receiver();
        assert_eq!(sender.join().unwrap(), Err(TrySendError::Disconnected(7)));
    });
}

/// A message, a receiver that goes and one that stays: the message is not left behind.
#[test]
fn receiver_gives_up_beside_another() {
    check(2, || {
        let channel = Arc::new(Channel::new(Some(1)));
        let impatient = Arc::clone(&channel);
        let impatient = thread::spawn(move || impatient.receive(Some(Instant::now())).is_ok());
        let sender = Arc::clone(&channel);
        let sender = thread::spawn(move || sender.send(1, None).unwrap());
        if !impatient.join().unwrap() {
            assert_eq!(channel.receive(None), Ok(1));
        }
        sender.join().unwrap();
        assert_eq!(channel.len(), 0);
    });
}

#[test]
fn two_receivers_get_a_message_each() {
    check(2, || {
        let channel = Arc::new(Channel::new(Some(1)));
        let receivers = [Arc::clone(&channel), Arc::clone(&channel)]
            .map(|channel| thread::spawn(move || channel.receive(None).unwrap()));
        channel.send(1, None).unwrap();
        channel.send(2, None).unwrap();
        let sum: u32 = receivers.into_iter().map(|r| r.join().unwrap()).sum();
        assert_eq!(sum, 3);
    });
}

fn select_from(first: &Channel<u32>, second: &Channel<u32>) -> u32 {
    let (a, b) = (super::Receiving::new(first), super::Receiving::new(second));
    let mut select = Select::new();
    select.receive(&a);
    select.receive(&b);
    match select.wait() {
        0 => a.take().unwrap(),
        _ => b.take().unwrap(),
    }
}

/// Two senders, one on each channel: the select gets one message and leaves the other.
#[test]
fn select_takes_one_message() {
    check(2, || {
        let channels = Arc::new((Channel::new(Some(0)), Channel::new(Some(0))));
        let (to_first, to_second) = (Arc::clone(&channels), Arc::clone(&channels));
        let senders = [
            thread::spawn(move || to_first.0.send(1, None)),
            thread::spawn(move || to_second.1.send(2, None)),
        ];
        let first = select_from(&channels.0, &channels.1);
        let second = match first {
            1 => channels.1.receive(None),
            _ => channels.0.receive(None),
        };
        assert_eq!(first + second.unwrap(), 3);
        senders.into_iter().for_each(|sender| sender.join().unwrap().unwrap());
    });
}

/// A select that sends meets a select that receives, from hand to hand, on either of two channels.
#[test]
fn opposite_selects_meet() {
    check(2, || {
        let channels = Arc::new((Channel::new(Some(0)), Channel::new(Some(0))));
        let other = Arc::clone(&channels);
        let sender = thread::spawn(move || {
            let (a, b) = (super::Sending::new(&other.0, 1), super::Sending::new(&other.1, 2));
            let mut select = Select::new();
            select.send(&a);
            select.send(&b);
            select.wait() as u32 + 1
        });
        let received = select_from(&channels.0, &channels.1);
        assert_eq!(received, sender.join().unwrap());
    });
}

/// Shows that the checker works: a waiter that is queued without another check under the lock
/// misses a wake-up in between.
#[test]
#[should_panic(expected = "deadlock")]
fn catches_missing_recheck() {
    check(3, || {
        // std's `Arc`: loom's would panic again while the deadlock unwinds.
        let shared = std::sync::Arc::new((AtomicBool::new(false), ShortLock::new(Queue::new())));
        let other = std::sync::Arc::clone(&shared);
        let setter = thread::spawn(move || {
            other.0.store(true, Ordering::SeqCst);
            let mut wakes = Wakes::default();
            other.1.with(|queue| queue.grant_all(&mut wakes, |_| 0));
            wakes.wake();
        });
        if !shared.0.load(Ordering::SeqCst) {
            let wait = Wait::new();
            let node = Node::new(&wait, 0, std::ptr::null_mut());
            // SAFETY: the node stays in this frame until the wait is over.
            shared.1.with(|queue| unsafe { queue.push_back(&node) });
            wait.block(None);
        }
        setter.join().unwrap();
    });
}

/// The same for a message: a slot that is filled after the grant, when the frame that it is in may
/// have continued.
#[test]
#[should_panic(expected = "UnsafeCell")]
fn catches_late_slot() {
    check(3, || {
        let queue = std::sync::Arc::new(ShortLock::new(Queue::new()));
        let (wait, slot) = (Wait::new(), Slot::<u32>::new(None));
        let node = Node::new(&wait, 0, slot.address());
        // SAFETY: the node stays in this frame until the wait is over.
        queue.with(|queue| unsafe { queue.push_back(&node) });
        let other = std::sync::Arc::clone(&queue);
        let filler = thread::spawn(move || {
            let claimed = other.with(Queue::claim_front).expect("a waiter is in the queue");
            let slot = claimed.slot().cast::<Slot<u32>>();
            claimed.grant(0).wake();
            // SAFETY: wrong, and that is to be seen; the frame is still there, in the model.
            unsafe { (*slot).put(7) };
        });
        wait.block(None);
        let _ = slot.into_message();
        filler.join().unwrap();
    });
}

/// The same for exclusion: a lock that looks and then takes.
#[test]
#[should_panic]
fn catches_check_then_take() {
    check(3, || {
        let shared = Arc::new((AtomicUsize::new(0), Exclusive::new()));
        let work = |shared: &(AtomicUsize, Exclusive)| {
            if shared.0.load(Ordering::SeqCst) == 0 {
                shared.0.store(1, Ordering::SeqCst);
                shared.1.touch();
                shared.0.store(0, Ordering::SeqCst);
            }
        };
        let other = Arc::clone(&shared);
        let other = thread::spawn(move || work(&other));
        work(&shared);
        other.join().unwrap();
    });
}
