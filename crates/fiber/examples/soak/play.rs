//! One round: servers, a crowd of fibers that play scenes, and random cancellations.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fiber::net::{Input, TcpListener, TcpStream, UdpSocket};
use fiber::{
    Builder, ClusterHandle, Fiber, Flow, JoinHandle, JoinSet, Source, Stackless, is_cancellation,
};

use crate::dice::Dice;
use crate::scenes::{self, Props};

/// Fibers that play at the same time.
const PLAYERS: usize = 64;
/// Fibers that accept from each listener.
const ACCEPTORS: usize = 4;

/// Results of the scenes of a round.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    played: u64,
    cancelled: u64,
    timed_out: u64,
    /// The other end was cancelled.
    disturbed: u64,
    /// First violation that was seen.
    pub(crate) wrong: Option<String>,
}

impl Outcomes {
    pub(crate) fn add(&mut self, other: &Outcomes) {
        self.played += other.played;
        self.cancelled += other.cancelled;
        self.timed_out += other.timed_out;
        self.disturbed += other.disturbed;
    }

    fn count(&mut self, result: io::Result<()>) {
        let Err(error) = result else {
            self.played += 1;
            return;
        };
        use io::ErrorKind as Kind;
        match error.kind() {
            _ if is_cancellation(&error) => self.cancelled += 1,
            Kind::TimedOut => self.timed_out += 1,
            Kind::ConnectionReset
            | Kind::ConnectionRefused
            | Kind::BrokenPipe
            | Kind::UnexpectedEof
            | Kind::NotConnected
            | Kind::AddrNotAvailable => self.disturbed += 1,
            _ => self.wrong = Some(format!("{error:?}")),
        }
    }
}

impl fmt::Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcomes { played, cancelled, timed_out, disturbed, .. } = self;
        write!(
            f,
            "{played} plays ended well, {cancelled} cancelled, {timed_out} timed out, \
             {disturbed} disturbed"
        )
    }
}

/// A round of the soak, inside a runtime.
pub(crate) struct Stage {
    dice: Dice,
    curtain: Instant,
    abroad: ClusterHandle,
}

impl Stage {
    pub(crate) fn new(seed: u64, curtain: Instant, abroad: ClusterHandle) -> Stage {
        let dice = Dice::new(seed);
        Stage { dice, curtain, abroad }
    }

    pub(crate) fn play(mut self) -> Outcomes {
        let directory = tempfile::tempdir().expect("a directory for files");
        let mut servers = Servers::start(directory.path(), &self.abroad);
        let mut outcomes = Outcomes::default();
        let mut players = JoinSet::new();
        let mut known: Vec<Fiber> = Vec::new();
        while Instant::now() < self.curtain && outcomes.wrong.is_none() {
            while players.len() < PLAYERS {
                let (dice, props) = (Dice::new(self.dice.number()), servers.props.clone());
                let builder = if self.dice.one_in(3) {
                    // SAFETY: the scenes hold nothing across their waits that is not `Send`, and
                    // use no thread-local storage.
                    unsafe { Builder::new().migratable() }
                } else {
                    Builder::new()
                };
                let player = players.spawn_with(builder, move || scenes::play(dice, &props));
                known.push(player.expect("a stack for a player"));
            }
            fiber::sleep(Duration::from_millis(self.dice.below(4)));
            for _ in 0..self.dice.below(6).min(known.len() as u64) {
                let victim = self.dice.below(known.len() as u64) as usize;
                known.swap_remove(victim).cancel();
            }
            servers.disturb(&mut self.dice);
            while let Some(ended) = players.try_join_next() {
                outcomes.count(ended.unwrap_or_else(|panic| Err(told(&*panic))));
            }
            // Drops finished fibers from the list; a few more than there are players may stay.
            if known.len() > 4 * PLAYERS {
                known.drain(..2 * PLAYERS);
            }
        }
        players.cancel_all();
        while let Some(ended) = players.join_next() {
            outcomes.count(ended.unwrap_or_else(|panic| Err(told(&*panic))));
        }
        let shared = Arc::clone(&servers.props.shared);
        if let Err(error) = servers.stop().and_then(|()| shared.check()) {
            outcomes.wrong.get_or_insert(error);
        }
        outcomes
    }
}

fn told(panic: &(dyn std::any::Any + Send)) -> io::Error {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    io::Error::new(io::ErrorKind::InvalidData, text.unwrap_or_default())
}

/// The fibers that answer connections, as far as they are known: the latest.
type Handlers = Arc<Mutex<Vec<Fiber>>>;

