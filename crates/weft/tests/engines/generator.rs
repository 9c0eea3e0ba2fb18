//! `weft load` over HTTP/2, which has its own frames and HPACK.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use load::Plan;
use load::plan::{Choice, Http, Page, Workload};
use serve::Engine;

use super::{LARGE_LEN, World};

fn plan(world: &World, pages: &[&str], requests: u64) -> Plan {
    Plan {
        targets: vec![world.address.into()],
        workload: Workload::Http(Http {
            authority: world.address.to_string(),
            method: "GET".to_owned(),
            pages: pages.iter().map(|path| Page::new(*path)).collect(),
            choice: Choice::InTurn,
            headers: vec![("Accept-Encoding".to_owned(), "identity".to_owned())],
            body: Arc::new([]),
            requests_per_connection: None,
        }),
        http2: true,
        connections: 2,
        depth: 20,
        requests_max: Some(requests),
        duration: Duration::from_secs(60),
        verify: true,
        ..Plan::default()
    }
}

/// Small files on many streams, and a large one.
pub(super) fn a_load_over_http2_is_answered(engine: &Engine) {
    let world = World::new(engine);
    world.make_large_file();
    let small = plan(&world, &["/hello.txt", "/dir/", "/none"], 3000);
    let small = Plan { expect: "200,404".parse().unwrap(), ..small };
    let large = plan(&world, &["/large.bin"], 2);
    for (plan, requests, compared) in [(small, 3000, 2000), (large, 2, 2)] {
        let outcome = load::run(&plan, &AtomicBool::new(false), &mut |_| {}).unwrap();
        let total = &outcome.total;
        assert_eq!(total.errors.total(), 0, "{:?}", total.errors);
        assert_eq!((total.replies(), total.compared), (requests, compared));
        if requests == 2 {
            assert!(total.received_bytes > 2 * LARGE_LEN as u64);
        }
    }
}
