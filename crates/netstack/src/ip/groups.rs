//! Multicast groups of the host, reported to routers and to switches that forward only requested
//! groups. RFC 3810 6

use std::mem;
use std::time::Duration;

use super::Interface;
use super::own::OwnFrame;
use crate::time::Instant;
use crate::wire::ethernet::{EtherType, EthernetAddress, EthernetHeader};
use crate::wire::ipv6::{self, Ipv6Header};
use crate::wire::mld::{self, MldQuery, MldReport};
use crate::wire::{Ecn, Protocol};

/// Number of reports for each change, because reports can be lost. RFC 3810 9.1
const CHANGE_REPORTS: u8 = 2;

/// Longest interval between two of them. RFC 3810 9.11
const CHANGE_INTERVAL: Duration = Duration::from_secs(1);

/// Pending multicast reports.
#[derive(Default)]
pub(super) struct Reports {
    /// Time of the next reports.
    pub(super) at: Option<Instant>,
    /// Number of reports left that say that the host begins to listen.
    changes_left: u8,
    /// A query of version 1 has no answer yet.
    is_asked_v1: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    V1,
    Listens,
    BeginsToListen,
}

impl Interface {
    /// Starts the reports that this host listens to its groups.
    pub(super) fn join_groups(&mut self, now: Instant) {
        if !self.routes.groups().is_empty() {
            self.reports.changes_left = CHANGE_REPORTS;
            self.report_groups(now);
        }
    }

    /// Reads a query; `word` and `data` are as for [`MldQuery::of`].
    pub(super) fn receive_query(
        &mut self,
        now: Instant,
        header: &Ipv6Header,
        word: u32,
        data: &[u8],
    ) {
        // From a router of this link. RFC 3810 5.1.14
        if header.hop_limit != mld::HOP_LIMIT || !header.src.is_unicast_link_local() {
            self.counters.bad_sources += 1;
            return;
        }
        let Some(query) = MldQuery::of(word, data) else {
            self.counters.malformed += 1;
            return;
        };
        let groups = self.routes.groups();
        if query.group.is_unspecified() || groups.contains(&query.group) {
            let at = now + self.spread(query.delay_max);
            self.reports.at = Some(self.reports.at.map_or(at, |before| before.min(at)));
            self.reports.is_asked_v1 |= query.is_v1;
        }
    }

    /// Reports all groups, also if only one was queried. Reports that do not fit leave later; until
    /// then no other report begins.
    pub(super) fn report_groups(&mut self, now: Instant) {
        if self.announcement.report.is_some() {
            self.reports.at = self.announcement.at;
            return;
        }
        let form = if mem::take(&mut self.reports.is_asked_v1) {
            Form::V1
        } else if self.reports.changes_left > 0 {
            self.reports.changes_left -= 1;
            Form::BeginsToListen
        } else {
            Form::Listens
        };
        let goes_on = self.reports.changes_left > 0;
        self.reports.at = goes_on.then(|| now + self.spread(CHANGE_INTERVAL));
        self.announcement.report = Some((form, 0));
        self.continue_announcement(now);
    }

    /// Sends one report of groups from index `from` on; returns the rest.
    pub(super) fn send_report(&mut self, form: Form, from: usize) -> Option<(Form, usize)> {
        let groups = &self.routes.groups()[from..];
        let count_max = match form {
            Form::V1 => 1,
            _ => mld::REPORT_GROUPS_MAX,
        };
        let some = &groups[..groups.len().min(count_max)];
        let left =
            (from + some.len() < self.routes.groups().len()).then_some((form, from + some.len()));
        let Some(mut buffer) = self.own.take_buffer() else {
            self.counters.own_dropped += 1;
            return left;
        };
        let report = match form {
            Form::V1 => MldReport::V1(some[0]),
            Form::Listens => MldReport::Listens(some),
            Form::BeginsToListen => MldReport::BeginsToListen(some),
        };
        let ethernet = EthernetHeader {
            dst: EthernetAddress::of_multicast_v6(report.dst()),
            src: self.mac,
            ethertype: EtherType::IPV6,
        };
        let header = Ipv6Header {
            src: self.routes.link_local(),
            dst: report.dst(),
            next_header: Protocol::HOP_BY_HOP,
            hop_limit: mld::HOP_LIMIT,
            dscp: 0,
            ecn: Ecn::NotCapable,
            flow_label: 0,
        };
        let at = ethernet.emit(&mut buffer);
        let payload_len = report.emit(header.src, &mut buffer[at + ipv6::HEADER_LEN..]);
        let len = at + header.emit(payload_len, &mut buffer[at..]) + payload_len;
        self.own.push(OwnFrame { buffer, len });
        left
    }

    /// A part of `most` that differs between hosts, so that they do not all report at once.
    fn spread(&self, most: Duration) -> Duration {
        let [.., a, b] = self.mac.0;
        // The golden ratio spreads consecutive addresses.
        let part = u16::from_be_bytes([a, b]).wrapping_mul(40_503);
        most * u32::from(part) / (1 << 16)
    }
}
