//! Command line of `weft load`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command, ValueHint, value_parser};

use super::fileset;

pub(crate) const SECTIONS: &[(&str, &str)] = &[
    (
        "Examples",
        "weft load http http://127.0.0.1:8080/               as fast as 64 connections go\n\
         weft load http http://127.0.0.1:8080/ --rate 10k    open loop: 10,000 requests per second\n\
         weft load http http://127.0.0.1:8080/ --rate 2k --close --arrivals poisson\n\
         weft load http http://127.0.0.1:8080/ --rate 20k --fail-if 'p99>5ms' --json out.json\n\
         weft load http https://localhost:8443/ --cacert ca.pem\n\
         weft load http http://127.0.0.1:8080/ --fileset DIR --verify\n\
         weft load http http://127.0.0.1:8080/ --sweep 10k..70k:5k --pause 5s\n\
         weft load http http://127.0.0.1:8080/ --knee --knee-p99 5ms --overload\n\
         weft load fileset DIR && weft load traces DIR LOGS\n\
         weft load http http://127.0.0.1:8080/ --sessions LOGS/session-00.log --rate 500\n\
         mpirun -np 4 weft load http http://server/ --rate 50k --connections 1k\n\
         weft load cache 127.0.0.1:11211 --populate --sets 3 --depth 16\n\
         weft load idle 127.0.0.1:8080 --connections 6000",
    ),
    (
        "Exit status",
        "0    every run succeeded, its replies were right, and no --fail-if condition holds\n\
         1    a run could not be made (no server, too few descriptors, a lost agent); it had no good reply; a reply \
         was wrong (a status outside --expect, a body that --verify refuses, another protocol) or more than 1 % \
         of the requests of a single run failed, unless a --fail-if limits errors; a --fail-if condition holds; \
         --knee found no knee; a file could not be written\n\
         2    wrong command line, or an input or output file cannot be opened; nothing was sent\n\
         130  stopped by Ctrl-C (SIGINT), after showing and writing the results so far; 143: by SIGTERM",
    ),
];

/// `weft load` and its own commands.
pub(crate) fn command(after_help: String) -> Command {
    Command::new("load")
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
        .arg_required_else_help(true)
        .subcommands([http(), cache(), idle()])
        .subcommands([fileset::command(), fileset::traces_command(), merge()])
}

fn http() -> Command {
    let command = Command::new("http")
        .about("Send HTTP requests")
        .arg(
            Arg::new("url")
                .value_name("URL")
                .required(true)
                .num_args(1..)
                .value_hint(ValueHint::Url)
                .help(
                    "URL to request: http[s]://HOST[:PORT]/PATH. Several URLs of one host are requested in \
                     turn, and so is each path of a range, /item/{1..1000}",
                ),
        )
        .args([
            text("connect-to", "HOST:PORT")
                .help(
                    "Connect to this server instead of the URL's. Repeatable: connections go to each in \
                     turn",
                )
                .action(ArgAction::Append),
            preset("method", "NAME", "GET")
                .help("Request method")
                .short('m'),
            text("header", "FIELD")
                .help("Header field, such as 'Accept: text/html'. Repeatable")
                .short('H')
                .action(ArgAction::Append),
            text("body", "TEXT")
                .help("Body of every request")
                .conflicts_with("body-file"),
            file("body-file").help("File with the body of every request"),
            switch("close").help("Use a new connection for every request"),
            text("requests-per-connection", "N")
                .help(
                    "Close after N requests on average (randomised, so that connections do not all close at \
                     once)",
                )
                .conflicts_with("close"),
            file("paths").help(
                "Request the paths of this list or access log in turn, below the URL's folder",
            ),
            file("fileset").help(
                "Request the files of this set (weft load fileset) by their shares, below the URL's \
                 folder",
            ),
            file("sessions")
                .help(
                    "Replay the sessions of this httperf log (--wsesslog); --rate counts sessions; {rank} in \
                     the name is the agent's rank",
                )
                .conflicts_with_all([
                    "method",
                    "body",
                    "body-file",
                    "paths",
                    "fileset",
                    "popularity",
                    "close",
                    "requests-per-connection",
                ]),
            preset("think", "TIME", "0s").help("Pause between bursts that have none in the log"),
            text("popularity", "LAW")
                .help("Distribution of requests over paths: uniform, zipf:0.99, hot:0.2, sequential"),
            text("expect", "STATUSES").help(
                "Expected statuses, such as 200,206 or 2xx,404; others are errors [default: \
                 2xx,3xx; with --verify 2xx]",
            ),
        ]);
    common(command.args(tls()))
}

