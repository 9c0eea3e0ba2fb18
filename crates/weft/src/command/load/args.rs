//! Command line of `weft load`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ::load::plan::Statuses;
use ::load::report::Threshold;
use ::load::sweep::{self, Rates};
use ::load::workload::distribution::{Distribution, Popularity};
use clap::{Args, Command, Subcommand, ValueHint};
use netstack::device::name::DeviceName;
use serve::listen::Address;

use super::fileset::{FileSetArgs, TracesArgs};
use super::values::{
    Keys, Prefixes, REPETITIONS_MAX, REQUESTS_MAX, Stages, address_range, count, count_up_to,
    course, header, keys, percent, requests_per_connection,
};
use crate::netstack::MTU_MAX;
use crate::value::{self, duration as time};

/// `weft load` and its own commands.
pub(crate) fn command(after_help: String) -> Command {
    let command = Command::new("load")
        .about("Measure a server: open and closed loop, HTTP and memcached")
        .long_about(
            "Measure a server: open and closed loop, HTTP and memcached.\n\nWithout --rate each \
             connection sends its next request when it has its reply (closed loop, as in wrk). With \
             --rate requests are sent at fixed times, and latency counts from these times even if no \
             connection was free, so a pause of the server is fully measured. The verdict tells \
             whether the server or the load generator was the bottleneck.",
        )
        .after_long_help(after_help)
        .subcommand_required(true)
        .arg_required_else_help(true);
    LoadCommand::augment_subcommands(command)
}

// A doc comment would be the help of `weft load`.
#[derive(Subcommand)]
pub(crate) enum LoadCommand {
    /// Send HTTP requests.
    Http(Box<HttpArgs>),
    /// Send memcached commands.
    Cache(Box<CacheArgs>),
    /// Open connections and keep them idle.
    Idle(Box<IdleArgs>),
    /// Make a set of files for measuring a web server.
    ///
    /// Makes 21,600 files in 650 directories, 2.3 GB, whose requests by Zipf's law have the
    /// cumulative table of T. Delisle's thesis (Waterloo 2022); or, with --model pages, 500 front
    /// pages. The same seed makes the same set. fileset.tsv beside the files lists sizes and
    /// checksums, for --fileset and --verify.
    Fileset(FileSetArgs),
    /// Make session logs for a file set, in httperf's format.
    ///
    /// Makes session logs (httperf's --wsesslog) for a set that weft load fileset made: most
    /// sessions are one request, some open pages with embedded files, with active and idle periods
    /// between.
    Traces(TracesArgs),
    /// Merge the results of several generators.
    ///
    /// Merges the results of several generators that ran at the same time. Counts are added, and
    /// histograms bucket by bucket; percentiles are never averaged. Intervals are not in the files,
    /// so not in the merged result.
    Merge(MergeArgs),
}

// Structs of arguments have plain comments: clap would take a doc comment for the command's.

#[derive(Args)]
pub(crate) struct HttpArgs {
    #[arg(
        required = true, value_name = "URL", value_hint = ValueHint::Url,
        help = "URL to request: http[s]://HOST[:PORT]/PATH. Several URLs of one host are requested in \
                turn, and so is each path of a range, /item/{1..1000}"
    )]
    pub(super) urls: Vec<String>,
    /// Connect to this server instead of the URL's. Repeatable: connections go to each in turn.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "unix_socket")]
    pub(super) connect_to: Vec<String>,
    /// Request method.
    #[arg(long, short, value_name = "NAME", default_value = "GET")]
    pub(super) method: String,
    /// Header field, such as 'Accept: text/html'. Repeatable.
    #[arg(long = "header", short = 'H', value_name = "FIELD", value_parser = header)]
    pub(super) headers: Vec<(String, String)>,
    /// Body of every request.
    #[arg(long, value_name = "TEXT", conflicts_with = "body_file")]
    pub(super) body: Option<String>,
    /// File with the body of every request.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    pub(super) body_file: Option<PathBuf>,
    /// File with a body per line, taken in turn.
    #[arg(
        long, short = 'Z', value_name = "FILE", value_hint = ValueHint::AnyPath,
        conflicts_with_all = ["body", "body_file", "fileset"]
    )]
    pub(super) body_lines: Option<PathBuf>,
    /// Speak HTTP/2: over TLS by ALPN, otherwise by prior knowledge.
    #[arg(long)]
    pub(super) http2: bool,
    /// Use a new connection for every request.
    #[arg(long)]
    pub(super) close: bool,
    /// Close after N requests on average (randomised, so that connections do not all close at
    /// once).
    #[arg(long, value_name = "N", conflicts_with = "close", value_parser = requests_per_connection)]
    pub(super) requests_per_connection: Option<u32>,
    /// Request the paths of this list or access log in turn, below the URL's folder.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    pub(super) paths: Option<PathBuf>,
    /// Request the files of this set (weft load fileset) by their shares, below the URL's folder.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    pub(super) fileset: Option<PathBuf>,
    /// Replay the sessions of this httperf log (--wsesslog); --rate counts sessions; {rank} in the
    /// name is the agent's rank.
    #[arg(
        long, value_name = "FILE", value_hint = ValueHint::AnyPath,
        conflicts_with_all = [
            "method", "body", "body_file", "body_lines", "paths", "fileset", "popularity", "close",
            "requests_per_connection",
        ]
    )]
    pub(super) sessions: Option<String>,
    /// Pause between bursts that have none in the log.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time, hide_short_help = true)]
    pub(super) think: Duration,
    /// Distribution of requests over paths: uniform, zipf:0.99, hot:0.2, sequential.
    #[arg(long, value_name = "LAW")]
    pub(super) popularity: Option<Popularity>,
    #[arg(
        long,
        value_name = "STATUSES",
        help = "Expected statuses, such as 200,206 or 2xx,404; others are errors [default: \
                2xx,3xx; with --verify 2xx]"
    )]
    pub(super) expect: Option<Statuses>,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

