//! Session tickets: the state of a session, encrypted with a key of the server and kept by the
//! client. RFC 8446 4.6.1, RFC 5077
//!
//! ```text
//!  ┌──────────┬───────┬─────────────────────────────────────┬─────┐
//!  │ key name │ nonce │ Unix time in seconds │ session      │ tag │
//!  │    16    │  12   │          8           │              │ 16  │
//!  └──────────┴───────┴──── sealed by AES-256-GCM ──────────┴─────┘
//! ```
//!
//! The time limits a ticket to [`LIFETIME_S`], however long its key is kept. A ticket is accepted
//! only if clients are authenticated by the same authorities.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::server::ProducesTickets;

use super::files::read_file;

/// Lifetime of a ticket. A key in memory encrypts for this long, and decrypts for twice as long.
const LIFETIME_S: u32 = 12 * 60 * 60;

/// Lengths of a key file, as in nginx, Apache and HAProxy.
const KEY_FILE_LENS: [usize; 2] = [48, 80];

/// Most key files.
const KEY_FILES_MAX: usize = 16;

/// Longest session that is stored in a ticket, which must fit into a message. Only a client's
/// certificates make one long.
const SESSION_LEN_MAX: usize = 1 << 14;

const NAME_LEN: usize = 16;
const TIME_LEN: usize = size_of::<u64>();

/// A key of tickets.
pub(super) struct TicketKey {
    name: [u8; NAME_LEN],
    aead: LessSafeKey,
}

impl std::fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TicketKey").finish_non_exhaustive()
    }
}

impl TicketKey {
    /// Derives name and key from a secret. RFC 5869
    fn of(secret: &[u8]) -> TicketKey {
        let extracted = Salt::new(HKDF_SHA256, b"weft session tickets").extract(secret);
        let mut name = [0; NAME_LEN];
        let named = extracted.expand(&[b"name"], HKDF_SHA256);
        let key = extracted.expand(&[b"key"], &AES_256_GCM);
        let mut long = [0; 32];
        named.and_then(|named| named.fill(&mut long)).expect("HKDF gives 32 bytes");
        name.copy_from_slice(&long[..NAME_LEN]);
        let key: UnboundKey = key.expect("HKDF gives the key of a cipher").into();
        TicketKey { name, aead: LessSafeKey::new(key) }
    }

    fn random() -> Option<TicketKey> {
        let mut secret = [0; 32];
        SystemRandom::new().fill(&mut secret).ok()?;
        Some(TicketKey::of(&secret))
    }
}

/// Reads keys, of which the first encrypts.
///
/// # Errors
/// A sentence that names the file and its fault.
pub(super) fn read_keys(files: &[PathBuf]) -> Result<Vec<Arc<TicketKey>>, String> {
    if files.len() > KEY_FILES_MAX {
        return Err(format!(
            "there are {} keys for tickets, and {KEY_FILES_MAX} at most: remove the oldest",
            files.len()
        ));
    }
    let key = |file: &PathBuf| {
        let secret = read_file("the key for tickets", file)?;
        if !KEY_FILE_LENS.contains(&secret.len()) {
            return Err(format!(
                "the key for tickets {0} has {1} bytes, not 80 or 48: openssl rand -out {0} 80 \
                 makes one",
                file.display(),
                secret.len()
            ));
        }
        Ok(Arc::new(TicketKey::of(&secret)))
    };
    files.iter().map(key).collect()
}

/// Keys of a server.
#[derive(Debug, Default)]
pub(super) struct TicketKeys {
    current: RwLock<CurrentKeys>,
}

#[derive(Debug, Default)]
struct CurrentKeys {
    /// The first one encrypts, all decrypt.
    keys: Vec<Arc<TicketKey>>,
    /// Time until which the first key, one in memory, encrypts. 0 for keys of files.
    seals_until_unix_s: u64,
    is_of_files: bool,
}

impl TicketKeys {
    /// Uses keys from files; none selects keys in memory.
    pub(super) fn use_files(&self, keys: &[Arc<TicketKey>]) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if !keys.is_empty() || current.is_of_files {
            *current = CurrentKeys {
                keys: keys.to_vec(),
                seals_until_unix_s: 0,
                is_of_files: !keys.is_empty(),
            };
        }
    }

    /// The current encryption key, replaced if its time is over.
    fn sealing(&self, now_unix_s: u64) -> Option<Arc<TicketKey>> {
        {
            let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
            if current.is_of_files || now_unix_s < current.seals_until_unix_s {
                return current.keys.first().cloned();
            }
        }
        let newer = Arc::new(TicketKey::random()?);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if !current.is_of_files && now_unix_s >= current.seals_until_unix_s {
            current.keys.truncate(1);
            current.keys.insert(0, newer);
            current.seals_until_unix_s = now_unix_s + u64::from(LIFETIME_S);
        }
        current.keys.first().cloned()
    }

    fn named(&self, name: &[u8]) -> Option<Arc<TicketKey>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.keys.iter().find(|key| key.name == name).cloned()
    }

    fn seal(&self, now_unix_s: u64, trusted: &[u8], session: &[u8]) -> Option<Vec<u8>> {
        if session.len() > SESSION_LEN_MAX {
            return None;
        }
        let key = self.sealing(now_unix_s)?;
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let head_len = NAME_LEN + NONCE_LEN;
        let len = head_len + TIME_LEN + session.len() + AES_256_GCM.tag_len();
        let mut ticket = Vec::with_capacity(len);
        ticket.extend(key.name);
        ticket.extend(nonce);
        ticket.extend(now_unix_s.to_be_bytes());
        ticket.extend(session);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let plain = &mut ticket[head_len..];
        let tag = key.aead.seal_in_place_separate_tag(nonce, Aad::from(trusted), plain);
        ticket.extend(tag.ok()?.as_ref());
        Some(ticket)
    }

    fn open(&self, now_unix_s: u64, trusted: &[u8], ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_at_checked(NAME_LEN)?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN)?;
        let key = self.named(name)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let opened = key.aead.open_in_place(nonce, Aad::from(trusted), &mut sealed);
        let (made, session) = opened.ok()?.split_first_chunk::<TIME_LEN>()?;
        // Clocks of several servers differ.
        let age_s = now_unix_s.abs_diff(u64::from_be_bytes(*made));
        (age_s < LIFETIME_S.into()).then(|| session.to_vec())
    }
}

