//! What can be typed behind `weft load`.

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
        "0    every run was made, its replies were right, and no --fail-if holds\n\
         1    a run could not be made (no server answers, too few descriptors, an agent died); not a single good \
         reply came in it; a reply was wrong (a status outside --expect, what --verify refuses, another \
         protocol) or more than 1 % of the requests of a single run failed, unless a --fail-if says how many \
         errors are too many; a --fail-if holds; --knee found none; a file could not be written\n\
         2    the command line is wrong, or a file that it names cannot be read or written; nothing was sent\n\
         130  stopped by Ctrl-C (SIGINT): what was seen until then is shown and written; 143: by SIGTERM",
    ),
];

/// `weft load` and its own commands.
pub(crate) fn command(after_help: String) -> Command {
    Command::new("load")
        .about("Measure a server: open and closed loop, HTTP and memcached")
        .long_about(
            "Measure a server: open and closed loop, HTTP and memcached.\n\nWithout --rate every \
             connection sends its next request when it has its reply (a closed loop, as wrk). With \
             --rate requests are sent when their time has come, and latency counts from there, also \
             if no connection was free: a server that stops for a while cannot hide it. The result \
             says so when this generator, not the server, was the limit.",
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
                    "What to request: http://HOST[:PORT]/PATH. Several of one host are taken in \
                     turn",
                ),
        )
        .args([
            text("connect-to", "HOST:PORT")
                .help(
                    "Connect to this server in place of the URL's. May be repeated: connections \
                     go to each in turn",
                )
                .action(ArgAction::Append),
            preset("method", "NAME", "GET")
                .help("The request method")
                .short('m'),
            text("header", "FIELD")
                .help("A header field: 'Accept: text/html'. May be repeated")
                .short('H')
                .action(ArgAction::Append),
            text("body", "TEXT")
                .help("The body of every request")
                .conflicts_with("body-file"),
            file("body-file").help("The file whose content is the body of every request"),
            switch("close").help("A new connection for every request"),
            text("requests-per-connection", "N")
                .help(
                    "Close a connection after this many requests on average: after each one by \
                     the same chance, so that those that begin together do not end together",
                )
                .conflicts_with("close"),
            file("paths").help(
                "Ask for the paths of this list, or of this access log, in turn, below the \
                 URL's folder",
            ),
            file("fileset").help(
                "Ask for the files of this set (weft load fileset), by their shares, below \
                 the URL's folder",
            ),
            file("sessions")
                .help(
                    "Play the sessions of this httperf log (--wsesslog); --rate counts sessions; \
                     {rank} in the name is each agent's number",
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
            preset("think", "TIME", "0s").help("The pause between bursts where the log has none"),
            text("popularity", "LAW")
                .help("Which of the paths: uniform, zipf:0.99, hot:0.2, sequential"),
            text("expect", "STATUSES").help(
                "Expected statuses, such as 200,206 or 2xx,404; others are errors [default: \
                 2xx,3xx; with --verify 2xx]",
            ),
        ]);
    common(command)
}

fn cache() -> Command {
    let command = Command::new("cache")
        .about("Send memcached commands")
        .arg(address())
        .args([
            choice("protocol", &["text", "meta"]).help("Which of memcached's protocols"),
            preset("sets", "PERCENT", "3").help("Share of sets among the commands, in percent"),
            preset("keys", "N", "100k").help("How many different keys there are"),
            preset("key-prefix", "TEXT", "weft-").help("Prefix of every key"),
            preset("key-size", "SIZES", "30").help("How long keys are: 30, uniform:20-40, etc-key"),
            preset("value-size", "SIZES", "100")
                .help("How long values are: 100, uniform:10-1000, etc-value"),
            preset("popularity", "LAW", "uniform")
                .help("Which keys: uniform, zipf:0.99, hot:0.2, sequential"),
            preset("multi-get", "N", "1").help("Keys in one get"),
            preset("exptime", "SECONDS", "0").help("The expiry time of what is set; 0: never"),
            switch("populate").help("Set every key once before the run"),
        ]);
    common(command)
}

fn idle() -> Command {
    let command = Command::new("idle")
        .about("Open connections and hold them")
        .arg(address());
    common(command)
}

fn merge() -> Command {
    let files = Arg::new("files")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .num_args(1..)
        .required(true)
        .help("Files that --json wrote");
    Command::new("merge")
        .about("Merge the outcomes of several generators, exactly")
        .long_about(
            "Merge the outcomes of several generators that ran at the same time. Counts are added and \
             histograms are added bucket by bucket; percentiles are never averaged. Intervals are not \
             in the files and so not in the result.",
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
            .help("Open loop with a course: '0..10k:30s,10k:1m,20k:10s'")
            .conflicts_with("sweep"),
        choice("arrivals", &["fixed", "poisson"])
            .help("Times between the requests of an open loop"),
        text("duration", "TIME")
            .help(
                "How long to measure; with --requests, at most [default: 10s, with --requests \
                 1h]",
            )
            .short('d'),
        text("requests", "N")
            .help("End after this many requests")
            .short('n'),
        preset("warm-up", "TIME", "0s")
            .help("Run the same load for this time first, without measuring"),
    ];
    heading(args, "When")
}

