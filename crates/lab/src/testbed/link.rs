//! Links: the server at one end, the generator at the other, and no other host.
//!
//! ```text
//!   the laboratory's network                     the server's network
//!   generator ── 10.9.0.1 NEAR ════ veth ════ FAR 10.9.0.2 ── server on the kernel's TCP/IP
//!   generator ── 10.9.0.1 NEAR ════ veth ════ FAR ─────────── server on a netstack, 10.9.0.2
//!   generator ── 10.9.0.1 NEAR ═ TAP relay TAP ═ FAR ──────── either of them
//!   generator ── 10.9.0.1 NEAR ════ TAP ═════════════════════ server on a netstack, 10.9.0.2
//! ```
//!
//! A veth without offloads stands for a wire between two machines: the core of each end's program
//! handles the packets that arrive there. Otherwise the kernel handles them in the sender's call.
//!
//! Nothing of it outlives the laboratory: interfaces go with their networks, and networks with the
//! last process and descriptor.

use std::fs;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::time::Duration;

use super::{Launched, sys, with_path};
use crate::system::in_path;

/// Address of the server, or of its netstack.
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const GENERATOR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

/// Frames that wait for a TAP's reader: requests of a crowd, and the window of a fast link.
const TAP_QUEUE: u32 = 10_000;

/// Properties of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkPlan {
    pub(crate) wire: Wire,
    /// The longest packet.
    pub(crate) mtu: u64,
    /// Congestion control of the kernel at the far end; none for a netstack.
    pub(crate) kernel: Option<&'static str>,
}

/// Medium between the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// A veth, with or without offloads of checksums, segmentation and merging.
    Veth { has_offloads: bool },
    /// A TAP alone: a netstack reads the other end of the near interface, with this many queues.
    Tap { queues: u64 },
    /// Two interfaces joined by a program, `weft-programs relay`, which loses some of the server's
    /// frames and delays all, half of the time in each direction.
    Bad { loss_per_mille: u64, delay_ms: u64 },
}

/// Two ends that are up; removed on drop.
pub(crate) struct Link {
    /// The generator's interface.
    pub(crate) near: String,
    /// Name of the server's device.
    pub(crate) interface: String,
    /// The server's network, if it is not the laboratory's.
    pub(crate) network: Option<OwnedFd>,
    relay: Option<Launched>,
}

/// Names of a link's ends, unique among all links.
pub(super) fn names(number: u32) -> [String; 2] {
    [format!("near{number}"), format!("far{number}")]
}

impl Link {
    /// Makes a link; a relay has made its interfaces already. Without offloads, the generator's
    /// core handles packets that arrive at the near end, and the server's core those at the far
    /// end.
    ///
    /// # Errors
    /// Errors of `ip` or of the kernel.
    pub(super) fn new(
        [near, far]: [String; 2],
        plan: LinkPlan,
        [server, generator]: [usize; 2],
        relay: Option<Launched>,
    ) -> io::Result<Link> {
        let is_cut = plan.wire == Wire::Veth { has_offloads: false };
        handle_receipts_on(is_cut.then_some(generator))?;
        let network = match plan.wire {
            Wire::Tap { queues } => {
                let several = if queues > 1 { " multi_queue" } else { "" };
                ip(&format!("tuntap add {near} mode tap{several}"))?;
                None
            }
            _ => Some(sys::new_network()?),
        };
        // From here on the link is removed if a step fails.
        let link = Link {
            interface: if network.is_some() { far } else { near.clone() },
            near,
            network,
            relay,
        };
        let (near, far, mtu) = (&link.near, &link.interface, plan.mtu);
        if let Some(network) = &link.network {
            sys::in_network(network, || {
                super::furnish_network()?;
                handle_receipts_on(is_cut.then_some(server))
            })?;
            // This name of the descriptor is valid in other processes too.
            let there = format!("/proc/{}/fd/{}", process::id(), network.as_raw_fd());
            match plan.wire {
                Wire::Bad { .. } => ip(&format!("link set {far} netns {there}"))?,
                _ => ip(&format!("link add {near} type veth peer name {far} netns {there}"))?,
            }
            sys::in_network(network, || {
                ip(&format!("link set {far} mtu {mtu} txqueuelen {TAP_QUEUE} up"))?;
                if is_cut {
                    sys::turn_offloads_off(far)?;
                }
                let Some(congestion) = plan.kernel else {
                    return Ok(());
                };
                ip(&format!(
                    "address add {SERVER}/24 dev {far}\n\
                     route replace 10.9.0.0/24 dev {far} src {SERVER} congctl {congestion}"
                ))
            })?;
        }
        if is_cut {
            sys::turn_offloads_off(near)?;
        }
        ip(&format!(
            "link set {near} mtu {mtu} txqueuelen {TAP_QUEUE} up\n\
             address add {GENERATOR}/24 dev {near}"
        ))?;
        Ok(link)
    }

