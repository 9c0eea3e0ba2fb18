//! A list of chunks, linked through their headers. The caller must hold the slab class's lock.

use crate::store::memory::arena::{Arena, Chunk};

#[derive(Debug, Default)]
pub(crate) struct Queue {
    head: Option<Chunk>,
    tail: Option<Chunk>,
    pub(crate) len: u64,
}

impl Queue {
    pub(crate) fn push_head(&mut self, arena: &Arena, chunk: Chunk) {
        let header = arena.header(chunk);
        header.set_prev(None);
        header.set_next(self.head);
        match self.head {
            Some(head) => arena.header(head).set_prev(Some(chunk)),
            None => self.tail = Some(chunk),
        }
        self.head = Some(chunk);
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, arena: &Arena, chunk: Chunk) {
        let prev = arena.header(chunk).prev();
        let next = arena.header(chunk).next();
        match prev {
            Some(prev) => arena.header(prev).set_next(next),
            None => self.head = next,
        }
        match next {
            Some(next) => arena.header(next).set_prev(prev),
            None => self.tail = prev,
        }
        self.len -= 1;
    }

    /// Replaces a chunk by another in its position.
    pub(crate) fn replace(&mut self, arena: &Arena, old: Chunk, new: Chunk) {
        let prev = arena.header(old).prev();
        let next = arena.header(old).next();
        arena.header(new).set_prev(prev);
        arena.header(new).set_next(next);
        match prev {
            Some(prev) => arena.header(prev).set_next(Some(new)),
            None => self.head = Some(new),
        }
        match next {
            Some(next) => arena.header(next).set_prev(Some(new)),
            None => self.tail = Some(new),
        }
    }

    pub(crate) fn pop_tail(&mut self, arena: &Arena) -> Option<Chunk> {
        let tail = self.tail?;
        self.remove(arena, tail);
        Some(tail)
    }

    /// Appends all of `other` at the tail.
    pub(crate) fn append(&mut self, arena: &Arena, other: Queue) {
        let Some(head) = other.head else { return };
        arena.header(head).set_prev(self.tail);
        match self.tail {
            Some(tail) => arena.header(tail).set_next(Some(head)),
            None => self.head = Some(head),
        }
        self.tail = other.tail;
        self.len += other.len;
    }

    pub(crate) fn tail_first<'a>(&self, arena: &'a Arena) -> impl Iterator<Item = Chunk> + use<'a> {
        std::iter::successors(self.tail, |chunk| arena.header(*chunk).prev())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(at: usize) -> Chunk {
        Chunk::new(1, at * 64)
    }

    fn ats(queue: &Queue, arena: &Arena) -> Vec<usize> {
        queue.tail_first(arena).map(|chunk| chunk.offset_in_page() / 64).collect()
    }

    #[test]
    fn fifo_with_remove_and_replace() {
        let arena = Arena::reserve(1, 1, false).unwrap();
        let mut queue = Queue::default();
        (0..5).for_each(|at| queue.push_head(&arena, chunk(at)));
        assert_eq!(ats(&queue, &arena), [0, 1, 2, 3, 4]);
        for at in [2, 0, 4] {
            queue.remove(&arena, chunk(at));
        }
        assert_eq!(ats(&queue, &arena), [1, 3]);
        queue.replace(&arena, chunk(1), chunk(7));
        queue.replace(&arena, chunk(3), chunk(8));
        assert_eq!(ats(&queue, &arena), [7, 8]);
        let mut other = Queue::default();
        other.push_head(&arena, chunk(9));
        other.append(&arena, queue);
        assert_eq!(ats(&other, &arena), [7, 8, 9]);
        assert_eq!(other.len, 3);
    }
}
