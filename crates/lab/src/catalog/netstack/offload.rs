//! `netstack-offload`: our TCP/IP on a TAP and the kernel's on a veth, both with offloads.

use super::{KERNEL, TAP};
use crate::catalog::prelude::*;
use crate::catalog::web;

pub(in crate::catalog) const OFFLOAD: Experiment = Experiment {
    name: "netstack-offload",
    about: "short connections and a long stream, with frames of many packets",
    page: page!("netstack-offload"),
    measures: &[Measure::CPU_US, Measure::GBIT, Measure::MACHINE_US, Measure::RATE, Measure::BUSY],
    configurations: |_| {
        vec![
            Configuration::new(SHORT, "http", [("size", SHORT_BYTES), ("connections", 64)]),
            Configuration::new(PAGES, "http", [("connections", 100)]),
            Configuration::new(BULK, "http", [("size", BULK_BYTES), ("connections", 1)]),
        ]
    },
    systems: &[KERNEL, TAP],
    work: Work::Server(ServerWork { lasts: LASTS, needs_link: true, ..ServerWork::new(take) }),
    figures: &[bars(0), bars(1), bars(2)],
    expectations,
};

const SHORT: &str = "3.5 KB, a connection for every request";
const PAGES: &str = "500 front pages, a connection for every request";
const BULK: &str = "100 MB over one connection";
const SHORT_BYTES: u64 = 3500;
const BULK_BYTES: u64 = 100_000_000;
/// Length in samples' times: less than that suffices for 100 MB.
const LASTS: f64 = 2.0;
const MTU: u64 = 1500;

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let plan = super::plan(system, MTU, true);
    let (mut server, mut load) = match configuration.parameter("size") {
        None => super::pages(bench, system, plan)?,
        Some(size) => {
            let site = web::site(bench, "short-and-long", &[SHORT_BYTES, BULK_BYTES])?;
            let more: &[&str] =
                if system.kind == TAP { &["--memory-file-max", "128M"] } else { &[] };
            let server = bench.start_on(plan, system, &site, 1, more)?;
            let url = server.url(&format!("/{size}.html"));
            let close = if size == BULK_BYTES { "" } else { "--close" };
            let load = words(&format!("http {url} {close}"));
            (server, load)
        }
    };
    let connections = configuration.get("connections", 1);
    load.extend(words(&format!("-c {connections} --warm-up 500ms")));
    bench.seconds *= LASTS;
    Ok(bench.drive(&mut server, &[load])?.sound()?.sample())
}

fn expectations(rows: &Rows) -> Expectations {
    let cpu = rows.by(&Measure::CPU_US);
    let goodput = rows.by(&Measure::GBIT);
    vec![cpu.near(SHORT, TAP, 0.8, KERNEL), goodput.beats(BULK, TAP, &[KERNEL], 0.8)]
}
