//! Systems under test: programs that print a result, and servers that answer requests.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A system under test.
#[derive(Clone, Debug)]
pub struct System {
    /// Name in tables: `weft`, `weft stackless`, `nginx copy`.
    pub name: String,
    /// Name by which experiments ask for it. `pinned`, `stackless` and `migratable` are weft's
    /// fibers; other runtimes have their own names, the user's `CUSTOM_SERVER` and
    /// `CUSTOM_PROGRAM`. Two systems may be of one kind.
    pub kind: String,
    /// Version that it prints; empty if it was not asked.
    pub version: String,
    /// Command to start it.
    pub start: Start,
}

impl System {
    /// Creates a system whose kind is its name.
    pub fn new(name: &str, version: String, start: Start) -> System {
        System { name: name.to_owned(), kind: name.to_owned(), version, start }
    }

    /// Creates a server without a configuration file, whose version is not printed.
    fn server(name: &str, program: &Path, words: &str, protocol: ServerProtocol) -> System {
        let arguments = self::words(words);
        let form = ServerForm { program: program.to_owned(), arguments, config: None, protocol };
        System::new(name, String::new(), Start::Server(form))
    }
}

/// Command that starts a system.
#[derive(Clone, Debug)]
pub enum Start {
    /// A program that takes `PROGRAM key=value...`, prints an [`Output`](crate::Output), and ends.
    Program {
        /// Path of the program.
        program: PathBuf,
        /// Arguments before the program's name.
        arguments: Vec<OsString>,
        /// Arguments after the configuration's parameters.
        parameters: Vec<OsString>,
    },
    /// A generator, which loads a server and prints its results.
    Generator {
        /// Path of the generator; weft's asks in every experiment.
        program: PathBuf,
        /// Arguments of weft's forms after `weft load http URL`; `{near}` stands for the
        /// generator's end of a link.
        words: Vec<String>,
    },
    /// A server, which listens at a port until it is stopped.
    Server(ServerForm),
}

/// A server, and how it is configured.
#[derive(Clone, Debug)]
pub struct ServerForm {
    /// Path of the server.
    pub program: PathBuf,
    /// Its arguments; `{host}`, `{port}`, `{root}`, `{workers}`, `{interface}` and `{config}` are
    /// replaced at each start.
    pub arguments: Vec<String>,
    /// The file `{config}`.
    pub config: Option<ConfigFile>,
    /// Its protocol.
    pub protocol: ServerProtocol,
}

/// Flags for a netstack on the experiment's link, with addresses that the kernel lacks.
const LOAD_NETSTACK: &str =
    "--network netstack --device packet:{near} --address 10.9.0.100-10.9.0.107/24";

/// Load generators: weft's forms, and installed ones by others.
pub fn generators(weft: &Path) -> Vec<System> {
    let own = [
        ("weft load", ""),
        ("weft load epoll", "--io epoll"),
        ("weft load netstack", LOAD_NETSTACK),
    ];
    let generator = |name: &str, program: PathBuf, words: &str| {
        let version = version_of(&program, "--version");
        let words = self::words(words);
        System::new(name, version, Start::Generator { program, words })
    };
    let own = own.map(|(name, words)| generator(name, weft.to_owned(), words));
    let others = ["wrk", "httperf"].into_iter();
    let others = others.filter_map(|name| Some(generator(name, in_path(name)?, "")));
    own.into_iter().chain(others).collect()
}

/// Path of `weft-programs`, with measured programs that are no part of weft, beside weft.
pub fn programs_beside(weft: &Path) -> PathBuf {
    weft.with_file_name(PROGRAMS)
}

pub(crate) const PROGRAMS: &str = "weft-programs";

/// Bare responders, shown beside real servers as the limit. `programs` is `weft-programs`.
pub fn ceilings(programs: &Path) -> Vec<System> {
    let forms = [
        ("ceiling ring", "ring web", ServerProtocol::Web),
        ("ceiling event", "event web", ServerProtocol::Web),
        ("ceiling cache ring", "ring cache", ServerProtocol::Cache),
        ("ceiling cache event", "event cache", ServerProtocol::Cache),
    ];
    let forms = forms.map(|(name, words, protocol)| {
        let words = format!("ceiling {words} {{host}}:{{port}} {{root}}");
        System::server(name, programs, &words, protocol)
    });
    let files = FILE_WAYS.iter().map(|(name, way)| {
        let words = format!("files {way} {{port}} {{root}}");
        System::server(name, programs, &words, ServerProtocol::Web)
    });
    forms.into_iter().chain(files).collect()
}

