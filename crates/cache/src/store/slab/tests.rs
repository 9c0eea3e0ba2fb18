use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::store::{Config, Mode, Store};

/// Seen: a class whose items were only ever replaced grew by some bytes for each few sets,
/// without limit. Cause: a page was noted each time its last free chunk was taken and another
/// came back, even if it was noted already, and notes were removed only for full pages.
#[test]
fn page_with_space_is_noted_once() {
    let store = Store::new(Config::default()).unwrap();
    let mut guard = store.access(2);
    for round in 0..2_000 {
        let reservations = (0..round % 3 + 1).map(|_| guard.reserve(b"k", 10, 0, NEVER).unwrap());
        drop(reservations.collect::<Vec<_>>());
        guard.store(b"k", b"value", 0, NEVER, Mode::Set.into()).unwrap();
    }
    for id in store.pool().class_ids() {
        let class = store.pool().class(id);
        assert!(
            class.pages_with_space.len() <= class.pages.len(),
            "{} notes of {} pages",
            class.pages_with_space.len(),
            class.pages.len()
        );
    }
}

const CHUNK_LEN: usize = 8192;
const CLOCK: Clock = Clock { now: 100, generation: 5 };

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }
}

/// An item in the model.
#[derive(Clone, Copy, Debug)]
struct Known {
    hash: u64,
    len: u64,
    used: u32,
    is_fetched: bool,
    is_held: bool,
    exptime: Seconds,
    last_access: Seconds,
}

impl Known {
    fn is_dead(&self) -> bool {
        self.exptime != NEVER && self.exptime <= CLOCK.now
    }
}

/// S3-FIFO as in the paper, as a reference: two queues of names, oldest first, and a table.
struct Model {
    arena: Arena,
    owners: Owners,
    epochs: Epochs,
    class: Class,
    known: HashMap<u64, Known>,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    ghosts: Ghosts,
    /// Retired names by epoch; then those whose readers have left.
    limbo: [(u64, Vec<u64>); 3],
    ripe: Vec<u64>,
    /// Retired while being sent.
    held_retired: Vec<u64>,
    free: u64,
    expected: ClassStats,
    random: Random,
}

