//! Password files for basic authentication: parses lines of `htpasswd` and similar tools, verifies
//! passwords on job threads, and remembers the verified ones.
//!
//! ```text
//!   Authorization ─▶ verified before? ──yes──▶ admitted          two keyed hashes, one read lock
//!                        │ no
//!                        ▼
//!                     Turns::enter ──too many──▶ 503
//!                        │ Next::Work: off the processors
//!                        ▼
//!                     a turn ─▶ bcrypt, SHA-crypt or argon2 ─▶ admitted, remembered; or 401
//! ```
//!
//! A verification costs some 100 ms by design. Few run and few wait at a time: a flood of wrong
//! passwords takes at most half of the processors and a quarter of the job threads.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use argon2::Argon2;
use argon2::password_hash::PasswordVerifier;
use argon2::password_hash::phc::PasswordHash;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use session::Now;
use sha_crypt::ShaCrypt;

/// Longest password file.
const FILE_LEN_MAX: u64 = 4 << 20;

/// Verified credentials remembered per file; above it, an arbitrary one is dropped.
const VERIFIED_MAX: usize = 1024;

/// Longest password; longer ones are wrong: SHA-crypt's time grows with the length.
const PASSWORD_LEN_MAX: usize = 1024;

/// Memory of a verification above which only one runs at a time.
const ARGON2_KIB_SHARED_MAX: u32 = 16 << 10;

/// Verifications that run or wait at a time; further requests get a 503.
const ENTERED_MAX: usize = 8;

/// Time without writes after which a password file is read.
const QUIET_PERIOD: Duration = Duration::from_millis(50);

/// A password file, read again when it changes.
#[derive(Debug)]
pub(crate) struct Passwords {
    path: PathBuf,
    users: ArcSwap<Users>,
    opened_at: Instant,
    /// Time of the last check, in nanoseconds since the file was opened.
    checked_ns: AtomicU64,
    /// State of the file at the last check.
    seen: Mutex<State>,
}

/// State of a file: change time (its modification time can be forged), length, inode.
type State = (Option<Duration>, u64, u64);

/// The users of one state of a file.
#[derive(Debug)]
struct Users {
    /// Index into `hashes` by name.
    names: HashMap<Vec<u8>, usize>,
    /// At least one.
    hashes: Vec<String>,
    seeds: [RandomState; 2],
    /// Names by keyed hashes of verified credentials.
    verified: RwLock<HashMap<[u64; 2], Arc<[u8]>>>,
}

/// Credentials to verify on a job thread.
#[derive(Debug)]
pub(crate) struct Verification {
    users: Arc<Users>,
    credentials: Box<[u8]>,
    entered: Entered,
}

impl Passwords {
    /// # Errors
    /// The reason why the file cannot be used, with the line.
    pub(crate) fn open(path: &Path, now: Now) -> Result<Passwords, String> {
        let (users, seen) = read(path)?;
        Ok(Passwords {
            path: path.to_owned(),
            users: ArcSwap::from_pointee(users),
            opened_at: now.monotonic,
            checked_ns: AtomicU64::new(0),
            seen: Mutex::new(seen),
        })
    }

    /// True if these credentials, the value of `Authorization`, were verified before.
    pub(crate) fn knows(&self, credentials: &[u8]) -> bool {
        self.user(credentials).is_some()
    }

    /// The name in credentials that were verified before.
    pub(crate) fn user(&self, credentials: &[u8]) -> Option<Arc<[u8]>> {
        let users = self.users.load();
        users.verified(&users.key(credentials))
    }

    /// Begins to verify credentials. `None` if too many verifications run or wait.
    pub(crate) fn verify(&self, credentials: &[u8], turns: &Arc<Turns>) -> Option<Verification> {
        Some(Verification {
            users: self.users.load_full(),
            credentials: credentials.into(),
            entered: Turns::enter(turns)?,
        })
    }

    /// True if the file is due for a check.
    pub(crate) fn is_due(&self, now: Now, recheck_every: Duration) -> bool {
        let since_ns = self.since_ns(now).saturating_sub(self.checked_ns.load(Relaxed));
        since_ns > recheck_every.as_nanos() as u64 / 2
    }

