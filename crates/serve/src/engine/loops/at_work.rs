//! The threads of an engine, as the server sees them.

use std::io;
use std::sync::Arc;

use event::Mechanism;

use super::bell::Loop;
use super::dealer::{Dealer, Deals};
use super::doors::{Doors, Sockets};
use super::gate::Gate;
use super::house::House;
use super::lookout::DOORS;
use super::threads::LoopThreads;
use crate::listen::Bound;
use crate::metrics::MetricsWriter;
use crate::shared::Shared;

/// What the server has of an engine whose threads wait for many connections. Dropping it ends them.
pub(crate) struct Loops {
    shared: Arc<Shared>,
    gate: Arc<Gate>,
    /// The loops that have connections, by name.
    pub(crate) named: Vec<(String, Arc<Loop>)>,
    dealer: Option<Arc<Loop>>,
    pub(crate) threads: LoopThreads,
    /// A Unix socket's file goes when its `Bound` does.
    bound: Vec<Bound>,
}

impl Loops {
    /// None yet.
    pub(crate) fn new<O>(house: &House<O>, bound: Vec<Bound>) -> Loops {
        Loops::behind(&house.gate, &house.admission.shared, bound)
    }

    /// The same for an engine with a house of its own.
    pub(crate) fn behind(gate: &Arc<Gate>, shared: &Arc<Shared>, bound: Vec<Bound>) -> Loops {
        Loops {
            shared: Arc::clone(shared),
            gate: Arc::clone(gate),
            named: Vec::new(),
            dealer: None,
            threads: LoopThreads::default(),
            bound,
        }
    }

    /// Starts the thread that accepts from `sockets` and deals connections out. It waits for few
    /// descriptors, and by `epoll`, whatever the loops wait with.
    ///
    /// # Errors
    /// What the kernel says to a new thread and its descriptors.
    pub(crate) fn deal<O>(
        &mut self,
        house: &Arc<House<O>>,
        sockets: Sockets,
        to: impl Deals + Send + 'static,
    ) -> io::Result<()>
    where
        O: Send + Sync + 'static,
    {
        let (house, own) = (Arc::clone(house), Loop::new()?);
        self.dealer = Some(Arc::clone(&own));
        let doors = Doors::new(sockets, DOORS);
        let make = move || Dealer::new(house, own, to, doors, Mechanism::Epoll.open()?);
        (self.threads).spawn("dealer".to_owned(), make, Dealer::run)
    }

    pub(crate) fn listeners(&self) -> &[Bound] {
        &self.bound
    }

    /// The loops, and the dealer, by name.
    fn all(&self) -> impl Iterator<Item = (&str, &Arc<Loop>)> {
        let named = self.named.iter().map(|(name, one)| (name.as_str(), one));
        named.chain(self.dealer.iter().map(|one| ("dealer", one)))
    }

    /// The server has come to another stage of its life, or is to accept no more.
    pub(crate) fn wake(&self) {
        self.all().for_each(|(_, one)| one.bell.ring());
    }

    /// Closes the listeners, and waits until that is done.
    pub(crate) fn stop_accepting(&self) {
        self.gate.close();
        self.wake();
        self.gate.wait_until_closed();
    }

    pub(crate) fn connection_count(&self) -> usize {
        self.gate.open()
    }

    /// Each thread cuts the connections that it has: the server's stage says so.
    pub(crate) fn cut(&self) -> usize {
        let open = self.connection_count();
        self.wake();
        open
    }

    /// What each loop has counted: lines for people.
    pub(crate) fn dump(&self) -> String {
        let lines = self.all();
        lines.map(|(name, one)| one.counters.line(name)).collect()
    }

    pub(crate) fn write_metrics(&self, out: &mut MetricsWriter) {
        for (name, one) in self.all() {
            one.counters.write_metrics(name, out);
        }
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        // If the engine could not be started, this ends what was.
        self.shared.stage.cut();
        self.gate.close();
        self.wake();
        self.threads.join();
    }
}
