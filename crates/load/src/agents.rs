//! Many generators as one: they begin together, and their outcomes are merged exactly.
//!
//! The agents are started by a launcher: Open MPI (`mpirun --hostfile hosts -N 2 weft load …`),
//! Slurm, or by hand with `--agents N --rank K`. Every agent has the same command line. Rank 0
//! leads:
//!
//! ```text
//!   rank 0                         ranks 1 … N-1
//!   listens      ◀──── hello ────  connect, say their rank
//!   all are here ───── go ──────▶  run their part of the load (rank 0 as well)
//!   merges       ◀── outcome ────
//!   next round   ───── go ──────▶  …
//!   the end      ───── end ─────▶  leave
//! ```
//!
//! A round is one run; a sweep has many. An agent that dies closes its connection: rank 0 sees that
//! at once, stops the round, tells the others, and all fail. A figure that lacks a part of
//! the load is never shown. Nothing waits for ever: every wait has a timeout.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;

/// Membership of an agent in its group: rank, size and meeting point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Rank, from 0; 0 is the leader.
    pub rank: u32,
    /// Number of agents.
    pub size: u32,
    /// `HOST:PORT` of the leader.
    pub rendezvous: String,
    /// Text that only agents of this job know; others are refused.
    pub job: String,
}

// Below the ephemeral ports (ip_local_port_range, ip(7)).
const PORT_FIRST: u32 = 20_000;
const PORTS: u32 = 10_000;
/// Maximum number of agents; more is a typing error.
pub const AGENTS_MAX: u32 = 4_096;

impl Membership {
    /// Reads the membership from a launcher's environment; `None` without a launcher, or with only
    /// one agent. `variable` reads the environment.
    ///
    /// # Errors
    /// If the environment contradicts itself, or does not tell where agents on several machines
    /// meet.
    pub fn of_launcher(
        variable: impl Fn(&str) -> Option<String>,
        rendezvous: Option<String>,
    ) -> Result<Option<Membership>, String> {
        let launcher = LAUNCHERS.iter().find(|launcher| variable(launcher.rank).is_some());
        let Some(launcher) = launcher else {
            return Ok(None);
        };
        let number = |name: &str| -> Result<u32, String> {
            let text = variable(name).unwrap_or_default();
            text.parse().map_err(|_| {
                format!("the environment variable {name} is '{text}', which is not a number")
            })
        };
        let rank = number(launcher.rank)?;
        let size = number(launcher.size)?;
        if size <= 1 {
            return Ok(None);
        }
        let job = launcher.job.iter().find_map(|name| variable(name)).unwrap_or_default();
        let port = PORT_FIRST + crc32fast::hash(job.as_bytes()) % PORTS;
        let one_machine = launcher.local_size.is_some_and(|name| number(name) == Ok(size));
        let host = if one_machine {
            Some("127.0.0.1".to_owned())
        } else {
            launcher.host.and_then(|name| first_address(&variable(name)?))
        };
        let derived = || {
            let host = host.ok_or("agents run on several machines: name the host of rank 0 with --rendezvous HOST:PORT")?;
            Ok::<_, String>(format!("{host}:{port}"))
        };
        let rendezvous = rendezvous.map_or_else(derived, Ok)?;
        Membership { rank, size, rendezvous, job }.checked().map(Some)
    }

    /// Membership from the command line.
    ///
    /// # Errors
    /// If rank and size contradict each other.
    pub fn by_hand(rank: u32, size: u32, rendezvous: String) -> Result<Membership, String> {
        Membership { rank, size, job: format!("by hand, {size} agents"), rendezvous }.checked()
    }

    fn checked(self) -> Result<Membership, String> {
        port_of(&self.rendezvous)?;
        match (self.rank < self.size, self.size <= AGENTS_MAX) {
            (true, true) => Ok(self),
            (false, _) => Err(format!(
                "rank {} of {} agents; ranks go from 0 to {}",
                self.rank,
                self.size,
                self.size.saturating_sub(1)
            )),
            (_, false) => Err(format!("{} agents are more than {AGENTS_MAX}", self.size)),
        }
    }

