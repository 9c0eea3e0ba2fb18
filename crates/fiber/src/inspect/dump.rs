//! All fibers of a runtime, seen from outside: [`Runtime::dump`](crate::Runtime::dump).

use std::backtrace::Backtrace;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use crate::sched::cluster::{Cluster, Message};
use crate::sched::fiber::{Control, Fiber, FiberRef};
use crate::sched::processor::{self, Processor};
use crate::sched::registry::SHARDS;
use crate::switch::look::FiberState;
use crate::switch::reason::WaitReason;
use crate::switch::stack::page_size;

/// Limit on fibers asked for a backtrace; a million are of no use.
const TRACED_MAX: usize = 1000;

/// Time that processors may take to answer: one that is stalled does not.
const TRACE_PATIENCE: Duration = Duration::from_millis(500);

/// Limit on printed lines; the summary counts all fibers.
const PRINTED_MAX: usize = 1000;

/// From this number on, fibers that do the same are one line.
const ALIKE_MIN: usize = 4;

/// Result of [`Runtime::dump`](crate::Runtime::dump). Printed, it is a summary and a list; see also
/// [`to_json`](Dump::to_json).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Dump {
    /// Every fiber that was there, by number. Each is a picture of one moment, but not all of the
    /// same moment.
    pub fibers: Vec<DumpedFiber>,
    /// Fibers that wait for each other in a ring (each for a lock that the next one holds, or for
    /// its end): they wait forever.
    pub deadlocks: Vec<Vec<u64>>,
}

/// One fiber.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DumpedFiber {
    /// Its number.
    pub id: u64,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// State of the fiber.
    pub state: FiberState,
    /// Description of its wait; `None` if it does not wait.
    pub waits_for: Option<String>,
    /// The fiber that holds what it waits for, if that is known.
    pub waits_for_fiber: Option<u64>,
    /// The processor that it is on.
    pub processor: Option<usize>,
    /// Time since it was spawned.
    pub age: Duration,
    /// Its stack, if it has one now.
    pub stack: Option<DumpedStack>,
    /// Source location of the spawn: file, line, column.
    pub spawned_at: String,
    /// Backtrace of its wait, innermost frame first, if that was asked for and the fiber could make
    /// it.
    pub backtrace: Option<String>,
}

/// A fiber's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DumpedStack {
    /// Bytes that it may use.
    pub usable_len: usize,
    /// Bytes from its base to the deepest page that was ever touched.
    pub touched_len: usize,
}

/// Number of fibers by state, and of those that wait by reason.
pub(crate) fn count_by_state(cluster: &Cluster) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for part in 0..SHARDS {
        for fiber in cluster.fibers_of_shard(part) {
            let control = &fiber.control;
            let state = match control.look().state() {
                FiberState::Waiting => control.waiting().kind(),
                other => other.name(),
            };
            *counts.entry(state).or_default() += 1;
        }
    }
    counts
}

impl Dump {
    /// Lists all fibers of `cluster`; with `backtraces`, traces those that wait.
    pub(crate) fn of(cluster: &Arc<Cluster>, backtraces: bool) -> Dump {
        let mut found = cluster.fibers();
        found.sort_unstable_by_key(Fiber::id);
        let mut traces = if backtraces { trace(cluster, &found) } else { HashMap::new() };
        let describe = |fiber: &Fiber| {
            let mut dumped = DumpedFiber::of(cluster, fiber);
            dumped.backtrace = traces.remove(&dumped.id).map(|trace| in_user_code(&trace));
            dumped
        };
        let fibers: Vec<_> = found.iter().map(describe).collect();
        let waits = fibers.iter();
        let waits = waits.filter_map(|fiber| Some((fiber.id, fiber.waits_for_fiber?)));
        let mut deadlocks = rings(waits.collect());
        deadlocks.retain(|ring| is_deadlock(cluster, ring));
        Dump { fibers, deadlocks }
    }