    fn since_ns(&self, now: Now) -> u64 {
        now.monotonic.saturating_duration_since(self.opened_at).as_nanos() as u64
    }

    /// Reads the file again if it has changed; may block.
    ///
    /// # Errors
    /// A sentence, once per unusable state of the file; the previous users stay.
    pub(crate) fn refresh(&self, now: Now) -> Result<(), String> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        self.checked_ns.fetch_max(self.since_ns(now), Relaxed);
        let state = state(&self.path);
        let age = state.0.and_then(|changed| now.since_epoch.checked_sub(changed));
        // A file written just now may be incomplete, or may change again within its timestamp. A
        // file with a future timestamp is read at once: a removed user would remain until then.
        if state == *seen || age.is_some_and(|age| age < QUIET_PERIOD) {
            return Ok(());
        }
        *seen = state;
        match read(&self.path) {
            Ok((users, _)) => {
                self.users.store(Arc::new(users));
                Ok(())
            }
            Err(why) => {
                let path = self.path.display();
                Err(format!("the password file {path} is not used: {why}; the old one stays"))
            }
        }
    }
}

impl Verification {
    /// True if the credentials are right; blocks as long as the hash's cost demands.
    pub(crate) fn run(self) -> bool {
        let key = self.users.key(&self.credentials);
        let _turn = self.entered.wait();
        // Another request with the same credentials may have been verified meanwhile.
        let known = self.users.verified(&key);
        let verify = || self.users.verify(&self.credentials, &self.entered.0.memory);
        let name = known.or_else(verify);
        let is_right = name.is_some();
        if let Some(name) = name {
            self.users.remember(key, name);
        }
        self.entered.count(is_right);
        is_right
    }
}

impl Users {
    fn key(&self, credentials: &[u8]) -> [u64; 2] {
        [0, 1].map(|at: usize| self.seeds[at].hash_one(credentials))
    }

    fn verified(&self, key: &[u64; 2]) -> Option<Arc<[u8]>> {
        let verified = self.verified.read();
        verified.unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    fn remember(&self, key: [u64; 2], name: Arc<[u8]>) {
        let mut verified = self.verified.write().unwrap_or_else(PoisonError::into_inner);
        if verified.len() >= VERIFIED_MAX
            && let Some(&other) = verified.keys().next()
        {
            verified.remove(&other);
        }
        verified.insert(key, name);
    }

    /// The name, if the credentials are right. An unknown user takes as much time as a known one.
    fn verify(&self, credentials: &[u8], memory: &Mutex<()>) -> Option<Arc<[u8]>> {
        let (name, password) = decode(credentials)?;
        let known = self.names.get(&*name);
        let other = || self.seeds[0].hash_one(&*name) as usize % self.hashes.len();
        let hash = &self.hashes[known.copied().unwrap_or_else(other)];
        let is_right = password.len() <= PASSWORD_LEN_MAX && matches(&password, hash, memory);
        (is_right && known.is_some()).then(|| name.into())
    }
}

/// Name and password of `Basic BASE64`. RFC 7617 2
fn decode(credentials: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, token) = credentials.split_at_checked(6)?;
    let is_basic = scheme.eq_ignore_ascii_case(b"basic ");
    let mut name = STANDARD.decode(token.trim_ascii()).ok().filter(|_| is_basic)?;
    // A name has no colon.
    let colon = name.iter().position(|&byte| byte == b':')?;
    let password = name.split_off(colon + 1);
    name.pop();
    Some((name, password))
}

fn matches(password: &[u8], hash: &str, memory: &Mutex<()>) -> bool {
    match hash.as_bytes() {
        [b'$', b'2', ..] => bcrypt::verify(password, hash).unwrap_or(false),
        [b'$', b'a', ..] => PasswordHash::new(hash).is_ok_and(|hash| {
            let params = argon2::Params::try_from(&hash.params);
            let is_large = params.is_ok_and(|params| params.m_cost() > ARGON2_KIB_SHARED_MAX);
            let _alone = is_large.then(|| memory.lock());
            Argon2::default().verify_password(password, &hash).is_ok()
        }),
        _ => ShaCrypt::default().verify_password(password, hash).is_ok(),
    }
}