    /// This agent's share of a number for all agents together, such as connections.
    pub fn part_of(&self, whole: u32) -> u32 {
        whole / self.size + u32::from(self.rank < whole % self.size)
    }
}

/// Environment variables of a launcher.
struct Launcher {
    rank: &'static str,
    size: &'static str,
    local_size: Option<&'static str>,
    job: &'static [&'static str],
    /// Addresses of the machine from which it was launched, where rank 0 usually runs.
    host: Option<&'static str>,
}

const LAUNCHERS: [Launcher; 2] = [
    Launcher {
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_size: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
        host: Some("OMPI_MCA_orte_hnp_uri"),
    },
    Launcher {
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
        local_size: None,
        job: &["SLURM_JOB_ID"],
        host: Some("SLURM_LAUNCH_NODE_IPADDR"),
    },
];

fn port_of(rendezvous: &str) -> Result<u16, String> {
    let membership = rendezvous.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    membership
        .and_then(|(_, port)| port.parse().ok())
        .ok_or_else(|| format!("'{rendezvous}' is not a rendezvous; write HOST:PORT"))
}

/// The first address of `123.0;tcp://10.0.0.1,192.168.1.5:41235`, or of a plain address.
fn first_address(text: &str) -> Option<String> {
    let list = text.split("tcp://").nth(1).unwrap_or(text);
    let first = list.split([',', ':', ';']).next()?.trim();
    (!first.is_empty()).then(|| first.to_owned())
}

/// The order for one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundOrder {
    /// The rate of all agents together, if it is not that of the command line: a step of a sweep.
    pub rate_per_s: Option<f64>,
}

#[derive(Serialize, Deserialize)]
struct Hello {
    version: String,
    job: String,
    rank: u32,
    size: u32,
}

#[derive(Serialize, Deserialize)]
enum FromLeader {
    Welcome,
    Go(RoundOrder),
    End,
    Abort(String),
}

#[derive(Serialize, Deserialize)]
enum FromMember {
    Done(Box<Outcome>),
    Failed(String),
}

/// An agent's role after the meeting.
#[derive(Debug)]
pub enum Role {
    /// Rank 0.
    Leader(Leader),
    /// Any other.
    Member(Member),
}

/// Meets the others.
///
/// # Errors
/// If not all have connected within `timeout`, with the missing ranks.
pub fn meet(membership: &Membership, timeout: Duration) -> Result<Role, String> {
    if membership.rank > 0 {
        return Member::join(membership, timeout).map(Role::Member);
    }
    let at = &membership.rendezvous;
    let port = port_of(at)?;
    // Only this machine if they meet on it; else every interface: HOST may resolve otherwise here.
    let host = at.rsplit_once(':').map_or(at.as_str(), |(host, _)| host);
    let interface = match host.parse::<Ipv4Addr>() {
        Ok(own) if own.is_loopback() => own,
        _ if host.starts_with("localhost") => Ipv4Addr::LOCALHOST,
        _ => Ipv4Addr::UNSPECIFIED,
    };
    let listener = TcpListener::bind((interface, port))
        .map_err(|error| format!("rank 0 cannot listen at port {port}: {error}; choose another with --rendezvous HOST:PORT"))?;
    Leader::gather(&listener, membership, timeout).map(Role::Leader)
}

/// Rank 0: says when a round begins, and merges.
#[derive(Debug)]
pub struct Leader {
    members: Vec<Link>,
    inbox: Receiver<(u32, io::Result<FromMember>)>,
    // Set when an agent is lost: the current round is void.
    stop: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Link {
    rank: u32,
    stream: TcpStream,
    host: String,
}

impl Leader {
    fn gather(
        listener: &TcpListener,
        membership: &Membership,
        timeout: Duration,
    ) -> Result<Leader, String> {
        let (outbox, inbox) = channel();
        let mut leader = Leader { members: Vec::new(), inbox, stop: Arc::default() };
        let deadline = Instant::now() + timeout;
        let system = |error: io::Error| format!("rank 0 at {}: {error}", membership.rendezvous);
        listener.set_nonblocking(true).map_err(system)?;
        while leader.members.len() + 1 < membership.size as usize {
            match listener.accept() {
                Ok((stream, _)) => leader.admit(stream, membership, deadline)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    leader.wait_for_more(membership, deadline)?
                }
                Err(error) => return Err(system(error)),
            }
        }
        for member in &mut leader.members {
            let lost = |error: io::Error| format!("agent {} is lost: {error}", member.rank);
            send(&mut member.stream, &FromLeader::Welcome).map_err(lost)?;
            let reader = member.stream.try_clone().map_err(lost)?;
            reader.set_read_timeout(None).map_err(lost)?;
            listen_to_member(member.rank, reader, outbox.clone(), Arc::clone(&leader.stop));
        }
        Ok(leader)
    }