/// Many runs.
pub(super) fn many() -> Vec<Arg> {
    let args = vec![
        text("sweep", "RATES").help("One run per rate: 10k..70k:5k, or 1k,2k,5k"),
        switch("knee")
            .help(
                "Search for the largest rate at which the server keeps up, from --rate or 1k \
                 on",
            )
            .conflicts_with_all(["sweep", "course"]),
        preset("knee-p99", "TIME", "10ms").help("Keeping up also means a p99 of this at most"),
        switch("overload")
            .help("After --knee, run at twice that rate")
            .requires("knee"),
        preset("pause", "TIME", "1s").help("Pause between two runs"),
        preset("repeat", "N", "1").help("How many times each rate is run"),
    ];
    heading(args, "Many runs")
}

/// Many machines.
pub(super) fn agents() -> Vec<Arg> {
    let args = vec![
        text("agents", "N")
            .help("How many agents there are; under mpirun and srun this is known")
            .requires("rank")
            .requires("rendezvous"),
        text("rank", "K")
            .help("Which of the agents this is, from 0")
            .requires("agents"),
        text("rendezvous", "HOST:PORT")
            .help("Where rank 0 listens; not needed on one machine under mpirun"),
    ];
    heading(args, "Many machines")
}

fn watch() -> Vec<Arg> {
    let args = vec![
        preset("interval", "TIME", "1s").help("Length of an interval"),
        switch("quiet").help("Show no progress line").short('q'),
    ];
    heading(args, "Output")
}

fn how() -> Vec<Arg> {
    let args = vec![
        preset("connections", "N", "64")
            .help("Connections open at the same time")
            .short('c'),
        preset("depth", "N", "1").help("Requests under way on one connection"),
        preset("threads", "N", "1")
            .help("Kernel threads")
            .short('t'),
        text("connect-rate", "R")
            .help("Connections opened per second before the run [default: all at once]"),
        preset("idle", "N", "0").help("Additional connections that stay idle"),
        text("idle-byte-every", "TIME").help("How often each idle connection sends a byte"),
        text("source", "ADDRESS")
            .help("An address to connect from. May be repeated: each has its own ports")
            .action(ArgAction::Append),
        preset("timeout", "TIME", "10s")
            .help("How long a reply may take")
            .short('T'),
        preset("connect-timeout", "TIME", "10s").help("How long a connection may take to open"),
        preset("backlog", "N", "1M")
            .help("Requests that may wait for a connection; more are missed"),
        choice("io", &["auto", "uring", "epoll"]).help("What carries the bytes"),
        switch("verify").help(
            "Compare every body with the first one, or with the file set's list; of a \
             cache: every value with its key (that it comes under the key of its get is \
             always compared), and with --populate a key that is not found is an error",
        ),
        preset("seed", "N", "1").help("Seed of all random choices"),
    ];
    heading(args, "How")
}

/// The network that the load goes through.
fn network() -> Vec<Arg> {
    let args = vec![
        choice("network", &["kernel", "netstack"]).help(
            "Whose TCP/IP: the kernel's, or our own, which makes this a host of its own on \
             --device. Not for servers that run on the same netstack: it would measure itself",
        ),
        text("device", "DEVICE")
            .help("Of the netstack: tap:NAME, packet:INTERFACE or xdp:INTERFACE"),
        text("address", "ADDRESS/PREFIX")
            .help(
                "Of the netstack: an address to connect from, such as 10.9.0.2/24, or a range of them, \
                 10.9.0.2-10.9.0.99/24. May be repeated: connections come from each in turn",
            )
            .action(ArgAction::Append),
        text("gateway", "ADDRESS")
            .help("Of the netstack: where packets go that leave the link. One for each family")
            .action(ArgAction::Append),
        text("mtu", "BYTES").help("Of the netstack: the longest packet [default: the device's]"),
    ];
    heading(args, "Network")
}

/// Where an outcome goes.
pub(super) fn output() -> Vec<Arg> {
    let args = vec![
        file("json").help("Write the result as JSON; '-' is standard output"),
        file("csv").help("Write a line per interval"),
        file("hgrm").help("Write the percentile distribution, for HdrHistogram's plotter"),
        file("interval-log").help("Write a histogram per interval, for HdrHistogram's log tools"),
        text("fail-if", "CONDITION")
            .help("Exit with 1 if this holds: 'p99>5ms', 'errors>0.1%', 'achieved<99%'")
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
        .help("The server's address; several are taken in turn")
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

/// One of some words; the first is the default.
fn choice(name: &'static str, choices: &[&'static str]) -> Arg {
    let parser = PossibleValuesParser::new(choices.iter().copied());
    let arg = Arg::new(name).long(name).value_parser(parser);
    arg.default_value(choices[0])
}

fn switch(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue)
}
