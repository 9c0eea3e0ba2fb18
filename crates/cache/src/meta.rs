//! The meta commands: `mg`, `ms`, `md`, `ma`, `me`, `mn`. Each has a key, and flags of one letter,
//! some followed by a token; the reply returns the requested data in the order of the flags.
//! memcached's doc/protocol.txt, "Meta Commands".

pub(crate) mod arithmetic;
pub(crate) mod debug;
pub(crate) mod delete;
pub(crate) mod get;
pub(crate) mod set;

use crate::conversation::Context;
use crate::number::{parse_exptime, parse_u32, parse_u64, push_decimal};
use crate::service::counters::Count;
use crate::store::{Item, NEVER, Seconds};
use crate::words::{BAD_FORMAT, KEY_LEN_MAX, Tokens, base64};

pub(crate) const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format\r\n";
pub(crate) const BAD_FLAG: &[u8] = b"CLIENT_ERROR invalid or duplicate flag\r\n";
pub(crate) const FLAGS_TOO_LONG: &[u8] = b"CLIENT_ERROR options flags are too long\r\n";
const BAD_KEY: &[u8] = b"CLIENT_ERROR error decoding key\r\n";

/// Maximum number of words in a meta command, including its name and key.
pub(crate) const WORDS_MAX: usize = 20;

/// Longest opaque, including its letter.
const OPAQUE_LEN_MAX: usize = 32;

/// Parsed flags of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flags {
    /// One bit per letter that occurs, `A` to `z`.
    seen: u64,
    /// `T`
    pub(crate) exptime: Option<Seconds>,
    /// `N`
    pub(crate) vivify: Option<Seconds>,
    /// `R`
    pub(crate) recache: Option<Seconds>,
    /// `C`
    pub(crate) cas: Option<u64>,
    /// `E`
    pub(crate) new_cas: Option<u64>,
    /// `F`
    pub(crate) client_flags: u32,
    /// `J`
    pub(crate) initial: u64,
    /// `D`
    pub(crate) delta: u64,
    /// `M`
    pub(crate) mode: Option<u8>,
    /// `O` has more than [`OPAQUE_LEN_MAX`] bytes. This error is reported last.
    is_opaque_too_long: bool,
    are_client_flags_good: bool,
}

