//! Spans of `tracing` follow fibers: what each logs is logged inside of the spans that it has
//! entered, and of no others.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use fiber::net::{Input, TcpListener, TcpStream};
use fiber::sync::Semaphore;
use fiber::{BackendChoice, Builder, Flow, Runtime, Source, Stackless, spans};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Span, Subscriber, info, info_span};
use tracing_core::span::Current;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

mod patience;

/// Log: by message, the names of the spans around it, from the outermost.
#[derive(Clone, Default)]
struct Log {
    events: Arc<Mutex<HashMap<String, Vec<String>>>>,
    open: Arc<Mutex<Vec<String>>>,
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Log {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        locked(&self.open).push(attributes.metadata().name().to_owned());
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let name = context.span(&id).expect("a span that closes").name();
        let mut open = locked(&self.open);
        let at = open.iter().position(|open| open == name);
        open.remove(at.expect("a span is closed once"));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        let around = context.event_scope(event).into_iter().flatten();
        let mut names: Vec<_> = around.map(|span| span.name().to_owned()).collect();
        names.reverse();
        locked(&self.events).insert(message.0, names);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    /// The one of this program: spans and messages of different tests have different names.
    fn get() -> &'static Log {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Log::default();
            let subscriber = tracing_subscriber::registry().with(log.clone());
            spans::follow(subscriber).init();
            log
        })
    }

    #[track_caller]
    fn check(&self, message: &str, spans: &[&str]) {
        let events = locked(&self.events);
        let around = events.get(message);
        let around = around.unwrap_or_else(|| panic!("nobody said {message}"));
        assert_eq!(around, spans, "around {message}");
    }

    fn is_open(&self, span: &str) -> bool {
        locked(&self.open).iter().any(|open| open == span)
    }
}