#[derive(Args)]
pub(crate) struct CacheArgs {
    /// Address of the server; several are used in turn.
    #[arg(
        required_unless_present = "unix_socket",
        conflicts_with = "unix_socket",
        value_name = "HOST:PORT"
    )]
    pub(super) servers: Vec<String>,
    /// The memcached protocol.
    #[arg(long, default_value = "text", value_parser = ["text", "meta"])]
    pub(super) protocol: String,
    /// Percentage of set commands.
    #[arg(long, value_name = "PERCENT", default_value = "3", value_parser = percent)]
    pub(super) sets: f64,
    /// Number of different keys; or their names, such as user:{1..1000}.
    #[arg(long, value_name = "N", default_value = "100k", value_parser = keys)]
    pub(super) keys: Keys,
    #[arg(long, value_name = "TEXT", help = "Prefix of every key [default: weft-]")]
    pub(super) key_prefix: Option<String>,
    #[arg(
        long,
        value_name = "SIZES",
        help = "Key length in bytes: 30, uniform:20-40, etc-key [default: 30]"
    )]
    pub(super) key_size: Option<Distribution>,
    /// Value length in bytes: 100, uniform:10-1000, etc-value.
    #[arg(long, value_name = "SIZES", default_value = "100")]
    pub(super) value_size: Distribution,
    /// Distribution of requests over keys: uniform, zipf:0.99, hot:0.2, sequential.
    #[arg(long, value_name = "LAW", default_value = "uniform")]
    pub(super) popularity: Popularity,
    /// Keys per get.
    #[arg(long, value_name = "N", default_value = "1", value_parser = count)]
    pub(super) multi_get: u32,
    /// Expiry time of stored items; 0: never.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = count)]
    pub(super) exptime: u32,
    /// Set every key once before the run.
    #[arg(long)]
    pub(super) populate: bool,
    /// Send each command as a datagram (memcached -U); keys are stored over TCP.
    #[arg(long, conflicts_with_all = ["unix_socket", "speaks_tls"])]
    pub(super) udp: bool,
    /// Speak TLS.
    #[arg(long = "tls")]
    pub(super) speaks_tls: bool,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

#[derive(Args)]
pub(crate) struct IdleArgs {
    /// Address of the server; several are used in turn.
    #[arg(
        required_unless_present = "unix_socket",
        conflicts_with = "unix_socket",
        value_name = "HOST:PORT"
    )]
    pub(super) servers: Vec<String>,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

#[derive(Args)]
pub(crate) struct MergeArgs {
    /// Files written by --json.
    #[arg(required = true, value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

#[derive(Args)]
pub(super) struct CommonArgs {
    #[command(flatten)]
    pub(super) when: WhenArgs,
    #[command(flatten)]
    pub(super) many: ManyArgs,
    #[command(flatten)]
    pub(super) how: HowArgs,
    #[command(flatten)]
    pub(super) network: NetworkArgs,
    #[command(flatten)]
    pub(super) agents: AgentArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    /// Length of an interval in the report and the files.
    #[arg(
        long, value_name = "TIME", default_value = "1s", value_parser = time, help_heading = "Output"
    )]
    pub(super) interval: Duration,
    /// Serve live /metrics (Prometheus) at this address while it runs.
    #[arg(long, value_name = "ADDR", help_heading = "Output")]
    pub(super) metrics: Option<Address>,
    /// Show no progress line.
    #[arg(long, short, help_heading = "Output")]
    pub(super) quiet: bool,
}