fn state(path: &Path) -> State {
    use std::os::unix::fs::MetadataExt;
    match std::fs::metadata(path) {
        Ok(meta) => {
            let changed = Duration::new(meta.ctime().max(0) as u64, meta.ctime_nsec() as u32);
            (Some(changed), meta.len(), meta.ino())
        }
        Err(_) => (None, 0, 0),
    }
}

fn read(path: &Path) -> Result<(Users, State), String> {
    let state = state(path);
    if state.1 > FILE_LEN_MAX {
        return Err(format!("{} bytes are more than {FILE_LEN_MAX}", state.1));
    }
    let text = std::fs::read(path).map_err(|error| format!("it cannot be read: {error}"))?;
    Ok((parse(&text)?, state))
}

/// Reads lines of `NAME:HASH` or `NAME:HASH:COMMENT`. Skips empty lines, lines that begin with `#`,
/// and a byte order mark.
///
/// # Errors
/// The first unusable line, and the reason.
fn parse(text: &[u8]) -> Result<Users, String> {
    let mut names = HashMap::new();
    let mut hashes = Vec::new();
    let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text);
    for (at, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line[0] == b'#' {
            continue;
        }
        let wrong = |why: &str| format!("line {}: {why}", at + 1);
        let colon = line.iter().position(|&byte| byte == b':');
        let colon = colon.filter(|&colon| colon > 0);
        let colon = colon.ok_or_else(|| wrong("it is not NAME:HASH"))?;
        let hash = line[colon + 1..].split(|&byte| byte == b':').next().unwrap_or_default();
        let hash = std::str::from_utf8(hash).unwrap_or_default();
        check_hash(hash).map_err(|why| wrong(&why))?;
        if names.insert(line[..colon].to_vec(), hashes.len()).is_some() {
            return Err(wrong("the name is in the file twice"));
        }
        hashes.push(hash.to_owned());
    }
    if hashes.is_empty() {
        return Err("it has no users; htpasswd -B -c FILE NAME makes one".to_owned());
    }
    Ok(Users {
        names,
        hashes,
        seeds: [RandomState::new(), RandomState::new()],
        verified: RwLock::default(),
    })
}

/// Highest costs: about a second on a usual processor, and the memory of RFC 9106 4 for small
/// machines.
const BCRYPT_COST_MAX: u32 = 14;
const SHA_ROUNDS_MAX: u32 = 1_000_000;
const ARGON2_KIB_MAX: u32 = 64 << 10;
const ARGON2_PASSES_MAX: u32 = 16;

/// Longest salt of SHA-crypt.
const SHA_SALT_LEN_MAX: usize = 16;

