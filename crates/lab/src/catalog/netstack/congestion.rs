//! `netstack-congestion`: goodput of a lossy link, by congestion control.

use super::{KERNEL, PACKET};
use crate::catalog::prelude::*;
use crate::catalog::web;

pub(in crate::catalog) const CONGESTION: Experiment = Experiment {
    name: "netstack-congestion",
    about: "goodput of CUBIC and NewReno, ours and the kernel's, by loss",
    page: page!("netstack-congestion"),
    measures: &[Measure::GBIT, Measure::BUSY],
    configurations,
    systems: &[KERNEL, PACKET],
    work: Work::Server(ServerWork {
        lasts: LASTS,
        quick_repetitions: 2,
        needs_link: true,
        // The relay and the generator share a core.
        queues_by_itself: true,
        ..ServerWork::new(take)
    }),
    figures: &[bars(0)],
    expectations,
};

/// Length in samples' times: a window needs seconds to reach its mean.
const LASTS: f64 = 4.0;
/// At 1 %, a second has thirty losses: too few for a mean.
const LOSSY_SECONDS_MIN: u64 = 10;
const DELAY_MS: u64 = 20;
const BYTES: u64 = 100_000_000;
/// Bytes of a reply at high loss: at its end a generator waits for the replies in flight.
const BYTES_LOSSY: u64 = 1_000_000;
const LOSSES_PER_MILLE: [u64; 4] = [0, 1, 10, 50];

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let losses = breadth.pick(&[0, 10][..], &LOSSES_PER_MILLE);
    let configurations = [0, 1].into_iter().flat_map(|reno| {
        losses.iter().map(move |&loss| {
            let least_s = if loss > 0 { LOSSY_SECONDS_MIN } else { 0 };
            let parameters = [("reno", reno), ("loss", loss), ("least_s", least_s)];
            Configuration::new(label(reno, loss), "http", parameters)
        })
    });
    configurations.collect()
}

fn label(reno: u64, loss_per_mille: u64) -> String {
    let name = if reno == 0 { "CUBIC" } else { "NewReno" };
    format!("{name}, {} % lost", loss_per_mille as f64 / 10.0)
}

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let site = web::site(bench, "long", &[BYTES, BYTES_LOSSY])?;
    let is_kernel = system.kind == KERNEL;
    let loss_per_mille = configuration.get("loss", 0);
    let bytes = if loss_per_mille < 10 { BYTES } else { BYTES_LOSSY };
    let plan = LinkPlan {
        wire: Wire::Bad { loss_per_mille, delay_ms: DELAY_MS },
        mtu: 1500,
        kernel: is_kernel.then_some(configuration.either("reno", "reno", "cubic")),
    };
    let congestion = configuration.either("reno", "newreno", "cubic");
    let mut system = system.clone();
    if !is_kernel {
        system.add_engine_key(&format!("congestion={congestion}"));
    }
    let mut server = bench.start_on(plan, &system, &site, 1, &[])?;
    let url = server.url(&format!("/{bytes}.html"));
    let load = words(&format!("http {url} -c 4 --warm-up 1s --timeout 10m"));
    bench.seconds *= LASTS;
    bench.seconds = bench.seconds.max(configuration.get("least_s", 0) as f64);
    let driven = bench.drive(&mut server, &[load])?;
    Ok(driven.without_errors()?.sample())
}

fn expectations(rows: &Rows) -> Expectations {
    let goodput = rows.by(&Measure::GBIT);
    let lossy = LOSSES_PER_MILLE.iter().filter(|&&loss| loss > 0);
    let near = lossy.flat_map(|&loss| {
        [0, 1].map(|reno| goodput.beats(&label(reno, loss), PACKET, &[KERNEL], 0.9))
    });
    let cubic = label(0, 0);
    let reno = label(1, 0);
    let same = goodput.alike(&cubic, &reno, PACKET);
    near.chain([paper(same)]).collect()
}