#[derive(Args)]
#[command(next_help_heading = "When")]
pub(super) struct WhenArgs {
    /// Open loop: requests per second (500, 10k, 1.5M).
    #[arg(
        long, short = 'R', value_name = "R", conflicts_with_all = ["course", "sweep"],
        value_parser = sweep::rate
    )]
    pub(super) rate: Option<f64>,
    /// Open loop with a changing rate: '0..10k:30s,10k:1m,20k:10s'.
    #[arg(long, value_name = "STAGES", conflicts_with = "sweep", value_parser = course)]
    pub(super) course: Option<Stages>,
    /// Intervals between requests of an open loop: fixed is equal, poisson random.
    #[arg(long, default_value = "fixed", value_parser = ["fixed", "poisson"])]
    pub(super) arrivals: String,
    #[arg(
        long, short, value_name = "TIME", value_parser = time,
        help = "Length of the measurement; with --requests, the maximum [default: 10s, with \
                --course its length, with --requests 1h]"
    )]
    pub(super) duration: Option<Duration>,
    /// End after this many requests.
    #[arg(
        long, short = 'n', value_name = "N", value_parser = |text: &str| count_up_to(text, REQUESTS_MAX)
    )]
    pub(super) requests: Option<u64>,
    /// Run the same load for this long before the measurement.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    pub(super) warm_up: Duration,
}

#[derive(Args)]
#[command(next_help_heading = "Many runs")]
pub(super) struct ManyArgs {
    /// One run per rate: 10k..70k:5k, or 1k,2k,5k.
    #[arg(long, value_name = "RATES")]
    pub(super) sweep: Option<Rates>,
    /// Search for the largest rate at which the server keeps up, starting at --rate or 1k.
    #[arg(long, conflicts_with_all = ["sweep", "course"])]
    pub(super) knee: bool,
    /// Largest p99 at which the server keeps up.
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = time)]
    pub(super) knee_p99: Duration,
    /// After --knee, run at twice the knee.
    #[arg(long, requires = "knee")]
    pub(super) overload: bool,
    /// Pause between two runs.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    pub(super) pause: Duration,
    /// Runs per rate.
    #[arg(
        long, value_name = "N", default_value = "1",
        value_parser = |text: &str| count_up_to(text, REPETITIONS_MAX)
    )]
    pub(super) repeat: u64,
}

#[derive(Args)]
#[command(next_help_heading = "How")]
pub(super) struct HowArgs {
    /// Number of open connections.
    #[arg(long, short, value_name = "N", default_value = "64", value_parser = count)]
    pub(super) connections: u32,
    /// In-flight requests per connection; with --http2 its streams.
    #[arg(long, visible_alias = "streams", value_name = "N", default_value = "1", value_parser = count)]
    pub(super) depth: u32,
    /// Kernel threads.
    #[arg(long, short, value_name = "N", default_value = "1", value_parser = count)]
    pub(super) threads: u32,
    #[arg(
        long, value_name = "R", value_parser = sweep::rate,
        help = "Connections opened per second before the run [default: all at once]",
        hide_short_help = true
    )]
    pub(super) connect_rate: Option<f64>,
    /// Additional idle connections.
    #[arg(long, value_name = "N", default_value = "0", value_parser = count)]
    pub(super) idle: u32,
    /// Interval at which each idle connection sends a byte.
    #[arg(long, value_name = "TIME", value_parser = value::duration, hide_short_help = true)]
    pub(super) idle_byte_every: Option<Duration>,
    /// Source address. Repeatable: each has its own ports.
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    pub(super) source: Vec<IpAddr>,
    /// Time limit of a reply.
    #[arg(long, short = 'T', value_name = "TIME", default_value = "10s", value_parser = time)]
    pub(super) timeout: Duration,
    /// Time limit for opening a connection.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time, hide_short_help = true)]
    pub(super) connect_timeout: Duration,
    /// Queue length of requests that wait for a connection; requests beyond it are dropped and
    /// counted as missed.
    #[arg(long, value_name = "N", default_value = "1M", value_parser = count, hide_short_help = true)]
    pub(super) backlog: u32,
    #[arg(
        long, value_parser = ["auto", "uring", "epoll"], help = "I/O back end [default: auto]"
    )]
    pub(super) io: Option<String>,
    /// Compare every body with the first one or the file set's; with cache, every value.
    ///
    /// Compare every body with the first one, or with the checksums of the file set. With cache:
    /// compare every value with the one that belongs to its key; with --populate, a miss is an
    /// error.
    #[arg(long)]
    pub(super) verify: bool,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value = "1", hide_short_help = true)]
    pub(super) seed: u64,
}

