//! The program of a fiber: one scene after the other, until one fails. Wrong bytes panic.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fiber::ClusterHandle;
use fiber::fs::{self, File};
use fiber::net::{TcpStream, UdpSocket, UnixDatagram, UnixStream, pipe};
use fiber::process::{Command, Stdio};

use crate::dice::Dice;
use crate::locks;

/// Addresses of the servers.
#[derive(Clone, Debug)]
pub(crate) struct Props {
    pub(crate) echo: SocketAddr,
    pub(crate) echo_stackless: SocketAddr,
    pub(crate) datagrams: SocketAddr,
    pub(crate) directory: Arc<Path>,
    /// Another runtime's cluster.
    pub(crate) abroad: ClusterHandle,
    pub(crate) shared: Arc<locks::Shared>,
}

type Scene = fn(&mut Dice, &Props) -> io::Result<()>;

/// Scenes to draw from: expensive ones are listed once, others several times.
const SCENES: &[Scene] = &[
    talk,
    talk,
    talk,
    talk_stackless,
    talk_stackless,
    talk_stackless,
    datagram,
    datagram,
    unix_pair,
    unix_pair,
    unix_datagram,
    through_a_pipe,
    through_a_pipe,
    file,
    file,
    directory,
    sleep,
    sleep,
    sleep,
    wait_for_each_other,
    wait_for_each_other,
    locks::counted,
    locks::counted,
    locks::through_channels,
    locks::through_channels,
    locks::permits,
    scope,
    set,
    offload,
    offload,
    call_abroad,
    call_abroad,
    look_up,
    child,
];

fiber::fiber_local! {
    static SCENES_PLAYED: Cell<u64> = Cell::new(0);
}

/// Plays some scenes, each perhaps with a deadline.
pub(crate) fn play(mut dice: Dice, props: &Props) -> io::Result<()> {
    for number in 0..1 + dice.below(20) {
        let scene = dice.pick(SCENES);
        if dice.one_in(6) {
            let soon = Duration::from_micros(dice.below(8000));
            fiber::timeout(soon, || scene(&mut dice, props))?;
        } else {
            scene(&mut dice, props)?;
        }
        assert_eq!(SCENES_PLAYED.replace(number + 1), number, "another fiber's value");
        fiber::checkpoint()?;
    }
    Ok(())
}

fn talk(dice: &mut Dice, props: &Props) -> io::Result<()> {
    talk_to(dice, TcpStream::connect(props.echo)?)
}

fn talk_stackless(dice: &mut Dice, props: &Props) -> io::Result<()> {
    talk_to(dice, TcpStream::connect(props.echo_stackless)?)
}

/// Sends and compares the echo; leaves in the middle now and then.
fn talk_to(dice: &mut Dice, stream: TcpStream) -> io::Result<()> {
    for _ in 0..1 + dice.below(4) {
        let sent = dice.bytes(2000);
        (&stream).write_all(&sent)?;
        if dice.one_in(10) {
            return Ok(());
        }
        let mut got = Vec::new();
        while got.len() < sent.len() {
            let len = if dice.one_in(2) {
                stream.receive(None, |bytes| {
                    got.extend_from_slice(bytes);
                    bytes.len()
                })?
            } else {
                let mut buffer = [0; 512];
                let len = (&stream).read(&mut buffer)?;
                got.extend_from_slice(&buffer[..len]);
                len
            };
            if len == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        assert!(got == sent, "an echo of {} bytes differs", sent.len());
    }
    Ok(())
}

fn datagram(dice: &mut Dice, props: &Props) -> io::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(props.datagrams)?;
    // Datagrams may be dropped when queues are full.
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    for _ in 0..1 + dice.below(3) {
        let mut sent = dice.number().to_le_bytes().to_vec();
        sent.extend(dice.bytes(1000));
        socket.send(&sent)?;
        let mut got = [0; 1200];
        loop {
            let len = socket.recv(&mut got)?;
            // A late answer to an earlier owner of this port is not for this fiber.
            if got[..8] == sent[..8] {
                assert!(got[..len] == sent, "an answer of {len} bytes differs");
                break;
            }
        }
    }
    Ok(())
}

fn unix_pair(dice: &mut Dice, _: &Props) -> io::Result<()> {
    let (near, mut far) = UnixStream::pair()?;
    let sent = dice.bytes(300_000);
    let mut got = Vec::new();
    fiber::scope(|scope| {
        let writer = scope.spawn(|| {
            let written = (&near).write_all(&sent);
            near.shutdown(std::net::Shutdown::Write)?;
            written
        });
        far.read_to_end(&mut got)?;
        writer.join().expect("a writer")
    })?;
    assert!(got == sent, "{} of {} bytes came", got.len(), sent.len());
    Ok(())
}

fn unix_datagram(dice: &mut Dice, _: &Props) -> io::Result<()> {
    let (a, b) = UnixDatagram::pair()?;
    let sent = dice.bytes(1000);
    let mut got = [0; 1000];
    a.send(&sent)?;
    let len = b.recv(&mut got)?;
    assert!(got[..len] == sent, "a datagram differs");
    Ok(())
}

fn through_a_pipe(dice: &mut Dice, _: &Props) -> io::Result<()> {
    let (mut reader, mut writer) = pipe()?;
    let sent = dice.bytes(200_000);
    let expected = sent.clone();
    let writing = fiber::spawn(move || writer.write_all(&sent));
    let mut got = Vec::new();
    let read = reader.read_to_end(&mut got);
    drop(reader);
    let written = writing.join().expect("a writer");
    read?;
    written?;
    assert!(got == expected, "{} of {} bytes came", got.len(), expected.len());
    Ok(())
}

