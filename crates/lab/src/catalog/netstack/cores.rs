//! `netstack-cores`: a netstack in one shard and in two.

use super::{KERNEL, TAP};
use crate::catalog::prelude::*;
use crate::catalog::web;

pub(in crate::catalog) const CORES: Experiment = Experiment {
    name: "netstack-cores",
    about: "what it costs to divide a host into shards",
    page: page!("netstack-cores"),
    measures: &[Measure::CPU_US, Measure::MACHINE_US, Measure::RATE, Measure::BUSY, Measure::P99],
    configurations: |_| {
        [ONE, TWO]
            .map(|(label, shards)| Configuration::new(label, "http", [("shards", shards)]))
            .into()
    },
    systems: &[TAP, KERNEL],
    work: Work::Server(ServerWork {
        needs_link: true,
        queues_by_itself: true,
        ..ServerWork::new(take)
    }),
    figures: &[bars(0), bars(1)],
    expectations,
};

const ONE: (&str, u64) = ("1 shard", 1);
const TWO: (&str, u64) = ("2 shards on one core", 2);

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let site = web::site(bench, "short", &[3500])?;
    let shards = configuration.get("shards", 1);
    let mut plan = super::plan(system, 1500, true);
    if system.kind == TAP {
        plan.wire = Wire::Tap { queues: shards };
    }
    let mut server = bench.start_on(plan, system, &site, shards, &[])?;
    let url = server.url("/3500.html");
    let load = words(&format!("http {url} --close -c 64 --warm-up 300ms"));
    Ok(bench.drive(&mut server, &[load])?.sound()?.sample())
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::MACHINE_US);
    vec![judge.within(TWO.0, ONE.0, TAP, 1.1)]
}
