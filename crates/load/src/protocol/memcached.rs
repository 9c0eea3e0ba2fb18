//! memcached client: the classic text protocol and the meta commands.
//!
//! A key's length, and its value's length and content, follow from the key's number and the seed
//! alone. So every returned value can be compared, no matter when it was stored and by which run.

use std::collections::VecDeque;

use memchr::memchr;

use super::{Read, Reply};
use crate::plan::{Cache, CacheProtocol, Expected, KEY_BYTES_MAX, KEY_DIGITS, VALUE_BYTES_MAX};
use crate::random::Random;
use crate::workload::distribution::{Chooser, Distribution};

/// Size of the block that values are cut from, at an offset that follows from the key.
const BLOCK_BYTES: usize = 64 * 1024;
const LINE_BYTES_MAX: usize = 8192;
/// Surplus values after which a reply is taken as endless.
const VALUES_TOO_MANY_MAX: u32 = 1000;

/// Writer of commands.
pub(crate) struct Commands {
    plan: Cache,
    chooser: Chooser,
    random: Random,
    set_share: f64,
    block: Box<[u8]>,
    seed: u64,
    /// The keys of the last get, if it has several.
    listed: Vec<u64>,
}

impl Commands {
    pub(crate) fn new(plan: &Cache, seed: u64, thread: u32) -> Commands {
        let mut block = vec![0; BLOCK_BYTES];
        Random::new(seed).fill(&mut block);
        // Printable, so that a person can read the stored values.
        block.iter_mut().for_each(|byte| *byte = b'a' + *byte % 26);
        Commands {
            chooser: plan.popularity.chooser(plan.keys),
            plan: plan.clone(),
            random: Random::stream(seed, u64::from(thread) + 1_000),
            set_share: plan.set_percent / 100.0,
            block: block.into(),
            seed,
            listed: Vec::new(),
        }
    }

    /// Draws the next command; true for a `set`.
    pub(crate) fn next_is_set(&mut self) -> bool {
        self.set_share > 0.0 && self.random.unit() < self.set_share
    }

    /// Appends a get of the plan's number of keys. Returns the last key; [`Commands::listed`] has
    /// all, if there are several.
    pub(crate) fn get(&mut self, out: &mut Vec<u8>) -> u64 {
        let keys = self.plan.keys_per_get;
        let mut key = 0;
        self.listed.clear();
        match self.plan.protocol {
            CacheProtocol::Text => {
                out.extend_from_slice(b"get");
                for _ in 0..keys {
                    out.push(b' ');
                    key = self.choose(keys);
                    self.key(key, out);
                }
                out.extend_from_slice(b"\r\n");
            }
            CacheProtocol::Meta => {
                for _ in 0..keys {
                    out.extend_from_slice(b"mg ");
                    key = self.choose(keys);
                    self.key(key, out);
                    // k: return the key; q: no reply for a miss, as in a multi-get.
                    out.extend_from_slice(if keys == 1 { b" k v\r\n" } else { b" k v q\r\n" });
                }
                if keys > 1 {
                    out.extend_from_slice(b"mn\r\n");
                }
            }
        }
        key
    }

    fn choose(&mut self, keys: u32) -> u64 {
        let key = self.chooser.choose(&mut self.random);
        if keys > 1 {
            self.listed.push(key);
        }
        key
    }

    /// The keys of the last get, if it has several.
    pub(crate) fn listed(&self) -> &[u64] {
        &self.listed
    }

    /// Appends a set of a key drawn by popularity, and returns the key.
    pub(crate) fn set(&mut self, out: &mut Vec<u8>) -> u64 {
        let key = self.chooser.choose(&mut self.random);
        self.set_key(key, out);
        key
    }

    /// Appends a set of this key.
    pub(crate) fn set_key(&self, key: u64, out: &mut Vec<u8>) {
        use std::io::Write;
        let length = self.value_length(key);
        let exptime = self.plan.exptime_s;
        out.extend_from_slice(match self.plan.protocol {
            CacheProtocol::Text => b"set ",
            CacheProtocol::Meta => b"ms ",
        });
        self.key(key, out);
        // Writing to memory does not fail.
        let _ = match self.plan.protocol {
            CacheProtocol::Text => write!(out, " 0 {exptime} {length}\r\n"),
            CacheProtocol::Meta if exptime == 0 => write!(out, " {length}\r\n"),
            CacheProtocol::Meta => write!(out, " {length} T{exptime}\r\n"),
        };
        for piece in self.value(key, length) {
            out.extend_from_slice(piece);
        }
        out.extend_from_slice(b"\r\n");
    }

