//! Our TCP/IP and the kernel's on a link: figures and open questions of Rusty's author.

pub(super) mod congestion;
pub(super) mod cores;
pub(super) mod mtu;
pub(super) mod no_wire;
pub(super) mod offload;
pub(super) mod profile;

use crate::catalog::prelude::*;

/// The server on the kernel's TCP/IP.
const KERNEL: &str = "weft event";
const XDP: &str = "weft netstack xdp";
/// Without precomputed checksums.
const XDP_COMPUTED: &str = "weft netstack xdp computed";
const PACKET: &str = "weft netstack packet";
const TAP: &str = "weft netstack tap";

/// A link without loss for a system.
fn plan(system: &System, mtu: u64, has_offloads: bool) -> LinkPlan {
    LinkPlan {
        wire: match &*system.kind {
            TAP => Wire::Tap { queues: 1 },
            _ => Wire::Veth { has_offloads },
        },
        mtu,
        // The netstack's algorithm; many kernels have another default.
        kernel: (!system.kind.starts_with("weft netstack")).then_some("cubic"),
    }
}

/// Front pages, all of them in memory, and the generator's arguments to request them, with a
/// connection for each.
fn pages(bench: &mut Bench<'_>, system: &System, link: LinkPlan) -> Taken<(Running, Vec<String>)> {
    let site = super::web::pages(bench)?;
    let memory = ["--memory-file-max", "2M"];
    let server = bench.start_on(link, system, &site, 1, &memory)?;
    let load = super::web::ask_for_files(&server, &site, "--close");
    Ok((server, load))
}