    fn wait_for_more(&self, membership: &Membership, deadline: Instant) -> Result<(), String> {
        if Instant::now() < deadline {
            // No agent connects at the moment; agents on other machines may start later.
            thread::sleep(Duration::from_millis(2));
            return Ok(());
        }
        let here =
            |rank: &u32| *rank == 0 || self.members.iter().any(|member| member.rank == *rank);
        let missing: Vec<String> =
            (0..membership.size).filter(|rank| !here(rank)).map(|rank| rank.to_string()).collect();
        Err(format!(
            "{} of {} agents connected to {}; missing: rank {}",
            self.members.len() + 1,
            membership.size,
            membership.rendezvous,
            missing.join(", ")
        ))
    }

    /// Admits an agent. A stranger is refused, which is no error; a second agent of the same rank
    /// is one.
    fn admit(
        &mut self,
        mut stream: TcpStream,
        membership: &Membership,
        deadline: Instant,
    ) -> Result<(), String> {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        // A stranger that is silent or slow must not keep the others waiting.
        let mut reader =
            DeadlineStream { stream: &stream, deadline: Instant::now() + left.min(HELLO_TIMEOUT) };
        let ready = stream.set_nonblocking(false);
        let hello: Hello = match ready.and_then(|()| receive(&mut reader, HELLO_BYTES_MAX)) {
            Ok(hello) => hello,
            Err(_) => return Ok(()),
        };
        if hello.job != membership.job {
            let _ = send(
                &mut stream,
                &FromLeader::Abort("this rendezvous belongs to another job".to_owned()),
            );
            return Ok(());
        }
        let refusal = self.refusal(&hello, membership);
        if let Some(what) = refusal {
            let _ = send(&mut stream, &FromLeader::Abort(what.clone()));
            return Err(what);
        }
        let _ = stream.set_nodelay(true);
        let host =
            stream.peer_addr().map_or_else(|_| "?".to_owned(), |address| address.ip().to_string());
        self.members.push(Link { rank: hello.rank, stream, host });
        Ok(())
    }

    fn refusal(&self, hello: &Hello, membership: &Membership) -> Option<String> {
        let rank = hello.rank;
        if hello.version != VERSION {
            return Some(format!(
                "agent {rank} is version {}, rank 0 is {VERSION}; they must be the same",
                hello.version
            ));
        }
        if hello.size != membership.size {
            return Some(format!(
                "agent {rank} was started for {} agents, rank 0 for {}",
                hello.size, membership.size
            ));
        }
        let twice = rank == 0 || self.members.iter().any(|member| member.rank == rank);
        twice.then(|| format!("there are two agents of rank {rank}"))
    }

    /// Runs one round: all agents begin, `run` does this agent's share, and all outcomes are
    /// merged. `run` gets a flag that is set if it must stop because an agent was lost. `timeout`
    /// limits how much longer the others may take than this agent.
    ///
    /// # Errors
    /// Names the agent that failed, and the reason. The others have been notified; the group cannot
    /// be used any more.
    pub fn round(
        &mut self,
        order: RoundOrder,
        timeout: Duration,
        run: impl FnOnce(Arc<AtomicBool>) -> Result<Outcome, String>,
    ) -> Result<Outcome, String> {
        let result = self.try_round(order, timeout, run);
        if let Err(what) = &result {
            self.send_all(&FromLeader::Abort(what.clone()));
        }
        result
    }