    fn key(&self, key: u64, out: &mut Vec<u8>) {
        if let Some(template) = &self.plan.template {
            return template.write(key, out);
        }
        let begins = out.len();
        out.extend_from_slice(self.plan.key_prefix.as_bytes());
        let mut digits = [b'0'; KEY_DIGITS];
        let mut left = key;
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (left % 10) as u8;
            left /= 10;
        }
        out.extend_from_slice(&digits);
        let at_least = out.len() - begins;
        let length = match self.plan.key_bytes {
            Distribution::Fixed(bytes) => bytes as usize,
            _ => {
                self.plan.key_bytes.draw_size(&mut self.random_of(key, 1), at_least, KEY_BYTES_MAX)
            }
        };
        out.resize(begins + length.clamp(at_least, KEY_BYTES_MAX), b'x');
    }

    fn value_length(&self, key: u64) -> usize {
        match self.plan.value_bytes {
            Distribution::Fixed(bytes) => (bytes as usize).min(VALUE_BYTES_MAX),
            _ => self.plan.value_bytes.draw_size(&mut self.random_of(key, 2), 0, VALUE_BYTES_MAX),
        }
    }

    fn random_of(&self, key: u64, use_number: u64) -> Random {
        Random::stream(self.seed ^ use_number << 56, key)
    }

    /// Content of a key's value, in pieces.
    fn value(&self, key: u64, length: usize) -> impl Iterator<Item = &[u8]> {
        let mut at = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) as usize % BLOCK_BYTES;
        let mut left = length;
        std::iter::from_fn(move || {
            let piece = &self.block[at..(at + left).min(BLOCK_BYTES)];
            left -= piece.len();
            at = 0;
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// Number of a key, if it is one of this run.
    fn number(&self, key: &[u8]) -> Option<u64> {
        if let Some(template) = &self.plan.template {
            return template.index_of(key);
        }
        let rest = key.strip_prefix(self.plan.key_prefix.as_bytes())?;
        let digits = std::str::from_utf8(rest.get(..KEY_DIGITS)?).ok()?;
        digits.parse().ok()
    }

    /// True if this is the value of key number `key`.
    fn is_value(&self, key: u64, value: &[u8]) -> bool {
        let mut rest = value;
        self.value_length(key) == value.len()
            && self.value(key, value.len()).all(|piece| {
                let (this, behind) = rest.split_at(piece.len());
                rest = behind;
                this == piece
            })
    }
}

/// Request that a reply is compared with.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) commands: &'a Commands,
    /// Key, if there is one.
    pub(crate) key: u32,
    /// True for a get.
    pub(crate) is_get: bool,
    /// True if values are compared.
    pub(crate) verify: bool,
}

/// Parser of the replies of one connection.
#[derive(Default)]
pub(crate) struct Reader {
    /// Incomplete part: a line, or (with `verify`) a line and its value.
    carry: Vec<u8>,
    /// Rest of a value that is not compared.
    skip: u64,
    /// True if the CRLF of that value follows.
    wants_crlf: bool,
    /// True if a `VA` is a complete reply: the reply to a single `mg` has no end marker.
    is_single_meta: bool,
    /// True if the reply ends with the current value.
    ends: bool,
    found: u32,
    wrong: u32,
    /// Number of values that were not requested.
    unasked: u32,
    keys_per_get: u32,
    /// Keys of the multi-gets in flight, in order; each becomes [`ANSWERED`] when its value
    /// arrives.
    listed: VecDeque<u64>,
    /// Index in the oldest multi-get at which the search for the next value begins.
    next: usize,
}

/// Number of unrequested values after which the rest of a reply is not searched for.
const UNASKED_MAX: u32 = 100;

/// Marker that is no key number: those have [`KEY_DIGITS`] digits.
const ANSWERED: u64 = u64::MAX;