    /// CPU time of the relay, if there is one.
    pub(crate) fn relay_cpu(&self) -> Duration {
        let pid = self.relay.as_ref().map(Launched::pid);
        let used = pid.and_then(|pid| sys::cpu_time(pid).ok());
        used.unwrap_or_default()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // At the latest it goes with its network.
        let _ = ip(&format!("link delete {}", self.near));
    }
}

/// Reason why links are unavailable; `None` if they are not.
pub(super) fn lacks(is_root: bool) -> Option<String> {
    match (is_root, in_path("ip")) {
        (false, _) => Some("links between networks need root".to_owned()),
        (_, None) => Some("the program ip is missing: apt-get install iproute2".to_owned()),
        _ => None,
    }
}

/// Disables IPv6, and its unsolicited packets, on interfaces made in this network from now on.
pub(super) fn silence_ipv6() {
    // Kernels without IPv6 lack this file.
    let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
}

/// Lets `core` handle packets of interfaces made in this network from now on; without one, the core
/// of the sender does. Documentation/networking/scaling.rst: Receive Packet Steering
fn handle_receipts_on(core: Option<usize>) -> io::Result<()> {
    let path = Path::new("/proc/sys/net/core/rps_default_mask");
    let mask = core.map_or("0".to_owned(), mask);
    match fs::write(path, mask) {
        // Kernels before 6.3 lack this file, and have no default steering.
        Err(error) if core.is_none() && error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written.map_err(with_path(path)),
    }
}

/// One core as the kernel formats masks: groups of 32 bits, the last group first.
fn mask(core: usize) -> String {
    format!("{:x}{}", 1u32 << (core % 32), ",00000000".repeat(core / 32))
}

/// Runs lines of ip(8) in this thread's network.
fn ip(lines: &str) -> io::Result<()> {
    let mut child = Command::new(in_path("ip").unwrap_or_else(|| "ip".into()))
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().expect("piped");
    let written = stdin.write_all(format!("{lines}\n").as_bytes());
    drop(stdin);
    let ended = child.wait_with_output()?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        let (lines, said) = (lines.replace('\n', "; "), said.lines().next());
        let said = said.unwrap_or_default();
        return Err(io::Error::other(format!("ip {lines}: {said}")));
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::{Testbed, alone};

    #[test]
    fn a_core_is_a_bit_of_its_group() {
        assert_eq!(
            [0, 1, 31, 32, 70].map(mask),
            ["1", "2", "80000000", "1,00000000", "40,00000000,00000000"]
        );
    }

    /// Seen: 47 % of the server's core were the generator's half of TCP, in the server's call. In a
    /// thread of its own, which enters another network.
    #[test]
    fn receive_steering_of_a_wire() {
        let _alone = alone();
        let test = || {
            let home = tempfile::tempdir().unwrap();
            let mut testbed = Testbed::take(home.path(), None, true).unwrap();
            if let Some(why) = testbed.lacks_links() {
                return eprintln!("not tested: {why}");
            }
            let [server, generator] = testbed.cores;
            let cut = Wire::Veth { has_offloads: false };
            let whole = Wire::Veth { has_offloads: true };
            let near = mask(generator);
            let far = mask(server);
            // A link leaves no trace in the next one.
            for (wire, near, far) in [
                (cut, &*near, &*far),
                (whole, "", ""),
                (Wire::Tap { queues: 2 }, "", ""),
                (cut, &near, &far),
            ] {
                let plan = LinkPlan { wire, mtu: 1500, kernel: None };
                let link = testbed.link(plan, Path::new("no relay")).unwrap();
                assert_eq!(handlers(&link.near), near, "{wire:?}");
                if let Some(network) = &link.network {
                    sys::in_network(network, || {
                        assert_eq!(handlers(&link.interface), far, "{wire:?}");
                        Ok(())
                    })
                    .unwrap();
                }
            }
        };
        std::thread::spawn(test).join().unwrap();
    }

    /// Mask of cores that handle packets of an interface in this thread's network, for its first
    /// queue; empty if unset. sysfs shows the interfaces of the network in which it was mounted.
    /// sysfs(5)
    fn handlers(interface: &str) -> String {
        let file = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
        let shown = Command::new("unshare")
            .args(["--mount", "sh", "-c"])
            .arg(format!("mount -t sysfs sysfs /sys && cat {file}"))
            .output()
            .unwrap();
        assert!(shown.status.success(), "{shown:?}");
        let shown = String::from_utf8(shown.stdout).unwrap();
        shown.trim().trim_start_matches(['0', ',']).to_owned()
    }
}
