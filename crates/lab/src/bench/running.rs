//! A server that answers: its address, replies, processes and clocks.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

use super::fault::{Fault, tail};
use super::window::Reading;
use crate::busy;
use crate::testbed::{Launched, Link, processes, sys};

/// Longest wait for a reply to the laboratory's own request.
const REPLY_PATIENCE: Duration = Duration::from_secs(10);

/// A server that answers.
pub(crate) struct Running {
    pub(super) launched: Launched,
    pub(super) host: Ipv4Addr,
    pub(crate) port: u16,
    pub(super) log: PathBuf,
    /// Process ids, including those of servers beside it.
    pub(super) pids: Vec<u32>,
    /// Further servers that are treated as one with it.
    pub(super) beside: Vec<Running>,
    /// The link, removed after the server.
    pub(super) link: Option<Link>,
}

impl Running {
    /// Process ids, separated by commas.
    pub(crate) fn pids(&self) -> String {
        let pids = self.pids.iter().map(u32::to_string);
        pids.collect::<Vec<_>>().join(",")
    }

    /// The generator's end of the link; nothing on the loopback.
    pub(crate) fn near(&self) -> &str {
        self.link.as_ref().map_or("", |link| &link.near)
    }

    /// `HOST:PORT` of it and of the servers beside it.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let all = [self].into_iter().chain(&self.beside);
        all.map(Running::address).collect()
    }

    /// `HOST:PORT`
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// `http://HOST:PORT/PATH`
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}:{}{path}", self.host, self.port)
    }

    pub(crate) fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((self.host, self.port))?;
        stream.set_read_timeout(Some(REPLY_PATIENCE))?;
        stream.set_write_timeout(Some(REPLY_PATIENCE))?;
        Ok(stream)
    }

    pub(super) fn answers(&self, greeting: &[u8]) -> bool {
        let ask = || -> io::Result<bool> {
            let mut stream = self.connect()?;
            stream.write_all(greeting)?;
            Ok(stream.read(&mut [0])? > 0)
        };
        ask().unwrap_or(false)
    }

    /// Requests a file and compares every byte of the reply.
    pub(crate) fn verify(&self, path: &str, body: &[u8]) -> Result<(), Fault> {
        let mut stream = self.connect()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")?;
        read_reply(&mut BufReader::new(stream), path, body)?;
        let mut beside = self.beside.iter();
        beside.try_for_each(|one| one.verify(path, body))
    }

    /// Resident memory of all its processes, page tables included.
    pub(crate) fn resident_bytes(&self) -> Result<u64, Fault> {
        let each = self.pids.iter().map(|&pid| processes::resident_bytes(pid));
        let sum: Option<u64> = each.sum();
        Ok(sum.ok_or("a process of the server is gone")?)
    }

    /// Number of kernel threads that work for its rings.
    pub(crate) fn kernel_workers(&self) -> usize {
        self.pids.iter().map(|&pid| processes::ring_workers(pid)).sum()
    }

    /// Checks that its processes are those that it had when it began to answer.
    pub(crate) fn check(&mut self) -> Result<(), Fault> {
        let now = self.family();
        if now == self.pids {
            Ok(())
        } else {
            let before = &self.pids;
            let words = self.last_words();
            Err(format!("the server's processes {before:?} became {now:?}: {words}").into())
        }
    }

    pub(super) fn family(&self) -> Vec<u32> {
        let all = [self].into_iter().chain(&self.beside);
        let sessions: Vec<u32> = all.map(|one| one.launched.pid()).collect();
        let members = processes::of_sessions(&sessions);
        let alive = members.iter().filter(|process| !process.is_zombie);
        alive.map(|process| process.pid).collect()
    }

    pub(super) fn read(&self) -> Result<Reading, Fault> {
        let mut reading = Reading {
            at: SystemTime::now(),
            cpu: Duration::ZERO,
            delay_ns: 0,
            relay: self.link.as_ref().map_or(Duration::ZERO, Link::relay_cpu),
            machine: busy::machine().unwrap_or_default(),
            disk_read_bytes: 0,
            disk_reads: self.launched.disk_reads().unwrap_or(0),
            ticks: [0; 2],
        };
        for &pid in &self.pids {
            let time = sys::cpu_time(pid)
                .map_err(|error| format!("process {pid} of the server: {error}"))?;
            reading.cpu += time;
            reading.delay_ns += processes::run_delay_ns(pid);
            let ticks = processes::ticks(pid).unwrap_or_default();
            reading.ticks = [0, 1].map(|at| reading.ticks[at] + ticks[at]);
            reading.disk_read_bytes += processes::storage_read_bytes(pid).unwrap_or(0);
        }
        Ok(reading)
    }

    /// Waits until it is nearly idle, for at most `patience`.
    pub(crate) fn rest(&self, patience: Duration) -> Result<(), Fault> {
        const STEP: Duration = Duration::from_millis(100);
        let deadline = Instant::now() + patience;
        let mut before = self.read()?.cpu;
        while Instant::now() < deadline {
            thread::sleep(STEP);
            let now = self.read()?.cpu;
            if now - before < STEP / 10 {
                break;
            }
            before = now;
        }
        Ok(())
    }

    /// Reads a counter, summed over all event loops of a weft, which prints it on SIGUSR1.
    pub(crate) fn loop_counter(&mut self, name: &str) -> Result<u64, Fault> {
        let before = fs::read_to_string(&self.log)?.len();
        let pid = Pid::from_raw(self.launched.pid() as i32).ok_or("there is no process")?;
        kill_process(pid, Signal::USR1)?;
        let deadline = Instant::now() + REPLY_PATIENCE;
        while Instant::now() < deadline {
            let said = fs::read_to_string(&self.log)?;
            // The lines arrive one by one.
            thread::sleep(Duration::from_millis(20));
            let is_whole = fs::metadata(&self.log)?.len() == said.len() as u64;
            let counted = said.get(before..).and_then(|said| sum_of(said, name));
            if let Some(counted) = counted.filter(|_| is_whole) {
                return Ok(counted);
            }
        }
        Err(format!("the server does not print its {name}").into())
    }

    pub(super) fn last_words(&self) -> String {
        tail(&self.log)
    }
}

