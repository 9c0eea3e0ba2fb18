//! Recipes, each a program that runs: time-outs, intervals, cancellation, whichever comes first,
//! one to many, back-pressure, pools, shutdown, graceful restart, tests without waiting, futures,
//! other people's libraries.
//!
//! # Time-outs
//!
//! [`timeout`](crate::timeout) bounds all that is done inside; inner ones only shorten. The error
//! is that of the call which waited. For a whole request, one deadline is enough, and none has to
//! be handed down.
//!
//! ```
//! use std::io::{ErrorKind, Read};
//! use std::time::Duration;
//! use weftwork_fiber::net::UnixStream;
//!
//! weftwork_fiber::run(|| {
//!     let (mut near, _far) = UnixStream::pair().unwrap();
//!     let result = weftwork_fiber::timeout(Duration::from_millis(5), || {
//!         near.read_to_end(&mut Vec::new()) // any number of reads
//!     });
//!     assert_eq!(result.unwrap_err().kind(), ErrorKind::TimedOut);
//! });
//! ```
//!
//! A retry waits a little longer each time, has an end, and ends when the fiber is told to:
//!
//! ```
//! use std::io;
//! use std::time::Duration;
//!
//! fn retry<T>(mut f: impl FnMut() -> io::Result<T>) -> io::Result<T> {
//!     let mut pause = Duration::from_millis(1);
//!     for _ in 0..5 {
//!         if let Ok(value) = f() {
//!             return Ok(value);
//!         }
//!         weftwork_fiber::checkpoint()?; // cancelled, or past the deadline
//!         weftwork_fiber::sleep(pause);
//!         pause *= 2;
//!     }
//!     f()
//! }
//!
//! weftwork_fiber::run(|| {
//!     let mut calls = 0;
//!     let third = retry(|| {
//!         calls += 1;
//!         if calls < 3 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(calls) }
//!     });
//!     assert_eq!(third.unwrap(), 3);
//! });
//! ```
//!
//! # Every second
//!
//! The next time is counted from the last one and not from the end of the work, so nothing drifts.
//!
//! ```
//! use std::time::{Duration, Instant};
//!
//! fn every(period: Duration, mut f: impl FnMut() -> bool) {
//!     let mut next = Instant::now();
//!     while !weftwork_fiber::is_cancelled() && f() {
//!         next += period;
//!         weftwork_fiber::sleep(next.saturating_duration_since(Instant::now()));
//!     }
//! }
//!
//! weftwork_fiber::run(|| {
//!     let mut ticks = 0;
//!     every(Duration::from_millis(1), || {
//!         ticks += 1;
//!         ticks < 3
//!     });
//!     assert_eq!(ticks, 3);
//! });
//! ```
//!
//! # Cancellation
//!
//! A request, which shows as an error of the next wait. What must be done to its end, such as a
//! farewell, goes into [`uncancellable`](crate::uncancellable).
//!
//! ```
//! use std::io::{Read, Write};
//! use weftwork_fiber::net::UnixStream;
//!
//! weftwork_fiber::run(|| {
//!     let (mut near, mut far) = UnixStream::pair().unwrap();
//!     let worker = weftwork_fiber::spawn(move || {
//!         let error = far.read(&mut [0; 1]).unwrap_err();
//!         assert!(weftwork_fiber::is_cancellation(&error));
//!         weftwork_fiber::uncancellable(|| far.write_all(b"bye"))
//!     });
//!     worker.cancel();
//!     worker.join().unwrap().unwrap();
//!     let mut farewell = String::new();
//!     near.read_to_string(&mut farewell).unwrap();
//!     assert_eq!(farewell, "bye");
//! });
//! ```
//!
//! The first answer of several wins, and the others are cancelled:
//!
//! ```
//! use std::time::Duration;
//! use weftwork_fiber::JoinSet;
//!
//! weftwork_fiber::run(|| {
//!     let mut mirrors = JoinSet::new();
//!     for (name, delay_s) in [("near", 0), ("far", 60)] {
//!         mirrors.spawn(move || {
//!             weftwork_fiber::sleep(Duration::from_secs(delay_s));
//!             name
//!         });
//!     }
//!     assert_eq!(mirrors.join_next().unwrap().unwrap(), "near");
//!     mirrors.cancel_all(); // sleep returns early
//!     while mirrors.join_next().is_some() {}
//! });
//! ```
//!
//! # Whichever comes first
//!
//! [`select!`](crate::select) is over channels, as the one of Go is. A socket and a signal get a
//! fiber each that sends what it reads; a timer is a time-out of the wait.
//!
//! ```
//! use std::io::{BufRead, BufReader, Write};
//! use std::time::Duration;
//! use weftwork_fiber::net::UnixStream;
//! use weftwork_fiber::signal::{SIGUSR1, Signals};
//! use weftwork_fiber::sync::mpsc;
//!
//! weftwork_fiber::run(|| {
//!     let (near, mut far) = UnixStream::pair().unwrap();
//!     let (to_lines, lines) = mpsc::sync_channel(16);
//!     let reader = weftwork_fiber::spawn(move || {
//!         let lines = BufReader::new(near).lines().map_while(Result::ok);
//!         lines.for_each(|line| drop(to_lines.send(line)));
//!     });
//!     let (to_signals, signals) = mpsc::sync_channel(1);
//!     let listener = weftwork_fiber::spawn(move || {
//!         let received = Signals::new([SIGUSR1]).unwrap();
//!         while received.wait().is_ok_and(|signal| to_signals.send(signal).is_ok()) {}
//!     });
//!     far.write_all(b"hello\n").unwrap();
//!     let first = weftwork_fiber::select! {
//!         recv(lines) -> line => line.unwrap(),
//!         recv(signals) -> _ => "reload".into(),
//!         default(Duration::from_secs(5)) => "nothing for five seconds".into(),
//!     };
//!     assert_eq!(first, "hello");
//!     for fiber in [reader, listener] {
//!         fiber.cancel();
//!         fiber.join().unwrap();
//!     }
//! });
//! ```
//!
//! # One to many
//!
//! Listeners with a channel each have all messages (tokio's `broadcast`). The policy for one that
//! is slow is a line: this sender drops it, and its channel ends.
//!
//! ```
//! use weftwork_fiber::sync::{Mutex, mpsc};
//!
//! struct Broadcast<T>(Mutex<Vec<mpsc::SyncSender<T>>>);
//!
//! impl<T: Clone> Broadcast<T> {
//!     fn listen(&self, bound: usize) -> mpsc::Receiver<T> {
//!         let (sender, receiver) = mpsc::sync_channel(bound);
//!         self.0.lock().unwrap().push(sender);
//!         receiver
//!     }
//!
//!     fn send(&self, message: &T) {
//!         self.0.lock().unwrap().retain(|to| to.try_send(message.clone()).is_ok());
//!     }
//! }
//!
//! weftwork_fiber::run(|| {
//!     let news = Broadcast(Mutex::new(Vec::new()));
//!     let (fast, slow) = (news.listen(8), news.listen(1));
//!     ["one", "two"].iter().for_each(|word| news.send(word));
//!     drop(news);
//!     assert_eq!(fast.iter().collect::<Vec<_>>(), ["one", "two"]);
//!     assert_eq!(slow.iter().collect::<Vec<_>>(), ["one"]);
//! });
//! ```
//!
//! Listeners who want only the latest value (tokio's `watch`) share it under a lock, with a number
//! that says how often it changed:
//!
//! ```
//! use std::time::Duration;
//! use weftwork_fiber::sync::{Condvar, Mutex};
//!
//! struct Watched<T> {
//!     value: Mutex<(u64, T)>,
//!     changed: Condvar,
//! }
//!
//! impl<T: Clone> Watched<T> {
//!     fn set(&self, value: T) {
//!         let mut current = self.value.lock().unwrap();
//!         *current = (current.0 + 1, value);
//!         self.changed.notify_all();
//!     }
//!
//!     /// Waits for a value after number `seen`. None: no change in an hour, or cancelled.
//!     fn after(&self, seen: u64) -> Option<(u64, T)> {
//!         let hour = Duration::from_secs(3600);
//!         let current = self.value.lock().unwrap();
//!         let (current, wait) =
//!             self.changed.wait_timeout_while(current, hour, |(n, _)| *n == seen).unwrap();
//!         (!wait.timed_out()).then(|| current.clone())
//!     }
//! }
//!
//! weftwork_fiber::run(|| {
//!     let limit = Watched { value: Mutex::new((0, 10)), changed: Condvar::new() };
//!     weftwork_fiber::scope(|scope| {
//!         scope.spawn(|| limit.set(20));
//!         assert_eq!(limit.after(0), Some((1, 20)));
//!     });
//! });
//! ```
//!
//! # Back-pressure
//!
//! Each queue has a limit, and a policy for the message beyond it: wait
//! (`send`), refuse (`try_send`) or wait for a while (`send_timeout`). A server that refuses stays
//! fast for those whom it serves.
//!
//! ```
//! use weftwork_fiber::sync::mpsc;
//! use weftwork_fiber::sync::mpsc::TrySendError;
//!
//! weftwork_fiber::run(|| {
//!     let (jobs, worker) = mpsc::sync_channel(2);
//!     jobs.send("first").unwrap();
//!     jobs.send("second").unwrap();
//!     let refused = jobs.try_send("third");
//!     assert!(matches!(refused, Err(TrySendError::Full("third")))); // answer 503, count it
//!     assert_eq!(worker.recv().unwrap(), "first");
//!     jobs.try_send("third").unwrap();
//! });
//! ```
//!
//! A [`Semaphore`](crate::sync::Semaphore) limits what runs at once. Taken before `accept`, it
//! leaves further connections to the kernel's queue:
//!
//! ```no_run
//! use std::sync::Arc;
//! use weftwork_fiber::net::TcpListener;
//! use weftwork_fiber::sync::Semaphore;
//!
//! weftwork_fiber::run(|| -> std::io::Result<()> {
//!     let connections = Arc::new(Semaphore::new(10_000));
//!     let listener = TcpListener::bind("127.0.0.1:7007")?;
//!     loop {
//!         connections.acquire().forget();
//!         let stream = listener.accept()?;
//!         let connections = Arc::clone(&connections);
//!         weftwork_fiber::spawn(move || {
//!             drop(stream); // serve it
//!             connections.release(1);
//!         });
//!     }
//! });
//! ```
//!
//! # Pools
//!
//! A channel that holds what is free is a pool: first come, first served, with a time-out where one
//! is set.
//!
//! ```
//! use weftwork_fiber::sync::mpmc;
//!
//! struct Pool<T>(mpmc::Sender<T>, mpmc::Receiver<T>);
//!
//! impl<T> Pool<T> {
//!     fn new(all: Vec<T>) -> Pool<T> {
//!         let (back, free) = mpmc::bounded(all.len());
//!         all.into_iter().for_each(|one| drop(back.send(one)));
//!         Pool(back, free)
//!     }
//!
//!     /// Waits for one that is free. A call that panics loses its own.
//!     fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
//!         let mut one = self.1.recv().ok()?; // fails past the deadline of `timeout`
//!         let result = f(&mut one);
//!         self.0.try_send(one).ok()?;
//!         Some(result)
//!     }
//! }
//!
//! weftwork_fiber::run(|| {
//!     let pool = Pool::new(vec![String::new(), String::new()]);
//!     weftwork_fiber::scope(|scope| {
//!         for _ in 0..10 {
//!             scope.spawn(|| pool.with(|connection| connection.push('x')).unwrap());
//!         }
//!     });
//!     let used = pool.with(|a| pool.with(|b| a.len() + b.len()).unwrap());
//!     assert_eq!(used, Some(10));
//! });
//! ```
//!
//! # Shutdown
//!
//! The listener is closed, conversations have some seconds to end, and
//! [`Runtime::shutdown`](crate::Runtime::shutdown) cancels what is left and says how many did not
//! end even so. [Chapter 4](crate::tutorial#4-ends) does it for one server; this is a process:
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//! use weftwork_fiber::Runtime;
//! use weftwork_fiber::net::TcpListener;
//! use weftwork_fiber::signal::{SIGINT, SIGTERM, Signals};
//!
//! let runtime = Runtime::builder().start().unwrap();
//! let listener = Arc::new(TcpListener::bind("127.0.0.1:7007").unwrap());
//! runtime.spawn({
//!     let listener = Arc::clone(&listener);
//!     move || {
//!         for stream in listener.incoming() {
//!             weftwork_fiber::spawn(move || drop(stream)); // serve it
//!         }
//!     }
//! });
//! runtime.run(|| Signals::new([SIGINT, SIGTERM])?.wait()).unwrap();
//! listener.close();
//! let left = runtime.shutdown(Duration::from_secs(10));
//! std::process::exit(i32::from(left > 0));
//! ```
//!
//! # Graceful restart
//!
//! The program that starts the server has the listening socket and hands it down as descriptor 3
//! (systemd's socket activation, `systemd-socket-activate` by hand). The new process accepts from
//! the same queue while the old one ends as above, so no connection is refused.
//!
//! ```no_run
//! use std::os::fd::{FromRawFd, OwnedFd};
//! use weftwork_fiber::net::TcpListener;
//!
//! fn listener() -> std::io::Result<TcpListener> {
//!     let own_id = std::process::id().to_string();
//!     if std::env::var("LISTEN_PID").is_ok_and(|id| id == own_id) {
//!         // SAFETY: sd_listen_fds(3): descriptor 3 is this process's, and nothing else has it.
//!         return Ok(unsafe { OwnedFd::from_raw_fd(3) }.into());
//!     }
//!     TcpListener::bind("127.0.0.1:7007")
//! }
//! ```
//!
//! # Tests without waiting
//!
//! The runtime has the machine's clock and no other. Code that decides by time takes the time as an
//! argument, and its test makes times up: a year passes in no time. What remains around it is a
//! loop that waits.
//!
//! ```
//! use std::time::{Duration, Instant};
//!
//! /// Limit of requests in a period, for one peer.
//! struct Limit { period: Duration, most: u32, since: Instant, count: u32 }
//!
//! impl Limit {
//!     fn take(&mut self, now: Instant) -> Result<(), Duration> {
//!         if now >= self.since + self.period {
//!             (self.since, self.count) = (now, 0);
//!         }
//!         if self.count == self.most {
//!             return Err(self.since + self.period - now); // to wait
//!         }
//!         self.count += 1;
//!         Ok(())
//!     }
//! }
//!
//! let start = Instant::now();
//! let day = Duration::from_secs(24 * 3600);
//! let mut limit = Limit { period: day, most: 1, since: start, count: 0 };
//! assert_eq!(limit.take(start), Ok(()));
//! assert_eq!(limit.take(start + day / 4), Err(day / 4 * 3));
//! assert_eq!(limit.take(start + day), Ok(()));
//! ```
//!
//! A test of what fibers do together waits for a state and not for a time: for a message, an
//! [`Event`](crate::sync::Event) or [`Runtime::dump`](crate::Runtime::dump). Conversations of a
//! protocol are tested without any fiber: crate `weftwork-session`.
//!
//! # Futures beside fibers
//!
//! A library of `async fn` needs its own runtime, on threads of its own. A fiber gives it a future
//! and waits for a channel, as any thread could; its processor runs others. With tokio, where
//! `handle` is a `tokio::runtime::Handle`:
//!
//! ```no_run
//! # mod tokio { pub mod runtime { pub struct Handle; impl Handle {
//! #     pub fn spawn<F: Future<Output: Send> + Send + 'static>(&self, _: F) {}
//! # } } }
//! use weftwork_fiber::sync::mpsc;
//!
//! /// None if the fiber was cancelled, or if the future has panicked.
//! fn wait_for<T, F>(handle: &tokio::runtime::Handle, future: F) -> Option<T>
//! where
//!     T: Send + 'static,
//!     F: Future<Output = T> + Send + 'static,
//! {
//!     let (sender, result) = mpsc::sync_channel(1);
//!     handle.spawn(async move { sender.send(future.await).ok() }); // has room: never blocks
//!     result.recv().ok()
//! }
//!
//! weftwork_fiber::run(|| {
//!     let answer = wait_for(&tokio::runtime::Handle, async { 6 * 7 });
//!     assert_eq!(answer, Some(42));
//! });
//! ```
//!
//! A cancelled fiber stops waiting, and the future continues: abort it by its handle if it should
//! not. The other direction, `async` code that asks fibers, is a `tokio::sync::oneshot` whose
//! sender moves into [`ClusterHandle::spawn`](crate::ClusterHandle::spawn).
//!
//! # Other people's libraries
//!
//! | a library that | on fibers |
//! |---|---|
//! | takes a `Read + Write` (`tungstenite`, `rustls::Stream`, `flate2`, `postgres-protocol`) | works as it is, over a [`TcpStream`](crate::net::TcpStream) |
//! | lets one bring the transport (`ureq`) | some 60 lines, once |
//! | opens its sockets itself and blocks (`postgres`, which has a tokio inside) | each call under [`offload`](crate::offload()) |
//! | blocks on a disk or computes (`rusqlite`) | the same |
//! | is `async` (`tokio-postgres`) | a runtime beside, as above |
//!
//! `examples/libraries` in the repository has a program for each, which CI runs against real peers.
//! A library's own buffers matter more than the fiber's stack: a WebSocket of `tungstenite`
//! reserves 128 KiB to read into unless `read_buffer_size` says less.