    /// True if fibers wait for each other in a ring. Makes no dump: a few nanoseconds a fiber (more
    /// beside fibers that run), and memory only for those that wait for another.
    pub(crate) fn is_any_ring(cluster: &Cluster) -> bool {
        let mut waits = HashMap::new();
        for part in 0..SHARDS {
            for fiber in cluster.fibers_of_shard(part) {
                let state = fiber.control.look().state();
                let (_, waits_for) = wait_of(&fiber.control, state);
                if let Some(other) = waits_for {
                    waits.insert(fiber.id(), other);
                }
            }
        }
        rings(waits).iter().any(|ring| is_deadlock(cluster, ring))
    }

    /// The same as one JSON object.
    pub fn to_json(&self) -> String {
        let mut out = String::from("{\"fibers\":[");
        for (at, fiber) in self.fibers.iter().enumerate() {
            out.push_str(if at == 0 { "\n" } else { ",\n" });
            fiber.write_json(&mut out);
        }
        let rings = self.deadlocks.iter().map(|ring| format!("{ring:?}"));
        let rings = rings.collect::<Vec<_>>().join(",");
        let _ = writeln!(out, "\n],\"deadlocks\":[{rings}]}}");
        out
    }
}

impl DumpedFiber {
    fn of(cluster: &Cluster, fiber: &Fiber) -> DumpedFiber {
        let control = &fiber.control;
        let look = control.look();
        let state = look.state();
        let (reason, waits_for_fiber) = wait_of(control, state);
        DumpedFiber {
            id: fiber.id(),
            name: fiber.name().map(str::to_owned),
            state,
            waits_for: reason.map(in_words),
            waits_for_fiber,
            processor: cluster.index_of(control.home()),
            age: control.age(),
            stack: control.stack().map(|stack| DumpedStack {
                usable_len: stack.usable().len(),
                touched_len: touched_len(&stack.usable()),
            }),
            spawned_at: control.spawned_at().to_string(),
            backtrace: None,
        }
    }

    fn write_json(&self, out: &mut String) {
        let _ = write!(
            out,
            "{{\"id\":{},\"name\":{},\"state\":\"{}\",\"waits_for\":{},\"waits_for_fiber\":{},\"processor\":{},\
             \"age_s\":{:.3},\"stack_usable\":{},\"stack_touched\":{},\"spawned_at\":{},\"backtrace\":{}}}",
            self.id,
            json_text(self.name.as_deref()),
            self.state,
            json_text(self.waits_for.as_deref()),
            json_number(self.waits_for_fiber),
            json_number(self.processor),
            self.age.as_secs_f64(),
            json_number(self.stack.map(|stack| stack.usable_len)),
            json_number(self.stack.map(|stack| stack.touched_len)),
            json_text(Some(&self.spawned_at)),
            json_text(self.backtrace.as_deref()),
        );
    }
}

fn json_number<N: fmt::Display>(number: Option<N>) -> String {
    number.map_or_else(|| "null".to_owned(), |number| number.to_string())
}