fn check_hash(hash: &str) -> Result<(), String> {
    let fields: Vec<&str> = hash.split('$').collect();
    let limit = |what: &str, is: u32, most: u32| {
        if is > most {
            return Err(format!("{what} {is} is more than {most}"));
        }
        Ok(())
    };
    match fields[..] {
        ["", "2a" | "2b" | "2y", cost, rest] if rest.len() == 53 => {
            let parts = hash.parse::<bcrypt::HashParts>();
            let parts = parts.map_err(|error| error.to_string())?;
            if !cost.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err("its cost is no number".to_owned());
            }
            limit("the cost", parts.get_cost(), BCRYPT_COST_MAX)
        }
        ["", kind @ ("5" | "6"), ref options @ .., salt, digest] if options.len() < 2 => {
            check_sha_digest(kind, digest)?;
            let is_salt = (1..=SHA_SALT_LEN_MAX).contains(&salt.len());
            if !is_salt || !salt.bytes().all(|byte| SHA_LETTERS.contains(&byte)) {
                return Err("its salt is not 1 to 16 letters, digits, dots and slashes".to_owned());
            }
            let Some(rounds) = options.first() else {
                return Ok(());
            };
            let wrong = || "its rounds are no number from 1000 on".to_owned();
            let digits = rounds.strip_prefix("rounds=").ok_or_else(wrong)?;
            if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(wrong());
            }
            let rounds = digits.parse().map_err(|_| wrong())?;
            sha_crypt::Params::new(rounds).map_err(|_| wrong())?;
            limit("the number of rounds", rounds, SHA_ROUNDS_MAX)
        }
        ["", "argon2id" | "argon2i" | "argon2d", ..] => {
            let parsed = PasswordHash::new(hash).map_err(|error| error.to_string())?;
            if let Some(version) = parsed.version {
                argon2::Version::try_from(version)
                    .map_err(|_| format!("there is no version {version} of argon2"))?;
            }
            parsed.salt.ok_or("it has no salt")?;
            parsed.hash.ok_or("it has no hash")?;
            let params = argon2::Params::try_from(&parsed.params);
            let params = params.map_err(|error| error.to_string())?;
            limit("the memory in KiB", params.m_cost(), ARGON2_KIB_MAX)?;
            limit("the number of passes", params.t_cost(), ARGON2_PASSES_MAX)
        }
        ["", "apr1" | "1", ..] => {
            Err("MD5 ($apr1$, $1$) is too weak; htpasswd -B makes bcrypt".to_owned())
        }
        _ => Err("the hash is not bcrypt ($2y$), SHA-crypt ($5$, $6$) or argon2 ($argon2id$); \
             htpasswd -B makes bcrypt"
            .to_owned()),
    }
}

/// Digits in the order of their values. crypt(5)
const SHA_LETTERS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

fn check_sha_digest(kind: &str, digest: &str) -> Result<(), String> {
    // The last letter holds the remaining bits of 256 or 512.
    let (len, last_count) = if kind == "5" { (43, 16) } else { (86, 4) };
    if digest.len() != len {
        return Err("its length is wrong".to_owned());
    }
    let (last, others) = digest.as_bytes().split_last().expect("it has a length");
    let is_right = others.iter().all(|byte| SHA_LETTERS.contains(byte))
        && SHA_LETTERS[..last_count].contains(last);
    is_right.then_some(()).ok_or_else(|| "its letters are none of SHA-crypt".to_owned())
}

/// The verifications of a server: how many run, how many may.
#[derive(Debug)]
pub(crate) struct Turns {
    running_max: usize,
    running: Mutex<usize>,
    ended: Condvar,
    /// Held by a verification that takes much memory.
    memory: Mutex<()>,
    entered: AtomicU64,
    counts: [AtomicU64; RESULTS.len()],
}

/// Labels of the counter, in the order of [`Turns::counts`].
const RESULTS: [&str; 3] = ["result=\"wrong\"", "result=\"right\"", "result=\"too_many\""];

/// A verification that waits or runs.
#[derive(Debug)]
struct Entered(Arc<Turns>);

/// A verification that runs.
struct Turn<'a>(&'a Turns);

impl Turns {
    pub(crate) fn new() -> Turns {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Turns {
            running_max: (processors / 2).clamp(1, ENTERED_MAX / 2),
            running: Mutex::default(),
            ended: Condvar::new(),
            memory: Mutex::default(),
            entered: AtomicU64::new(0),
            counts: Default::default(),
        }
    }

    fn enter(turns: &Arc<Turns>) -> Option<Entered> {
        let before = turns.entered.fetch_add(1, Relaxed);
        let entered = Entered(Arc::clone(turns));
        if before >= ENTERED_MAX as u64 {
            turns.counts[2].fetch_add(1, Relaxed);
            return None;
        }
        Some(entered)
    }

    /// Passwords that were verified, by the label of the result.
    pub(crate) fn results(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let values = self.counts.iter().map(|count| count.load(Relaxed));
        RESULTS.into_iter().zip(values)
    }
}

