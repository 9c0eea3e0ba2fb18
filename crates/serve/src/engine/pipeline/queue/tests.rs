//! Guarantees of a queue for threads that put, offer, wait and take.

use super::*;
use std::thread;

const PATIENCE: Duration = Duration::from_secs(30);

fn pending(items: impl IntoIterator<Item = u32>) -> VecDeque<u32> {
    items.into_iter().collect()
}

fn own() -> Arc<LoopHandle> {
    LoopHandle::new().unwrap()
}

/// Waits until the queue's counters are as expected.
fn wait_until<T>(queue: &Queue<T>, is_so: impl Fn(Counted) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so(queue.counted()) {
        assert!(Instant::now() < deadline, "{:?}", queue.counted());
        thread::yield_now();
    }
}

#[test]
fn a_full_queue_wakes_those_in_line() {
    let (queue, own) = (Queue::new(3, None), own());
    let mut pending = pending(1..=5);
    queue.offer(&mut pending, &own);
    assert_eq!(pending, [4, 5]);
    assert!(!queue.has_space_or_wait(&own));
    assert!(!own.waker.is_woken());
    let mut batch = Vec::new();
    assert!(queue.take(2, &mut batch), "one more");
    assert_eq!(batch, [1, 2]);
    assert!(own.waker.is_woken());
    queue.offer(&mut pending, &own);
    assert!(!queue.take(9, &mut batch), "no more");
    assert_eq!(batch, [1, 2, 3, 4, 5]);
    let counted = queue.counted();
    let Counted { longest, full, taken, batches, .. } = counted;
    assert_eq!((longest, full, taken, batches), (3, 2, 5, 2));
}

#[test]
fn a_thread_that_puts_waits_for_space() {
    let queue = Queue::new(1, None);
    thread::scope(|scope| {
        let putting = scope.spawn(|| queue.put(&mut pending(0..100)));
        wait_until(&queue, |counted| counted.full > 0);
        assert!(!putting.is_finished());
        let mut batch = Vec::new();
        while batch.len() < 100 {
            assert!(queue.wait(10, 1, true, &mut batch));
        }
        assert!(batch.into_iter().eq(0..100));
    });
    assert_eq!(queue.counted().longest, 1);
}

#[test]
fn threads_leave_each_other_a_share() {
    let (queue, mut batch) = (Queue::new(100, None), Vec::new());
    queue.put(&mut pending(0..10));
    for left in [5, 2, 1, 0] {
        assert!(queue.wait(100, 2, true, &mut batch));
        assert_eq!(queue.counted().length, left);
    }
}

#[test]
fn a_closed_queue_gives_back_its_items() {
    let (queue, own) = (Queue::new(2, None), own());
    let mut rest = pending(0..5);
    queue.offer(&mut rest, &own);
    thread::scope(|scope| {
        let putting = scope.spawn(|| {
            let mut pending = pending(10..12);
            queue.put(&mut pending);
            pending
        });
        wait_until(&queue, |counted| counted.full > 1);
        assert_eq!(queue.close(), [0, 1]);
        assert_eq!(putting.join().unwrap(), [10, 11]);
    });
    assert!(own.waker.is_woken(), "the waiting loop was not woken");
    queue.offer(&mut rest, &own);
    assert_eq!(rest, [2, 3, 4]);
    assert!(!queue.wait(1, 1, true, &mut Vec::new()));
}

/// With any mix of threads that put, offer, wait and take, each item arrives exactly once.
#[test]
fn nothing_is_lost_between_many_threads() {
    const ITEMS: u32 = 20_000;
    for limit in [1, 3] {
        let queue = Queue::new(limit, None);
        let mut got: Vec<u32> = thread::scope(|scope| {
            let putters: Vec<_> = (0..3)
                .map(|nth| {
                    let queue = &queue;
                    scope.spawn(move || {
                        let all = (0..ITEMS).filter(|item| item % 3 == nth);
                        let mut all = all.peekable();
                        while all.peek().is_some() {
                            queue.put(&mut pending(all.by_ref().take(2)));
                        }
                    })
                })
                .collect();
            let takers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut batch = Vec::new();
                        while queue.wait(4, 3, true, &mut batch) {}
                        batch
                    })
                })
                .collect();
            putters.into_iter().for_each(|putter| putter.join().unwrap());
            wait_until(&queue, |counted| counted.taken == u64::from(ITEMS));
            queue.close();
            takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect()
        });
        got.sort_unstable();
        assert!(got.into_iter().eq(0..ITEMS));
        assert!(queue.counted().longest <= limit);
    }
}
