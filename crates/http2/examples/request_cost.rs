//! Cost of a request: nanoseconds from its frame to the frames of its reply, without any I/O.
//!
//! ```text
//! cargo run --release -p weftwork-http2 --example request_cost
//! ```
//!
//! Each line is the fastest of several rounds: the others were disturbed by something else.

extern crate weftwork_http2 as http2;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use http2::{
    Encoder, Endpoint, EndpointLimits, Indexing, PREFACE, RepeatedField, ReplyHead, RequestHead,
    StreamEvent, encode_literals,
};

const ROUNDS: usize = 50;
const REQUESTS: u32 = 20_000;

const LOAD: &[(&str, &str)] = &[
    (":method", "GET"),
    (":scheme", "http"),
    (":authority", "127.0.0.1:8080"),
    (":path", "/hello.txt"),
    ("user-agent", "h2load nghttp2/1.52.0"),
];

const BROWSER: &[(&str, &str)] = &[
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "www.example.org"),
    (":path", "/hello.txt"),
    ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"),
    ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"),
    ("accept-language", "en-US,en;q=0.5"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("referer", "https://www.example.org/"),
    ("upgrade-insecure-requests", "1"),
    ("priority", "u=0, i"),
];

fn main() {
    measure("h2load, 100 streams", LOAD, true, 100, 400);
    measure("h2load, 1 stream", LOAD, true, 1, 400);
    measure("browser, 100 streams", BROWSER, true, 100, 400);
    measure("browser, literals", BROWSER, false, 100, 400);
    measure("h2load, 64 KiB", LOAD, true, 10, 65_536);
}

/// `indexed`: all fields but the first four come from the dynamic table, as clients do it.
fn measure(name: &str, fields: &[(&str, &str)], indexed: bool, streams: u32, body_len: u64) {
    let body = vec![b'x'; body_len as usize];
    let server = RepeatedField::new(b"server", b"weft");
    let date = RepeatedField::new(b"date", b"Thu, 26 Nov 2026 08:00:00 GMT");
    let kind = RepeatedField::new(b"content-type", b"text/plain; charset=utf-8");
    let length = body_len.to_string();
    let entity: [(&[u8], &[u8]); 3] = [
        (b"content-length", length.as_bytes()),
        (b"etag", b"\"190-68cbd88aadd9322b\""),
        (b"last-modified", b"Wed, 25 Nov 2026 08:00:00 GMT"),
    ];
    let encoded = encode_literals(entity);
    let head = ReplyHead {
        status: 200,
        repeated: &[&date, &server, &kind],
        encoded: &encoded,
        fields: &[],
    };

    let now = Instant::now();
    let mut out = Vec::new();
    let limits = Arc::new(EndpointLimits::default());
    let mut endpoint = Endpoint::new(limits, now, &mut out);
    let mut request = RequestHead::new(32 * 1024, 100);
    let wide = [&[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4][..], &0x7fff_ffff_u32.to_be_bytes()].concat();
    endpoint.receive(&[PREFACE, &wide].concat(), now, &mut request, &mut out);

    let mut client = Encoder::new(4096);
    let mut id = 1_u32;
    let mut best_ns = f64::MAX;
    let mut request_len = 0;
    let mut reply_len = 0;
    for _ in 0..ROUNDS {
        let mut input = Vec::new();
        for _ in 0..REQUESTS {
            let start = input.len();
            put_request(&mut client, fields, indexed, id, &mut input);
            request_len = input.len() - start;
            id += 2;
        }
        let mut used = 0;
        let start = Instant::now();
        for _ in 0..REQUESTS / streams {
            out.clear();
            // WINDOW_UPDATE for the bodies of this batch.
            let window = [0, 0, 4, 8, 0, 0, 0, 0, 0];
            let window = [&window[..], &(streams * body_len as u32).to_be_bytes()].concat();
            endpoint.receive(&window, now, &mut request, &mut out);
            for _ in 0..streams {
                let input = black_box(&input[used..]);
                let taken = endpoint.receive(input, now, &mut request, &mut out);
                used += taken.used;
                let Some(StreamEvent::Request { stream, .. }) = taken.event else {
                    panic!("{:?}", taken.event);
                };
                black_box(request.path());
                endpoint.reply(stream, &head, body_len, &mut out);
            }
            while let Some(mut piece) = endpoint.next_piece(64 * 1024) {
                while let Some(len) = endpoint.write_frame(&mut piece, &mut out) {
                    if body_len < 16_384 {
                        out.extend_from_slice(&body[..len as usize]);
                    }
                }
            }
            reply_len = out.len() / streams as usize;
            black_box(&out);
        }
        let ns = start.elapsed().as_nanos() as f64 / f64::from(REQUESTS);
        best_ns = best_ns.min(ns);
    }
    println!("{name:22} {best_ns:6.0} ns  {request_len:4} bytes in, {reply_len:5} out");
}

fn put_request(
    client: &mut Encoder,
    fields: &[(&str, &str)],
    indexed: bool,
    id: u32,
    out: &mut Vec<u8>,
) {
    let mut block = Vec::new();
    for (at, (name, value)) in fields.iter().enumerate() {
        let name = name.as_bytes();
        let value = value.as_bytes();
        if indexed && at != 3 {
            client.repeated(&RepeatedField::new(name, value), &mut block);
        } else {
            client.literal(name, value, Indexing::Allowed, &mut block);
        }
    }
    let [_, len @ ..] = (block.len() as u32).to_be_bytes();
    out.extend(len);
    out.extend([1, 5]); // HEADERS, END_STREAM and END_HEADERS
    out.extend(id.to_be_bytes());
    out.extend(block);
}
