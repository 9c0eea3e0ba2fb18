//! Unprompted messages of the interface: reports of its groups, announcements of its addresses, and
//! router solicitations.
//!
//! ```text
//!   announce ──▶ reports of groups ──▶ each address ──▶ "Who has it?", "I have it"
//!                                                   └─▶ "Routers, say that you are there"
//! ```
//!
//! An interface can have thousands of addresses, and the queues of own frames and of devices are
//! short. So frames leave in parts ([`AT_ONCE`], [`EVERY`]). The rest is kept as two positions, so
//! nothing is dropped and no frame is stored.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use super::groups::Form;
use super::own::OWN_FRAMES_MAX;
use super::{ALL_ROUTERS, Interface, solicited_node};
use crate::time::Instant;
use crate::wire::arp::{ArpOperation, ArpPacket};
use crate::wire::ethernet::EthernetAddress;
use crate::wire::icmpv6::Icmpv6Message;
use crate::wire::ndp::NdpMessage;

/// Frames of one part: half of the queue is left to answers.
const AT_ONCE: usize = OWN_FRAMES_MAX / 2;

/// Interval between two parts: a thousand addresses take two thirds of a second.
const EVERY: Duration = Duration::from_millis(10);

/// Frames for each address: a question, and an advertisement.
const FRAMES_OF_ADDRESS: usize = 2;

/// Number of router solicitations: MAX_RTR_SOLICITATIONS. RFC 4861 10
pub const ROUTER_QUESTIONS_MAX: u8 = 3;

/// Interval between solicitations: RTR_SOLICITATION_INTERVAL. RFC 4861 10
pub const ROUTER_QUESTION_EVERY: Duration = Duration::from_secs(4);

/// Announcements that were begun and have not left yet.
#[derive(Default)]
pub(super) struct Announcement {
    /// Time at which the next part leaves.
    pub(super) at: Option<Instant>,
    /// Form of the reports under way, and index of the first group left.
    pub(super) report: Option<(Form, usize)>,
    /// Index of the first own address that is still to be announced.
    address: Option<usize>,
    router: RouterQuestions,
}

#[derive(Default)]
struct RouterQuestions {
    /// Time of the next solicitation.
    at: Option<Instant>,
    left: u8,
}

impl Announcement {
    pub(super) fn wakes_at(&self) -> Option<Instant> {
        let times = [self.at, self.router.at];
        times.into_iter().flatten().min()
    }

    /// Stops asking for a router, because one has answered. RFC 4861 6.3.7
    pub(super) fn stop_soliciting(&mut self) {
        // An advertisement from before the first solicitation may contain less than an answer.
        if self.router.left < ROUTER_QUESTIONS_MAX {
            self.router = RouterQuestions::default();
        }
    }
}

impl Interface {
    /// Reports its groups to the link, so that switches forward packets to them, also the answers
    /// to the questions that follow (RFC 4862 5.4.2). Announces its addresses, by ARP announcements
    /// (RFC 5227 2.3) and unsolicited advertisements (RFC 4861 7.2.6), so that neighbours forget
    /// previous owners, and another host with such an address reports it
    /// ([`IpCounters::conflicts`](super::IpCounters::conflicts)). Then solicits a router, if none
    /// was named: up to [`ROUTER_QUESTIONS_MAX`] times. RFC 4861 6.3.7
    ///
    /// Frames that do not fit now leave when [`Interface::wakes_at`] says.
    pub fn announce(&mut self, now: Instant) {
        self.announcement.address = Some(0);
        self.join_groups(now);
        self.continue_announcement(now);
    }

    /// Queues the next part.
    pub(super) fn continue_announcement(&mut self, now: Instant) {
        let mut left = AT_ONCE.min(self.own.free());
        while left >= FRAMES_OF_ADDRESS && self.announcement.is_in_progress() {
            let before = self.own.free();
            match self.announcement.report {
                Some((form, from)) => self.announcement.report = self.send_report(form, from),
                None => self.announce_address(now),
            }
            left -= before - self.own.free();
        }
        self.announcement.at = self.announcement.is_in_progress().then(|| now + EVERY);
    }

    /// Sends the frames that are due.
    pub(super) fn on_announcement_timer(&mut self, now: Instant) {
        if self.announcement.at.is_some_and(|at| at <= now) {
            self.continue_announcement(now);
        }
        if self.announcement.router.at.is_some_and(|at| at <= now) {
            self.ask_for_router(now);
        }
    }

    fn announce_address(&mut self, now: Instant) {
        let Some(index) = self.announcement.address else {
            return;
        };
        let Some(prefix) = self.routes.own().get(index) else {
            self.announcement.address = None;
            if self.routes.wants_router() {
                self.announcement.router.left = ROUTER_QUESTIONS_MAX;
                self.ask_for_router(now);
            }
            return;
        };
        self.announcement.address = Some(index + 1);
        match prefix.address {
            IpAddr::V4(address) => self.send_arp(ArpPacket {
                operation: ArpOperation::Request,
                sender_mac: self.mac,
                sender_ip: address,
                target_mac: EthernetAddress::ZERO,
                target_ip: address,
            }),
            IpAddr::V6(address) => {
                // Another host with this address answers, which is counted. RFC 4862 5.4.2
                let target = address;
                let source = None;
                let question = NdpMessage::NeighborSolicitation { target, source };
                let group = solicited_node(address);
                self.send_ndp(Ipv6Addr::UNSPECIFIED, group, Icmpv6Message::Ndp(question));
                self.advertise(address);
            }
        }
    }

    fn ask_for_router(&mut self, now: Instant) {
        if self.own.free() == 0 {
            self.announcement.router.at = Some(now + EVERY);
            return;
        }
        let router = &mut self.announcement.router;
        router.left -= 1;
        router.at = (router.left > 0).then(|| now + ROUTER_QUESTION_EVERY);
        let source = Some(self.mac);
        let message = Icmpv6Message::Ndp(NdpMessage::RouterSolicitation { source });
        self.send_ndp(self.routes.link_local(), ALL_ROUTERS, message);
    }
}

impl Announcement {
    fn is_in_progress(&self) -> bool {
        self.report.is_some() || self.address.is_some()
    }
}
