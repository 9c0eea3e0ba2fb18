//! TLS by `rustls::StreamOwned` over sockets of fibers, both ends.

use std::io::{Read, Write};
use std::sync::Arc;

use fiber::net::{TcpListener, TcpStream};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::PrivateKeyDer;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};

const CLIENTS: usize = 200;

fn main() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(default_provider());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions();
    let server =
        server.unwrap().with_no_client_auth().with_single_cert(vec![certificate.clone()], key);
    let server = Arc::new(server.unwrap());
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let client = Arc::new(client.unwrap().with_root_certificates(roots).with_no_client_auth());
    fiber::run(move || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        fiber::spawn(move || {
            while let Ok(stream) = listener.accept() {
                let connection = ServerConnection::new(Arc::clone(&server)).unwrap();
                fiber::spawn(move || echo(StreamOwned::new(connection, stream)));
            }
        });
        fiber::scope(|scope| {
            for number in 0..CLIENTS {
                let client = Arc::clone(&client);
                scope.spawn(move || {
                    let connection =
                        ClientConnection::new(client, "localhost".try_into().unwrap()).unwrap();
                    let mut stream =
                        StreamOwned::new(connection, TcpStream::connect(address).unwrap());
                    let sent = number.to_string().repeat(10_000);
                    stream.write_all(sent.as_bytes()).unwrap();
                    let mut echoed = vec![0; sent.len()];
                    stream.read_exact(&mut echoed).unwrap();
                    assert!(echoed == sent.as_bytes());
                    stream.conn.send_close_notify();
                    stream.flush().unwrap();
                });
            }
        });
        println!("{CLIENTS} echoes over TLS");
    });
}

fn echo(mut stream: StreamOwned<ServerConnection, TcpStream>) -> std::io::Result<()> {
    let mut buffer = vec![0; 4096];
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..count])?;
    }
}
