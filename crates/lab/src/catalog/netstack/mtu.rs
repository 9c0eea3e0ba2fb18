//! `netstack-mtu`: goodput of our TCP/IP and the kernel's over a link, by its MTU.

use super::{KERNEL, PACKET, XDP};
use crate::catalog::prelude::*;

pub(in crate::catalog) const MTU: Experiment = Experiment {
    name: "netstack-mtu",
    about: "web pages over our TCP/IP and over the kernel's, by the longest packet",
    page: page!("netstack-mtu"),
    measures: &[Measure::GBIT, Measure::MACHINE_US, Measure::CPU_US, Measure::RATE, Measure::BUSY],
    configurations,
    systems: &[KERNEL, XDP, PACKET],
    work: Work::Server(ServerWork { lasts: LASTS, needs_link: true, ..ServerWork::new(take) }),
    figures: &[over_mtu(0), over_mtu(1), over_mtu(2)],
    expectations,
};

const fn over_mtu(measure: usize) -> Figure {
    Figure::over(measure, ("mtu", "longest packet, bytes"), true, None).by_multiples()
}

/// Length in samples' times: at small MTUs a second has few pages.
const LASTS: f64 = 2.0;

/// MTUs, and Rusty's goodput divided by that of Linux.
const MTUS: &[(u64, f64)] =
    &[(128, 2.0), (256, 1.9), (512, 1.8), (1500, 2.6), (3000, 2.6), (6000, 3.3), (9000, 3.5)];

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let mtus = MTUS.iter().map(|&(mtu, _)| mtu);
    let mtus = mtus.filter(|mtu| !breadth.quick || [256, 1500].contains(mtu));
    mtus.map(|mtu| Configuration::new(label(mtu), "http", [("mtu", mtu)])).collect()
}

fn label(mtu: u64) -> String {
    format!("MTU {mtu}")
}

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let mtu = configuration.get("mtu", 1500);
    let (mut server, mut load) = super::pages(bench, system, super::plan(system, mtu, false))?;
    load.extend(words("-c 50 --warm-up 1s"));
    bench.seconds *= LASTS;
    Ok(bench.drive(&mut server, &[load])?.sound()?.sample())
}

fn expectations(rows: &Rows) -> Expectations {
    let goodput = rows.by(&Measure::GBIT);
    let cpu = rows.by(&Measure::MACHINE_US);
    let shape = MTUS.iter();
    let shape = shape.map(|&(mtu, times)| paper(goodput.beats(&label(mtu), XDP, &[KERNEL], times)));
    let usual = label(1500);
    let goals = [goodput.beats(&usual, XDP, &[KERNEL], 1.5), cpu.near(&usual, XDP, 0.7, KERNEL)];
    shape.chain(goals).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen: the paper's 6,000 bytes were no configuration; and at 1,500 bytes, where its figure is
    /// best known, a goal of 1.5 stood in the place of its 2.6.
    #[test]
    fn packet_sizes_of_the_paper() {
        let paper = [
            (128, 0.3, 0.6),
            (256, 0.8, 1.5),
            (512, 1.8, 3.3),
            (1500, 4.6, 12.0),
            (3000, 5.8, 14.9),
            (6000, 7.7, 25.7),
            (9000, 8.6, 30.0),
        ];
        for ((mtu, linux, rusty), asked) in paper.into_iter().zip(MTUS) {
            let times: f64 = rusty / linux;
            assert_eq!((mtu, (times * 10.0).round() / 10.0), *asked);
        }
        assert_eq!(MTUS.len(), paper.len());
    }
}