fn cache() -> Command {
    let command = Command::new("cache")
        .about("Send memcached commands")
        .arg(address())
        .args([
            choice("protocol", &["text", "meta"]).help("memcached protocol"),
            preset("sets", "PERCENT", "3").help("Percentage of set commands"),
            preset("keys", "N", "100k").help("Number of different keys"),
            preset("key-prefix", "TEXT", "weft-").help("Prefix of every key"),
            preset("key-size", "SIZES", "30")
                .help("Key length in bytes: 30, uniform:20-40, etc-key"),
            preset("value-size", "SIZES", "100")
                .help("Value length in bytes: 100, uniform:10-1000, etc-value"),
            preset("popularity", "LAW", "uniform").help(
                "Distribution of requests over keys: uniform, zipf:0.99, hot:0.2, sequential",
            ),
            preset("multi-get", "N", "1").help("Keys per get"),
            preset("exptime", "SECONDS", "0").help("Expiry time of stored items; 0: never"),
            switch("populate").help("Set every key once before the run"),
            switch("tls").help("Speak TLS"),
        ]);
    common(command.args(tls()))
}

fn idle() -> Command {
    let command = Command::new("idle")
        .about("Open connections and keep them idle")
        .arg(address());
    common(command)
}

fn merge() -> Command {
    let files = Arg::new("files")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .num_args(1..)
        .required(true)
        .help("Files written by --json");
    Command::new("merge")
        .about("Merge the results of several generators")
        .long_about(
            "Merge the results of several generators that ran at the same time. Counts are added, and \
             histograms bucket by bucket; percentiles are never averaged. Intervals are not in the \
             files, so not in the merged result.",
        )
        .arg(files)
        .args(output())
}

fn common(command: Command) -> Command {
    command
        .args(when())
        .args(many())
        .args(how())
        .args(network())
        .args(agents())
        .args(output())
        .args(watch())
}

fn when() -> Vec<Arg> {
    let args = vec![
        text("rate", "R")
            .help("Open loop: requests per second (500, 10k, 1.5M)")
            .short('R')
            .conflicts_with_all(["course", "sweep"]),
        text("course", "STAGES")
            .help("Open loop with a changing rate: '0..10k:30s,10k:1m,20k:10s'")
            .conflicts_with("sweep"),
        choice("arrivals", &["fixed", "poisson"])
            .help("Intervals between requests of an open loop: fixed is equal, poisson random"),
        text("duration", "TIME")
            .help(
                "Length of the measurement; with --requests, the maximum [default: 10s, with --requests \
                 1h]",
            )
            .short('d'),
        text("requests", "N")
            .help("End after this many requests")
            .short('n'),
        preset("warm-up", "TIME", "0s")
            .help("Run the same load for this long before the measurement"),
    ];
    heading(args, "When")
}

/// Many runs.
pub(super) fn many() -> Vec<Arg> {
    let args = vec![
        text("sweep", "RATES").help("One run per rate: 10k..70k:5k, or 1k,2k,5k"),
        switch("knee")
            .help(
                "Search for the largest rate at which the server keeps up, starting at --rate or 1k",
            )
            .conflicts_with_all(["sweep", "course"]),
        preset("knee-p99", "TIME", "10ms").help("Largest p99 at which the server keeps up"),
        switch("overload")
            .help("After --knee, run at twice the knee")
            .requires("knee"),
        preset("pause", "TIME", "1s").help("Pause between two runs"),
        preset("repeat", "N", "1").help("Runs per rate"),
    ];
    heading(args, "Many runs")
}

/// Many machines.
pub(super) fn agents() -> Vec<Arg> {
    let args = vec![
        text("agents", "N")
            .help("Number of agents; known under mpirun and srun")
            .requires("rank")
            .requires("rendezvous"),
        text("rank", "K")
            .help("Rank of this agent, from 0")
            .requires("agents"),
        text("rendezvous", "HOST:PORT")
            .help("Address on which rank 0 listens; not needed on one machine under mpirun"),
    ];
    heading(args, "Many machines")
}

fn watch() -> Vec<Arg> {
    let args = vec![
        preset("interval", "TIME", "1s").help("Length of an interval in the report and the files"),
        switch("quiet").help("Show no progress line").short('q'),
    ];
    heading(args, "Output")
}