impl Model {
    fn new(seed: u64, pages: u32) -> Model {
        let mut model = Model {
            arena: Arena::reserve(pages, pages, false).unwrap(),
            owners: Owners::new(pages),
            epochs: Epochs::new(1),
            class: Class::new(3, CHUNK_LEN / 2, CHUNK_LEN),
            known: HashMap::new(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: Ghosts::default(),
            limbo: Default::default(),
            ripe: Vec::new(),
            held_retired: Vec::new(),
            free: u64::from(pages) * (PAGE_LEN / CHUNK_LEN) as u64,
            expected: ClassStats {
                id: 3,
                chunk_size: CHUNK_LEN as u32,
                chunks_per_page: 128,
                total_pages: pages,
                total_chunks: 128 * u64::from(pages),
                ..ClassStats::default()
            },
            random: Random(seed),
        };
        (1..=pages).for_each(|number| model.class.add_page(&model.owners, number));
        model
    }

    fn chunk(name: u64) -> Chunk {
        Chunk::from_units(name).unwrap()
    }

    /// A new item, not yet in a queue. None if no chunk is free.
    fn make(&mut self) -> Option<u64> {
        let taken = self.class.take_free(&self.arena, &self.owners);
        assert_eq!(taken.is_some(), self.free > 0);
        let chunk = taken?;
        assert_eq!((chunk.page() as usize * PAGE_LEN + chunk.offset_in_page()) % CHUNK_LEN, 0);
        assert_eq!(Use::of(&self.arena, chunk), Use::Reserved);
        self.free -= 1;
        let key_len = 1 + self.random.below(9);
        let value_len = self.random.below(7_000);
        let known = Known {
            hash: (self.random.below(400) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            len: (HEADER_LEN + key_len + value_len) as u64,
            used: 0,
            is_fetched: false,
            is_held: false,
            exptime: [NEVER, NEVER, 50, 100, 101, 200][self.random.below(6)],
            last_access: 40 + self.random.below(60) as Seconds,
        };
        let header = self.arena.header(chunk);
        header.key_len.store(key_len as u8, Relaxed);
        header.value_len.store(value_len as u32, Relaxed);
        header.exptime.store(known.exptime, Relaxed);
        header.last_access.store(known.last_access, Relaxed);
        header.state.store(mark::fresh(CLOCK.generation), Relaxed);
        set_generation(header, CLOCK.generation);
        let name = chunk.units();
        self.known.insert(name, known);
        Some(name)
    }

    fn count_in(&mut self, name: u64) {
        self.expected.mem_requested += self.known[&name].len;
        self.expected.stored += 1;
    }

    fn insert(&mut self) {
        let Some(name) = self.make() else { return };
        let hash = self.known[&name].hash;
        self.class.enqueue(&self.arena, Self::chunk(name), hash);
        if self.ghosts.remove(hash) {
            self.expected.ghost_hits += 1;
            self.main.push_back(name);
        } else {
            self.small.push_back(name)
        }
        self.count_in(name);
    }

    /// Any item in a queue.
    fn any(&mut self) -> Option<u64> {
        let len = self.small.len() + self.main.len();
        let at = self.random.below(len.max(1));
        let small = self.small.iter();
        let main = self.main.iter();
        small.chain(main).nth(at).copied()
    }

    fn hit(&mut self, name: u64) {
        mark::hit(&self.arena.header(Self::chunk(name)).state);
        let known = self.known.get_mut(&name).unwrap();
        known.used = (known.used + 1).min(3);
        known.is_fetched = true;
    }

    fn hold(&mut self, name: u64) {
        let known = self.known.get_mut(&name).unwrap();
        let state = &self.arena.header(Self::chunk(name)).state;
        if known.is_held {
            assert!(!mark::unreference(state))
        } else {
            assert!(mark::reference(state, mark::READERS_MAX))
        }
        known.is_held = !known.is_held;
    }

    fn retire(&mut self, name: u64, expected: Use) {
        let place = self.class.retire(&self.arena, Self::chunk(name), &self.epochs);
        assert_eq!(place, expected);
        assert_eq!(Use::of(&self.arena, Self::chunk(name)), Use::Limbo);
        self.expected.mem_requested -= self.known[&name].len;
        let stamp = self.epochs.stamp();
        let (stamp_before, lane) = &mut self.limbo[stamp as usize % 3];
        if std::mem::replace(stamp_before, stamp) != stamp {
            self.ripe.splice(..0, lane.drain(..));
        }
        lane.push(name);
        assert_eq!(self.class.limbo_len(), self.limbo_len());
    }

    /// The next victim; skipped items are updated.
    fn next_victim(&mut self, steps: &mut u32, must: bool) -> Option<(u64, bool)> {
        self.ghosts.fit(self.expected.total_pages as usize * 128);
        let mut held = 0;
        let mut coldest: Option<(u32, u64)> = None;
        while (*steps > 0 || must) && held < HELD_MAX {
            *steps = steps.saturating_sub(1);
            let all = self.small.len() + self.main.len();
            let is_small_due = self.small.len() * 10 >= all;
            let from_small = !self.small.is_empty() && (is_small_due || self.main.is_empty());
            let name = if from_small { self.small.pop_front()? } else { self.main.pop_front()? };
            let known = self.known.get_mut(&name).unwrap();
            let stays = known.used > u32::from(from_small);
            if known.is_dead() {
                return Some((name, true));
            }
            if !known.is_held && !stays {
                if from_small {
                    self.ghosts.insert(known.hash);
                }
                return Some((name, false));
            }
            held += u32::from(known.is_held);
            if !known.is_held && coldest.is_none_or(|(least, _)| known.used < least) {
                coldest = Some((known.used, name));
            }
            known.used = if from_small { 0 } else { known.used.saturating_sub(1) };
            self.expected.promoted += u64::from(from_small);
            self.main.push_back(name);
            if *steps == 0 && must {
                break;
            }
        }
        let (_, name) = coldest.filter(|_| must)?;
        self.main.retain(|other| *other != name);
        Some((name, false))
    }

    fn evict(&mut self) {
        let mut steps = self.random.below(6) as u32;
        let must = self.random.below(2) == 0;
        let mut steps_of_model = steps;
        let known = &self.known;
        let hash_of = |chunk: Chunk| known[&chunk.units()].hash;
        let victim = self.class.pick(&self.arena, CLOCK, (&mut steps, must), hash_of);
        let expected = self.next_victim(&mut steps_of_model, must);
        let found = victim.map(|victim| (victim.chunk.units(), victim.is_dead));
        assert_eq!((found, steps), (expected, steps_of_model));
        let Some(victim) = victim else { return };
        assert_eq!(Use::of(&self.arena, victim.chunk), Use::Floating);
        self.class.count_victim(&self.arena, victim, CLOCK.now);
        self.count_victim(victim.chunk.units(), victim.is_dead);
        self.retire(victim.chunk.units(), Use::Floating);
    }

    fn count_victim(&mut self, name: u64, is_dead: bool) {
        let known = self.known[&name];
        let expected = &mut self.expected;
        let unfetched = u64::from(!known.is_fetched);
        if is_dead {
            expected.reclaimed += 1;
            expected.expired_unfetched += unfetched;
            return;
        }
        expected.evicted += 1;
        expected.evicted_unfetched += unfetched;
        expected.evicted_nonzero += u64::from(known.exptime != NEVER);
        expected.evicted_time = CLOCK.now - known.last_access;
    }

    fn take_dead(&mut self) {
        let checks = self.random.below(8);
        let count_max = 1 + self.random.below(3);
        let dead = self.class.take_dead(&self.arena, CLOCK, checks, count_max);
        let known = &self.known;
        let tails = self.small.iter().take(checks);
        let tails = tails.chain(self.main.iter().take(checks));
        let expected = tails.filter(|name| known[*name].is_dead()).copied();
        let expected: Vec<_> = expected.take(count_max).collect();
        let found: Vec<_> = dead.iter().map(|chunk| chunk.units()).collect();
        assert_eq!(found, expected);
        for name in expected {
            self.leave_queue(name);
            self.retire(name, Use::Floating);
        }
    }

    fn leave_queue(&mut self, name: u64) -> Use {
        let len = self.small.len();
        self.small.retain(|other| *other != name);
        self.main.retain(|other| *other != name);
        if self.small.len() < len { Use::Small } else { Use::Main }
    }

    fn delete(&mut self, name: u64) {
        let is_taken_first = self.random.below(2) == 0;
        let place = self.leave_queue(name);
        if is_taken_first {
            let chunk = Self::chunk(name);
            assert!(self.class.unlink_from_queue(&self.arena, chunk));
            assert!(!self.class.unlink_from_queue(&self.arena, chunk));
            return self.retire(name, Use::Floating);
        }
        self.retire(name, place);
    }

    fn store_over(&mut self, old: u64) {
        let Some(new) = self.make() else { return };
        let old_chunk = Self::chunk(old);
        let new_chunk = Self::chunk(new);
        let is_floating = self.random.below(4) == 0;
        if is_floating {
            self.class.unlink_from_queue(&self.arena, old_chunk);
            self.leave_queue(old);
            self.small.push_back(new);
        }
        for queue in [&mut self.small, &mut self.main] {
            queue.iter_mut().filter(|name| **name == old).for_each(|name| *name = new);
        }
        self.class.replace(&self.arena, old_chunk, new_chunk);
        self.count_in(new);
        self.retire(old, Use::Floating);
    }

    fn reap(&mut self) {
        (0..self.random.below(4)).for_each(|_| assert!(self.epochs.try_advance()));
        let count_max = self.random.below(6);
        let epoch = self.epochs.stamp();
        for (stamp, lane) in &mut self.limbo {
            if *stamp + 2 <= epoch {
                self.ripe.splice(..0, lane.drain(..));
            }
        }
        let expected = self.ripe.len().min(count_max);
        let mut long = Vec::new();
        let arena = &self.arena;
        let owners = &self.owners;
        let reaped = self.class.reap(arena, owners, &self.epochs, count_max, &mut long);
        assert_eq!((reaped, long.len()), (expected, 0));
        for name in self.ripe.drain(..expected).collect::<Vec<_>>() {
            if self.known[&name].is_held { self.held_retired.push(name) } else { self.forget(name) }
        }
        assert_eq!(self.class.limbo_len(), self.limbo_len());
    }

    fn limbo_len(&self) -> u64 {
        let lanes = self.limbo.iter().map(|(_, lane)| lane.len());
        (lanes.sum::<usize>() + self.ripe.len()) as u64
    }

    fn forget(&mut self, name: u64) {
        assert_eq!(Use::of(&self.arena, Self::chunk(name)), Use::Free);
        self.known.remove(&name);
        self.free += 1;
    }

    /// The reader of a retired chunk finishes and frees it.
    fn leave(&mut self) {
        let Some(name) = self.held_retired.pop() else {
            return;
        };
        let chunk = Self::chunk(name);
        assert!(mark::unreference(&self.arena.header(chunk).state));
        self.class.free(&self.arena, &self.owners, chunk);
        self.forget(name);
    }

    fn check(&self) {
        let stats = self.class.stats(&self.arena, CLOCK.now);
        let tails = self.main.iter().take(4).chain(self.small.iter().take(4));
        let ages = tails.map(|name| CLOCK.now - self.known[name].last_access);
        let (count, sum) = ages.fold((0, 0), |(count, sum), age| (count + 1, sum + age));
        let expected = ClassStats {
            used_chunks: self.known.len() as u64,
            // Only the sum of free and never used chunks is specified.
            free_chunks: self.free - stats.free_chunks_end,
            free_chunks_end: stats.free_chunks_end,
            number: (self.small.len() + self.main.len()) as u64,
            number_small: self.small.len() as u64,
            number_main: self.main.len() as u64,
            age: sum.checked_div(count).unwrap_or(0),
            ..self.expected.clone()
        };
        assert_eq!(stats, expected);
        assert_eq!(self.class.free_len(), self.free);
        let oldest_first: Vec<_> = self.small.iter().chain(&self.main).copied().collect();
        let found = self.class.oldest_first(&self.arena);
        let found: Vec<_> = found.iter().map(|chunk| chunk.units()).collect();
        assert_eq!(found, oldest_first);
        let sizes: u64 = self.class.sizes.all().map(|(_, count)| count).sum();
        assert_eq!(sizes, stats.number);
    }
}

#[test]
fn class_agrees_with_the_model() {
    for seed in 1..=12 {
        let mut model = Model::new(seed, 1 + seed as u32 % 3);
        for _ in 0..4_000 {
            match model.random.below(16) {
                0..5 => model.insert(),
                5..7 => model.evict(),
                7 => model.reap(),
                8 => model.take_dead(),
                9 => model.leave(),
                action => {
                    if let Some(name) = model.any() {
                        match action {
                            10 if model.random.below(4) == 0 => model.delete(name),
                            11 => model.store_over(name),
                            12 => model.hold(name),
                            _ => model.hit(name),
                        }
                    }
                }
            }
            model.check();
        }
        let counts = &model.expected;
        let is_all_seen = counts.evicted_nonzero.min(counts.expired_unfetched) > 0
            && counts.promoted.min(counts.ghost_hits) > 0;
        assert!(is_all_seen, "{counts:?}");
    }
}

#[test]
fn generation_and_use_are_independent() {
    let arena = Arena::reserve(1, 1, false).unwrap();
    let chunk = Chunk::new(1, 0);
    let header = arena.header(chunk);
    let uses =
        [Use::Free, Use::Reserved, Use::Small, Use::Main, Use::Floating, Use::Limbo, Use::Part];
    assert_eq!(GENERATIONS, 1 << 15);
    for at in (0..GENERATIONS).step_by(37).chain([GENERATIONS - 1]) {
        set_generation(header, at);
        header.state.store(mark::fresh(at), Relaxed);
        for used_for in uses {
            used_for.set(&arena, chunk);
            assert_eq!(Use::of(&arena, chunk), used_for);
            assert_eq!(generation(header, header.state.load(Relaxed)), at);
            let clock = |generation| Clock { now: 9, generation };
            assert!(!clock(at).is_flushed(header));
            assert!(clock(at ^ 1).is_flushed(header) && clock(at ^ 1 << 14).is_flushed(header));
        }
        set_generation(header, GENERATIONS - 1 - at);
        assert_eq!(Use::of(&arena, chunk), Use::Part);
    }
}

#[test]
fn dead_from_the_second_of_expiry() {
    let clock = |now| Clock { now, generation: 0 };
    assert!(!clock(9).is_expired(10) && clock(10).is_expired(10) && clock(11).is_expired(10));
    assert!(!clock(u32::MAX).is_expired(NEVER));
}

#[test]
fn page_owner_until_it_leaves() {
    let arena = Arena::reserve(4, 4, false).unwrap();
    let owners = Owners::new(4);
    let mut class = Class::new(200, 0, CHUNK_LEN);
    (1..=4).for_each(|number| class.add_page(&owners, number));
    for number in 1..=4 {
        assert_eq!(owners.at(number), (200, number as usize - 1));
        assert_eq!(owners.class_of(Chunk::new(number, CHUNK_LEN)), 200);
        assert_eq!(class.page_number(number as usize + 3), number);
    }
    // The fourth page is in use and stays. The second goes, and the last one takes its index.
    let chunk = class.take_free(&arena, &owners).unwrap();
    assert_eq!(chunk.page(), 4);
    assert_eq!(class.set_leaving(&owners, 4, true), 1);
    assert_eq!(class.set_leaving(&owners, 2, true), 0);
    assert_eq!(class.free_len(), 2 * 128);
    assert!(!class.remove_page(&owners, 4) && class.remove_page(&owners, 2));
    assert_eq!((owners.at(2), owners.at(4)), ((0, 0), (200, 1)));
    assert_eq!(class.page_count(), 3);
    // Nothing new is allocated on a leaving page: all chunks taken are on the two others.
    let taken: Vec<_> = std::iter::from_fn(|| class.take_free(&arena, &owners)).collect();
    assert_eq!(taken.len(), 256);
    assert!(taken.iter().all(|chunk| matches!(chunk.page(), 1 | 3)));
    class.free(&arena, &owners, chunk);
    assert_eq!(class.take_free(&arena, &owners), None);
    // The page stays after all.
    assert_eq!(class.set_leaving(&owners, 4, false), 1);
    assert_eq!(class.free_len(), 128);
    assert_eq!(class.take_free(&arena, &owners), Some(chunk));
}

fn pace(id: u8, pages: usize, bytes_a_page: f64, ghost_hits: f64) -> Pace {
    Pace { id, pages, bytes_a_page, ghost_hits, tail_age: 30, victim_age: 50 }
}

#[test]
fn page_moves_for_more_hits() {
    // 60 hits over 4 pages.
    let to = pace(1, 3, 0.0, 60.0);
    assert_eq!((to.gain(), to.loss()), (15.0, 30.0));
    for (from, gives, why) in [
        (pace(2, 3, 0.0, 19.0), true, "it loses less than two thirds"),
        (pace(2, 3, 0.0, 20.0), false, "it loses two thirds"),
        (pace(2, 1, 0.0, 0.0), false, "it is its last page"),
        (pace(2, 2, 0.0, 0.0), true, "nothing comes back"),
        (pace(1, 3, 0.0, 0.0), false, "the same class"),
    ] {
        assert_eq!(from.gives_a_page_to(&to), gives, "{why}");
    }
    assert!(!pace(2, 3, 0.0, 0.0).gives_a_page_to(&pace(1, 3, 0.0, 0.0)));
}

#[test]
fn idle_class_gives_older_pages() {
    let to = pace(1, 3, 160.0, 0.0);
    let from =
        |pages, bytes_a_page, tail_age| Pace { tail_age, ..pace(2, pages, bytes_a_page, 0.0) };
    for (from, gives, why) in [
        (from(2, 9.0, 30), true, "as old as what would go"),
        (from(2, 9.0, 29), false, "younger"),
        (from(2, 10.0, 30), false, "not idle: a sixteenth"),
        (Pace { ghost_hits: 1.0, ..from(2, 9.0, 30) }, false, "not idle: something comes back"),
        (from(1, 9.0, 31), true, "its last page, and older"),
        (from(1, 9.0, 30), false, "its last page, and not older"),
        (Pace { id: 1, ..from(2, 9.0, 30) }, false, "the same class"),
    ] {
        assert_eq!(from.gives_idle_page_to(&to), gives, "{why}");
    }
    // The last victim was younger than the next one here: that suffices.
    let to = Pace { victim_age: 20, ..to };
    assert!(from(2, 9.0, 20).gives_idle_page_to(&to) && !from(2, 9.0, 19).gives_idle_page_to(&to));
}

#[test]
fn pace_counts_evicted_chunks() {
    let mut model = Model::new(7, 2);
    while model.free > 0 {
        model.insert();
    }
    let pace = |class: &Class, arena: &Arena| class.pace(arena, CLOCK.now);
    assert_eq!(pace(&model.class, &model.arena).bytes_a_page, 0.0);
    while model.expected.evicted < 31 {
        model.evict();
    }
    assert!(!model.class.is_balance_due());
    while model.expected.evicted < 32 {
        model.evict();
    }
    assert!(model.class.is_balance_due());
    let bytes = (32 * CHUNK_LEN) as f64;
    let found = pace(&model.class, &model.arena);
    assert_eq!((found.id, found.pages, found.bytes_a_page), (3, 2, bytes / 2.0));
    assert_eq!(found.victim_age, model.expected.evicted_time);
    let age = model.class.tail_age(&model.arena, CLOCK.now);
    assert_eq!(Some(found.tail_age), age);
    assert_eq!(model.class.begin_balance(), 32 * CHUNK_LEN as u64);
    assert!(!model.class.is_balance_due());
    // Each check lowers the weight of earlier evictions by an eighth.
    let later = pace(&model.class, &model.arena).bytes_a_page;
    assert_eq!(later, bytes / 2.0 * 7.0 / 8.0);
    assert_eq!(model.class.begin_balance(), 0);
}

#[test]
fn ghost_hits_decay_by_an_eighth() {
    let mut model = Model::new(11, 1);
    while model.expected.ghost_hits < 16 {
        model.insert();
        model.evict();
        model.reap();
    }
    let hits = |model: &Model| model.class.pace(&model.arena, CLOCK.now).ghost_hits;
    assert_eq!(hits(&model), 16.0);
    model.class.begin_balance();
    assert_eq!(hits(&model), 14.0);
}

#[test]
fn upload_or_reply_pins_its_page() {
    let mut model = Model::new(3, 1);
    let is_stuck = |model: &Model| model.class.is_stuck(&model.arena, &model.owners, 1);
    assert!(!is_stuck(&model));
    model.insert();
    assert!(!is_stuck(&model));
    let name = model.any().unwrap();
    model.hold(name);
    assert!(is_stuck(&model));
    model.hold(name);
    assert!(!is_stuck(&model));
    let upload = model.make().unwrap();
    assert!(is_stuck(&model));
    // A part whose item is in a queue, or is being uploaded, or is unknown.
    let part = Model::chunk(upload);
    model.class.set_part(&model.arena, part);
    assert!(is_stuck(&model));
    model.arena.header(part).cas.store(name, Relaxed);
    assert!(!is_stuck(&model));
    model.hold(name);
    assert!(is_stuck(&model));
}

#[test]
fn limbo_lots_are_taken_once() {
    let mut model = Model::new(5, 1);
    (0..40).for_each(|_| model.insert());
    for at in 1..=40 {
        let name = model.any().unwrap();
        model.delete(name);
        assert_eq!(model.class.take_limbo_lot(), at == 32, "{at}");
    }
}
