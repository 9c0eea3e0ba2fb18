//! `netstack-offload`: our TCP/IP on a TAP beside the kernel's on a veth, both with offloads.

use super::{KERNEL, TAP};
use crate::catalog::prelude::*;
use crate::catalog::web;

pub(in crate::catalog) const OFFLOAD: Experiment = Experiment {
    name: "netstack-offload",
    about: "short connections and a long stream, with frames of up to 64 KiB",
    page: "\
How do a TCP/IP in user space and the kernel's compare when frames of up to 64 KiB pass the link
whole?

The author of Rusty has cards that carry one packet at a time, and does not ask. On today's machines
a network device takes a long piece of a stream, and virtual ones never cut it. So here the kernel's
server is on a veth with all offloads, and ours on a TAP with the virtio-net header, whose other end
is the same kernel. Two extremes: a page of 3.5 KB over a connection of its own, where handshakes and
wakings count, and a file of 100 MB over one connection, where bytes count. 500 front pages lie
between them. The generator is weft load on the kernel's TCP/IP, on the other core.

Of the CPU per request less is better, of the goodput more. On a veth the server's call also runs
the client's half of TCP; a TAP hands the frame to the kernel in the server's call as well. What is
charged to whom differs in detail, so the CPU of the whole machine stands beside that of the server.",
    found: "\
Not asked by the papers.",
    threats: "\
A TAP costs a system call for each frame and a copy; a veth hands over the buffer. The kernel's
server sends the 100 MB by sendfile, from the page cache and without a copy. A netstack has no
sendfile, so its server holds the file in memory (--memory-file-max), which saves the second of two
copies: from the page cache it carries 10 to 35 % less, by hand on a busy machine.
The 100 MB are a handful of requests in a sample: there the goodput counts, not the CPU per request.",
    reasons: "\
Of 100 MB over one connection each byte is copied once more than by sendfile, which hands pages of
the page cache to the link, and each frame is a system call. perf gives that copy 41 % of the server's
core, and 28 % to waking the client, which is the faster of the two and sleeps after each 64 KiB. A
loop that only writes such frames, to a station that is not there, carries 130 Gbit/s (the example
device_cost of crate netstack).",
    measures: &[
        Measure::CPU_US,
        Measure::GBIT,
        Measure::MACHINE_US,
        Measure::RATE,
        Measure::BUSY,
    ],
    cells: |_| {
        vec![
            Cell::new(SHORT, "http", [("size", SHORT_BYTES), ("connections", 64)]),
            Cell::new(PAGES, "http", [("connections", 100)]),
            Cell::new(BULK, "http", [("size", BULK_BYTES), ("connections", 1)]),
        ]
    },
    subjects: &[KERNEL, TAP],
    work: Work::Server(ServerWork {
        lasts: LASTS,
        needs_link: true,
        ..ServerWork::new(take)
    }),
    figures: &[
        bars(0),
        bars(1),
        bars(2),
    ],
    expectations,
};

const SHORT: &str = "3.5 KB, a connection for every request";
const PAGES: &str = "500 front pages, a connection for every request";
const BULK: &str = "100 MB over one connection";
const SHORT_BYTES: u64 = 3500;
const BULK_BYTES: u64 = 100_000_000;
/// In samples' times: 100 MB arrive in less.
const LASTS: f64 = 2.0;
const MTU: u64 = 1500;

fn take(bench: &mut Bench<'_>, cell: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let plan = super::plan(subject, MTU, true);
    let (mut server, mut load) = match cell.parameter("size") {
        None => super::pages(bench, subject, plan)?,
        Some(size) => {
            let site = web::site(bench, "short-and-long", &[SHORT_BYTES, BULK_BYTES])?;
            let more: &[&str] = match subject.kind == TAP {
                true => &["--memory-file-max", "128M"],
                false => &[],
            };
            let server = bench.start_on(plan, subject, &site, 1, more)?;
            let url = server.url(&format!("/{size}.html"));
            let close = if size == BULK_BYTES { "" } else { "--close" };
            let load = words(&format!("http {url} {close}"));
            (server, load)
        }
    };
    let connections = cell.get("connections", 1);
    load.extend(words(&format!("-c {connections} --warm-up 500ms")));
    bench.seconds *= LASTS;
    Ok(bench.drive(&mut server, &[load])?.sound()?.sample())
}

fn expectations(rows: &Rows) -> Expectations {
    let (cpu, goodput) = (rows.by(&Measure::CPU_US), rows.by(&Measure::GBIT));
    vec![
        cpu.near(SHORT, TAP, 0.8, KERNEL),
        goodput.beats(BULK, TAP, &[KERNEL], 0.8),
    ]
}