fn how() -> Vec<Arg> {
    let args = vec![
        preset("connections", "N", "64")
            .help("Number of open connections")
            .short('c'),
        preset("depth", "N", "1").help("In-flight requests per connection"),
        preset("threads", "N", "1")
            .help("Kernel threads")
            .short('t'),
        text("connect-rate", "R")
            .help("Connections opened per second before the run [default: all at once]"),
        preset("idle", "N", "0").help("Additional idle connections"),
        text("idle-byte-every", "TIME").help("Interval at which each idle connection sends a byte"),
        text("source", "ADDRESS")
            .help("Source address. Repeatable: each has its own ports")
            .action(ArgAction::Append),
        preset("timeout", "TIME", "10s")
            .help("Time limit of a reply")
            .short('T'),
        preset("connect-timeout", "TIME", "10s").help("Time limit for opening a connection"),
        preset("backlog", "N", "1M").help(
            "Queue length of requests that wait for a connection; requests beyond it are dropped \
                 and counted as missed",
        ),
        choice("io", &["auto", "uring", "epoll"]).help("I/O back end"),
        switch("verify").help(
            "Compare every body with the first one, or with the checksums of the file set. With \
             cache: compare every value with the one that belongs to its key; with --populate, a \
             miss is an error",
        ),
        preset("seed", "N", "1").help("Seed of all random choices"),
    ];
    heading(args, "How")
}

/// TLS, after https:// or --tls.
fn tls() -> Vec<Arg> {
    let args = vec![
        file("cacert").help("Trust the certificates in this PEM file [default: the system's]"),
        switch("insecure")
            .help("Accept any certificate")
            .short('k')
            .conflicts_with("cacert"),
        choice("tls-version", &["any", "1.2", "1.3"]).help("Version of TLS"),
        switch("no-resumption").help("Make a full handshake for every connection"),
    ];
    heading(args, "TLS")
}

/// Network of the load.
fn network() -> Vec<Arg> {
    let args = vec![
        choice("network", &["kernel", "netstack"]).help(
            "TCP/IP implementation: the kernel's, or weft's own, which makes the generator a host of \
             its own on --device. Not for servers on the same netstack: it would measure itself",
        ),
        text("device", "DEVICE")
            .help("Netstack: device, tap:NAME, packet:INTERFACE or xdp:INTERFACE"),
        text("address", "ADDRESS/PREFIX")
            .help(
                "Netstack: source address, such as 10.9.0.2/24, or a range, 10.9.0.2-10.9.0.99/24. \
                 Repeatable: connections use each in turn",
            )
            .action(ArgAction::Append),
        text("gateway", "ADDRESS")
            .help("Netstack: default gateway. One per address family")
            .action(ArgAction::Append),
        text("mtu", "BYTES").help("Netstack: MTU [default: the device's]"),
    ];
    heading(args, "Network")
}

/// Outputs.
pub(super) fn output() -> Vec<Arg> {
    let args = vec![
        file("json").help("Write the result as JSON; '-': standard output"),
        file("csv").help("Write a CSV line per interval or per run"),
        file("hgrm").help("Write the percentile distribution, for HdrHistogram's plotter"),
        file("interval-log").help("Write a histogram per interval, for HdrHistogram's log tools"),
        text("fail-if", "CONDITION")
            .help("Exit with status 1 if this holds: 'p99>5ms', 'errors>0.1%', 'achieved<99%'")
            .action(ArgAction::Append),
        choice("color", &["auto", "always", "never"]).help("Colour"),
    ];
    heading(args, "Output")
}

fn heading(args: Vec<Arg>, title: &'static str) -> Vec<Arg> {
    args.into_iter()
        .map(|arg| arg.help_heading(title))
        .collect()
}

fn address() -> Arg {
    Arg::new("server")
        .value_name("HOST:PORT")
        .required(true)
        .num_args(1..)
        .help("Address of the server; several are used in turn")
}

fn text(name: &'static str, value: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value)
}

/// A value with a default.
fn preset(name: &'static str, value: &'static str, default: &'static str) -> Arg {
    text(name, value).default_value(default)
}

fn file(name: &'static str) -> Arg {
    text(name, "FILE").value_hint(ValueHint::AnyPath)
}

/// One of several words; the first is the default.
fn choice(name: &'static str, choices: &[&'static str]) -> Arg {
    let parser = PossibleValuesParser::new(choices.iter().copied());
    let arg = Arg::new(name).long(name).value_parser(parser);
    let arg = arg.value_name(name.to_uppercase());
    arg.default_value(choices[0])
}

fn switch(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue)
}
