//! `web-workers`: cost of a second worker, and requests that wait for one worker while the other
//! is idle.

use crate::catalog::prelude::*;

pub(in crate::catalog) const WEB_WORKERS: Experiment = Experiment {
    name: "web-workers",
    about: "CPU per request and p99 of web servers with two workers, beside two servers with one",
    page: page!("web-workers"),
    measures: &[
        BUSY_CPU,
        P99,
        Measure { title: "server CPU per request at half load", ..Measure::CPU_US },
        Measure { title: "median latency at half load", ..Measure::P50 },
        BUSY_RATE,
        Measure { title: "replies at half load", ..Measure::RATE },
    ],
    configurations,
    systems: &["weft", "weft event", "weft thread", NGINX],
    work: Work::Server(ServerWork {
        // Two loads, each with a warm-up.
        lasts: 1.0 + BUSY + 0.3,
        // For a p99.
        seconds_min: 1.0,
        shares_cores: true,
        queues_by_itself: true,
        scaled_by: Some(NGINX),
        ..ServerWork::new(take)
    }),
    figures: &[bars(0), bars(1)],
    expectations,
};

const NGINX: &str = "nginx reuseport";

const BUSY_CPU: Measure = Measure {
    name: "busy_cpu_us",
    title: "server CPU per request of busy workers",
    ..Measure::CPU_US
};

const P99: Measure = Measure { title: "p99 latency at half load", ..Measure::P99 };

const BUSY_RATE: Measure =
    Measure { name: "busy_rate_per_s", title: "replies of busy workers", ..Measure::RATE };

const SIZE: u64 = 400;
const PATH: &str = "/400.html";
/// Connections per generator and worker.
const CONNECTIONS: u64 = 16;
/// Warm-up, rounded up to whole intervals.
const WARM_UP: &str = "--warm-up 300ms --interval 100ms";
/// Time that workers are kept busy, in samples' times.
const BUSY: f64 = 0.3;
/// Half of one worker's load per worker, in percent of the rate that both reach.
const SHARE: u64 = 25;

const ONE: &str = "1 server, 1 worker";
const APART: &str = "2 servers, 1 worker each";
const TOGETHER: &str = "1 server, 2 workers";

fn configurations(breadth: &Breadth) -> Vec<Configuration> {
    let all = [(ONE, 1, 1), (APART, 2, 1), (TOGETHER, 1, 2)];
    let configurations = breadth.pick(&all[1..], &all).iter();
    let configurations = configurations.map(|&(label, servers, workers)| {
        let rate = servers * workers * breadth.rate(SHARE, 80_000.0);
        let sizes = [("servers", servers), ("workers", workers), ("rate", rate)];
        Configuration::new(label, "http", sizes)
    });
    configurations.collect()
}

fn take(bench: &mut Bench<'_>, configuration: &Configuration, system: &System) -> Taken {
    let site = super::site(bench, "small", &[SIZE])?;
    let body = super::body(SIZE, SIZE as usize);
    let (servers, workers) = (configuration.get("servers", 1), configuration.get("workers", 2));
    let mut server = bench.start_on_both_cores(system, &site, servers, workers)?;
    server.verify(PATH, &body)?;
    let connections = servers * workers * CONNECTIONS;
    let addresses = server.addresses();
    let to = addresses.iter().map(|one| format!("--connect-to {one} "));
    let url = server.url(PATH);
    let to = to.collect::<String>();
    let ask = format!("http {url} {to} --connections {connections} {WARM_UP}");
    let Some(rate) = configuration.parameter("rate") else {
        let closed = bench.drive_among(&mut server, &words(&ask))?.sound()?;
        return Ok(closed.sample());
    };
    let seconds = bench.seconds;
    bench.seconds = BUSY * seconds;
    let busy = bench.drive_among(&mut server, &words(&ask))?.sound()?;
    bench.seconds = seconds;
    // Each generator sends half of the rate.
    let half = format!("{ask} --arrivals poisson --rate {}", rate / 2);
    let half = bench.drive_among(&mut server, &words(&half))?.sound()?;
    server.verify(PATH, &body)?;
    Ok(both(&busy.sample(), half.sample()))
}

/// Figures of both loads, with the larger disturbance.
fn both(busy: &Sample, mut half: Sample) -> Sample {
    let noise = |sample: &Sample| sample.noise.percent(true, 2);
    if noise(busy) > noise(&half) {
        half.noise = busy.noise;
    }
    half.add([(BUSY_CPU.name, busy.values["cpu_us"]), (BUSY_RATE.name, busy.values["rate_per_s"])]);
    half
}

fn expectations(rows: &Rows) -> Expectations {
    let cpu = rows.by(&BUSY_CPU);
    let p99 = rows.by(&P99);
    let systems = WEB_WORKERS.systems.iter();
    let each = systems.filter(|system| rows.has_system(system));
    let each = each.flat_map(|system| {
        [cpu.within(TOGETHER, APART, system, 1.15), p99.within(TOGETHER, APART, system, 1.3)]
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Noise;

    #[test]
    fn load_per_worker() {
        let configurations =
            configurations(&Breadth { quick: false, peak_per_s: Some(100_000.0), cores: 2 });
        let rates = configurations.iter().map(|configuration| configuration.get("rate", 0));
        assert_eq!(rates.collect::<Vec<_>>(), [25_000, 50_000, 50_000]);
    }

    #[test]
    fn sample_of_two_loads() {
        let sample = |cpu_us, others_percent| Sample {
            noise: Noise { others_percent, ..Noise::default() },
            ..Sample::of([("cpu_us", cpu_us), ("rate_per_s", 10.0 * cpu_us)])
        };
        for (busy, half) in [(9.0, 1.0), (1.0, 9.0)] {
            let whole = both(&sample(3.0, busy), sample(4.0, half));
            let figures = WEB_WORKERS.measures.iter().map(|measure| {
                let configuration = Configuration::new("c", "http", []);
                measure.figure(&configuration, &whole.values)
            });
            let figures: Vec<_> = figures.collect();
            assert_eq!(figures, [Some(3.0), None, Some(4.0), None, Some(30.0), Some(40.0)]);
            assert_eq!(whole.noise.others_percent, 9.0);
        }
    }
}
