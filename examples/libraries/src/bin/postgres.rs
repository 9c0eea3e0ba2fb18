//! `postgres HOST:PORT`: fifty fibers ask a PostgreSQL (user postgres, no password) in three ways.

use std::io::{self, Read, Write};

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use fiber::net::TcpStream;
use fiber::sync::{Mutex, mpsc};
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;

const FIBERS: i32 = 50;

fn main() {
    let address = std::env::args().nth(1).expect("usage: postgres HOST:PORT");
    let (host, port) = address.split_once(':').expect("HOST:PORT");
    let parameters = format!("host={host} port={port} user=postgres");
    fiber::run(move || {
        wire(&address);
        offloaded(&parameters);
        futures(&parameters);
    });
}

/// One connection per fiber, with the messages of `postgres-protocol`: no call blocks a processor.
fn wire(address: &str) {
    let sum = sum_of(|number| {
        let mut connection = Wire::connect(address).unwrap();
        connection.ask(&format!("select pg_sleep(0.1), {number} * 2")).unwrap()[0][1]
            .parse()
            .unwrap()
    });
    println!("wire: {sum}");
}

struct Wire {
    stream: TcpStream,
    input: BytesMut,
}

impl Wire {
    fn connect(address: &str) -> io::Result<Wire> {
        let stream = TcpStream::connect(address)?;
        let mut wire = Wire { stream, input: BytesMut::new() };
        let mut hello = BytesMut::new();
        frontend::startup_message([("user", "postgres")], &mut hello)?;
        wire.exchange(&hello)?;
        Ok(wire)
    }

    /// Rows of a query, as text.
    fn ask(&mut self, query: &str) -> io::Result<Vec<Vec<String>>> {
        let mut message = BytesMut::new();
        frontend::query(query, &mut message)?;
        self.exchange(&message)
    }

    fn exchange(&mut self, message: &[u8]) -> io::Result<Vec<Vec<String>>> {
        self.stream.write_all(message)?;
        let mut rows = Vec::new();
        loop {
            match Message::parse(&mut self.input)? {
                None => self.receive()?,
                Some(Message::DataRow(row)) => {
                    let text = |range| String::from_utf8_lossy(&row.buffer()[range]).into_owned();
                    rows.push(
                        row.ranges()
                            .map(|range| Ok(range.map_or_else(String::new, text)))
                            .collect()?,
                    );
                }
                Some(Message::ReadyForQuery(_)) => return Ok(rows),
                Some(Message::ErrorResponse(error)) => {
                    let error = error
                        .fields()
                        .map(|field| Ok(String::from_utf8_lossy(field.value_bytes()).into_owned()))
                        .collect::<Vec<_>>()?;
                    return Err(io::Error::other(error.join(" ")));
                }
                Some(_) => {}
            }
        }
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut buffer = [0; 1024];
        let count = self.stream.read(&mut buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.input.extend_from_slice(&buffer[..count]);
        Ok(())
    }
}

/// The crate `postgres` opens its sockets itself and blocks its thread: a pool of eight, each call
/// on a thread that may block.
fn offloaded(parameters: &str) {
    let connect =
        |_| fiber::offload(|| postgres::Client::connect(parameters, postgres::NoTls).unwrap());
    let (back, free) = fiber::sync::mpmc::bounded(8);
    (0..8).map(connect).for_each(|client| back.send(client).unwrap());
    let sum = sum_of(|number| {
        let mut client = free.recv().unwrap();
        let row = fiber::offload(|| client.query_one("select $1::int * 2", &[&number]).unwrap());
        back.send(client).unwrap();
        row.get(0)
    });
    println!("offload: {sum}");
    fiber::offload(|| drop((back, free))); // Closing connections blocks as well.
}

/// `tokio-postgres` on a tokio runtime: all fibers share one pipelined connection.
fn futures(parameters: &str) {
    let (started, handle) = mpsc::sync_channel(1);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let tokio = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        started.send(runtime.handle().clone()).unwrap();
        runtime.block_on(stopped).ok();
    });
    let handle = handle.recv().unwrap();
    let parameters = parameters.to_owned();
    let (client, connection) = wait_for(&handle, async move {
        tokio_postgres::connect(&parameters, tokio_postgres::NoTls).await.unwrap()
    });
    handle.spawn(connection);
    let client = std::sync::Arc::new(client);
    let sum =
        sum_of(|number| {
            let client = std::sync::Arc::clone(&client);
            let row = wait_for(&handle, async move {
                client.query_one("select $1::int * 2", &[&number]).await
            });
            row.unwrap().get(0)
        });
    println!("futures: {sum}");
    drop((client, stop));
    fiber::offload(|| tokio.join()).unwrap();
}

/// Result of a future on a tokio runtime, for a fiber or a plain thread.
fn wait_for<T: Send + 'static>(
    handle: &tokio::runtime::Handle,
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    let (sender, result) = mpsc::sync_channel(1);
    handle.spawn(async move { sender.send(future.await).ok() }); // Never blocks: there is room.
    result.recv().expect("the future has not panicked")
}

fn sum_of(ask: impl Fn(i32) -> i32 + Sync) -> i32 {
    let sum = Mutex::new(0);
    fiber::scope(|scope| {
        for number in 0..FIBERS {
            let (ask, sum) = (&ask, &sum);
            scope.spawn(move || {
                let doubled = ask(number);
                assert_eq!(doubled, number * 2);
                *sum.lock().unwrap() += doubled;
            });
        }
    });
    sum.into_inner().unwrap()
}