impl Flags {
    /// Parses flags. Parsing stops at an unknown or repeated flag; of several bad tokens the last
    /// is reported. A byte that is no letter is an unknown flag.
    #[inline]
    pub(crate) fn read(words: &[&[u8]], cx: &Context<'_>) -> Result<Flags, &'static [u8]> {
        let mut flags = Flags {
            seen: 0,
            exptime: None,
            vivify: None,
            recache: None,
            cas: None,
            new_cas: None,
            client_flags: 0,
            initial: 0,
            delta: 1,
            mode: None,
            is_opaque_too_long: false,
            are_client_flags_good: true,
        };
        let mut bad = None;
        for word in words {
            let letter = word[0];
            let bit = letter.wrapping_sub(b'A');
            if bit > b'z' - b'A' {
                let error: &[u8] = b"CLIENT_ERROR invalid flag\r\n";
                let is_digit = letter.is_ascii_digit();
                return Err(if is_digit { error } else { BAD_FORMAT });
            }
            if flags.seen & 1 << bit != 0 {
                return Err(b"CLIENT_ERROR duplicate flag\r\n");
            }
            flags.seen |= 1 << bit;
            // Only flags in capitals have a token.
            if letter.is_ascii_uppercase() {
                if let Err(reply) = flags.read_token(letter, word, cx) {
                    bad = Some(reply);
                }
            } else if !b"bcfhklqstuvx".contains(&letter) {
                return Err(b"CLIENT_ERROR invalid flag\r\n");
            }
            if bad.is_some_and(|bad| bad == UNKNOWN) {
                return Err(b"CLIENT_ERROR invalid flag\r\n");
            }
        }
        // A bad `F` is reported only if no other token is bad.
        let bad = bad.or((!flags.are_client_flags_good).then_some(BAD_FORMAT));
        bad.map_or(Ok(flags), Err)
    }

    fn read_token(
        &mut self,
        letter: u8,
        word: &[u8],
        cx: &Context<'_>,
    ) -> Result<(), &'static [u8]> {
        let token = &word[1..];
        let exptime = || {
            let exptime = parse_exptime(token).ok_or(BAD_TOKEN)?;
            Ok(Some(cx.deadline(exptime)))
        };
        let number = || parse_u64(token).ok_or(BAD_TOKEN);
        match letter {
            b'T' => self.exptime = exptime()?,
            b'N' => self.vivify = exptime()?,
            b'R' => self.recache = exptime()?,
            b'C' => self.cas = Some(number()?),
            b'E' => self.new_cas = Some(number()?),
            b'J' => {
                let bad = b"CLIENT_ERROR invalid numeric initial value\r\n";
                self.initial = parse_u64(token).ok_or(&bad[..])?;
            }
            b'D' => {
                let bad = b"CLIENT_ERROR invalid numeric delta value\r\n";
                self.delta = parse_u64(token).ok_or(&bad[..])?;
            }
            b'F' => match parse_u32(token) {
                Some(client_flags) => self.client_flags = client_flags,
                None => self.are_client_flags_good = false,
            },
            b'O' => self.is_opaque_too_long = word.len() > OPAQUE_LEN_MAX,
            // The first letter counts. Without a letter the mode is invalid.
            b'M' => self.mode = Some(token.first().copied().unwrap_or(b' ')),
            // `P` and `L` are for proxies in between; protocol.txt
            b'I' | b'P' | b'L' => {}
            _ => return Err(UNKNOWN),
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn has(&self, letter: u8) -> bool {
        self.seen & 1 << (letter - b'A') != 0
    }

    /// The error for a too long opaque.
    pub(crate) fn check_opaque(&self) -> Result<(), &'static [u8]> {
        if self.is_opaque_too_long {
            Err(b"CLIENT_ERROR opaque token too long\r\n")
        } else {
            Ok(())
        }
    }

    /// The expiry time that a flag sets: `T` of any item, `N` of a new one. Flags take effect in
    /// their order, so `t` returns the time set before it.
    pub(crate) fn given_exptime(&self, letter: u8, is_new: bool) -> Option<Seconds> {
        match letter {
            b'T' => self.exptime,
            b'N' if is_new => self.vivify,
            _ => None,
        }
    }

    /// The expiry time of a new item, after all flags.
    pub(crate) fn new_exptime(&self, words: &[&[u8]]) -> Seconds {
        let given = |word: &&[u8]| self.given_exptime(word[0], true);
        words.iter().rev().find_map(given).unwrap_or(NEVER)
    }
}

/// Marker for an unknown flag, between two functions.
const UNKNOWN: &[u8] = b"";

/// The word of the key and those of the flags. Counts the command; replies if there are too few or
/// too many words.
#[inline]
pub(crate) fn words_of<'t, 'a>(
    cx: &mut Context<'_>,
    tokens: &'t Tokens<'a>,
) -> Option<(&'a [u8], &'t [&'a [u8]])> {
    cx.service.counters.add(Count::Meta, 1);
    let error = match tokens.parts() {
        [_, key_word, ..] if key_word.len() > KEY_LEN_MAX => BAD_FORMAT,
        [_, _, words @ ..] if words.len() > WORDS_MAX - 2 => FLAGS_TOO_LONG,
        [_, key_word, words @ ..] => return Some((key_word, words)),
        _ => BAD_FORMAT,
    };
    cx.out.put(error);
    None
}

/// The key: the word itself, or with `b` its decoded bytes.
#[inline]
pub(crate) fn key<'a>(
    word: &'a [u8],
    flags: &Flags,
    buffer: &'a mut [u8; KEY_LEN_MAX],
) -> Result<&'a [u8], &'static [u8]> {
    if !flags.has(b'b') {
        return Ok(word);
    }
    match base64::decode(word, buffer) {
        Some(len) => Ok(&buffer[..len]),
        None => Err(BAD_KEY),
    }
}

/// Appends the parts of the request that a reply repeats: opaque and key.
#[inline]
pub(crate) fn push_echo(word: &[u8], key_word: &[u8], flags: &Flags, to: &mut Vec<u8>) {
    match word[0] {
        b'O' => {
            to.push(b' ');
            to.extend_from_slice(word);
        }
        b'k' => {
            to.extend_from_slice(b" k");
            to.extend_from_slice(key_word);
            if flags.has(b'b') {
                to.extend_from_slice(b" b");
            }
        }
        _ => {}
    }
}

/// Appends a code of two letters, with the parts of the request that the flags select.
pub(crate) fn reply_code(
    cx: &mut Context<'_>,
    code: &[u8; 2],
    words: &[&[u8]],
    key_word: &[u8],
    flags: &Flags,
) {
    cx.out.put_with(|to| {
        to.extend_from_slice(code);
        for word in words {
            push_echo(word, key_word, flags, to);
        }
        to.extend_from_slice(b"\r\n");
    });
}

/// Appends a letter and a number.
#[inline]
pub(crate) fn push_flag(letter: u8, number: u64, to: &mut Vec<u8>) {
    to.extend_from_slice(&[b' ', letter]);
    push_decimal(number, to);
}

/// Appends the remaining lifetime of an item: `-1` if it never expires.
pub(crate) fn push_ttl(exptime: Seconds, now: Seconds, to: &mut Vec<u8>) {
    if exptime == NEVER {
        to.extend_from_slice(b" t-1");
    } else {
        push_flag(b't', exptime.saturating_sub(now).into(), to);
    }
}

/// Seconds since an item was last used.
pub(crate) fn idle_s(item: &Item<'_>, now: Seconds) -> u64 {
    now.saturating_sub(item.last_access()).into()
}
