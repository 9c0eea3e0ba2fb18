//! Path MTUs of hosts for which they are below the link's. RFC 1191, RFC 8201
//!
//! Each entry was reported by a router and confirmed by a connection (RFC 5927 7): the quoted
//! segment was in flight, and longer than the reported MTU. Entries expire, so that a wider path is
//! noticed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::time::Instant;

/// Limit on hosts with a known path MTU. The oldest entry is evicted.
pub const PATHS_MAX: usize = 1024;

/// Lifetime of an entry. RFC 1191 6.3, RFC 8201 4
pub const PATH_MTU_FOR: Duration = Duration::from_secs(600);

/// Least path MTU that routers can impose, or the header would be most of each packet. Linux has
/// the same limit. Longer packets than the path takes may then be fragmented: DF is off.
pub const MTU_MIN_V4: usize = 552;

/// MTU that every IPv6 link supports; a router that reports less is wrong. RFC 8201 4
pub const MTU_MIN_V6: usize = 1280;

#[derive(Default)]
pub(super) struct PathMtus {
    paths: BTreeMap<IpAddr, PathMtu>,
}

struct PathMtu {
    mtu: usize,
    until: Instant,
    /// True if a router reported less than [`MTU_MIN_V4`].
    may_cut: bool,
}

impl PathMtus {
    pub(super) fn mtu_to(&self, now: Instant, dst: IpAddr) -> Option<usize> {
        self.find(now, dst).map(|path| path.mtu)
    }

    /// True if routers may fragment packets to `dst`.
    pub(super) fn may_cut(&self, now: Instant, dst: IpAddr) -> bool {
        self.find(now, dst).is_some_and(|path| path.may_cut)
    }

    fn find(&self, now: Instant, dst: IpAddr) -> Option<&PathMtu> {
        // The usual case.
        if self.paths.is_empty() {
            return None;
        }
        self.paths.get(&dst).filter(|path| now < path.until)
    }

    /// Lowers the path MTU: packets of `mtu` bytes reach `dst`, but none of `before`.
    pub(super) fn lower(&mut self, now: Instant, dst: IpAddr, mtu: usize, before: usize) {
        let mtu_min = if dst.is_ipv4() { MTU_MIN_V4 } else { MTU_MIN_V6 };
        let may_cut = dst.is_ipv4() && mtu < mtu_min;
        if mtu >= before || (mtu < mtu_min && !may_cut) {
            return;
        }
        if self.paths.len() >= PATHS_MAX && !self.paths.contains_key(&dst) {
            let oldest = self.paths.iter().min_by_key(|(_, path)| path.until);
            if let Some((&oldest, _)) = oldest {
                self.paths.remove(&oldest);
            }
        }
        let path = PathMtu { mtu: mtu.max(mtu_min), until: now + PATH_MTU_FOR, may_cut };
        self.paths.insert(dst, path);
    }
}

/// Next lower common link MTU, for a router that names none. RFC 1191 7.1
pub(super) fn plateau_below(len: usize) -> usize {
    const PLATEAUS: [usize; 10] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508, 296, 68];
    PLATEAUS.into_iter().find(|&it| it < len).unwrap_or(68)
}