/// Sum of a counter over all lines `loop N: name count, name count`.
fn sum_of(said: &str, name: &str) -> Option<u64> {
    let lines = said.lines().filter(|line| line.trim_start().starts_with("loop "));
    let counts = lines.filter_map(|line| {
        let (_, counts) = line.split_once(": ")?;
        let mut counts = counts.split(", ").filter_map(|one| one.split_once(' '));
        counts.find(|(counted, _)| *counted == name)?.1.trim().parse::<u64>().ok()
    });
    counts.reduce(|sum, count| sum + count)
}

/// Reads one reply, which must be the file.
pub(crate) fn read_reply(stream: &mut impl BufRead, path: &str, body: &[u8]) -> Result<(), Fault> {
    let mut status = String::new();
    stream.read_line(&mut status)?;
    let mut length = None;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(format!("{path}: the reply ends in its head").into());
        }
        if line.trim_end().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse::<usize>().ok();
        }
    }
    if !status.starts_with("HTTP/1.1 200 ") {
        return Err(format!("{path}: {}", status.trim_end()).into());
    }
    let expected = body.len();
    let mut read = vec![0; length.filter(|&length| length == expected).unwrap_or(0)];
    stream.read_exact(&mut read)?;
    if read == body {
        Ok(())
    } else {
        Err(format!("{path}: the body is not the file's {expected} bytes (length {length:?})")
            .into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_loops_are_added() {
        let said = "engine event\n  loop 0: waits 7, signal_overflows 3, errors 0\n  loop 1: waits \
                    2, signal_overflows 40\nno loop: signal_overflows 5\n";
        assert_eq!(sum_of(said, "signal_overflows"), Some(43));
        assert_eq!((sum_of(said, "waits"), sum_of(said, "gone")), (Some(9), None));
    }

    #[test]
    fn wrong_reply_fails_the_sample() {
        let read = |reply: &str| {
            let result = read_reply(&mut reply.as_bytes(), "/a", b"body");
            result.map_err(|fault| match fault {
                Fault::Failed(why) => why,
                _ => unreachable!("it asks for a reply"),
            })
        };
        assert_eq!(read("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody"), Ok(()));
        let wrong = read("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nBODY").unwrap_err();
        assert!(wrong.contains("not the file's 4 bytes"), "{wrong}");
        let short = read("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbod").unwrap_err();
        assert!(short.contains("length Some(3)"), "{short}");
        assert!(read("HTTP/1.1 404 Not Found\r\n\r\n").unwrap_err().contains("404"));
        assert!(read("HTTP/1.1 200 OK\r\n").unwrap_err().contains("head"));
    }
}
