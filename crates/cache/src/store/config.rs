/// Configuration of a store, with memcached's own flags.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `-m`: the hard limit of item memory in bytes. Rounded down to whole pages of 1 MiB.
    pub memory_max: u64,
    /// `-I`: longest item in bytes, including key and header. At most 1 GiB.
    pub item_len_max: u32,
    /// `-n`: minimum space in a chunk for key and value, in bytes.
    pub chunk_space_min: u32,
    /// `-f`: growth factor of chunk lengths from class to class.
    pub chunk_growth: f64,
    /// Without `-M`: a full store evicts old items for new ones. With `-M` it refuses new ones.
    pub evicts: bool,
    /// Without `-C`: items carry a unique number that changes with each store.
    pub counts_cas: bool,
    /// `-o hashpower=`: the table starts with space for `2^hash_power` items. It grows by itself.
    pub hash_power: u8,
    /// `-L`: ask the kernel for huge pages under the items.
    pub huge_pages: bool,
}

impl Default for Config {
    /// memcached's defaults: 64 MB, items of up to 1 MiB, factor 1.25.
    fn default() -> Config {
        Config {
            memory_max: 64 << 20,
            item_len_max: 1 << 20,
            chunk_space_min: 48,
            chunk_growth: 1.25,
            evicts: true,
            counts_cas: true,
            hash_power: 16,
            huge_pages: false,
        }
    }
}