/// One responder that sends files in several ways: names, and arguments.
pub(crate) const FILE_WAYS: &[(&str, &str)] = &[
    ("sendfile poll", "poll"),
    ("sendfile yield", "yield"),
    ("sendfile blocking", "block"),
    ("splice", "splice"),
    ("splice, second ring", "splice-2"),
    ("splice, 8 workers", "splice-8"),
    ("read and send", "read"),
];

/// nginx that compresses every reply, so that the server is always the bottleneck.
pub(crate) fn nginx_gzip() -> Option<System> {
    nginx("nginx gzip", NGINX_GZIP).find()
}

/// Parameters of a server's start: address, folders, cores.
#[derive(Clone, Copy)]
pub(crate) struct StartContext<'a> {
    pub(crate) host: Ipv4Addr,
    pub(crate) port: u16,
    pub(crate) root: &'a Path,
    /// Name of a netstack's device; empty without one.
    pub(crate) interface: &'a str,
    pub(crate) workers: u64,
    pub(crate) scratch: &'a Path,
    /// True if laboratory and server run as root.
    pub(crate) is_root: bool,
}

/// Protocol that a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerProtocol {
    /// HTTP/1.1 over a folder.
    Web,
    /// memcached's.
    Cache,
}

impl ServerForm {
    /// Command line for one start.
    ///
    /// # Errors
    /// When the configuration file cannot be written.
    pub(crate) fn argv(&self, context: &StartContext<'_>) -> io::Result<Vec<OsString>> {
        let [config, certificate] =
            ["server.conf", CERTIFICATE].map(|name| context.scratch.join(name));
        let user = if context.is_root { H2O_ROOT } else { "" };
        let fill = |text: &str| {
            text.replace("{host}", &context.host.to_string())
                .replace("{port}", &context.port.to_string())
                .replace("{root}", &context.root.display().to_string())
                .replace("{interface}", context.interface)
                .replace("{user}", user)
                .replace("{workers}", &context.workers.to_string())
                .replace("{scratch}", &context.scratch.display().to_string())
                .replace("{config}", &config.display().to_string())
                .replace("{certificate}", &certificate.display().to_string())
        };
        if let Some(file) = self.config {
            let text = file.text.replace("{delivery}", file.delivery);
            fs::write(&config, fill(&text.replace("{listen}", file.listen)))?;
        }
        let mut argv: Vec<OsString> = vec![self.program.clone().into()];
        argv.extend(self.arguments.iter().map(|argument| fill(argument).into()));
        Ok(argv)
    }

    /// Command line for the report, with placeholders.
    pub(crate) fn words(&self) -> String {
        let words = [&[file_name(&self.program)], &self.arguments[..]];
        words.concat().join(" ")
    }
}

/// Name of the file with a run's certificate and key.
const CERTIFICATE: &str = "certificate.pem";

/// Makes a run's certificate.
///
/// # Errors
/// When it cannot be made or written.
pub(crate) fn make_certificate(scratch: &Path) -> io::Result<()> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
    let made = made.map_err(io::Error::other)?;
    let text = made.cert.pem() + &made.signing_key.serialize_pem();
    fs::write(scratch.join(CERTIFICATE), text)
}

/// Last component of a path.
pub(crate) fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// A server by others that the laboratory can configure.
#[derive(Debug)]
pub struct Known {
    /// Name for tables.
    pub name: &'static str,
    /// The program.
    pub program: &'static str,
    /// Source of the program.
    pub source: PackageSource,
    /// Flag that prints its version.
    version: &'static str,
    arguments: &'static str,
    config: Option<ConfigFile>,
    protocol: ServerProtocol,
}