const HANDLERS_KNOWN_MAX: usize = 200;

fn remember(handlers: &Handlers, handler: Fiber) {
    let mut known = handlers.lock().expect("no fiber panics");
    if known.len() >= HANDLERS_KNOWN_MAX {
        known.clear();
    }
    known.push(handler);
}

/// Servers that the players talk to.
struct Servers {
    listeners: [Arc<TcpListener>; 2],
    acceptors: Vec<(usize, JoinHandle<()>)>,
    handlers: Handlers,
    udp: JoinHandle<()>,
    props: Props,
}

impl Servers {
    fn start(directory: &Path, abroad: &ClusterHandle) -> Servers {
        let listen = || Arc::new(TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let listeners = [listen(), listen()];
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").expect("a free port"));
        let props = Props {
            echo: listeners[0].local_addr().expect("the socket is bound"),
            echo_stackless: listeners[1].local_addr().expect("the socket is bound"),
            datagrams: socket.local_addr().expect("the socket is bound"),
            directory: Arc::from(directory),
            abroad: abroad.clone(),
            shared: Arc::default(),
        };
        let udp = serve_datagrams(&socket);
        let handlers = Handlers::default();
        let acceptors = (0..2 * ACCEPTORS)
            .map(|number| {
                let listener = &listeners[number % 2];
                (number, accept(number, listener, &handlers))
            })
            .collect();
        Servers { listeners, acceptors, handlers, udp, props }
    }

    /// Cancels handlers and acceptors now and then, and replaces the acceptors.
    fn disturb(&mut self, dice: &mut Dice) {
        if dice.one_in(5) {
            let (_, acceptor) = &self.acceptors[dice.below(2 * ACCEPTORS as u64) as usize];
            acceptor.cancel();
        }
        let mut handlers = self.handlers.lock().expect("no fiber panics");
        if dice.one_in(3) && !handlers.is_empty() {
            let victim = dice.below(handlers.len() as u64) as usize;
            handlers.swap_remove(victim).cancel();
        }
        drop(handlers);
        for (number, acceptor) in &mut self.acceptors {
            if acceptor.is_finished() {
                let listener = &self.listeners[*number % 2];
                *acceptor = accept(*number, listener, &self.handlers);
            }
        }
    }

    fn stop(self) -> Result<(), String> {
        self.udp.cancel();
        self.listeners.iter().for_each(|listener| listener.close());
        let servers = self.acceptors.into_iter().map(|(_, acceptor)| acceptor);
        for server in servers.chain([self.udp]) {
            server.join().map_err(|panic| told(&*panic).to_string())?;
        }
        Ok(())
    }
}

/// An acceptor; it ends when it is cancelled, or the listener closed.
fn accept(number: usize, listener: &Arc<TcpListener>, handlers: &Handlers) -> JoinHandle<()> {
    let (listener, handlers) = (Arc::clone(listener), Arc::clone(handlers));
    let in_steps = number % 2 == 1;
    let builder = Builder::new().name("acceptor").processor(number);
    let accept = move || {
        while let Ok(stream) = listener.accept() {
            let handler = if in_steps {
                fiber::spawn_stackless(Echo(stream))
            } else {
                fiber::spawn(move || echo(stream))
            };
            remember(&handlers, handler.fiber().clone());
        }
    };
    builder.spawn(accept).expect("a stack for an acceptor")
}

/// Echoes its input until the end, or an error.
fn echo(stream: TcpStream) {
    let mut buffer = vec![0; 3000];
    while let Ok(len @ 1..) = (&stream).read(&mut buffer) {
        if (&stream).write_all(&buffer[..len]).is_err() {
            return;
        }
    }
}

/// Echo server as a stackless fiber.
struct Echo(TcpStream);

impl Stackless for Echo {
    fn source(&self) -> Source<'_> {
        self.0.source()
    }

    fn received(&mut self, input: io::Result<Input>) -> Flow {
        match input {
            Ok(input) if !input.is_empty() && self.0.write_all(&input).is_ok() => Flow::Receive,
            _ => Flow::Done,
        }
    }
}

fn serve_datagrams(socket: &Arc<UdpSocket>) -> JoinHandle<()> {
    let socket = Arc::clone(socket);
    fiber::spawn(move || {
        let mut buffer = vec![0; 2000];
        loop {
            match socket.recv_from(&mut buffer) {
                Ok((len, sender)) => drop(socket.send_to(&buffer[..len], sender)),
                Err(error) if is_cancellation(&error) => return,
                // An earlier answer found no fiber.
                Err(_) => {}
            }
        }
    })
}