fn json_text(text: Option<&str>) -> String {
    let Some(text) = text else {
        return "null".to_owned();
    };
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\n' => quoted.push_str("\\n"),
            control if control < ' ' => {
                let _ = write!(quoted, "\\u{:04x}", control as u32);
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

pub(crate) fn in_words(reason: WaitReason) -> String {
    match reason {
        WaitReason::Lock { address, owner: 0, .. } => format!("mutex {address:#x}"),
        WaitReason::Lock { address, owner, .. } => {
            format!("mutex {address:#x}, held by {owner}")
        }
        WaitReason::RwLock { address } => format!("rwlock {address:#x}"),
        WaitReason::Condvar { address } => format!("condvar {address:#x}"),
        WaitReason::Semaphore { address } => format!("semaphore {address:#x}"),
        WaitReason::Event { address } => format!("event {address:#x}"),
        WaitReason::Channel { address } => format!("channel {address:#x}"),
        WaitReason::Select => "select".to_owned(),
        WaitReason::Join { fiber } => format!("the end of {fiber}"),
        WaitReason::Timer => "timer".to_owned(),
        WaitReason::Io { fd, operation } => {
            format!("{operation:?} on descriptor {fd}").to_lowercase()
        }
        WaitReason::Park => "unpark".to_owned(),
        WaitReason::Offload => "an offloaded call".to_owned(),
    }
}

/// Bytes from its base down to which a stack has been touched: pages stay with it, so this is its
/// high-water mark.
fn touched_len(usable: &std::ops::Range<usize>) -> usize {
    let page_size = page_size();
    let mut pages = vec![0u8; usable.len() / page_size];
    // SAFETY: mincore(2) writes one byte for each page of the range, which is what the vector has
    // room for. The range is part of a slab, which is never unmapped.
    let result = unsafe {
        libc::mincore(usable.start as *mut libc::c_void, usable.len(), pages.as_mut_ptr())
    };
    if result != 0 {
        return 0;
    }
    let deepest = pages.iter().position(|page| page & 1 == 1);
    deepest.map_or(0, |page| usable.len() - page * page_size)
}

/// Fibers of one processor that are to be traced.
#[derive(Debug)]
struct TraceJob {
    fibers: Vec<Fiber>,
    answers: Sender<(u64, Backtrace)>,
}

/// Collects backtraces of the fibers that wait.
fn trace(cluster: &Arc<Cluster>, fibers: &[Fiber]) -> HashMap<u64, Backtrace> {
    let (answers, answered) = mpsc::channel();
    let waiting = fibers.iter().filter(|fiber| {
        let control = &fiber.control;
        let may_be_traced = !control.is_migratable() && control.has_space_to_trace();
        control.look().state() == FiberState::Waiting && may_be_traced
    });
    let mut jobs: BTreeMap<usize, Vec<Fiber>> = BTreeMap::new();
    for fiber in waiting.take(TRACED_MAX) {
        if let Some(index) = cluster.index_of(fiber.control.home()) {
            jobs.entry(index).or_default().push(fiber.clone());
        }
    }
    for (index, fibers) in jobs {
        let answers = answers.clone();
        let job = TraceJob { fibers, answers };
        let job = move || processor::here(|processor| trace_here(processor, &job));
        cluster.processors[index].send(Message::Job(Box::new(job)));
    }
    drop(answers);
    let deadline = Instant::now() + TRACE_PATIENCE;
    let mut traces = HashMap::new();
    while let Ok((id, trace)) =
        answered.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    {
        traces.insert(id, trace);
    }
    traces
}

/// Traces fibers that wait on this processor.
fn trace_here(processor: &Processor, job: &TraceJob) {
    for fiber in &job.fibers {
        let control = &fiber.control;
        // In this order: a fiber that waits here stays here until this thread runs it, but one that
        // is at home here may be moving away, and wait elsewhere by the next line. And it may wait
        // deeper in its stack than when it was asked.
        let waits_here =
            control.look().state() == FiberState::Waiting && control.is_home(processor.shared());
        if !waits_here || !control.has_space_to_trace() {
            continue; // It has continued meanwhile.
        }
        if control.is_migratable() {
            continue; // Another processor may be about to run it.
        }
        let fiber = FiberRef::of(fiber);
        processor.set_current(Some(fiber));
        let traced = fiber.trace(processor);
        processor.set_current(None);
        if let Some(traced) = traced {
            // The caller has given up if this took too long.
            let _ = job.answers.send((control.id(), traced));
        }
    }
}

/// The frames between the runtime's at either end.
fn in_user_code(trace: &Backtrace) -> String {
    let text = trace.to_string();
    let frames = split_frames(&text);
    let is_runtime = |frame: &&str| {
        ["fiber::", "std::", "core::"].iter().any(|own| {
            let name = frame.split_once(": ").map_or("", |(_, name)| name);
            name.trim_start_matches('<').starts_with(own)
        })
    };
    let first = frames.iter().position(|frame| !is_runtime(frame));
    let last = frames.iter().rposition(|frame| !is_runtime(frame));
    match first.zip(last) {
        // The call that waits is of interest too.
        Some((first, last)) => frames[first.saturating_sub(1)..=last].concat(),
        None => text,
    }
}

/// A frame is a line with its number and name, and lines that say where.
fn split_frames(text: &str) -> Vec<&str> {
    let mut starts: Vec<_> = text
        .match_indices('\n')
        .map(|(at, _)| at + 1)
        .filter(|&at| {
            let line = text[at..].trim_start();
            line.starts_with(|first: char| first.is_ascii_digit())
        })
        .collect();
    starts.insert(0, 0);
    starts.push(text.len());
    starts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

/// Wait of a fiber that was seen in this state, and the other fiber that it waits for, if any.
fn wait_of(control: &Control, state: FiberState) -> (Option<WaitReason>, Option<u64>) {
    let reason = match state {
        FiberState::Waiting => control.waiting().reason(),
        _ => None,
    };
    let other = match reason {
        Some(WaitReason::Lock { owner, .. }) => (owner != 0).then_some(owner),
        Some(WaitReason::Join { fiber }) => Some(fiber),
        _ => None,
    };
    (reason, other)
}

/// True if the fibers of a ring wait for each other all at the same time, and so for ever. While
/// others run, fibers that were looked at one after the other may seem to.
fn is_deadlock(cluster: &Cluster, ring: &[u64]) -> bool {
    let fibers: Vec<_> = ring.iter().filter_map(|&id| cluster.find_fiber(id)).collect();
    if fibers.len() < ring.len() {
        return false;
    }
    // Of a fiber that waits for a lock in both looks, that was one wait; a wait for the end of
    // another fiber lasts as long as that one.
    let _held: Vec<_> = fibers.iter().map(|fiber| fiber.control.waiting().hold()).collect();
    let waits_for_next = |at: usize| {
        let control = &fibers[at].control;
        let (reason, other) = wait_of(control, control.look().state());
        let is_timed = matches!(reason, Some(WaitReason::Lock { is_timed: true, .. }));
        !is_timed && other == Some(ring[(at + 1) % ring.len()])
    };
    (0..2).all(|_| (0..ring.len()).all(&waits_for_next))
}

/// Rings in the graph of fibers that wait for each other. A fiber waits for one other at most, so
/// each ring is found by walking.
fn rings(next: HashMap<u64, u64>) -> Vec<Vec<u64>> {
    let mut seen: HashMap<u64, u64> = HashMap::new();
    let mut rings = Vec::new();
    for &start in next.keys() {
        let mut at = start;
        while !seen.contains_key(&at) {
            seen.insert(at, start);
            match next.get(&at) {
                Some(&after) => at = after,
                None => break,
            }
        }
        if seen.get(&at) == Some(&start) && next.contains_key(&at) {
            let mut ring = vec![at];
            let mut after = next[&at];
            while after != at {
                ring.push(after);
                after = next[&after];
            }
            let least = ring.iter().enumerate().min_by_key(|&(_, id)| id);
            let least = least.map_or(0, |(index, _)| index);
            ring.rotate_left(least);
            rings.push(ring);
        }
    }
    rings.sort_unstable();
    rings
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} fibers", self.fibers.len())?;
        let mut groups: BTreeMap<_, usize> = BTreeMap::new();
        for fiber in &self.fibers {
            let name = fiber.name.as_deref().unwrap_or("-");
            *groups.entry((fiber.state, name, &fiber.spawned_at)).or_default() += 1;
        }
        for ((state, name, spawned_at), count) in groups {
            writeln!(f, "{count:>9} {state:<14} {name}  spawned at {spawned_at}")?;
        }
        for ring in &self.deadlocks {
            let ring: Vec<_> = ring.iter().map(u64::to_string).collect();
            writeln!(f, "DEADLOCK: each waits for the next: {}, {}", ring.join(", "), ring[0])?;
        }
        writeln!(
            f,
            "\n{:>9} {:<14} {:>4} {:>9} {:>7} {:<16} waits for",
            "number", "state", "cpu", "age s", "stack", "name"
        )?;
        let lines = self.lines();
        for line in lines.iter().take(PRINTED_MAX) {
            write_line(line, f)?;
        }
        match lines.len().saturating_sub(PRINTED_MAX) {
            0 => Ok(()),
            more => writeln!(f, "... and {more} more lines"),
        }
    }
}

impl Dump {
    /// The fibers of each line, by the number of the first: those that do the same together. Fibers
    /// that wait for another one stand alone, since it matters which they are.
    fn lines(&self) -> Vec<Vec<&DumpedFiber>> {
        let mut alike: HashMap<_, Vec<&DumpedFiber>> = HashMap::new();
        for fiber in &self.fibers {
            alike.entry(fiber.kind()).or_default().push(fiber);
        }
        let mut lines: Vec<Vec<_>> = Vec::new();
        for fibers in alike.into_values() {
            if fibers.len() >= ALIKE_MIN && fibers[0].waits_for_fiber.is_none() {
                lines.push(fibers)
            } else {
                lines.extend(fibers.into_iter().map(|fiber| vec![fiber]))
            }
        }
        lines.sort_unstable_by_key(|fibers| fibers[0].id);
        lines
    }
}

impl DumpedFiber {
    /// Key that is equal for fibers that do the same.
    fn kind(&self) -> impl Eq + Hash + '_ {
        let name = &self.name;
        let wait = (self.state, &self.waits_for, &self.backtrace);
        (name, wait, &self.spawned_at)
    }
}