impl Reader {
    pub(crate) fn new(plan: &Cache) -> Reader {
        let is_single_meta = plan.protocol == CacheProtocol::Meta && plan.keys_per_get == 1;
        Reader { is_single_meta, keys_per_get: plan.keys_per_get, ..Reader::default() }
    }

    /// Notes the keys of a multi-get.
    pub(crate) fn note(&mut self, listed: &[u64]) {
        self.listed.extend(listed);
    }

    /// Reads from `input` and advances it past the used bytes.
    pub(crate) fn read(&mut self, input: &mut &[u8], request: Request<'_>) -> Read {
        if self.carry.is_empty() {
            let read = self.read_from(input, request);
            if read == Read::More {
                self.carry.extend_from_slice(input);
                *input = &[];
            }
            return read;
        }
        // Rare: the last receive ended inside a line.
        let mut carry = std::mem::take(&mut self.carry);
        let before = carry.len();
        carry.extend_from_slice(input);
        let mut rest = &carry[..];
        let read = self.read_from(&mut rest, request);
        let used = carry.len() - rest.len();
        if used >= before {
            *input = &input[used - before..];
            carry.clear();
        } else {
            // The kept part has more than one line of a reply: keep the rest of it.
            *input = &[];
            carry.drain(..used);
        }
        if read == Read::More {
            carry.extend_from_slice(input);
            *input = &[];
        }
        self.carry = carry;
        read
    }

    fn read_from(&mut self, input: &mut &[u8], request: Request<'_>) -> Read {
        loop {
            if self.skip > 0 {
                let skipped = self.skip.min(input.len() as u64);
                *input = &input[skipped as usize..];
                self.skip -= skipped;
                if self.skip > 0 {
                    return Read::More;
                }
            }
            if self.wants_crlf {
                let Some((crlf, rest)) = input.split_at_checked(2) else {
                    return Read::More;
                };
                if crlf != b"\r\n" {
                    return Read::Broken;
                }
                *input = rest;
                self.wants_crlf = false;
            }
            if std::mem::take(&mut self.ends) {
                return self.end(request, self.reply(200, Some(false)));
            }
            let Some(end) = memchr(b'\n', input) else {
                // Otherwise it would be awaited until the time-out, as if the server were silent.
                let may_become_line = input.first().is_none_or(u8::is_ascii_uppercase);
                let is_short = input.len() <= LINE_BYTES_MAX;
                return if may_become_line && is_short { Read::More } else { Read::Broken };
            };
            let (line, rest) = input.split_at(end + 1);
            match line_of(line.trim_ascii_end()) {
                ReplyLine::Reply(status, answers_set) => {
                    *input = rest;
                    return self.end(request, self.reply(status, answers_set));
                }
                ReplyLine::ValueHeader(_)
                    if self.found >= self.keys_per_get + VALUES_TOO_MANY_MAX =>
                {
                    return Read::Broken;
                }
                ReplyLine::Broken => return Read::Broken,
                ReplyLine::ValueHeader(value) => {
                    let found = self.find(&value, request);
                    let expected = found.map(|(key, _)| key).filter(|key| {
                        request.commands.value_length(*key) == value.length && value.has_no_flags
                    });
                    let is_right = match (request.verify, expected) {
                        (true, Some(key)) => {
                            let Some((content, behind)) = rest.split_at_checked(value.length + 2)
                            else {
                                return Read::More;
                            };
                            *input = behind;
                            let Some(content) = content.strip_suffix(b"\r\n") else {
                                return Read::Broken;
                            };
                            request.commands.is_value(key, content)
                        }
                        // A value of the wrong length is not buffered.
                        (verify, _) => {
                            self.skip = value.length as u64;
                            self.wants_crlf = true;
                            *input = rest;
                            found.is_some() && !verify
                        }
                    };
                    if let Some((_, Some(at))) = found {
                        self.listed[at] = ANSWERED;
                        self.next = at + 1;
                    }
                    self.unasked += u32::from(found.is_none());
                    self.found += 1;
                    self.wrong += u32::from(!is_right);
                    self.ends = self.is_single_meta;
                }
            }
        }
    }