    fn try_round(
        &mut self,
        order: RoundOrder,
        timeout: Duration,
        run: impl FnOnce(Arc<AtomicBool>) -> Result<Outcome, String>,
    ) -> Result<Outcome, String> {
        for member in &mut self.members {
            let lost = |error| format!("agent {} on {} is lost: {error}", member.rank, member.host);
            send(&mut member.stream, &FromLeader::Go(order)).map_err(lost)?;
        }
        let own = run(Arc::clone(&self.stop));
        // A lost agent is also the cause if this run was stopped.
        if self.stop.load(Ordering::Acquire) {
            self.collect(timeout)?;
        }
        let mut merged = own.map_err(|what| format!("agent 0: {what}"))?;
        for (rank, outcome) in self.collect(timeout)? {
            merged.merge(&outcome).map_err(|what| format!("agent {rank}: {what}"))?;
        }
        Ok(merged)
    }

    /// Outcomes of all members, by rank, so that the order of arrival does not matter.
    fn collect(&mut self, timeout: Duration) -> Result<Vec<(u32, Outcome)>, String> {
        let deadline = Instant::now() + timeout;
        let mut outcomes: Vec<(u32, Outcome)> = Vec::new();
        while outcomes.len() < self.members.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.inbox.recv_timeout(left) {
                Ok((rank, Ok(FromMember::Done(outcome)))) => outcomes.push((rank, *outcome)),
                Ok((rank, Ok(FromMember::Failed(what)))) => {
                    return Err(format!("agent {rank} on {}: {what}", self.host(rank)));
                }
                Ok((rank, Err(error))) => {
                    return Err(format!("agent {rank} on {} died: {error}", self.host(rank)));
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let silent = self.members.iter().map(|member| member.rank);
                    let silent =
                        silent.filter(|rank| !outcomes.iter().any(|(done, _)| done == rank));
                    let silent: Vec<String> = silent.map(|rank| rank.to_string()).collect();
                    return Err(format!(
                        "agent {} sent no outcome within {} s",
                        silent.join(", "),
                        timeout.as_secs()
                    ));
                }
            }
        }
        outcomes.sort_by_key(|(rank, _)| *rank);
        Ok(outcomes)
    }

    fn host(&self, rank: u32) -> &str {
        self.members.iter().find(|member| member.rank == rank).map_or("?", |member| &member.host)
    }

    /// Dismisses all members with the result.
    pub fn end(mut self, result: &Result<(), String>) {
        match result {
            Ok(()) => self.send_all(&FromLeader::End),
            Err(what) => self.send_all(&FromLeader::Abort(what.clone())),
        }
    }

    fn send_all(&mut self, message: &FromLeader) {
        for member in &mut self.members {
            // A lost agent cannot be notified.
            let _ = send(&mut member.stream, message);
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // The listening threads hold the sockets too; without this no agent would notice that rank
        // 0 has left.
        for member in &self.members {
            let _ = member.stream.shutdown(Shutdown::Both);
        }
    }
}

fn listen_to_member(
    rank: u32,
    mut stream: TcpStream,
    outbox: Sender<(u32, io::Result<FromMember>)>,
    stop: Arc<AtomicBool>,
) {
    thread::spawn(move || {
        loop {
            let message = receive(&mut stream, OUTCOME_BYTES_MAX);
            let is_well = matches!(message, Ok(FromMember::Done(_)));
            if outbox.send((rank, message)).is_err() || !is_well {
                stop.store(true, Ordering::Release);
                return;
            }
        }
    });
}

/// Any other rank, which follows the leader.
#[derive(Debug)]
pub struct Member {
    stream: TcpStream,
}