/// The tickets of a configuration of rustls.
#[derive(Debug)]
pub(super) struct Tickets {
    pub(super) keys: Arc<TicketKeys>,
    /// Digest of the authorities that clients' certificates are checked with.
    pub(super) trusted: Option<[u8; 32]>,
}

impl Tickets {
    fn trusted(&self) -> &[u8] {
        self.trusted.as_ref().map_or(&[], |digest| digest)
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        LIFETIME_S
    }

    fn encrypt(&self, session: &[u8]) -> Option<Vec<u8>> {
        self.keys.seal(unix_s(), self.trusted(), session)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.keys.open(unix_s(), self.trusted(), ticket)
    }
}

fn unix_s() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_UNIX_S: u64 = 1_800_000_000;
    const LIFETIME: u64 = LIFETIME_S as u64;

    fn of_files(secrets: &[&[u8]]) -> TicketKeys {
        let keys = TicketKeys::default();
        let of = |secret: &&[u8]| Arc::new(TicketKey::of(secret));
        keys.use_files(&secrets.iter().map(of).collect::<Vec<_>>());
        keys
    }

    #[test]
    fn a_ticket_opens_for_its_lifetime() {
        let keys = TicketKeys::default();
        // The last second in which the first key encrypts.
        keys.seal(NOW_UNIX_S, b"", b"x").unwrap();
        let made = NOW_UNIX_S + LIFETIME - 1;
        let ticket = keys.seal(made, b"", b"session").unwrap();
        for (age, is_valid) in [(0, true), (LIFETIME - 1, true), (LIFETIME, false)] {
            // Another key encrypts meanwhile.
            keys.seal(made + age, b"", b"x").unwrap();
            let opened = keys.open(made + age, b"", &ticket);
            assert_eq!(opened.is_some_and(|opened| opened == b"session"), is_valid, "{age}");
        }
        assert_eq!(keys.current.read().unwrap().keys.len(), 2);
        assert!(keys.open(made - LIFETIME, b"", &ticket).is_none(), "not made yet");
    }

    #[test]
    fn memory_keys_seal_for_one_lifetime() {
        let keys = TicketKeys::default();
        let name = |at| keys.seal(at, b"", b"").unwrap()[..NAME_LEN].to_vec();
        let first = name(NOW_UNIX_S);
        assert_eq!(name(NOW_UNIX_S + LIFETIME - 1), first);
        assert_ne!(name(NOW_UNIX_S + LIFETIME), first);
    }

    #[test]
    fn the_first_key_seals_and_all_open() {
        let old = of_files(&[b"a"]).seal(NOW_UNIX_S, b"", b"x").unwrap();
        let both = of_files(&[b"b", b"a"]);
        assert_eq!(both.open(NOW_UNIX_S, b"", &old).unwrap(), b"x");
        let newer = both.seal(NOW_UNIX_S, b"", b"y").unwrap();
        assert_eq!(of_files(&[b"b"]).open(NOW_UNIX_S, b"", &newer).unwrap(), b"y");
        assert!(of_files(&[b"b"]).open(NOW_UNIX_S, b"", &old).is_none());
        both.use_files(&[]);
        assert!(both.open(NOW_UNIX_S, b"", &newer).is_none(), "keys of memory");
        let of_memory = both.seal(NOW_UNIX_S, b"", b"z").unwrap();
        both.use_files(&[]);
        assert!(both.open(NOW_UNIX_S, b"", &of_memory).is_some());
    }

    #[test]
    fn a_ticket_is_of_one_list_of_authorities() {
        let keys = of_files(&[b"a"]);
        let ticket = keys.seal(NOW_UNIX_S, b"one", b"x").unwrap();
        assert!(keys.open(NOW_UNIX_S, b"one", &ticket).is_some());
        assert!(keys.open(NOW_UNIX_S, b"", &ticket).is_none());
        assert!(keys.open(NOW_UNIX_S, b"two", &ticket).is_none());
    }

    #[test]
    fn no_changed_or_cut_ticket_opens() {
        let keys = of_files(&[b"a"]);
        let ticket = keys.seal(NOW_UNIX_S, b"", b"session").unwrap();
        for at in 0..ticket.len() {
            assert!(keys.open(NOW_UNIX_S, b"", &ticket[..at]).is_none(), "{at}");
            let mut other = ticket.clone();
            other[at] ^= 1;
            assert!(keys.open(NOW_UNIX_S, b"", &other).is_none(), "{at}");
        }
        let longest = vec![0; SESSION_LEN_MAX];
        assert!(keys.seal(NOW_UNIX_S, b"", &longest).is_some());
        assert!(keys.seal(NOW_UNIX_S, b"", &[&longest[..], &[0]].concat()).is_none());
    }
}
