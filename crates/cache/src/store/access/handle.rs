use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use crate::store::config::Config;
use crate::store::memory::arena::PAGE_LEN;
use crate::store::pool::Pool;
use crate::store::rule::StoreError;

/// Items under a hard memory limit. A handle: clones share the store.
#[derive(Clone)]
pub struct Store(Arc<Pool>);

impl Store {
    /// An empty store. Fails if the kernel refuses the address space.
    pub fn new(config: Config) -> io::Result<Store> {
        Ok(Store(Arc::new(Pool::new(config)?)))
    }

    /// Configuration of the store.
    pub fn config(&self) -> &Config {
        &self.pool().config
    }

    /// Changes the memory limit (`cache_memlimit`). Memory above it is freed by
    /// [`maintain`](Store::maintain), page by page. Fails below one page, and above the reserved
    /// address space: 64 GiB, or four times the first limit.
    pub fn set_memory_max(&self, memory_max: u64) -> Result<(), StoreError> {
        self.pool().set_pages_limit(memory_max / PAGE_LEN as u64)
    }

    /// The slab classes: bytes per chunk and chunks per page. The first is class 1. `memcached -vv`
    /// prints them at start.
    pub fn chunk_lens(&self) -> Vec<(usize, usize)> {
        let lens = self.pool().lens.as_slice().iter();
        lens.map(|len| (*len, PAGE_LEN / len)).collect()
    }

    /// Number of items of each size, for `stats sizes`: sizes rounded up to 32 bytes, ascending.
    pub fn sizes(&self) -> Vec<(u64, u64)> {
        let pool = self.pool();
        let mut sizes = BTreeMap::new();
        for id in pool.class_ids() {
            for (size, count) in pool.class(id).sizes.all() {
                *sizes.entry(size).or_default() += count;
            }
        }
        sizes.into_iter().collect()
    }

    #[inline]
    pub(crate) fn pool(&self) -> &Pool {
        &self.0
    }
}

impl AsRef<Pool> for Store {
    fn as_ref(&self) -> &Pool {
        &self.0
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("config", self.config()).finish_non_exhaustive()
    }
}