/// Source of a server's program.
#[derive(Clone, Copy, Debug)]
pub enum PackageSource {
    /// A Debian package of this name.
    Debian(&'static str),
    /// A crate that cargo builds.
    Crate,
}

/// Servers by others, each tuned according to its manual, with one worker unless stated otherwise.
pub const KNOWN: &[Known] = &[
    nginx("nginx sendfile", NGINX_SENDFILE),
    nginx("nginx copy", NGINX_COPY),
    nginx("nginx", NGINX_PLAIN),
    nginx("nginx threads", NGINX_THREADS),
    nginx("nginx reuseport", NGINX_REUSEPORT),
    Known { config: Some(LIGHTTPD), ..known("lighttpd", "-v", "-D -f {config}") },
    Known { config: Some(H2O), ..known("h2o", "--version", "-m worker -c {config}") },
    known("caddy", "version", "file-server --listen {host}:{port} --root {root}"),
    a_crate("static-web-server", STATIC_WEB_SERVER),
    a_crate("miniserve", "--interfaces {host} --port {port} {root}"),
    Known { protocol: ServerProtocol::Cache, ..known("memcached", "--version", MEMCACHED_FLAGS) },
];

/// Our cache, with memcached's flags: one processor, 2 GB.
const CACHE: &str = "cache -p {port} -U 0 -l {host} -m 2048 -t 1 -u root";

/// More connections than any experiment has.
const MANY: &str = "-c 17000";
const MEMCACHED_FLAGS: &str = "-p {port} -U 0 -l {host} -m 2048 -t 1 -u root -c 17000";

/// A web server without a configuration file, named as its program and package.
const fn known(name: &'static str, version: &'static str, arguments: &'static str) -> Known {
    Known {
        name,
        program: name,
        source: PackageSource::Debian(name),
        version,
        arguments,
        config: None,
        protocol: ServerProtocol::Web,
    }
}

/// A web server in Rust.
const fn a_crate(name: &'static str, arguments: &'static str) -> Known {
    Known { source: PackageSource::Crate, ..known(name, "--version", arguments) }
}

/// Turns off features that the others do not use here: compression, `Cache-Control`.
const STATIC_WEB_SERVER: &str = "--host {host} --port {port} --root {root} --log-level error \
                                 --compression false --cache-control-headers false";

const fn nginx(name: &'static str, config: ConfigFile) -> Known {
    Known {
        program: "nginx",
        source: PackageSource::Debian("nginx-light"),
        config: Some(config),
        ..known(name, "-v", "-c {config} -p {scratch} -e stderr")
    }
}

/// Configuration file of a server.
#[derive(Clone, Copy, Debug)]
pub struct ConfigFile {
    /// Text, with the placeholders of [`ServerForm::arguments`], `{scratch}`, `{user}` for h2o, and
    /// `{delivery}` and `{listen}` for nginx.
    text: &'static str,
    delivery: &'static str,
    listen: &'static str,
}

/// `{listen}` of nginx for TLS with HTTP/2.
const NGINX_TLS: &str =
    " ssl http2; ssl_certificate {certificate}; ssl_certificate_key {certificate}";

const fn file(text: &'static str, delivery: &'static str, listen: &'static str) -> ConfigFile {
    ConfigFile { text, delivery, listen }
}

const fn nginx_file(delivery: &'static str, listen: &'static str) -> ConfigFile {
    file(include_str!("system/nginx.conf"), delivery, listen)
}

const NGINX_SENDFILE: ConfigFile = nginx_file("sendfile on; tcp_nopush on;", "");
const NGINX_COPY: ConfigFile = nginx_file("sendfile off;", "");
const NGINX_GZIP: ConfigFile = nginx_file("gzip on; gzip_comp_level 1; gzip_types text/html;", "");
/// Without tcp_nopush, which delays one 64 KiB reply in a thousand by 40 ms (measured).
const NGINX_PLAIN: ConfigFile = nginx_file("sendfile on;", "");
const NGINX_THREADS: ConfigFile = nginx_file("sendfile on; aio threads;", "");
/// One accept queue per worker. With a shared one, and multi_accept, the first worker that wakes
/// takes most connections.
const NGINX_REUSEPORT: ConfigFile = nginx_file("sendfile on; tcp_nopush on;", " reuseport");
const LIGHTTPD: ConfigFile = file(include_str!("system/lighttpd.conf"), "", "");
const H2O: ConfigFile = file(include_str!("system/h2o.yaml"), "", "");

/// Line of h2o's configuration as root: otherwise it would change to an account that may not read
/// the files. Without root it cannot even change to its own account, and would end.
const H2O_ROOT: &str = "user: root\n";

impl Known {
    /// The command that installs it.
    pub fn how_to_install(&self) -> String {
        match self.source {
            PackageSource::Debian(package) => format!("apt-get install {package}"),
            PackageSource::Crate => format!("cargo install {}", self.name),
        }
    }

    /// Kind by which experiments ask for it.
    pub(crate) fn kind(&self) -> &'static str {
        match self.source {
            PackageSource::Debian(_) => self.name,
            PackageSource::Crate => "caddy",
        }
    }