/// One fiber, or how many there are of a kind, with the age of the oldest and their stacks
/// together.
fn write_line(fibers: &[&DumpedFiber], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let first = fibers[0];
    let (number, processor) = match fibers.len() {
        1 => (first.id.to_string(), first.processor),
        many => (format!("{many} alike"), None),
    };
    let age = fibers.iter().map(|fiber| fiber.age).max().unwrap_or_default();
    let stacks = fibers.iter().filter_map(|fiber| fiber.stack);
    let touched_len = stacks.map(|stack| stack.touched_len).reduce(|sum, len| sum + len);
    writeln!(
        f,
        "{number:>9} {:<14} {:>4} {:>9.1} {:>7} {:<16} {}",
        first.state,
        processor.map_or("-".to_owned(), |index| index.to_string()),
        age.as_secs_f64(),
        touched_len.map_or("-".to_owned(), |len| format!("{}K", len.div_ceil(1024))),
        first.name.as_deref().unwrap_or("-"),
        first.waits_for.as_deref().unwrap_or("-"),
    )?;
    for line in first.backtrace.iter().flat_map(|trace| trace.lines()) {
        writeln!(f, "            {line}")?;
    }
    Ok(())
}

impl fmt::Display for DumpedFiber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(&[self], f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn waiting(id: u64) -> DumpedFiber {
        DumpedFiber {
            id,
            name: Some(format!("a \"quoted\"\nname {id}")),
            state: FiberState::Waiting,
            waits_for: None,
            waits_for_fiber: None,
            processor: Some(0),
            age: Duration::from_millis(1500),
            stack: None,
            spawned_at: "here:1:1".to_owned(),
            backtrace: None,
        }
    }

    #[test]
    fn finds_rings_and_not_chains() {
        let edges = [(1, 2), (2, 3), (3, 1), (4, 1), (5, 6), (7, 8), (8, 7)];
        assert_eq!(rings(edges.into()), [vec![1, 2, 3], vec![7, 8]]);
    }

    #[test]
    fn fiber_waiting_for_itself_is_a_ring() {
        assert_eq!(rings([(9, 9)].into()), [vec![9]]);
    }

    /// Seen: 64 fibers that waited for connections were 64 equal lines of `/fibers`, and the one
    /// that mattered was among them.
    #[test]
    fn fibers_that_do_the_same_are_one_line() {
        let fiber = |id, waits_for: &str| DumpedFiber {
            name: Some("connection".to_owned()),
            waits_for: Some(waits_for.to_owned()),
            ..waiting(id)
        };
        let mut dump =
            Dump { fibers: (1..=64).map(|id| fiber(id, "accept")).collect(), ..Dump::default() };
        dump.fibers[7] = fiber(8, "a disk");
        let owned = |id| DumpedFiber { waits_for_fiber: Some(8), ..fiber(id, "mutex") };
        dump.fibers.extend((65..=70).map(owned));
        let text = dump.to_string();
        let (_, list) = text.split_once("waits for\n").unwrap();
        let firsts: Vec<_> =
            list.lines().map(|line| line.split_once(" waiting").unwrap().0.trim()).collect();
        assert_eq!(firsts, ["63 alike", "8", "65", "66", "67", "68", "69", "70"], "{text}");
    }

    #[test]
    fn json_quotes_names() {
        let mut out = String::new();
        waiting(1).write_json(&mut out);
        assert!(out.contains(r#""name":"a \"quoted\"\nname 1""#), "{out}");
    }
}
