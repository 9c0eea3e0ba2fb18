//! Agents begin together, merge exactly, and fail together.

use std::collections::HashMap;
use std::thread::JoinHandle;

use super::*;
use crate::report::tests::sample;

const PATIENCE: Duration = Duration::from_secs(20);

fn membership(rank: u32, size: u32, at: &TcpListener) -> Membership {
    let rendezvous = at.local_addr().unwrap().to_string();
    Membership { rank, size, rendezvous, job: "a test".to_owned() }
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

type Run = fn(u32, RoundOrder, Arc<AtomicBool>) -> Result<Outcome, String>;

/// Members 1 … size-1, each with `run` as its part of a round.
fn members(size: u32, at: &TcpListener, run: Run) -> Vec<JoinHandle<Result<(), String>>> {
    let start = |rank| {
        let membership = membership(rank, size, at);
        thread::spawn(move || {
            Member::join(&membership, PATIENCE)?.work(|order, stop| run(rank, order, stop))
        })
    };
    (1..size).map(start).collect()
}

/// Rank r saw 1,000 requests that took up to r+1 ms.
fn part(rank: u32) -> Outcome {
    sample(&["request"], u64::from(rank) + 1, 1_000)
}

fn errors_of(members: Vec<JoinHandle<Result<(), String>>>) -> Vec<String> {
    members.into_iter().filter_map(|member| member.join().unwrap().err()).collect()
}

#[test]
fn agents_merge_exactly() {
    let listener = listener();
    let agents = members(4, &listener, |rank, _, _| Ok(part(rank)));
    let mut leader = Leader::gather(&listener, &membership(0, 4, &listener), PATIENCE).unwrap();
    let mut expected = part(0);
    (1..4).for_each(|rank| expected.merge(&part(rank)).unwrap());
    for _ in 0..3 {
        let merged = leader.round(RoundOrder::default(), PATIENCE, |_| Ok(part(0))).unwrap();
        assert_eq!(merged.to_json(), expected.to_json());
    }
    leader.end(&Ok(()));
    assert_eq!(errors_of(agents), [""; 0]);
}

#[test]
fn the_order_reaches_every_agent() {
    let listener = listener();
    let agents = members(3, &listener, |_, order, _| {
        assert_eq!(order.rate_per_s, Some(30_000.0));
        Ok(part(0))
    });
    let mut leader = Leader::gather(&listener, &membership(0, 3, &listener), PATIENCE).unwrap();
    leader.round(RoundOrder { rate_per_s: Some(30_000.0) }, PATIENCE, |_| Ok(part(0))).unwrap();
    leader.end(&Ok(()));
    assert_eq!(errors_of(agents), [""; 0]);
}

#[test]
fn dead_agent_fails_the_round() {
    let listener = listener();
    let at = membership(0, 3, &listener);
    // Rank 1 works until it must stop.
    let second = membership(1, 3, &listener);
    let living = thread::spawn(move || {
        Member::join(&second, PATIENCE)?.work(|_, stop| {
            while !stop.load(Ordering::Acquire) {
                thread::yield_now();
            }
            Ok(part(1))
        })
    });
    // Rank 2 is killed: its socket closes in the middle of the round.
    let third = membership(2, 3, &listener);
    let dying = thread::spawn(move || {
        let mut member = Member::join(&third, PATIENCE).unwrap();
        let order: FromLeader = receive(&mut member.stream, ORDER_BYTES_MAX).unwrap();
        assert!(matches!(order, FromLeader::Go(_)));
    });
    let mut leader = Leader::gather(&listener, &at, PATIENCE).unwrap();
    let error = leader.round(RoundOrder::default(), PATIENCE, |stop| {
        while !stop.load(Ordering::Acquire) {
            thread::yield_now();
        }
        Ok(part(0))
    });
    let error = error.unwrap_err();
    assert!(error.contains("agent 2 on 127.0.0.1 died"), "{error}");
    dying.join().unwrap();
    let told = living.join().unwrap().unwrap_err();
    assert!(told.contains("agent 2"), "{told}");
}

#[test]
fn failed_agent_names_its_reason() {
    let listener = listener();
    let agents = members(3, &listener, |rank, _, _| match rank {
        2 => Err("no more descriptors".to_owned()),
        _ => Ok(part(rank)),
    });
    let mut leader = Leader::gather(&listener, &membership(0, 3, &listener), PATIENCE).unwrap();
    let error = leader.round(RoundOrder::default(), PATIENCE, |_| Ok(part(0))).unwrap_err();
    assert!(error.contains("agent 2 on 127.0.0.1: no more descriptors"), "{error}");
    let told = errors_of(agents);
    assert_eq!(told.len(), 2);
    assert!(told.iter().all(|what| what.contains("agent 2")), "{told:?}");
}

#[test]
fn a_leader_that_dies_fails_all() {
    let listener = listener();
    let agents = members(3, &listener, |rank, _, _| Ok(part(rank)));
    let leader = Leader::gather(&listener, &membership(0, 3, &listener), PATIENCE).unwrap();
    for member in &leader.members {
        member.stream.shutdown(Shutdown::Both).unwrap();
    }
    let told = errors_of(agents);
    assert_eq!(told.len(), 2);
    assert!(told.iter().all(|what| what.contains("rank 0 is gone")), "{told:?}");
}

#[test]
fn who_is_missing_is_named() {
    let listener = listener();
    let agents = members(2, &listener, |_, _, _| Ok(part(0)));
    drop(Leader::gather(&listener, &membership(0, 2, &listener), PATIENCE).unwrap());
    assert_eq!(errors_of(agents).len(), 1);
    let membership = membership(0, 4, &listener);
    let error = Leader::gather(&listener, &membership, Duration::from_millis(1)).unwrap_err();
    assert!(error.contains("1 of 4 agents connected"), "{error}");
    assert!(error.contains("missing: rank 1, 2, 3"), "{error}");
}

#[test]
fn strangers_are_refused() {
    let listener = listener();
    let at = membership(0, 2, &listener);
    let stranger = Membership { rank: 1, job: "another".to_owned(), ..at.clone() };
    let stranger = thread::spawn(move || Member::join(&stranger, PATIENCE).unwrap_err());
    let member = membership(1, 2, &listener);
    let mut scanner = TcpStream::connect(&at.rendezvous).unwrap();
    scanner.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let gathering = thread::spawn(move || {
        Leader::gather(&listener, &at, PATIENCE).map(|leader| leader.members.len())
    });
    let told = stranger.join().unwrap();
    assert!(told.contains("another job"), "{told}");
    let member = Member::join(&member, PATIENCE);
    assert_eq!(gathering.join().unwrap(), Ok(1));
    assert!(member.is_ok());
}

/// Seen (in review): a stranger that sent a byte now and then delayed the meeting of all agents by
/// an hour. Cause: each byte had a time limit of its own. Cure: one deadline for the whole hello.
#[test]
fn slow_stranger_delays_nobody() {
    let listener = listener();
    let mut stranger = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stranger.write_all(&HELLO_BYTES_MAX.to_be_bytes()).unwrap();
    let drips = thread::spawn(move || {
        while stranger.write_all(b" ").is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    let place_of_1 = membership(1, 2, &listener);
    let member = thread::spawn(move || {
        // The stranger's deadline is shorter than this member's patience.
        Member::join(&place_of_1, PATIENCE)?.work(|_, _| Ok(part(1)))
    });
    let leader = Leader::gather(&listener, &membership(0, 2, &listener), PATIENCE).unwrap();
    leader.end(&Ok(()));
    assert_eq!(member.join().unwrap(), Ok(()));
    drips.join().unwrap();
}

fn launcher<'a>(variables: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
    let map: HashMap<_, _> = variables.iter().copied().collect();
    move |name| map.get(name).map(|value| (*value).to_owned())
}

#[test]
fn open_mpis_environment_is_understood() {
    let one_machine = [
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ("PMIX_NAMESPACE", "3141592653"),
    ];
    let membership = Membership::of_launcher(launcher(&one_machine), None).unwrap().unwrap();
    assert_eq!((membership.rank, membership.size), (3, 4));
    assert!(membership.rendezvous.starts_with("127.0.0.1:2"), "{}", membership.rendezvous);
    let mut machines = one_machine.to_vec();
    machines[2].1 = "2";
    let error = Membership::of_launcher(launcher(&machines), None).unwrap_err();
    assert!(error.contains("--rendezvous HOST:PORT"), "{error}");
    machines.push(("OMPI_MCA_orte_hnp_uri", "99.0;tcp://10.0.0.7,192.168.1.5:41235"));
    let membership = Membership::of_launcher(launcher(&machines), None).unwrap().unwrap();
    assert!(membership.rendezvous.starts_with("10.0.0.7:2"), "{}", membership.rendezvous);
    let membership =
        Membership::of_launcher(launcher(&machines), Some("h:7000".to_owned())).unwrap().unwrap();
    assert_eq!(membership.rendezvous, "h:7000");
}

#[test]
fn runs_alone_without_launcher() {
    assert_eq!(Membership::of_launcher(launcher(&[]), None), Ok(None));
    let alone = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
    assert_eq!(Membership::of_launcher(launcher(&alone), None), Ok(None));
    let broken = [("OMPI_COMM_WORLD_RANK", "x"), ("OMPI_COMM_WORLD_SIZE", "1")];
    assert!(Membership::of_launcher(launcher(&broken), None).unwrap_err().contains("is 'x'"));
    assert!(Membership::by_hand(4, 4, "h:1".to_owned()).unwrap_err().contains("from 0 to 3"));
}

#[test]
fn parts_add_up_to_the_whole() {
    for whole in [0, 1, 15_360, 100_003] {
        let part = |rank| Membership::by_hand(rank, 16, "h:1".to_owned()).unwrap().part_of(whole);
        assert_eq!((0..16).map(part).sum::<u32>(), whole);
    }
}