    /// The system, if it is installed.
    pub fn find(&self) -> Option<System> {
        let program = in_path(self.program)?;
        let version = version_of(&program, self.version);
        let Known { config, protocol, .. } = *self;
        let server = ServerForm { program, arguments: words(self.arguments), config, protocol };
        let kind = self.kind().to_owned();
        Some(System { kind, ..System::new(self.name, version, Start::Server(server)) })
    }
}

/// weft's forms as servers: name, protocol, and arguments after `weft serve ROOT` or `weft cache`.
pub const WEFT_FORMS: &[(&str, ServerProtocol, &str)] = &[
    ("weft", ServerProtocol::Web, ""),
    ("weft epoll", ServerProtocol::Web, "--engine fiber:io=epoll"),
    ("weft event", ServerProtocol::Web, "--engine event:accept=own,multi-accept=on"),
    (
        "weft event alone",
        ServerProtocol::Web,
        "--engine event:accept=own,multi-accept=on,file-threads=off",
    ),
    ("weft thread", ServerProtocol::Web, "--engine thread"),
    ("weft netstack xdp", ServerProtocol::Web, NETSTACK_XDP),
    ("weft netstack xdp computed", ServerProtocol::Web, NETSTACK_XDP_COMPUTED),
    ("weft netstack packet", ServerProtocol::Web, NETSTACK_PACKET),
    ("weft netstack tap", ServerProtocol::Web, NETSTACK_TAP),
    ("weft cache", ServerProtocol::Cache, MANY),
    ("weft cache epoll", ServerProtocol::Cache, "--engine=fiber:io=epoll -c 17000"),
    ("weft cache event", ServerProtocol::Cache, "--engine=event -c 17000"),
    ("weft cache thread", ServerProtocol::Cache, "--engine=thread -c 4000"),
];

const PIPELINE: &str = "weft pipeline";

/// Systems that are measured only on request, to keep runs short. The form of weft takes part
/// wherever `weft event` does, the servers wherever `caddy` does.
pub const ON_REQUEST: &[&str] = &[PIPELINE, "static-web-server", "miniserve"];

const NETSTACK_XDP: &str = "--engine netstack:device=xdp:{interface},address={host}/24";
const NETSTACK_XDP_COMPUTED: &str =
    "--engine netstack:device=xdp:{interface},address={host}/24,checksums=computed";
const NETSTACK_PACKET: &str = "--engine netstack:device=packet:{interface},address={host}/24";
const NETSTACK_TAP: &str = "--engine netstack:device=tap:{interface},address={host}/24";

/// weft's fibers: names, and the kinds by which experiments ask for them.
const FIBERS: &[(&str, &str)] =
    &[("weft", "pinned"), ("weft stackless", "stackless"), ("weft migratable", "migratable")];

/// weft's fibers, in `weft-programs`. `prefix` as in [`weft_forms`].
pub fn weft_fibers(programs: &Path, prefix: &str, version: &str) -> Vec<System> {
    let fibers = FIBERS.iter().map(|&(name, kind)| System {
        name: format!("{prefix}{name}"),
        kind: kind.to_owned(),
        version: version.to_owned(),
        start: Start::Program {
            program: programs.to_owned(),
            arguments: Vec::new(),
            parameters: vec![format!("mode={kind}").into()],
        },
    });
    fibers.collect()
}

/// Name of a kind: only weft's fibers have another one.
pub(crate) fn name_of(kind: &str) -> &str {
    let fibers = FIBERS.iter().find(|(_, known)| *known == kind);
    fibers.map_or(kind, |&(name, _)| name)
}

impl System {
    /// The same server over TLS, with the run's certificate; `None` if unsupported.
    pub(crate) fn over_tls(&self) -> Option<System> {
        let mut system = self.clone();
        let Start::Server(server) = &mut system.start else {
            return None;
        };
        match (&mut server.config, self.kind.split(' ').next()) {
            (Some(config), Some("nginx")) => config.listen = NGINX_TLS,
            (None, Some("weft")) => server.arguments.extend(words("--tls-cert {certificate}")),
            _ => return None,
        }
        Some(system)
    }

    /// Adds a key to `--engine`, whose value ends the command line of a weft form.
    pub(crate) fn add_engine_key(&mut self, key: &str) {
        if let Start::Server(server) = &mut self.start
            && let Some(engine) = server.arguments.last_mut()
        {
            engine.push(',');
            engine.push_str(key);
        }
    }
}

