//! A chat: each line of a client goes to all others. Each client has two fibers, a reader and a
//! writer, and a channel of 64 lines between the room and the writer: a client that reads too
//! slowly is disconnected.

extern crate weftwork_fiber as fiber;

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::sync::Arc;

use fiber::net::{TcpListener, TcpStream};
use fiber::sync::{Mutex, mpsc};

type Room = Arc<Mutex<HashMap<u64, mpsc::SyncSender<Arc<str>>>>>;

/// Serves until the listener is closed.
pub(crate) fn serve(listener: &TcpListener) {
    let room = Room::default();
    while let Ok(stream) = listener.accept() {
        let room = Arc::clone(&room);
        fiber::spawn(move || welcome(stream, &room));
    }
}

fn welcome(stream: TcpStream, room: &Room) -> io::Result<()> {
    let me = fiber::current().expect("a fiber").id();
    let (outbox, lines) = mpsc::sync_channel::<Arc<str>>(64);
    let mut writer = stream.try_clone()?;
    fiber::spawn(move || -> io::Result<()> {
        for line in lines {
            writer.write_all(line.as_bytes())?;
        }
        writer.shutdown(std::net::Shutdown::Both)
    });
    room.lock().unwrap().insert(me, outbox);
    say(room, me, "came");
    for line in BufReader::new(&stream).lines() {
        match line {
            Ok(line) => say(room, me, &line),
            Err(_) => break,
        }
    }
    room.lock().unwrap().remove(&me);
    say(room, me, "left");
    Ok(())
}

fn say(room: &Room, me: u64, words: &str) {
    let line: Arc<str> = format!("{me}: {words}\n").into();
    let heard = |id: &u64, to: &mut mpsc::SyncSender<_>| {
        *id == me || to.try_send(Arc::clone(&line)).is_ok()
    };
    room.lock().unwrap().retain(heard);
}

fn main() -> io::Result<()> {
    fiber::run(|| {
        let listener = TcpListener::bind("127.0.0.1:7008")?;
        println!("chatting on {}", listener.local_addr()?);
        serve(&listener);
        Ok(())
    })
}
