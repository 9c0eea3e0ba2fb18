//! Five short chapters: a server for words, from its first line to its orderly end. Each block is a
//! program that runs.
//!
//! # 1. A connection is a fiber
//!
//! The server answers `get KEY` and `put KEY VALUE`, a line each. [`run`](crate::run) starts a
//! runtime, [`spawn`](crate::spawn()) a fiber in it, and a fiber blocks as a thread does: it reads,
//! and others run meanwhile. `BufReader`, `write!` and all else that takes `Read` or `Write` works.
//!
//! ```
//! use std::io::{BufRead, BufReader, Write};
//! use weftwork_fiber::net::{TcpListener, TcpStream};
//!
//! fn serve(stream: &TcpStream) -> std::io::Result<()> {
//!     for line in BufReader::new(stream).lines() {
//!         let answer = match line?.split_once(' ') {
//!             Some(("get", key)) => format!("no {key} here\n"),
//!             _ => "get KEY, please\n".to_owned(),
//!         };
//!         (&*stream).write_all(answer.as_bytes())?;
//!     }
//!     Ok(())
//! }
//!
//! weftwork_fiber::run(|| {
//!     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
//!     let address = listener.local_addr().unwrap();
//!     weftwork_fiber::spawn(move || {
//!         while let Ok(stream) = listener.accept() {
//!             weftwork_fiber::spawn(move || serve(&stream));
//!         }
//!     });
//!     let mut client = TcpStream::connect(address).unwrap();
//!     client.write_all(b"get tea\n").unwrap();
//!     let mut answer = String::new();
//!     BufReader::new(client).read_line(&mut answer).unwrap();
//!     assert_eq!(answer, "no tea here\n");
//! });
//! ```
//!
//! A buffer of `BufReader` is on the heap; a big array on the stack would stay with the fiber, page
//! by page ([`Builder::stack_size`](crate::Builder::stack_size) has the limit).
//!
//! # 2. Shared values
//!
//! The words are a map behind a [`Mutex`](crate::sync::Mutex) of this crate, which may be held
//! across a wait. Fibers of one [`scope`](crate::scope) may borrow it; the scope ends when all of
//! them have.
//!
//! ```
//! use std::collections::HashMap;
//! use weftwork_fiber::sync::Mutex;
//!
//! type Words = Mutex<HashMap<String, String>>;
//!
//! fn answer(words: &Words, line: &str) -> String {
//!     let mut words = words.lock().unwrap();
//!     match line.splitn(3, ' ').collect::<Vec<_>>()[..] {
//!         ["get", key] => words.get(key).map_or("none\n".into(), |value| format!("{value}\n")),
//!         ["put", key, value] => {
//!             words.insert(key.into(), value.into());
//!             "kept\n".into()
//!         }
//!         _ => "get KEY or put KEY VALUE, please\n".into(),
//!     }
//! }
//!
//! weftwork_fiber::run(|| {
//!     let words = Words::default();
//!     weftwork_fiber::scope(|scope| {
//!         for cup in 0..100 {
//!             let words = &words; // borrowed
//!             scope.spawn(move || answer(words, &format!("put tea{cup} green")));
//!         }
//!     });
//!     assert_eq!(answer(&words, "get tea99"), "green\n");
//! });
//! ```
//!
//! # 3. Messages
//!
//! A log is written by one fiber, to which the others send. The channel has a limit: senders wait
//! when the log is slow, and memory does not grow. [`select!`](crate::select) takes whichever
//! message comes first.
//!
//! ```
//! use weftwork_fiber::sync::mpsc;
//!
//! weftwork_fiber::run(|| {
//!     let (log, lines) = mpsc::sync_channel::<String>(64);
//!     let (stop, stopped) = mpsc::sync_channel::<()>(1);
//!     let writer = weftwork_fiber::spawn(move || {
//!         let mut written = Vec::new();
//!         loop {
//!             weftwork_fiber::select! {
//!                 recv(lines) -> line => match line {
//!                     Ok(line) => written.push(line),
//!                     Err(_) => return written, // all senders have gone
//!                 },
//!                 recv(stopped) -> _ => return written,
//!             }
//!         }
//!     });
//!     for client in 0..3 {
//!         let log = log.clone();
//!         weftwork_fiber::spawn(move || log.send(format!("client {client} came")).unwrap());
//!     }
//!     drop(log);
//!     assert_eq!(writer.join().unwrap().len(), 3);
//!     drop(stop);
//! });
//! ```
//!
//! # 4. Ends
//!
//! A client that says nothing must not stay forever: [`timeout`](crate::timeout) bounds every wait
//! inside, however deep. To stop, close the listener, give the conversations some time, and cancel
//! what is left: their reads then fail, `?` leaves the loop, and destructors run.
//!
//! ```
//! use std::io::Read;
//! use std::sync::Arc;
//! use std::time::Duration;
//! use weftwork_fiber::net::{TcpListener, TcpStream};
//! use weftwork_fiber::{JoinSet, Runtime};
//!
//! fn converse(mut stream: TcpStream) -> std::io::Result<()> {
//!     let idle = Duration::from_secs(60);
//!     while weftwork_fiber::timeout(idle, || stream.read(&mut [0; 64]))? > 0 {}
//!     Ok(())
//! }
//!
//! fn serve(listener: &TcpListener) -> usize {
//!     let mut conversations = JoinSet::new();
//!     while let Ok(stream) = listener.accept() {
//!         conversations.spawn(move || converse(stream));
//!         while conversations.try_join_next().is_some() {}
//!     }
//!     weftwork_fiber::timeout(Duration::from_millis(10), || {
//!         while let Ok(Some(_)) = conversations.wait_next() {}
//!     });
//!     let left = conversations.len();
//!     conversations.cancel_all();
//!     while conversations.join_next().is_some() {}
//!     left
//! }
//!
//! let runtime = Runtime::builder().start().unwrap();
//! runtime.run(|| {
//!     let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
//!     let server = weftwork_fiber::spawn({
//!         let listener = Arc::clone(&listener);
//!         move || serve(&listener)
//!     });
//!     let mut silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
//!     weftwork_fiber::sleep(Duration::from_millis(1));
//!     listener.close(); // a real server does so when signal::Signals tells of SIGTERM
//!     assert!(server.join().unwrap() <= 1);
//!     assert_eq!(silent.read(&mut [0; 1]).unwrap_or(0), 0); // the server has hung up
//! });
//! assert_eq!(runtime.shutdown(Duration::from_secs(1)), 0); // nothing was left behind
//! ```
//!
//! # 5. Calls that block, and a look inside
//!
//! A fiber gives its processor away when it waits, and keeps it while it computes or blocks the
//! thread. Work of more than a millisecond or so goes to [`offload`](crate::offload()), which may
//! borrow. [`Runtime::dump`](crate::Runtime::dump) lists each fiber and its wait;
//! [`stall_detector`](crate::RuntimeBuilder::stall_detector) names those that keep a processor.
//!
//! ```
//! use std::time::Duration;
//! use weftwork_fiber::Runtime;
//!
//! let runtime = Runtime::builder()
//!     .processors(1)
//!     .stall_detector(Duration::from_millis(500))
//!     .start()
//!     .unwrap();
//! let text = "word ".repeat(1000);
//! let count = runtime.run(|| weftwork_fiber::offload(|| text.split_whitespace().count()));
//! assert_eq!(count, 1000);
//!
//! let sleeper = weftwork_fiber::Builder::new().name("sleeper");
//! runtime.spawn_with(sleeper, || weftwork_fiber::sleep(Duration::from_secs(60))).unwrap();
//! while !runtime.dump().to_string().contains("sleeper") {}
//! assert_eq!(runtime.stall_count(), 0);
//! ```
//!
//! The [cookbook](crate::cookbook) continues from here.