/// The dispatchers of `weft serve --engine event`, each a system `event NAME`.
pub const DISPATCHERS: &[&str] =
    &["select", "poll", "fdm", "lap", "rtsig", "epoll", "epoll-edge", "uring"];

/// Real-time signals with the queue length in the name, and the fallback after an overflow.
const QUEUES: &[(&str, &str)] = &[
    ("rtsig 1024", "rtsig"),
    ("rtsig 2048", "rtsig"),
    ("rtsig 1024 kept poll", "rtsig-kept-poll"),
    ("rtsig 1024 select", "rtsig-select"),
];

/// Prefixes of the two builds' names.
pub const OLD: &str = "old ";
/// See [`OLD`].
pub const NEW: &str = "new ";

/// All forms of a weft binary as servers. `prefix` precedes their names, to distinguish two builds.
pub fn weft_forms(binary: &Path, prefix: &str) -> Vec<System> {
    let version = version_of(binary, "--version");
    let form = |name: &str, protocol, words: &str| {
        let fixed = match protocol {
            ServerProtocol::Web => {
                "serve {root} --listen {host}:{port} --workers {workers} --access-log off"
            }
            ServerProtocol::Cache => CACHE,
        };
        let server = System::server(name, binary, &format!("{fixed} {words}"), protocol);
        System { name: format!("{prefix}{name}"), version: version.clone(), ..server }
    };
    let forms = WEFT_FORMS.iter().map(|&(name, protocol, words)| form(name, protocol, words));
    let event = |name: &str, dispatcher: &str| {
        let words = format!("--engine event:dispatcher={dispatcher} --max-connections 8000");
        form(&format!("event {name}"), ServerProtocol::Web, &words)
    };
    let dispatchers = DISPATCHERS.iter().map(|name| event(name, name));
    let queues = QUEUES.iter().map(|(name, words)| event(name, words));
    let on_request = System {
        kind: "weft event".to_owned(),
        ..form(PIPELINE, ServerProtocol::Web, "--engine pipeline")
    };
    let forms = forms.chain(dispatchers).chain(queues);
    forms.chain([on_request]).collect()
}

/// Parses a user's server, `NAME=COMMAND {port} {root}`, or threading runtime, `NAME=COMMAND
/// {program}`.
///
/// # Errors
/// A sentence about the mistake.
pub fn custom(text: &str) -> Result<System, String> {
    let (name, command) = text.split_once('=').unwrap_or_default();
    let mut words = command.split_whitespace().map(str::to_owned);
    let is_program = command.contains(PROGRAM);
    let program =
        words.next().filter(|_| !name.is_empty() && (is_program || command.contains("{port}")));
    let Some(program) = program else {
        return Err(format!(
            "'{text}': want NAME=COMMAND with {{port}}, and {{root}} if it serves files; or with \
             {PROGRAM} if it runs the programs of a threading runtime"
        ));
    };
    let program = in_path(&program).ok_or_else(|| format!("'{program}' is not installed"))?;
    let (kind, start) = if is_program {
        let arguments = words.by_ref().take_while(|word| word != PROGRAM);
        let start = Start::Program {
            program,
            arguments: arguments.map(OsString::from).collect(),
            parameters: words.map(OsString::from).collect(),
        };
        (CUSTOM_PROGRAM, start)
    } else {
        let is_web = command.contains("{root}");
        let protocol = if is_web { ServerProtocol::Web } else { ServerProtocol::Cache };
        let arguments = words.collect();
        let server = ServerForm { program, arguments, config: None, protocol };
        (CUSTOM_SERVER, Start::Server(server))
    };
    Ok(System { name: name.to_owned(), kind: kind.to_owned(), version: String::new(), start })
}

/// Kind of a user's server: it takes part in all experiments with servers.
pub(crate) const CUSTOM_SERVER: &str = "custom";
/// See [`CUSTOM_SERVER`].
pub(crate) const CUSTOM_PROGRAM: &str = "custom program";
/// Placeholder for a configuration's program and its parameters.
const PROGRAM: &str = "{program}";

/// Words of a command line. None contains a space: paths are appended separately.
pub(crate) fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Finds a program by name or path. Servers are often in `sbin`, which is not in users' PATH.
pub fn in_path(program: &str) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| path.is_file();
    if program.contains('/') {
        return fs::canonicalize(program).ok().filter(is_program);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(is_program)
}

/// First word that looks like a version in a program's output.
pub fn version_of(program: &Path, flag: &str) -> String {
    let Ok(said) = Command::new(program).arg(flag).output() else {
        return String::new();
    };
    let said = [said.stdout, said.stderr].concat();
    first_version(&String::from_utf8_lossy(&said)).unwrap_or_default()
}