// TLS, after https:// or --tls.
#[derive(Args)]
#[command(next_help_heading = "TLS")]
pub(super) struct TlsArgs {
    #[arg(
        long, value_name = "FILE", value_hint = ValueHint::AnyPath,
        help = "Trust the certificates in this PEM file [default: the system's]"
    )]
    pub(super) cacert: Option<PathBuf>,
    /// Accept any certificate.
    #[arg(long, short = 'k', conflicts_with = "cacert")]
    pub(super) insecure: bool,
    #[arg(
        long, value_parser = ["any", "1.2", "1.3"], help = "Version of TLS [default: any]",
        hide_short_help = true
    )]
    pub(super) tls_version: Option<String>,
    /// Make a full handshake for every connection.
    #[arg(long, hide_short_help = true)]
    pub(super) no_resumption: bool,
}

#[derive(Args)]
#[command(next_help_heading = "Network")]
pub(super) struct NetworkArgs {
    /// TCP/IP implementation: the kernel's, or weft's own (see --help).
    ///
    /// TCP/IP implementation: the kernel's, or weft's own, which makes the generator a host of its
    /// own on --device. Not for servers on the same netstack: it would measure itself.
    #[arg(long, default_value = "kernel", value_parser = ["kernel", "netstack"])]
    pub(super) network: String,
    /// Connect to this Unix socket instead of the server's address.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(super) unix_socket: Option<PathBuf>,
    /// Netstack: device, tap:NAME, packet:INTERFACE or xdp:INTERFACE.
    #[arg(long, hide_short_help = true)]
    pub(super) device: Option<DeviceName>,
    /// Netstack: source address, such as 10.9.0.2/24, or a range, 10.9.0.2-10.9.0.99/24.
    /// Repeatable: connections use each in turn.
    #[arg(long, value_name = "ADDRESS/PREFIX", value_parser = address_range, hide_short_help = true)]
    pub(super) address: Vec<Prefixes>,
    /// Netstack: default gateway. One per address family.
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    pub(super) gateway: Vec<IpAddr>,
    #[arg(
        long, value_name = "BYTES", value_parser = value::up_to::<MTU_MAX, usize>,
        hide_short_help = true,
        help = "Netstack: MTU [default: the device's]"
    )]
    pub(super) mtu: Option<usize>,
}

#[derive(Args)]
#[command(next_help_heading = "Many machines")]
pub(super) struct AgentArgs {
    /// Number of agents; known under mpirun and srun.
    #[arg(
        long, value_name = "N", requires = "rank", requires = "rendezvous", value_parser = count,
        hide_short_help = true
    )]
    pub(super) agents: Option<u32>,
    /// Rank of this agent, from 0.
    #[arg(long, value_name = "K", requires = "agents", value_parser = count, hide_short_help = true)]
    pub(super) rank: Option<u32>,
    /// Address on which rank 0 listens; not needed on one machine under mpirun.
    #[arg(long, value_name = "HOST:PORT", hide_short_help = true)]
    pub(super) rendezvous: Option<String>,
}

#[derive(Args, Clone)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputArgs {
    /// Write the result as JSON; '-': standard output.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    pub(super) json: Option<PathBuf>,
    /// Write a CSV line per interval or per run.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    pub(super) csv: Option<PathBuf>,
    /// Write the percentile distribution, for HdrHistogram's plotter.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::AnyPath, hide_short_help = true)]
    pub(super) hgrm: Option<PathBuf>,
    /// Write a histogram per interval, for HdrHistogram's log tools.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::AnyPath, hide_short_help = true)]
    pub(super) interval_log: Option<PathBuf>,
    /// Exit with status 1 if this holds: 'p99>5ms', 'errors>0.1%', 'achieved<99%'.
    #[arg(long, value_name = "CONDITION")]
    pub(super) fail_if: Vec<Threshold>,
    /// Colour.
    #[arg(
        long, default_value = "auto", value_parser = ["auto", "always", "never"], hide_short_help = true
    )]
    pub(super) color: String,
}