impl Entered {
    fn wait(&self) -> Turn<'_> {
        let turns = &*self.0;
        let running = turns.running.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |running: &mut usize| *running >= turns.running_max;
        let waited = turns.ended.wait_while(running, is_full);
        *waited.unwrap_or_else(PoisonError::into_inner) += 1;
        Turn(turns)
    }

    fn count(&self, is_right: bool) {
        self.0.counts[usize::from(is_right)].fetch_add(1, Relaxed);
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.entered.fetch_sub(1, Relaxed);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BCRYPT: &str = "$2y$05$moVMxgvaU.bsSB4igbN1He92S6hDzMyTpylMLQ7o6kd0ogaYH5.o.";
    /// A vector of the reference implementation.
    const ARGON2: &str =
        "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";

    fn credentials(name: &str, password: &str) -> Vec<u8> {
        format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))).into_bytes()
    }

    #[test]
    fn each_kind_of_hash_is_verified() {
        for (password, hash) in [
            ("p\u{e4}:ss", BCRYPT),
            ("lovelace", "$2b$04$pp32LjLD0leoZw86AMsMpeRuhkev3ggLS6Bt2/3s5X9cpL8IuMz.q"),
            (
                "builder",
                "$6$abcdefgh$8Iq8TGgzC4OgfMQCkbmLOQ7Hr2Ef.PgAqnpCQsiHMnIpldI6EGfVM5qvoHuXvnIqbnz1inKvQS/4oDr68dZL81",
            ),
            ("builder", "$5$abcdefgh$Ah.olTBNiu5aUesB36SI0rYGmXIxg2ZsbETU/owy6i8"),
            (
                "builder",
                "$5$rounds=1000$B6eqfRoX9IZyXCId$s5Xf/xWBrzBR9LWg8V42mxU3b1eUzHvDxGHpTr.AvT0",
            ),
            ("password", ARGON2),
        ] {
            let users = parse(format!("# users\n\nother:{ARGON2}\nann:{hash}\r\n").as_bytes());
            let users = users.unwrap();
            let verify = |name, word| users.verify(&credentials(name, word), &Mutex::default());
            assert_eq!(verify("ann", password).as_deref(), Some(&b"ann"[..]), "{hash}");
            for (name, password) in [("ann", "wrong"), ("ann", ""), ("eve", password), ("", "")] {
                assert_eq!(verify(name, password), None, "{hash} {name}");
            }
        }
        // With the byte order mark of editors, and the comments of nginx.
        let users = parse(format!("\u{feff}ann:{ARGON2}:Ann of sales\r\n").as_bytes()).unwrap();
        let verified = users.verify(&credentials("ann", "password"), &Mutex::default());
        assert_eq!(verified.as_deref(), Some(&b"ann"[..]));
        assert_eq!(users.verify(b"Basic", &Mutex::default()), None);
    }

    #[test]
    fn wrong_lines_are_refused() {
        for (text, why) in [
            ("", "no users"),
            ("# none\n", "no users"),
            ("ann", "line 1: it is not NAME:HASH"),
            (":$2y$", "line 1: it is not NAME:HASH"),
            ("dave:$apr1$01/T/noA$BMUyROJSM3a32bpDR0qIq0", "too weak; htpasswd -B"),
            ("e:{SHA}EfatjsUqKYSrqv18O1FlA3hcIHI=", "is not bcrypt"),
            ("f:v3sEr2TZMIIX.", "is not bcrypt"),
            ("g:plain", "is not bcrypt"),
            ("h:", "is not bcrypt"),
            ("i:$2y$05$short", "is not bcrypt"),
            ("j:$argon2id$v=19$m=256", "line 1"),
            ("k:$5$salt$short", "its length is wrong"),
            ("k:$6$salt$", "its length is wrong"),
            ("k:$5$rounds=abc$salt$s5Xf/xWBrzBR9LWg8V42mxU3b1eUzHvDxGHpTr.AvT0", "its rounds"),
            ("k:$5$rounds=+5000$salt$s5Xf/xWBrzBR9LWg8V42mxU3b1eUzHvDxGHpTr.AvT0", "its rounds"),
            ("k:$5$rounds=999$salt$s5Xf/xWBrzBR9LWg8V42mxU3b1eUzHvDxGHpTr.AvT0", "its rounds"),
            ("k:$5$round=5000$salt$s5Xf/xWBrzBR9LWg8V42mxU3b1eUzHvDxGHpTr.AvT0", "its rounds"),
            ("k:$5$rounds=5000$s5Xf/xWBrzBR9LWg8V42mxU3b1eUzHvDxGHpTr.AvT0", "its salt"),
            ("k:$5$$s5Xf/xWBrzBR9LWg8V42mxU3b1eUzHvDxGHpTr.AvT0", "its salt"),
            ("k:$5$salt$s5Xf/xWBrzBR9LWg8V42mxU3b1eUzHvDxGHpTr.AvTz", "its letters"),
            ("k:$5$salt$s5Xf-xWBrzBR9LWg8V42mxU3b1eUzHvDxGHpTr.AvT0", "its letters"),
            ("l:$2y$+5$moVMxgvaU.bsSB4igbN1He92S6hDzMyTpylMLQ7o6kd0ogaYH5.o.", "no number"),
            ("l:$2y$05$moVMxgvaU!bsSB4igbN1He92S6hDzMyTpylMLQ7o6kd0ogaYH5.o.", "nvalid"),
            (
                "m:$argon2id$v=19$m=4294967296,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4",
                "line 1",
            ),
            (
                "m:$argon2id$v=19$m=65537,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4",
                "65537 is more than 65536",
            ),
            (
                "k:$5$rounds=1000001$salt$s5Xf/xWBrzBR9LWg8V42mxU3b1eUzHvDxGHpTr.AvT0",
                "1000001 is more than 1000000",
            ),
        ] {
            let refused = parse(text.as_bytes()).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
        let newer = format!("a:{}", ARGON2.replace("v=19", "v=99"));
        assert_eq!(
            parse(newer.as_bytes()).unwrap_err(),
            "line 1: there is no version 99 of argon2"
        );
        let costly = BCRYPT.replace("$05$", "$15$");
        let refused = parse(format!("a:{ARGON2}\n\nl:{costly}").as_bytes()).unwrap_err();
        assert_eq!(refused, "line 3: the cost 15 is more than 14");
        for (limit, most) in [("m=256", "m=999999"), ("t=2", "t=17")] {
            let costly = ARGON2.replace(limit, most);
            assert!(parse(format!("m:{costly}").as_bytes()).is_err(), "{most}");
        }
        let twice = format!("a:{ARGON2}\na:{BCRYPT}\n");
        assert!(parse(twice.as_bytes()).unwrap_err().contains("line 2: the name"));
    }

    #[test]
    fn few_credentials_are_remembered() {
        let users = parse(format!("a:{ARGON2}").as_bytes()).unwrap();
        for n in 0..3 * VERIFIED_MAX as u64 {
            users.remember([n, n], b"a"[..].into());
        }
        assert_eq!(users.verified.read().unwrap().len(), VERIFIED_MAX);
        let last = 3 * VERIFIED_MAX as u64 - 1;
        assert!(users.verified.read().unwrap().contains_key(&[last, last]));
        assert_ne!(users.key(b"a"), users.key(b"b"));
        assert_ne!(users.key(b"a")[0], users.key(b"a")[1]);
    }

    #[test]
    fn few_verifications_run_and_wait() {
        let turns = Arc::new(Turns::new());
        let entered: Vec<_> = (0..3 * ENTERED_MAX).map(|_| Turns::enter(&turns)).collect();
        assert_eq!(entered.iter().flatten().count(), ENTERED_MAX);
        let value = |wanted: &str| {
            let mut results = turns.results();
            results.find(|(label, _)| *label == wanted).unwrap().1
        };
        assert_eq!(value(RESULTS[2]), 2 * ENTERED_MAX as u64);
        drop(entered);

        let users = Arc::new(parse(format!("ann:{ARGON2}").as_bytes()).unwrap());
        let run = |password: &str| {
            let verification = Verification {
                users: Arc::clone(&users),
                credentials: credentials("ann", password).into(),
                entered: Turns::enter(&turns).unwrap(),
            };
            verification.run()
        };
        std::thread::scope(|scope| {
            for n in 0..ENTERED_MAX {
                let password = if n % 2 == 0 { "password" } else { "wrong" };
                scope.spawn(move || assert_eq!(run(password), n % 2 == 0));
            }
        });
        assert_eq!([value(RESULTS[0]), value(RESULTS[1])], [ENTERED_MAX as u64 / 2; 2]);
        assert_eq!(*turns.running.lock().unwrap(), 0);
        assert_eq!(turns.entered.load(Relaxed), 0);
    }

    #[test]
    fn changed_file_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        std::fs::write(&path, format!("ann:{ARGON2}\n")).unwrap();
        let start = Now::read();
        let passwords = Passwords::open(&path, start).unwrap();
        let recheck_every = Duration::from_secs(1);
        let mut at_s = 10;
        let mut later = || {
            at_s += 10;
            let since = Duration::from_secs(at_s);
            Now { monotonic: start.monotonic + since, since_epoch: start.since_epoch + since }
        };
        let opens = |passwords: &Passwords, name: &str| {
            let users = passwords.users.load();
            users.verify(&credentials(name, "password"), &Mutex::default()).is_some()
        };
        let now = later();
        assert!(passwords.is_due(now, recheck_every) && passwords.refresh(now).is_ok());
        assert!(!passwords.is_due(now, recheck_every) && !passwords.is_due(now, Duration::ZERO));
        passwords.users.load().remember([1, 1], b"ann"[..].into());
        passwords.refresh(later()).unwrap();
        assert!(passwords.users.load().verified.read().unwrap().contains_key(&[1, 1]));

        std::fs::write(&path, format!("robert:{ARGON2}\n")).unwrap();
        passwords.refresh(later()).unwrap();
        assert!(opens(&passwords, "robert") && !opens(&passwords, "ann"));
        assert!(passwords.users.load().verified.read().unwrap().is_empty());

        std::fs::write(&path, "robert:plain\n").unwrap();
        let why = passwords.refresh(later()).unwrap_err();
        assert!(why.contains("line 1") && why.contains("the old one stays"), "{why}");
        assert!(passwords.refresh(later()).is_ok(), "the problem is reported once");
        assert!(opens(&passwords, "robert"));

        std::fs::remove_file(&path).unwrap();
        assert!(passwords.refresh(later()).unwrap_err().contains("cannot be read"));
        assert!(opens(&passwords, "robert"));

        // A file written just now may be incomplete.
        std::fs::write(&path, format!("ann:{ARGON2}\n")).unwrap();
        let (Some(changed), ..) = state(&path) else { panic!("the file exists") };
        let since_epoch = changed + QUIET_PERIOD / 2;
        passwords.refresh(Now { since_epoch, ..later() }).unwrap();
        assert!(opens(&passwords, "robert"));
        passwords.refresh(later()).unwrap();
        assert!(opens(&passwords, "ann"));

        // Written by a clock that is ahead.
        std::fs::write(&path, format!("robert:{ARGON2}\n")).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        let ahead = std::time::SystemTime::now() + Duration::from_secs(86_400);
        file.set_modified(ahead).unwrap();
        passwords.refresh(later()).unwrap();
        assert!(opens(&passwords, "robert") && !opens(&passwords, "ann"));

        // Same inode, length and modification time: rsync --inplace --times.
        let (_, len, inode) = state(&path);
        let modified = file.metadata().unwrap().modified().unwrap();
        std::fs::write(&path, format!("ronald:{ARGON2}\n")).unwrap();
        file.set_modified(modified).unwrap();
        assert_eq!((state(&path).1, state(&path).2), (len, inode));
        passwords.refresh(later()).unwrap();
        assert!(opens(&passwords, "ronald") && !opens(&passwords, "robert"));
    }
}