    /// Key of a value and its index in the list, if it was requested and has not arrived yet.
    fn find(&self, value: &ValueHeader<'_>, request: Request<'_>) -> Option<(u64, Option<usize>)> {
        let key = request.commands.number(value.key)?;
        if self.keys_per_get == 1 {
            return (key as u32 == request.key).then_some((key, None));
        }
        // Values come in the order of the keys; a proxy may change it.
        let all = if request.is_get && self.unasked < UNASKED_MAX {
            self.listed.len().min(self.keys_per_get as usize)
        } else {
            0
        };
        let mut places = (self.next.min(all)..all).chain(0..self.next.min(all));
        let at = places.find(|at| self.listed[*at] == key)?;
        Some((key, Some(at)))
    }

    /// Ends a reply and forgets its keys.
    fn end(&mut self, request: Request<'_>, reply: Reply) -> Read {
        (self.found, self.wrong, self.unasked, self.next) = (0, 0, 0, 0);
        if request.is_get && self.keys_per_get > 1 {
            let answered = self.listed.len().min(self.keys_per_get as usize);
            self.listed.drain(..answered);
        }
        Read::Reply(reply)
    }

    /// Number of next bytes that need not be read.
    pub(crate) fn skippable(&self) -> u64 {
        self.skip
    }

    /// Notes that `bytes` bytes were discarded.
    pub(crate) fn skipped(&mut self, bytes: u64) {
        self.skip -= bytes;
    }

    /// Resets the parser for a new connection.
    pub(crate) fn reset(&mut self) {
        self.carry.clear();
        // A buffer grown by a bad reply is not kept.
        self.carry.shrink_to(LINE_BYTES_MAX);
        self.listed.clear();
        (self.skip, self.wants_crlf, self.ends) = (0, false, false);
        (self.found, self.wrong, self.unasked, self.next) = (0, 0, 0, 0);
    }

    fn reply(&self, status: u16, answers_set: Option<bool>) -> Reply {
        let body = Expected { bytes: 0, crc32: 0 };
        Reply { status, closes: false, found: self.found, wrong: self.wrong, answers_set, body }
    }
}

enum ReplyLine<'a> {
    ValueHeader(ValueHeader<'a>),
    /// End of a reply: its status, and true if it answers a set.
    Reply(u16, Option<bool>),
    Broken,
}

/// Header line of a value.
struct ValueHeader<'a> {
    key: &'a [u8],
    length: usize,
    /// This client stores none.
    has_no_flags: bool,
}

fn line_of(line: &[u8]) -> ReplyLine<'_> {
    let mut words = line.split(|&byte| byte == b' ');
    match words.next().unwrap_or_default() {
        b"VALUE" => {
            let (key, flags, length) = (words.next(), words.next(), words.next());
            value(key.unwrap_or_default(), flags == Some(b"0"), length)
        }
        b"VA" => {
            let length = words.next();
            let key = words.find_map(|word| word.strip_prefix(b"k"));
            value(key.unwrap_or_default(), true, length)
        }
        b"END" | b"EN" | b"MN" => ReplyLine::Reply(200, Some(false)),
        b"STORED" | b"HD" => ReplyLine::Reply(200, Some(true)),
        b"ERROR" | b"CLIENT_ERROR" => ReplyLine::Reply(400, None),
        // A plain set fails only because of the server.
        b"SERVER_ERROR" | b"NS" | b"NOT_STORED" => ReplyLine::Reply(500, None),
        _ => ReplyLine::Broken,
    }
}

