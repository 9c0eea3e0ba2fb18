//! Programs that differ between runtimes only in a few operations, which are macros of `main.rs`:
//! `go!` starts a thread; `give_way!`, `wait!` and `post!` (a semaphore), `sleep!` and `wake!` (a
//! [`Notifier`]), `lock!` and `join!` are its operations.

use super::*;

pub fn yields(total: &Arc<AtomicU64>) {
    for _ in 0..get("threads", 100) {
        let mut batch = Batch::of(total);
        go!({
            while batch.count() {
                give_way!();
            }
        });
    }
}

pub const RING: usize = 5;

pub fn semaphore_ring(total: &Arc<AtomicU64>) {
    let spots: Arc<[Semaphore; RING]> = Arc::new(std::array::from_fn(|_| Semaphore::new(0)));
    for at in 0..RING {
        let spots = Arc::clone(&spots);
        let mut batch = Batch::of(total);
        go!({
            loop {
                wait!(spots[at]);
                post!(spots[(at + 1) % RING]);
                if !batch.count() {
                    return;
                }
            }
        });
    }
    post!(spots[0]);
}

pub fn churn(total: &Arc<AtomicU64>) {
    let count = get("spots", 50) as usize;
    let spots: Arc<Vec<Semaphore>> = Arc::new((0..count).map(|_| Semaphore::new(0)).collect());
    for seed in 0..get("threads", 100) {
        let spots = Arc::clone(&spots);
        let mut batch = Batch::of(total);
        go!({
            let mut random = Random::new(seed + 1);
            let mut posts = seed as usize >= spots.len();
            loop {
                let spot = &spots[random.below(spots.len())];
                if posts {
                    post!(spot);
                }
                posts = true;
                wait!(spot);
                if !batch.count() {
                    return;
                }
            }
        });
    }
}

struct Waiter {
    woken: Notifier,
    data: AtomicPtr<Vec<u64>>,
}

pub fn locality(total: &Arc<AtomicU64>) {
    let threads = get("threads", 100);
    let processors = get("processors", 1);
    let slots = threads.saturating_sub(processors).max(1) as usize;
    let slots: Arc<Vec<AtomicPtr<Waiter>>> = Arc::new((0..slots).map(|_| AtomicPtr::default()).collect());
    for seed in 0..threads {
        let slots = Arc::clone(&slots);
        let mut batch = Batch::of(total);
        go!({
            let mut random = Random::new(seed + 1);
            let words = get("words", 100) as usize;
            let first = Box::into_raw(Box::new(vec![0u64; words]));
            let waiter: &'static Waiter = Box::leak(Box::new(Waiter {
                woken: notifier(),
                data: AtomicPtr::new(first),
            }));
            let shares = get("share", 0) != 0;
            let touched = get("touched", 10);
            loop {
                // SAFETY: each vector belongs to one waiter at a time, and none is freed.
                let data = unsafe { &mut *waiter.data.load(Acquire) };
                for _ in 0..touched {
                    data[random.below(words)] += 1;
                }
                let mine = std::ptr::from_ref(waiter).cast_mut();
                let mine_data = waiter.data.load(Acquire);
                let other = slots[random.below(slots.len())].swap(mine, AcqRel);
                if !other.is_null() {
                    // SAFETY: waiters are never freed.
                    let other = unsafe { &*other };
                    if shares {
                        let theirs = other.data.swap(mine_data, AcqRel);
                        waiter.data.store(theirs, Release);
                    }
                    wake!(other.woken);
                }
                sleep!(waiter.woken);
                if !batch.count() {
                    return;
                }
            }
        });
    }
}

pub fn spawn_and_join(total: &Arc<AtomicU64>) {
    let mut batch = Batch::of(total);
    go!({
        let at_once = get("at_once", 1);
        let mut handles = Vec::new();
        loop {
            handles.extend((0..at_once).map(|_| go!({})));
            for handle in handles.drain(..) {
                join!(handle);
                if !batch.count() {
                    return;
                }
            }
        }
    });
}

pub fn mutex(total: &Arc<AtomicU64>) {
    let mut batch = Batch::of(total);
    go!({
        let mutex = Mutex::new(0u64);
        loop {
            *lock!(std::hint::black_box(&mutex)) += 1;
            if !batch.count() {
                return;
            }
        }
    });
}
