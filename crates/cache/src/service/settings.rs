//! Settings of a server.

use super::auth::Users;

/// Settings of a server apart from its store: memcached's flags, as in `stats settings`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Reply to `version`. Clients parse it, so it begins with three numbers.
    pub version: String,
    /// `-c`
    pub connections_max: u32,
    /// `-p`; 0: no TCP listener.
    pub tcp_port: u16,
    /// `-U`; 0: no UDP socket.
    pub udp_port: u16,
    /// `-l`
    pub interface: Option<String>,
    /// `-s`
    pub unix_socket: Option<String>,
    /// `-a`, the Unix socket's permissions.
    pub unix_mask: u32,
    /// `-e`
    pub memory_file: Option<String>,
    /// `-t`
    pub threads: u32,
    /// `-b`
    pub backlog: u32,
    /// `-B`
    pub binding: Binding,
    /// `-D`: delimiter that ends the prefix of a key in `stats detail`.
    pub prefix_delimiter: u8,
    /// `-D` was given: `stats detail` counts from the start.
    pub counts_prefixes: bool,
    /// `-A`: clients may shut the server down.
    pub allows_shutdown: bool,
    /// Without `-F`: clients may flush.
    pub allows_flush: bool,
    /// Without `-X`: clients may list all keys.
    pub allows_dump: bool,
    /// Without `-W`: clients may watch.
    pub allows_watch: bool,
    /// `-o maxconns_fast`
    pub refuses_at_connections_max: bool,
    /// `-o idle_timeout=`; 0 means none.
    pub idle_timeout_s: u32,
    /// `-Z`
    pub tls: bool,
    /// `-v`: 0 to 2.
    pub verbosity: u32,
    /// Without `-o no_lru_crawler`: expired items are removed in the background. Clients may change
    /// it.
    pub crawls: bool,
    /// `-o track_sizes`: `stats sizes` shows sizes. Clients may change it.
    pub tracks_sizes: bool,
    /// Authentication of clients.
    pub auth: Auth,
}

/// Protocols that `-B` allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Binding {
    /// The first byte of a connection decides.
    #[default]
    Auto,
    /// Text only.
    Ascii,
    /// Binary only.
    Binary,
}

/// Authentication of clients.
#[derive(Clone, Debug, Default)]
pub enum Auth {
    /// None: every client may use the cache.
    #[default]
    Open,
    /// `-Y FILE`: a text conversation begins with a `set` of `user password`.
    Ascii(Users),
    /// `-S`: a binary conversation begins with SASL PLAIN; text is refused.
    Sasl(Users),
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            version: concat!("1.6.45-weft.", env!("CARGO_PKG_VERSION")).to_owned(),
            connections_max: 1024,
            tcp_port: 11211,
            udp_port: 0,
            interface: None,
            unix_socket: None,
            unix_mask: 0o700,
            memory_file: None,
            threads: 4,
            backlog: 1024,
            binding: Binding::Auto,
            prefix_delimiter: b':',
            counts_prefixes: false,
            allows_shutdown: false,
            allows_flush: true,
            allows_dump: true,
            allows_watch: true,
            refuses_at_connections_max: true,
            idle_timeout_s: 0,
            tls: false,
            verbosity: 0,
            crawls: true,
            tracks_sizes: false,
            auth: Auth::Open,
        }
    }
}