fn value<'a>(key: &'a [u8], has_no_flags: bool, length: Option<&[u8]>) -> ReplyLine<'a> {
    let length = length
        .and_then(|digits| std::str::from_utf8(digits).ok())
        .and_then(|digits| digits.parse().ok())
        .filter(|&length: &usize| length <= 1 << 30);
    match length {
        Some(length) => ReplyLine::ValueHeader(ValueHeader { key, length, has_no_flags }),
        None => ReplyLine::Broken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::distribution::Popularity;

    fn plan(protocol: CacheProtocol, keys_per_get: u32) -> Cache {
        Cache {
            protocol,
            set_percent: 0.0,
            keys: 100,
            template: None,
            key_prefix: "k-".to_owned(),
            key_bytes: "uniform:12-20".parse().unwrap(),
            value_bytes: "uniform:0-200".parse().unwrap(),
            popularity: Popularity::Sequential,
            keys_per_get,
            exptime_s: 0,
            populate: false,
        }
    }

    /// Reads a conversation cut into two at every byte; each cut must come to the same replies.
    fn replies(plan: &Cache, said: &[u8], key: u32, verify: bool) -> Vec<(u8, u32, u32)> {
        replies_to(plan, said, key, &[], verify)
    }

    /// Replies to multi-gets of the keys of this list; see [`replies`].
    fn replies_to(
        plan: &Cache,
        said: &[u8],
        key: u32,
        listed: &[u64],
        verify: bool,
    ) -> Vec<(u8, u32, u32)> {
        let commands = &Commands::new(plan, 1, 0);
        let request = Request { commands, key, is_get: true, verify };
        let read_all = |cut: usize| {
            let mut reader = Reader::new(plan);
            reader.note(listed);
            let mut found = Vec::new();
            for mut piece in [&said[..cut], &said[cut..]] {
                loop {
                    match reader.read(&mut piece, request) {
                        Read::More => break,
                        Read::Broken => {
                            found.push((0, 0, 0));
                            return found;
                        }
                        Read::Reply(reply) => {
                            let class = (reply.status / 100) as u8;
                            found.push((class, reply.found, reply.wrong));
                        }
                    }
                }
            }
            found
        };
        let whole = read_all(0);
        for cut in 1..said.len() {
            assert_eq!(read_all(cut), whole, "cut at {cut}");
        }
        whole
    }

    #[test]
    fn replies_of_the_text_protocol() {
        let said = b"VALUE k-0000000001 0 3\r\na\r\n\r\nVALUE k-0000000002 0 0\r\n\r\nEND\r\n\
                     END\r\nSTORED\r\nSERVER_ERROR out of memory\r\nERROR\r\n";
        let expected = [(2, 2, 0), (2, 0, 0), (2, 0, 0), (5, 0, 0), (4, 0, 0)];
        let plan = plan(CacheProtocol::Text, 2);
        assert_eq!(replies_to(&plan, said, 2, &[1, 2], false), expected);
    }

    #[test]
    fn ends_of_meta_gets() {
        let single = b"VA 2 kk-0000000001\r\nab\r\nEN\r\nHD\r\n";
        let expected = [(2, 1, 0), (2, 0, 0), (2, 0, 0)];
        let one = plan(CacheProtocol::Meta, 1);
        assert_eq!(replies(&one, single, 1, false), expected);
        let many = b"VA 2 kk-0000000001\r\nab\r\nVA 0 kk-0000000002\r\n\r\nMN\r\nMN\r\n";
        let three = plan(CacheProtocol::Meta, 3);
        let listed = [1, 9, 2, 3, 4, 5];
        let replies = replies_to(&three, many, 2, &listed, false);
        assert_eq!(replies, [(2, 2, 0), (2, 0, 0)]);
    }

    /// Length of a key's value, and the reply to its get.
    fn reply_with(commands: &Commands, key: u64) -> (usize, Vec<u8>) {
        let mut set = Vec::new();
        commands.set_key(key, &mut set);
        // "set KEY 0 0 LENGTH" becomes "VALUE KEY 0 LENGTH".
        let end = memchr(b'\n', &set).unwrap() + 1;
        let line = String::from_utf8(set[..end].to_vec()).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut said = format!("VALUE {} 0 {}\r\n", words[1], words[4]).into_bytes();
        said.extend_from_slice(&set[end..]);
        said.extend_from_slice(b"END\r\n");
        (words[4].parse().unwrap(), said)
    }

    #[test]
    fn values_are_known_by_their_keys() {
        let plan = plan(CacheProtocol::Text, 1);
        let commands = Commands::new(&plan, 1, 0);
        for key in 0..20 {
            let (length, mut said) = reply_with(&commands, key);
            let key = key as u32;
            assert_eq!(replies(&plan, &said, key, true), [(2, 1, 0)]);
            // The right value, of another key.
            assert_eq!(replies(&plan, &said, key + 1, true), [(2, 1, 1)]);
            // It was stored without flags.
            let flagged = String::from_utf8(said.clone()).unwrap();
            let flagged = flagged.replacen(" 0 ", " 5 ", 1);
            assert_eq!(replies(&plan, flagged.as_bytes(), key, true), [(2, 1, 1)]);
            assert_eq!(replies(&plan, flagged.as_bytes(), key, false), [(2, 1, 0)]);
            if length > 0 {
                let value = said.len() - b"\r\nEND\r\n".len() - 1;
                said[value] ^= 1;
                assert_eq!(replies(&plan, &said, key, true), [(2, 1, 1)]);
            }
        }
    }

    /// Seen: without --verify a cache that answered each get with another key's value passed.
    /// Cause: only the length in a value's header line was read. Cure: its key is always compared.
    #[test]
    fn value_under_another_key_is_wrong() {
        for (protocol, said) in [
            (CacheProtocol::Text, &b"VALUE k-0000000001 0 1\r\nx\r\nEND\r\n"[..]),
            (CacheProtocol::Meta, b"VA 1 kk-0000000001\r\nx\r\n"),
        ] {
            let plan = plan(protocol, 1);
            assert_eq!(replies(&plan, said, 1, false), [(2, 1, 0)]);
            assert_eq!(replies(&plan, said, 2, false), [(2, 1, 1)]);
        }
        let plan = plan(CacheProtocol::Text, 1);
        for no_key in ["k-000000001", "x-0000000001", "k-00000000x1", ""] {
            let said = format!("VALUE {no_key} 0 1\r\nx\r\nEND\r\n");
            assert_eq!(replies(&plan, said.as_bytes(), 1, false), [(2, 1, 1)]);
        }
    }

    /// Seen: without --verify a value with other bytes in place of its CRLF passed. Cause: the two
    /// bytes were skipped together with the value. Cure: they are always compared.
    #[test]
    fn value_without_its_crlf_is_broken() {
        for (protocol, said) in [
            (CacheProtocol::Text, &b"VALUE k-0000000001 0 1\r\nxyzEND\r\n"[..]),
            (CacheProtocol::Text, b"VALUE k-0000000001 0 0\r\n\r.END\r\n"),
            (CacheProtocol::Meta, b"VA 1 kk-0000000001\r\nxyz"),
        ] {
            assert_eq!(replies(&plan(protocol, 1), said, 1, false), [(0, 0, 0)]);
        }
        let plan = plan(CacheProtocol::Text, 1);
        let (_, mut said) = reply_with(&Commands::new(&plan, 1, 0), 7);
        let crlf = said.len() - b"\r\nEND\r\n".len();
        said[crlf] = b'x';
        for verify in [false, true] {
            assert_eq!(replies(&plan, &said, 7, verify), [(0, 0, 0)]);
        }
    }

    /// Seen: a cache that answered a get of ten keys with ten values of another key passed. Cause:
    /// any key of the run counted as requested. Cure: the keys of each get are kept until it is
    /// answered, and each counts once.
    #[test]
    fn multi_get_values_match_its_keys() {
        let text = |keys: &[u64]| {
            let value = |key: &u64| format!("VALUE k-{key:010} 0 1\r\nx\r\n");
            keys.iter().map(value).collect::<String>() + "END\r\n"
        };
        let meta = |keys: &[u64]| {
            let value = |key: &u64| format!("VA 1 kk-{key:010}\r\nx\r\n");
            keys.iter().map(value).collect::<String>() + "MN\r\n"
        };
        let both = |said: &[&[u64]], expected: &[(u8, u32, u32)]| {
            // Two gets of three keys.
            let listed = [7, 8, 7, 1, 2, 3];
            let texts: String = said.iter().map(|keys| text(keys)).collect();
            let metas: String = said.iter().map(|keys| meta(keys)).collect();
            for (protocol, said) in [(CacheProtocol::Text, texts), (CacheProtocol::Meta, metas)] {
                let plan = plan(protocol, 3);
                let replies = replies_to(&plan, said.as_bytes(), 7, &listed, false);
                assert_eq!(replies, expected, "{said}");
            }
        };
        both(&[&[7, 8, 7], &[1, 2, 3]], &[(2, 3, 0), (2, 3, 0)]);
        both(&[&[8], &[]], &[(2, 1, 0), (2, 0, 0)]);
        // In another order, as a proxy may bring them.
        both(&[&[7, 7, 8], &[3, 1]], &[(2, 3, 0), (2, 2, 0)]);
        // Another key, one twice, and one of the other get.
        both(&[&[7, 9], &[1, 1]], &[(2, 2, 1), (2, 2, 1)]);
        both(&[&[1, 2], &[7, 8]], &[(2, 2, 2), (2, 2, 2)]);
        // More values than requested.
        both(&[&[7, 8, 7, 7]], &[(2, 4, 1)]);
    }

    /// Searching a list of ten thousand keys again and again would slow the generator down.
    #[test]
    fn search_for_unasked_values_is_bounded() {
        let plan = plan(CacheProtocol::Text, 200);
        let listed: Vec<u64> = (0..400).collect();
        let value = |key: u64| format!("VALUE k-{key:010} 0 1\r\nx\r\n");
        // Unrequested values, then a requested one.
        let said = |unasked: u64, key| {
            let values: String = (500..500 + unasked).map(value).collect();
            values + &value(key) + "END\r\n"
        };
        let most = u64::from(UNASKED_MAX);
        // The next reply is searched again.
        let said = said(most, 3) + &said(most - 1, 203);
        let mut reader = Reader::new(&plan);
        reader.note(&listed);
        let commands = &Commands::new(&plan, 1, 0);
        let request = Request { commands, key: 0, is_get: true, verify: false };
        let mut input = said.as_bytes();
        for (found, wrong) in [(most + 1, most + 1), (most, most - 1)] {
            let Read::Reply(reply) = reader.read(&mut input, request) else {
                panic!("no reply");
            };
            let counted = (u64::from(reply.found), u64::from(reply.wrong));
            assert_eq!(counted, (found, wrong));
        }
    }

    #[test]
    fn values_without_end_are_broken() {
        let plan = plan(CacheProtocol::Text, 3);
        let commands = &Commands::new(&plan, 1, 0);
        let request = Request { commands, key: 1, is_get: true, verify: false };
        let mut reader = Reader::new(&plan);
        let value = b"VALUE k-0000000001 0 1\r\nx\r\n";
        let is_broken = |_| reader.read(&mut &value[..], request) == Read::Broken;
        assert_eq!((0..2000).position(is_broken), Some(1003));
    }

    /// Seen: with --verify a server that announced values of a gigabyte made the generator keep
    /// them whole, for each connection. Cause: a value was compared once it was complete. Cure: a
    /// wrong length fails at once, and the value is dropped unread.
    #[test]
    fn overlong_value_is_wrong() {
        let plan = plan(CacheProtocol::Text, 1);
        let commands = &Commands::new(&plan, 1, 0);
        let request = Request { commands, key: 1, is_get: true, verify: true };
        let mut reader = Reader::new(&plan);
        let head = b"VALUE k-0000000001 0 1000000000\r\n";
        assert_eq!(reader.read(&mut &head[..], request), Read::More);
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..953 {
            assert_eq!(reader.read(&mut &piece[..], request), Read::More);
            assert!(reader.carry.is_empty(), "{} bytes are kept", reader.carry.len());
        }
        let left = 1_000_000_000 - (953 << 20);
        let rest = [&piece[..left], b"\r\nEND\r\n"].concat();
        let Read::Reply(reply) = reader.read(&mut &rest[..], request) else {
            panic!("no reply");
        };
        assert_eq!((reply.found, reply.wrong), (1, 1));
    }

    /// Seen: a server that answered a plain get with an alert of TLS, or in memcached's binary
    /// protocol, was silent until the time-out. Cause: without a line end there was no line yet.
    /// Cure: replies begin with a capital letter.
    #[test]
    fn nonsense_is_broken() {
        for nonsense in [
            &b"VALUE a 0 x\r\n"[..],
            b"HTTP/1.1 400 Bad Request\r\n",
            b"VALUE\r\n",
            b"\x15\x03\x03\x00\x02\x02\x46",
            b"\x81\x00\x00",
        ] {
            let plan = plan(CacheProtocol::Text, 1);
            assert_eq!(replies(&plan, nonsense, 0, false), [(0, 0, 0)]);
        }
    }

    #[test]
    fn the_same_seed_asks_for_the_same() {
        let commands = |thread| {
            let mut commands = Commands::new(&plan(CacheProtocol::Meta, 3), 9, thread);
            let mut out = Vec::new();
            for _ in 0..10 {
                commands.get(&mut out);
            }
            out
        };
        assert_eq!(commands(0), commands(0));
    }
}
