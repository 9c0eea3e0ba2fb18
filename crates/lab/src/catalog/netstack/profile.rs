//! `netstack-profile`: the server's CPU time by component.

use std::ffi::OsString;
use std::process::Command;

use super::{KERNEL, TAP, XDP, XDP_COMPUTED};
use crate::catalog::prelude::*;
use crate::system::in_path;

pub(in crate::catalog) const PROFILE: Experiment = Experiment {
    name: "netstack-profile",
    about: "which part of the server's CPU time is allocation, copies, checksums, TCP, the kernel",
    page: page!("netstack-profile"),
    measures: &[
        ALLOCATION.measure,
        KERNEL_PART.measure,
        TCP.measure,
        COPY.measure,
        CHECKSUM.measure,
        DEVICE.measure,
        HTTP.measure,
        OTHER.measure,
        CPU_US,
    ],
    configurations: |_| vec![Configuration::new(CONFIGURATION, "http", [])],
    systems: &[XDP, XDP_COMPUTED, TAP, KERNEL],
    work: Work::Server(ServerWork {
        lasts: LASTS,
        needs_link: true,
        // perf and the generator share a core.
        queues_by_itself: true,
        ..ServerWork::new(take)
    }),
    figures: &[bars(0), bars(1), bars(2), bars(3), bars(4), bars(5), bars(6)],
    expectations,
};

const CONFIGURATION: &str = "500 front pages, MTU 1500";
/// Length in samples' times, for some thousand samples of the program counter.
const LASTS: f64 = 3.0;

/// Cost of a request, by which forms with and without a part are compared.
const CPU_US: Measure = Measure { is_told: true, ..Measure::CPU_US };

/// A part, by words in the names of its functions. The first part that fits has the function.
struct Part {
    measure: Measure,
    words: &'static str,
}

const fn part(name: &'static str, title: &'static str, words: &'static str) -> Part {
    let measure = neither(name, title, "% of the server's CPU");
    Part { measure, words }
}

/// A part that stands in the author's profile.
const fn told(part: Part) -> Part {
    Part { measure: Measure { is_told: true, ..part.measure }, ..part }
}

const ALLOCATION: Part = part(
    "allocation_percent",
    "allocation",
    "malloc calloc realloc cfree _int_free __rust_alloc __rust_dealloc",
);
const COPY: Part = told(part("copy_percent", "copies", "memcpy memmove memset"));
const CHECKSUM: Part = told(part("checksum_percent", "checksums", "checksum"));
const DEVICE: Part = told(part("device_percent", "the device's driver", "netstack::device"));
const TCP: Part = part("tcp_percent", "TCP, IP and neighbours", "netstack::");
const HTTP: Part = part("http_percent", "HTTP and the engine", "web:: session:: serve::");
const KERNEL_PART: Part = part("kernel_percent", "the kernel", "[k]");
/// Matches every name.
const OTHER: Part = part("other_percent", "the rest", "");

/// Components in the order of matching.
const PARTS: [&Part; 8] =
    [&KERNEL_PART, &ALLOCATION, &COPY, &CHECKSUM, &DEVICE, &HTTP, &TCP, &OTHER];

fn take(bench: &mut Bench<'_>, _: &Configuration, system: &System) -> Taken {
    let perf = in_path("perf").ok_or("perf is not installed: apt-get install linux-perf")?;
    let plan = super::plan(system, 1500, false);
    let (mut server, mut load) = super::pages(bench, system, plan)?;
    load.extend(words("-c 50 --warm-up 1s"));
    bench.seconds *= LASTS;
    let file = bench.testbed.scratch().join("perf.data");
    let pids = server.pids();
    let seconds = 1.0 + bench.seconds;
    let record = format!("record -q -e cpu-clock -F 997 -p {pids} -o");
    let mut argv: Vec<OsString> = vec![perf.clone().into()];
    argv.extend(words(&record).into_iter().map(Into::into));
    argv.push(file.clone().into());
    let lasts = format!("-- sleep {seconds:.1}");
    argv.extend(words(&lasts).into_iter().map(Into::into));
    let log = bench.testbed.scratch().join("perf.log");
    let mut recorder = bench.testbed.launch_beside(&argv, &log)?;
    let mut sample = bench.drive(&mut server, &[load])?.sound()?.sample();
    bench.see_end(&mut recorder, &log)?;
    let said = Command::new(perf)
        .args(words("report --stdio --no-children -q -F overhead,sym -t | --percent-limit 0 -i"))
        .arg(&file)
        .output()?;
    let shares = shares(&String::from_utf8_lossy(&said.stdout)).ok_or_else(|| {
        let why = String::from_utf8_lossy(&said.stderr).into_owned();
        format!("perf took no samples: {}", why.trim())
    })?;
    sample.values.extend(shares);
    Ok(sample)
}

/// Percentage of each component, from lines such as `12.34%|[.] memcpy`; `None` without lines.
fn shares(report: &str) -> Option<Vec<(String, f64)>> {
    let mut sums = PARTS.map(|part| (part.measure.name.to_owned(), 0.0));
    for line in report.lines() {
        let Some((percent, symbol)) = line.split_once('|') else {
            continue;
        };
        let percent: f64 = percent.trim().trim_end_matches('%').parse().ok()?;
        let is_in = |part: &&Part| part.words.split(' ').any(|word| symbol.contains(word));
        let at = PARTS.iter().position(is_in)?;
        sums[at].1 += percent;
    }
    (sums.iter().map(|(_, percent)| percent).sum::<f64>() > 0.0).then(|| sums.into())
}

fn expectations(rows: &Rows) -> Expectations {
    let allocation = rows.by(&ALLOCATION.measure);
    let checksums = rows.by(&CHECKSUM.measure);
    let cost = rows.by(&CPU_US);
    vec![
        allocation.at_most(CONFIGURATION, XDP, 1.0),
        allocation.at_most(CONFIGURATION, TAP, 1.0),
        paper(checksums.at_most(CONFIGURATION, XDP, 1.0)),
        cost.beats(CONFIGURATION, XDP, &[XDP_COMPUTED], 1.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_is_in_one_part() {
        let report = "\n    40.00%|[k] tcp_ack\n 30.5%|[.] <netstack::stack::Shard>::transmit  \n\
                      9.50%|[.] __memmove_avx_unaligned_erms\n 5%|[.] _int_malloc\n\
                      5.00%|[.] netstack::wire::checksum::Sum::add\n\
                      4.00%|[.] <serve::engine::netstack::Worker<web::Web>>::turn\n\
                      6.00%|[.] 0x00007f2\n";
        let shares = shares(report).unwrap();
        let of = |name: &str| shares.iter().find(|(part, _)| part == name).unwrap().1;
        assert_eq!(of("kernel_percent"), 40.0);
        assert_eq!(of("tcp_percent"), 30.5);
        assert_eq!(of("copy_percent"), 9.5);
        assert_eq!(of("allocation_percent"), 5.0);
        assert_eq!(of("checksum_percent"), 5.0);
        assert_eq!(of("http_percent"), 4.0);
        assert_eq!(of("other_percent"), 6.0);
        assert_eq!(super::shares("no samples\n"), None);
    }
}
