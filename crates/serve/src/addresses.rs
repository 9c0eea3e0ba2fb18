//! Open connections by address: a limit for each address or prefix.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use session::{Networks, PrefixLen};

/// Limit on the open connections of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressLimit {
    /// Most open connections of one address. Further ones are closed.
    pub connections_max: usize,
    /// Addresses that count as one.
    pub prefix: PrefixLen,
    /// Addresses without a limit.
    pub exempt: Networks,
}

/// Locks that addresses are spread over, so that processors seldom contend.
const SHARD_COUNT: usize = 64;

/// Number of open connections of each address that has any: never more entries than connections.
#[derive(Debug)]
pub(crate) struct Addresses {
    limit: AddressLimit,
    shards: [Mutex<HashMap<u128, usize>>; SHARD_COUNT],
    /// Hashes prefixes unpredictably for clients.
    seed: RandomState,
}

/// A connection's slot among those of its address, held until dropped.
#[derive(Debug)]
pub(crate) struct AddressSlot {
    addresses: Arc<Addresses>,
    prefix: u128,
}

impl Addresses {
    pub(crate) fn new(limit: AddressLimit) -> Addresses {
        Addresses {
            limit,
            shards: std::array::from_fn(|_| Mutex::default()),
            seed: RandomState::new(),
        }
    }

    /// True if connections of the address are counted.
    pub(crate) fn counts(&self, address: IpAddr) -> bool {
        !self.limit.exempt.contains_address(address)
    }

    /// Counts a connection of an address. `None` if the limit is reached.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<AddressSlot> {
        let prefix = self.limit.prefix.prefix_of(address);
        let mut shard = self.shard(prefix);
        let count = shard.entry(prefix).or_default();
        if *count >= self.limit.connections_max {
            return None;
        }
        *count += 1;
        Some(AddressSlot { addresses: Arc::clone(self), prefix })
    }

    fn shard(&self, prefix: u128) -> MutexGuard<'_, HashMap<u128, usize>> {
        let at = self.seed.hash_one(prefix) as usize % SHARD_COUNT;
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        let mut shard = self.addresses.shard(self.prefix);
        if let Some(count) = shard.get_mut(&self.prefix) {
            *count -= 1;
            if *count == 0 {
                shard.remove(&self.prefix);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(connections_max: usize) -> Arc<Addresses> {
        Arc::new(Addresses::new(AddressLimit {
            connections_max,
            prefix: PrefixLen::default(),
            exempt: Networks::default(),
        }))
    }

    fn entries(addresses: &Addresses) -> usize {
        let shards = addresses.shards.iter();
        shards.map(|shard| shard.lock().unwrap().len()).sum()
    }

    #[test]
    fn each_address_has_its_own_count() {
        let addresses = addresses(2);
        let enter = |text: &str| addresses.enter(text.parse().unwrap());
        let places = [enter("192.0.2.7"), enter("::ffff:192.0.2.7")];
        assert!(enter("192.0.2.7").is_none() && enter("192.0.2.8").is_some());
        let of_v6 = [enter("2001:db8::1"), enter("2001:db8::2")];
        assert!(enter("2001:db8::3").is_none() && enter("2001:db8:0:1::").is_some());
        drop(of_v6);
        drop(places);
        assert_eq!(entries(&addresses), 0);
        assert!(enter("192.0.2.7").is_some());
    }

    #[test]
    fn entries_are_no_more_than_connections() {
        let addresses = addresses(1);
        for round in 0..4_u32 {
            let places: Vec<_> = (0..10_000)
                .map(|nth| addresses.enter(IpAddr::from((round << 16 | nth).to_be_bytes())))
                .collect();
            assert!(places.iter().all(Option::is_some));
            assert_eq!(entries(&addresses), 10_000);
        }
        assert_eq!(entries(&addresses), 0);
    }

    #[test]
    fn threads_never_pass_the_limit_together() {
        let addresses = addresses(3);
        let address = "192.0.2.7".parse().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let place = addresses.enter(address);
                        let shard = addresses.shard(addresses.limit.prefix.prefix_of(address));
                        assert!(shard.values().all(|&count| count <= 3));
                        drop(shard);
                        drop(place);
                    }
                });
            }
        });
        assert_eq!(entries(&addresses), 0);
    }
}