/// Runs `test` on each back end.
fn on_each(processors: usize, test: impl Fn(&'static Log) + Clone + Send + 'static) {
    let log = Log::get();
    for backend in [BackendChoice::Uring, BackendChoice::Epoll] {
        let builder = Runtime::builder().processors(processors).backend(backend);
        let runtime = builder.start().unwrap();
        let test = test.clone();
        runtime.run(move || test(log));
        assert_eq!(runtime.shutdown(Duration::from_secs(10)), 0);
    }
}

#[test]
fn fibers_have_their_own_spans() {
    on_each(1, |log| {
        let first = fiber::spawn(|| {
            let _outer = info_span!("first").entered();
            info!("first 0");
            fiber::yield_now();
            info!("first 1");
            info_span!("deeper").in_scope(|| {
                fiber::sleep(Duration::from_millis(2));
                info!("first 2");
            });
            fiber::yield_now();
            info!("first 3");
        });
        let second = fiber::spawn(|| {
            info!("second 0");
            let outer = info_span!("second").entered();
            fiber::yield_now();
            info!("second 1");
            drop(outer);
            fiber::yield_now();
            info!("second 2");
            fiber::sleep(Duration::from_millis(3));
            info!("second 3");
        });
        fiber::yield_now();
        info!("outside");
        first.join().unwrap();
        second.join().unwrap();
        log.check("first 0", &["first"]);
        log.check("first 1", &["first"]);
        log.check("first 2", &["first", "deeper"]);
        log.check("first 3", &["first"]);
        log.check("second 0", &[]);
        log.check("second 1", &["second"]);
        log.check("second 2", &[]);
        log.check("second 3", &[]);
        log.check("outside", &[]);
    });
}

/// Guards that are dropped in another order than they were made.
#[test]
fn spans_leave_in_any_order() {
    on_each(1, |log| {
        let (a, b) = (info_span!("out-a"), info_span!("out-b"));
        let (in_a, in_b) = (a.clone().entered(), b.entered());
        fiber::yield_now();
        drop(in_a);
        fiber::yield_now();
        info!("only b is left");
        let again = (a.clone().entered(), a.entered());
        fiber::yield_now();
        info!("a twice");
        drop(again.1);
        fiber::yield_now();
        info!("a once");
        drop(again.0);
        fiber::yield_now();
        info!("b again");
        drop(in_b);
        fiber::yield_now();
        info!("all left");
        log.check("only b is left", &["out-b"]);
        // What is around is the innermost span, and those that it was made in.
        log.check("a twice", &["out-a"]);
        log.check("a once", &["out-a"]);
        log.check("b again", &["out-b"]);
        log.check("all left", &[]);
    });
}

#[test]
fn fiber_inherits_span() {
    on_each(2, |log| {
        let parent = info_span!("parent").entered();
        let looked = Arc::new(Semaphore::new(0));
        let may_end = Arc::clone(&looked);
        let inherits = fiber::spawn(move || {
            let _own = info_span!("own").entered();
            fiber::sleep(Duration::from_millis(1));
            info!("inherits");
            fiber::offload(|| info!("offloaded"));
            fiber::on_processor_stack(|| info!("on the processor's stack"));
            may_end.acquire().forget();
        });
        let given = Builder::new().span(info_span!(parent: None, "given"));
        let given = given.spawn(|| info!("has been given")).unwrap();
        let none = Builder::new().span(Span::none());
        let none = none.spawn(|| info!("has none")).unwrap();
        fiber::scope(|scope| {
            scope.spawn(|| info!("scoped"));
        });
        drop(parent);
        assert!(log.is_open("parent"), "the child is in it");
        looked.release(1);
        [inherits, given, none]
            .into_iter()
            .for_each(|child| child.join().unwrap());
        log.check("inherits", &["parent", "own"]);
        log.check("offloaded", &["parent", "own"]);
        log.check("on the processor's stack", &["parent", "own"]);
        log.check("has been given", &["given"]);
        log.check("has none", &[]);
        log.check("scoped", &["parent"]);
        for span in ["parent", "own", "given"] {
            assert!(!log.is_open(span), "{span} was left open");
        }
    });
}

/// A fiber that is helped away from its processor, and others on both that log and are in no span.
#[test]
fn spans_migrate_with_fiber() {
    on_each(2, |log| {
        let (has_begun, has_moved) = (
            Arc::new(Semaphore::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (begins, moved) = (Arc::clone(&has_begun), Arc::clone(&has_moved));
        let moves = move || {
            let _in = (info_span!("moves").entered(), info_span!("deep").entered());
            let began_on = rustix::thread::gettid();
            begins.release(1);
            while rustix::thread::gettid() == began_on {
                fiber::yield_now();
            }
            info!("moved");
            moved.store(true, Ordering::SeqCst);
        };
        // SAFETY: guards of spans may be anywhere (module `spans`); the rest is Arcs, and `gettid`
        // is a system call.
        let mover = unsafe { Builder::new().migratable() };
        let mover = mover.processor(1).spawn(moves).unwrap();
        has_begun.acquire().forget();
        let hog = Builder::new().processor(1).spawn(move || {
            info!("behind it");
            while !has_moved.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            info!("after it");
        });
        hog.unwrap().join().unwrap();
        info!("beside it");
        mover.join().unwrap();
        log.check("moved", &["moves", "deep"]);
        for message in ["behind it", "after it", "beside it"] {
            log.check(message, &[]);
        }
        assert!(!log.is_open("moves") && !log.is_open("deep"));
    });
}

/// Each step logs; the conversation was spawned inside a span, and is moved about by others that
/// keep a processor busy.
struct Says {
    stream: TcpStream,
    steps: u32,
}

impl Stackless for Says {
    fn source(&self) -> Source<'_> {
        self.stream.source()
    }

    fn received(&mut self, input: std::io::Result<Input>) -> Flow {
        let input = input.unwrap();
        if input.is_empty() {
            return Flow::Done;
        }
        self.steps += 1;
        info!("step {}", self.steps);
        info_span!("step-span").in_scope(|| {
            fiber::yield_now();
            info!("in step {}", self.steps);
        });
        self.stream.write_all(&input).unwrap();
        Flow::Receive
    }
}

#[test]
fn spans_follow_stackless_fiber() {
    on_each(2, |log| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = listener.accept().unwrap();
        let says = info_span!("conversation")
            .in_scope(|| fiber::spawn_stackless(Says { stream, steps: 0 }));
        for step in 1..=50 {
            client.write_all(b"x").unwrap();
            std::io::Read::read_exact(&mut client, &mut [0; 1]).unwrap();
            log.check(&format!("step {step}"), &["conversation"]);
            log.check(&format!("in step {step}"), &["conversation", "step-span"]);
            info!("client {step}");
            log.check(&format!("client {step}"), &[]);
        }
        drop(client);
        says.join().unwrap();
        assert!(!log.is_open("conversation") && !log.is_open("step-span"));
    });
}

#[test]
fn panic_and_cancel_leave_span() {
    on_each(1, |log| {
        let panics = fiber::spawn(|| {
            let _in = info_span!("panics").entered();
            fiber::yield_now();
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(panics.join().is_err());
        info!("after a panic");
        let cancelled = fiber::spawn(|| {
            let _in = info_span!("cancelled").entered();
            while fiber::checkpoint().is_ok() {
                fiber::sleep(Duration::from_secs(3600));
            }
        });
        fiber::yield_now();
        cancelled.cancel();
        cancelled.join().unwrap();
        info!("after a cancellation");
        // A guard that is never dropped: the fiber's end is the span's.
        let forgets = fiber::spawn(|| std::mem::forget(info_span!("forgotten").entered()));
        forgets.join().unwrap();
        info!("after a forgotten guard");
        fiber::spawn(|| info!("another fiber")).join().unwrap();
        for message in ["panic", "cancellation", "forgotten guard"] {
            log.check(&format!("after a {message}"), &[]);
        }
        log.check("another fiber", &[]);
        assert!(!log.is_open("panics") && !log.is_open("cancelled"));
    });
}

#[test]
fn dump_shows_spans() {
    let log = Log::get();
    let runtime = Runtime::builder().processors(1).start().unwrap();
    let parked = runtime.spawn(|| {
        let _in = (
            info_span!("listed").entered(),
            info_span!("inner").entered(),
        );
        fiber::park();
    });
    let mut dumped = runtime.dump();
    patience::until("the fiber enters its spans", || {
        dumped = runtime.dump();
        dumped.fibers.iter().any(|fiber| fiber.spans.len() == 2)
    });
    assert_eq!(dumped.fibers[0].spans, ["listed", "inner"]);
    assert!(dumped.to_string().contains("in listed:inner"), "{dumped}");
    assert!(dumped.to_json().contains(r#""spans":["listed","inner"]"#));
    parked.fiber().unpark();
    parked.join().unwrap();
    assert!(!log.is_open("listed"));
}

/// Seen: a scope that waited for ever. Cause: a subscriber panicked when the scope asked it for the
/// current span, and the fiber that was not spawned had been counted. Cure: it is counted out by a
/// guard.
#[test]
fn panicking_subscriber_frees_scope() {
    struct Panics;
    impl Subscriber for Panics {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
        fn current_span(&self) -> Current {
            panic!("asked for the current span")
        }
    }
    on_each(1, |_| {
        let scoped = fiber::spawn(|| {
            fiber::scope(|scope| {
                tracing::subscriber::with_default(Panics, || scope.spawn(|| ()).join()).unwrap();
            });
        });
        let ended = fiber::timeout(Duration::from_secs(30), || scoped.wait());
        ended.expect("the scope ends");
        assert!(scoped.join().is_err());
    });
}