impl Member {
    fn join(membership: &Membership, timeout: Duration) -> Result<Member, String> {
        let deadline = Instant::now() + timeout;
        let mut stream = loop {
            match connect(&membership.rendezvous) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() >= deadline => {
                    return Err(format!(
                        "agent {} cannot reach rank 0 at {}: {error}; check --rendezvous HOST:PORT",
                        membership.rank, membership.rendezvous
                    ));
                }
                // Rank 0 may not be up yet.
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        };
        let hello = Hello {
            version: VERSION.to_owned(),
            job: membership.job.clone(),
            rank: membership.rank,
            size: membership.size,
        };
        let gone =
            |error: io::Error| format!("agent {}: rank 0 refused it: {error}", membership.rank);
        stream.set_nodelay(true).and_then(|()| send(&mut stream, &hello)).map_err(gone)?;
        stream.set_read_timeout(Some(timeout + Duration::from_secs(5))).map_err(gone)?;
        match receive(&mut stream, ORDER_BYTES_MAX).map_err(gone)? {
            FromLeader::Abort(what) => {
                Err(format!("agent {} was refused: {what}", membership.rank))
            }
            _ => {
                stream.set_read_timeout(None).map_err(gone)?;
                Ok(Member { stream })
            }
        }
    }

    /// Runs a share of every round until the leader dismisses this agent. `run` gets a flag that is
    /// set if it must stop because the round is void.
    ///
    /// # Errors
    /// Failure here or elsewhere: all agents fail together.
    pub fn work(
        mut self,
        mut run: impl FnMut(RoundOrder, Arc<AtomicBool>) -> Result<Outcome, String>,
    ) -> Result<(), String> {
        let gone = |error: io::Error| format!("rank 0 is gone: {error}");
        let stop = Arc::<AtomicBool>::default();
        let orders = listen_to_leader(self.stream.try_clone().map_err(gone)?, Arc::clone(&stop));
        loop {
            match orders.recv() {
                Ok(Ok(FromLeader::Go(order))) => {
                    let answer = match run(order, Arc::clone(&stop)) {
                        Ok(outcome) => FromMember::Done(Box::new(outcome)),
                        Err(what) => FromMember::Failed(what),
                    };
                    // If the leader is gone, the next receive reports it.
                    let _ = send(&mut self.stream, &answer);
                }
                Ok(Ok(FromLeader::End)) => return Ok(()),
                Ok(Ok(FromLeader::Abort(what))) => return Err(what),
                Ok(Ok(FromLeader::Welcome)) => {}
                Ok(Err(error)) => return Err(gone(error)),
                Err(_) => return Err("rank 0 is gone".to_owned()),
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn listen_to_leader(
    mut stream: TcpStream,
    stop: Arc<AtomicBool>,
) -> Receiver<io::Result<FromLeader>> {
    let (outbox, inbox) = channel();
    thread::spawn(move || {
        loop {
            let order = receive(&mut stream, ORDER_BYTES_MAX);
            let goes_on = matches!(order, Ok(FromLeader::Go(_) | FromLeader::Welcome));
            if outbox.send(order).is_err() || !goes_on {
                stop.store(true, Ordering::Release);
                return;
            }
        }
    });
    inbox
}

fn connect(rendezvous: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no such host; write HOST:PORT");
    for address in rendezvous.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, Duration::from_secs(2)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

const VERSION: &str = env!("CARGO_PKG_VERSION");
const HELLO_BYTES_MAX: u32 = 4 << 10;
/// Time limit of a hello, from the accept to its last byte.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
const ORDER_BYTES_MAX: u32 = 64 << 10;
/// Limit of an outcome. An hour of one-second intervals has about 20 KB each.
const OUTCOME_BYTES_MAX: u32 = 256 << 20;

/// Sends a message: its length in four bytes, then JSON.
fn send(stream: &mut TcpStream, message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(&body);
    stream.write_all(&framed)
}

/// Stream that is read until a deadline, however slowly its bytes arrive.
struct DeadlineStream<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Read for DeadlineStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}

fn receive<T: DeserializeOwned>(stream: &mut impl Read, bytes_max: u32) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).map_err(closed)?;
    let length = u32::from_be_bytes(length);
    if length > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a message of {length} bytes"),
        ));
    }
    let mut body = Vec::new();
    let read = stream.take(u64::from(length)).read_to_end(&mut body)?;
    if read < length as usize {
        return Err(closed(io::ErrorKind::UnexpectedEof.into()));
    }
    serde_json::from_slice(&body).map_err(io::Error::from)
}

fn closed(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "its connection was closed"),
        _ => error,
    }
}

#[cfg(test)]
mod tests;
