//! `generator-network`: sessions per second and generator core, over the kernel's TCP/IP and over
//! ours.

use crate::catalog::prelude::*;
use crate::system::weft_forms;

pub(in crate::catalog) const NETWORK: Experiment = Experiment {
    name: "generator-network",
    about: "sessions that a generator's core has, on our TCP/IP and on the kernel's",
    page: page!("generator-network"),
    measures: &[SESSIONS, super::cpu::GENERATOR_CPU, Measure::RATE],
    configurations: |_| {
        vec![Configuration::new(CONFIGURATION, "http", [("connections", 64), ("close", 1)])]
    },
    systems: &["weft load", NETSTACK, "wrk"],
    work: Work::Server(ServerWork { needs_link: true, ..ServerWork::new(take) }),
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
const CONFIGURATION: &str = "400 B, a connection for every request";

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let site = super::site(bench)?;
    let plan =
        LinkPlan { wire: Wire::Veth { has_offloads: true }, mtu: 1500, kernel: Some("cubic") };
    let forms = weft_forms(bench.generator, "");
    let event = forms.iter().find(|form| form.kind == "weft event");
    let event = event.expect("a form of weft");
    let mut server = bench.start_on(plan, event, &site, 1, &[])?;
    super::ask(bench, &mut server, configuration, system)
}

fn expectations(rows: &Rows) -> Expectations {
    let judge = rows.by(&SESSIONS);
    vec![judge.beats(CONFIGURATION, NETSTACK, &["weft load", "wrk"], 1.0)]
}