fn file(dice: &mut Dice, props: &Props) -> io::Result<()> {
    let path = props.directory.join(format!("{:016x}", dice.number()));
    let written = write_and_read(dice, &path);
    // Clean-up that must finish, also after a cancellation.
    fiber::uncancellable(|| fs::remove_file(&path)).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })?;
    written
}

fn write_and_read(dice: &mut Dice, path: &Path) -> io::Result<()> {
    let content = dice.bytes(50_000);
    let file = File::create_new(path)?;
    file.write_all_at(&content, 0)?;
    if dice.one_in(20) {
        file.sync_data()?;
    }
    let at = dice.below(content.len() as u64);
    let mut rest = vec![0; content.len() - at as usize];
    file.read_exact_at(&mut rest, at)?;
    assert!(rest == content[at as usize..], "a file differs");
    assert_eq!(fs::metadata(path)?.len(), content.len() as u64);
    Ok(())
}

fn directory(dice: &mut Dice, props: &Props) -> io::Result<()> {
    let path = props.directory.join(format!("d{:016x}", dice.number()));
    fs::create_dir(&path)?;
    let listed = fs::read_dir(&props.directory).map(|entries| entries.flatten().count());
    fiber::uncancellable(|| fs::remove_dir(&path))?;
    assert!(listed? > 0, "a directory without the entry just made");
    Ok(())
}

fn sleep(dice: &mut Dice, _: &Props) -> io::Result<()> {
    fiber::sleep(Duration::from_micros(dice.below(5000)));
    fiber::checkpoint()
}

fn wait_for_each_other(dice: &mut Dice, _: &Props) -> io::Result<()> {
    let rounds = dice.below(50);
    let first = fiber::current().expect("in a fiber");
    let other = fiber::spawn(move || {
        for _ in 0..rounds {
            first.unpark();
            fiber::park_timeout(Duration::from_millis(1));
        }
    });
    for _ in 0..rounds {
        other.fiber().unpark();
        fiber::park_timeout(Duration::from_millis(1));
    }
    if dice.one_in(2) {
        other.cancel();
    }
    other.wait()
}

fn scope(dice: &mut Dice, _: &Props) -> io::Result<()> {
    let sums: Vec<Cell<u64>> = vec![Cell::new(0); 4];
    let numbers = dice.bytes(1000);
    let sum: u64 = fiber::scope(|scope| {
        let parts: Vec<_> = numbers
            .chunks(100)
            .map(|part| {
                scope.spawn(|| {
                    fiber::sleep(Duration::from_micros(200));
                    part.iter().map(|&n| u64::from(n)).sum::<u64>()
                })
            })
            .collect();
        parts.into_iter().map(|part| part.join().expect("a sum")).sum()
    });
    sums[0].set(sum);
    assert_eq!(sums[0].get(), numbers.iter().map(|&n| u64::from(n)).sum::<u64>());
    Ok(())
}

/// Drops the set in the middle now and then.
fn set(dice: &mut Dice, _: &Props) -> io::Result<()> {
    let mut set = fiber::JoinSet::new();
    for _ in 0..dice.below(10) {
        let pause = Duration::from_micros(dice.below(3000));
        set.spawn(move || fiber::sleep(pause));
    }
    while set.wait_next()?.is_some() {
        if dice.one_in(8) {
            return Ok(());
        }
    }
    Ok(())
}

fn offload(dice: &mut Dice, _: &Props) -> io::Result<()> {
    let pause = Duration::from_micros(dice.below(1000));
    let number = dice.number();
    let work = move || {
        std::thread::sleep(pause);
        number.wrapping_mul(3)
    };
    let result = if dice.one_in(2) { fiber::try_offload(work)? } else { fiber::offload(work) };
    assert_eq!(result, number.wrapping_mul(3));
    Ok(())
}

/// A call in the other cluster, with data borrowed from here.
fn call_abroad(dice: &mut Dice, props: &Props) -> io::Result<()> {
    let numbers = dice.bytes(1000);
    let pause = Duration::from_micros(dice.below(500));
    let sum = props.abroad.run(|| {
        assert_eq!(ClusterHandle::current().as_ref(), Some(&props.abroad));
        fiber::sleep(pause);
        numbers.iter().map(|&n| u64::from(n)).sum::<u64>()
    });
    assert_eq!(sum, numbers.iter().map(|&n| u64::from(n)).sum::<u64>());
    fiber::checkpoint()
}

fn look_up(_: &mut Dice, _: &Props) -> io::Result<()> {
    let found = fiber::net::resolve_name("127.0.0.1", 80)?;
    assert_eq!(found, [SocketAddr::from(([127, 0, 0, 1], 80))]);
    Ok(())
}

fn child(dice: &mut Dice, _: &Props) -> io::Result<()> {
    if !dice.one_in(8) {
        return Ok(());
    }
    let mut command = Command::new("cat");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let sent = dice.bytes(3000);
    let talked = talk_to_child(&mut child, &sent);
    // Whatever happened, no child is left behind.
    fiber::uncancellable(|| {
        drop(child.stdin.take());
        child.wait()
    })
    .or_else(|_| {
        child.kill()?;
        fiber::offload(|| child.wait())
    })?;
    talked
}

fn talk_to_child(child: &mut fiber::process::Child, sent: &[u8]) -> io::Result<()> {
    let (mut to, mut from) =
        (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    to.write_all(sent)?;
    drop(to);
    let mut got = Vec::new();
    from.read_to_end(&mut got)?;
    assert!(got == sent, "the answer of a child differs");
    Ok(())
}
