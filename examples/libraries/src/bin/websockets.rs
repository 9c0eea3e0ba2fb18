//! `websockets COUNT`: opens COUNT idle WebSockets of `tungstenite`, a fiber each, and prints the
//! memory of one. The clients are in a process of their own. In the end each connection answers.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fiber::net::{TcpListener, TcpStream};
use fiber::sync::{Event, Semaphore};
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Error, Message};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match &arguments[1..] {
        [count] => serve(count),
        [count, address] => dial(count.parse().unwrap(), address.parse().unwrap()),
        _ => panic!("usage: websockets COUNT"),
    }
}

/// The library reserves 128 KiB to read into and clears them before each read: 15,000 idle
/// connections would have 2 GB.
fn config() -> Option<WebSocketConfig> {
    let config = WebSocketConfig::default();
    Some(config.read_buffer_size(512).write_buffer_size(0))
}

fn serve(count: &str) {
    let count = count.to_owned();
    fiber::run(move || {
        let before = resident();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let open = Arc::new(AtomicUsize::new(0));
        let of_server = Arc::clone(&open);
        fiber::spawn(move || {
            while let Ok(stream) = listener.accept() {
                let open = Arc::clone(&of_server);
                fiber::spawn(move || converse(stream, &open));
            }
        });
        let own = std::env::current_exe().unwrap();
        let mut clients = fiber::process::Command::new(own);
        let (stdin, stdout) = (std::process::Stdio::piped(), std::process::Stdio::piped());
        let mut clients =
            clients.args([&count, &address]).stdin(stdin).stdout(stdout).spawn().unwrap();
        let mut lines = BufReader::new(clients.stdout.take().unwrap()).lines();
        println!("{}", lines.next().expect("the clients are there").unwrap());
        let open = open.load(Ordering::Relaxed);
        assert_eq!(open.to_string(), count);
        println!("server: {open} idle WebSockets, {} bytes each", (resident() - before) / open);
        clients.stdin.take().unwrap().write_all(b"go\n").unwrap();
        assert!(clients.wait().unwrap().success());
    });
}

fn converse(stream: TcpStream, open: &AtomicUsize) -> Result<(), Error> {
    let mut socket = tungstenite::accept_with_config(stream, config()).expect("a handshake");
    open.fetch_add(1, Ordering::Relaxed);
    loop {
        let message = socket.read()?;
        if message.is_text() {
            socket.send(message)?;
        }
    }
}

fn dial(count: usize, address: SocketAddr) {
    let answered = fiber::run(move || {
        let before = resident();
        let (at_once, open, go) = (Semaphore::new(200), AtomicUsize::new(0), Event::new());
        let answered = AtomicUsize::new(0);
        fiber::scope(|scope| {
            for number in 0..count {
                let (at_once, open, go, answered) = (&at_once, &open, &go, &answered);
                scope.spawn(move || {
                    let permit = at_once.acquire();
                    let stream = TcpStream::connect(address).unwrap();
                    let (mut socket, _) = tungstenite::client::client_with_config(
                        "ws://localhost/",
                        stream,
                        config(),
                    )
                    .expect("a handshake");
                    drop(permit);
                    open.fetch_add(1, Ordering::Relaxed);
                    go.wait();
                    let hello = Message::text(number.to_string());
                    socket.send(hello.clone()).unwrap();
                    assert_eq!(socket.read().unwrap(), hello);
                    answered.fetch_add(1, Ordering::Relaxed);
                });
            }
            while open.load(Ordering::Relaxed) < count {
                fiber::sleep(std::time::Duration::from_millis(1));
            }
            println!(
                "client: {count} idle WebSockets, {} bytes each",
                (resident() - before) / count
            );
            fiber::offload(|| std::io::stdin().read_line(&mut String::new())).unwrap();
            go.set();
        });
        answered.into_inner()
    });
    assert_eq!(answered, count);
}

/// Resident bytes of this process, without the kernel's for its sockets. proc(5)
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
