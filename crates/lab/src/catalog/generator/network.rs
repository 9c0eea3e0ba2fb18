//! `generator-network`: sessions per second of a generator's core, on the kernel's TCP/IP and on
//! ours.

use crate::catalog::prelude::*;
use crate::subject::weft_forms;

pub(in crate::catalog) const NETWORK: Experiment = Experiment {
    name: "generator-network",
    about: "sessions that a generator's core has, on our TCP/IP and on the kernel's",
    page: "\
How many connections can a core of a generator open, use and close in a second?

The author of Rusty made his TCP/IP to load middleboxes with very many sessions, as a client, and then
left that open. weft load --network netstack is such a client: a host of its own on a packet socket.
Beside it are the same generator on the kernel's sockets, and wrk. All ask the same freshly started
weft serve, an event engine on the kernel's TCP/IP at the other end of a veth with offloads, for 400
bytes over a connection each, with 64 connections at a time. (Our netstack never measures itself.)

The figure is sessions per second of CPU time that the generator itself has used; more is better. So
it does not matter which of both, server or generator, is the limit.",
    found: "\
Rusty's sessions are \"currently not generated on the TILE-Gx\". There is no figure.",
    threats: "\
On a veth the sender's call runs the receiver's half of TCP, the server's accept among it. All three
pay for that. A packet socket also hands each frame to the kernel beside it, which drops it.",
    reasons: "",
    measures: &[SESSIONS, super::cpu::GENERATOR_CPU, Measure::RATE],
    cells: |_| vec![Cell::new(CELL, "http", [("connections", 64), ("close", 1)])],
    subjects: &["weft load", NETSTACK, "wrk"],
    work: Work::Server(ServerWork {
        needs_link: true,
        ..ServerWork::new(take)
    }),
    figures: &[bars(0)],
    expectations,
};

const SESSIONS: Measure = Measure {
    name: "sessions_per_core_s",
    title: "sessions per second of the generator's CPU",
    of: Some(|_, values| Some(1e6 / values.get("generator_cpu_us").filter(|&&us| us > 0.0)?)),
    ..Measure::RATE
};

const NETSTACK: &str = "weft load netstack";
const CELL: &str = "400 B, a connection for every request";

fn take(bench: &mut Bench<'_>, cell: &Cell, subject: &Subject) -> Result<Sample, Fault> {
    let site = super::site(bench)?;
    let plan = LinkPlan {
        wire: Wire::Veth { has_offloads: true },
        mtu: 1500,
        kernel: Some("cubic"),
    };
    let forms = weft_forms(bench.generator, "");
    let event = forms.iter().find(|form| form.kind == "weft event");
    let event = event.expect("a form of weft");
    let mut server = bench.start_on(plan, event, &site, 1, &[])?;
    super::ask(bench, &mut server, cell, subject)
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&SESSIONS);
    vec![judge.beats(CELL, NETSTACK, &["weft load", "wrk"], 1.0)]
}
