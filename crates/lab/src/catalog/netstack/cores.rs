//! `netstack-cores`: a netstack in one shard and in two.

use super::{KERNEL, TAP};
use crate::catalog::prelude::*;
use crate::catalog::web;

pub(in crate::catalog) const CORES: Experiment = Experiment {
    name: "netstack-cores",
    about: "what it costs to divide a host into shards",
    page: "\
What does a second shard cost?

Rusty's claim is that a TCP/IP whose cores share nothing scales: in the paper it grows with each
core to 12 Gbit/s on 35 of them, where Linux stops at seven. Two cores, of which the generator has
one, cannot show scaling, and this experiment does not pretend to: it has no figure over cores. It
shows the other half of the claim: that one and the same core serves as cheaply when the host is
divided. The server has one or two shards on a TAP with as many queues, or one or two event loops on
the kernel's TCP/IP; all of them share one core. 3.5 KB are fetched over a connection each.

Of the CPU per request less is better. A shard that took locks, or that got the other one's segments,
would make two dearer than one; and a connection that came to the wrong shard would fail, which fails
the sample. What is left of the difference is that two threads take turns on a core.",
    found: "\
Rusty grows linearly to 12 Gbit/s with 35 workers. Linux stops to grow at 7 cores.",
    threats: "\
Two threads on one core never touch a line of memory at the same time, so false sharing stays unseen
here. That no line is shared is argued in the code and not shown by this.",
    reasons: "\
Samples of two shards failed, because the server had used no CPU time. Most likely it was read too
early: until 2026-11-23 the generator said that measuring had begun before its connections were
open.",
    measures: &[
        Measure::CPU_US,
        Measure::MACHINE_US,
        Measure::RATE,
        Measure::BUSY,
        Measure::P99,
    ],
    cells: |_| [ONE, TWO].map(|(label, shards)| Cell::new(label, "http", [("shards", shards)])).into(),
    subjects: &[TAP, KERNEL],
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

fn take(bench: &mut Bench<'_>, cell: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let site = web::site(bench, "short", &[3500])?;
    let shards = cell.get("shards", 1);
    let mut plan = super::plan(subject, 1500, true);
    if subject.kind == TAP {
        plan.wire = Wire::Tap { queues: shards };
    }
    let mut server = bench.start_on(plan, subject, &site, shards, &[])?;
    let url = server.url("/3500.html");
    let load = words(&format!("http {url} --close -c 64 --warm-up 300ms"));
    Ok(bench.drive(&mut server, &[load])?.sound()?.sample())
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&Measure::MACHINE_US);
    vec![judge.within(TWO.0, ONE.0, TAP, 1.1)]
}
