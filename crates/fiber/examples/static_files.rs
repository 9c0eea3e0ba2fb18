//! Serves files over HTTP/1.0, in one page. `weft serve` is the complete server.

extern crate weftwork_fiber as fiber;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use fiber::fs::File;
use fiber::net::{TcpListener, TcpStream};

/// Serves the files under `root` until the listener is closed.
pub(crate) fn serve(listener: &TcpListener, root: PathBuf) {
    let root: Arc<Path> = root.into();
    while let Ok(stream) = listener.accept() {
        let root = Arc::clone(&root);
        fiber::spawn(move || answer(&stream, &root));
    }
}

fn answer(mut stream: &TcpStream, root: &Path) -> io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    // The fields of the head do not matter here; it ends with an empty line.
    while !lines.next().transpose()?.unwrap_or_default().is_empty() {}
    let Some(path) = path_of(&request) else {
        return stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n");
    };
    let file = match File::open(root.join(path)) {
        Ok(file) if file.metadata()?.is_file() => file,
        _ => return stream.write_all(b"HTTP/1.0 404 Not Found\r\n\r\n"),
    };
    let len = file.len()?;
    write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {len}\r\n\r\n")?;
    io::copy(&mut file.take(len), &mut stream)?;
    Ok(())
}

/// `GET /a/b HTTP/1.0` to `a/b`, and nothing that leads out of the root.
fn path_of(request: &str) -> Option<&Path> {
    let path = request.strip_prefix("GET /")?.split(' ').next()?;
    let inside = |part| matches!(part, Component::Normal(_));
    Some(Path::new(path)).filter(|path| path.components().all(inside))
}

fn main() -> io::Result<()> {
    let root = std::env::args_os().nth(1).unwrap_or(".".into());
    fiber::run(move || {
        let listener = TcpListener::bind("127.0.0.1:7080")?;
        println!("http://{}/", listener.local_addr()?);
        serve(&listener, root.into());
        Ok(())
    })
}