fn first_version(text: &str) -> Option<String> {
    let mut words = text.split(|c: char| !(c.is_ascii_alphanumeric() || ".-+".contains(c)));
    // v2.6.2, go1.26.0, httperf-0.9.0
    let digits = |word: &str| {
        word.trim_start_matches(|c: char| c.is_ascii_alphabetic() || c == '-').to_owned()
    };
    let is_version =
        |word: &String| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    words.by_ref().map(digits).find(is_version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_programs() {
        let found = |text| first_version(text).unwrap_or_default();
        assert_eq!(found("nginx version: nginx/1.22.1\n"), "1.22.1");
        assert_eq!(found("lighttpd/1.4.69 (ssl) - a light and fast webserver"), "1.4.69");
        assert_eq!(found("v2.6.2 h1:abc"), "2.6.2");
        assert_eq!(found("memcached 1.6.18"), "1.6.18");
        let httperf = "httperf-0.9.0 compiled without DEBUG\n--rate=0.00 --recv-buffer=16384";
        assert_eq!(found(httperf), "0.9.0");
        assert_eq!(found("go version go1.26.0 linux/amd64"), "1.26.0");
        assert_eq!(found("no version here"), "");
    }

    fn context(scratch: &Path, is_root: bool) -> StartContext<'_> {
        StartContext {
            host: Ipv4Addr::LOCALHOST,
            port: 2001,
            root: Path::new("/site"),
            interface: "",
            workers: 1,
            scratch,
            is_root,
        }
    }

    #[test]
    fn custom_server() {
        let made = custom("mine=sh -c {port} {root}").unwrap();
        let Start::Server(server) = made.start else {
            panic!("a server");
        };
        assert_eq!(server.protocol, ServerProtocol::Web);
        let argv = server.argv(&context(Path::new("/tmp"), false)).unwrap();
        assert_eq!(argv[1..], ["-c", "2001", "/site"].map(OsString::from));
        assert_eq!(made.kind, CUSTOM_SERVER);
        assert!(custom("mine=sh -c").unwrap_err().contains("{port}"));
        assert!(custom("sh {port}").is_err());
        assert!(custom("a=no-such-program {port}").unwrap_err().contains("not installed"));
    }

    /// Seen: every sample of h2o without root failed. Cause: with `user: root` it tries to change
    /// its groups, and ends.
    #[test]
    fn h2o_user() {
        let scratch = tempfile::tempdir().unwrap();
        let server = ServerForm {
            program: "h2o".into(),
            arguments: words("-c {config}"),
            config: Some(H2O),
            protocol: ServerProtocol::Web,
        };
        let told = |is_root| {
            let argv = server.argv(&context(scratch.path(), is_root)).unwrap();
            fs::read_to_string(&argv[2]).unwrap()
        };
        let as_root = told(true);
        let without = told(false);
        assert_eq!(as_root.replace("\nuser: root\n", "\n"), without);
        assert!(as_root.contains("\nuser: root\n"), "{as_root}");
        assert!(without.contains("  port: 2001\nnum-threads: 1\n"), "{without}");
    }

    #[test]
    fn nginx_workers_and_queues() {
        let scratch = tempfile::tempdir().unwrap();
        let told = |config| {
            let server = ServerForm {
                program: "nginx".into(),
                arguments: words("-c {config}"),
                config: Some(config),
                protocol: ServerProtocol::Web,
            };
            let context = StartContext { workers: 2, ..context(scratch.path(), true) };
            let argv = server.argv(&context).unwrap();
            fs::read_to_string(&argv[2]).unwrap()
        };
        let shared = told(NGINX_SENDFILE);
        let divided = told(NGINX_REUSEPORT);
        assert!(shared.contains("\nworker_processes 2;\n"), "{shared}");
        assert_eq!(divided.replace("backlog=16384 reuseport;", "backlog=16384;"), shared);
        assert_ne!(divided, shared);
    }

    #[test]
    fn custom_runtime() {
        let made = custom("photon=sh -x {program} stack=16").unwrap();
        assert_eq!(made.kind, CUSTOM_PROGRAM);
        let Start::Program { arguments, parameters, .. } = made.start else {
            panic!("a program");
        };
        assert_eq!((arguments, parameters), (vec!["-x".into()], vec!["stack=16".into()]));
    }
}
