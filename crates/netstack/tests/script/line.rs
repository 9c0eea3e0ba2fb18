//! The lines of a script.

use std::time::Duration;

use netstack::wire::Ecn;
use netstack::wire::tcp::Flags;

/// A line: when, and what.
#[derive(Debug)]
pub(crate) struct Line {
    /// Time since the line before.
    pub(crate) after: Duration,
    /// Event.
    pub(crate) what: What,
}

/// Event of a line.
#[derive(Debug)]
pub(crate) enum What {
    /// Time passes.
    Nothing,
    /// The peer sends.
    Send(Pattern),
    /// The same; the next segment comes in the same burst.
    SendMore(Pattern),
    /// The shard sends.
    Expect(Pattern),
    /// Anything else: its words.
    Command(Vec<String>),
}

/// A segment. Fields that an expected segment does not name are not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pattern {
    pub(crate) flags: Flags,
    pub(crate) has_ack: bool,
    pub(crate) seq: u32,
    pub(crate) len: u32,
    pub(crate) ack: Option<u32>,
    pub(crate) window: Option<u16>,
    pub(crate) mss: Option<u16>,
    pub(crate) scale: Option<u8>,
    pub(crate) sack_permitted: Option<bool>,
    pub(crate) timestamps: Option<(u32, u32)>,
    pub(crate) sacks: Vec<(u32, u32)>,
    pub(crate) urgent: u16,
    pub(crate) has_no_options: bool,
    /// ECN codepoint in the IP header.
    pub(crate) ecn: Option<Ecn>,
}

impl Line {
    pub(crate) fn parse(text: &str) -> Result<Line, String> {
        let mut words = text.split_whitespace().peekable();
        let mut after = Duration::ZERO;
        if let Some(time) = words.next_if(|word| word.starts_with('+')) {
            after = duration(&time[1..])?;
        }
        let what = match words.next() {
            None => What::Nothing,
            Some("<") => What::Send(Pattern::parse(words)?),
            Some("<+") => What::SendMore(Pattern::parse(words)?),
            Some(">") => What::Expect(Pattern::parse(words)?),
            Some(first) => {
                let rest = words.map(str::to_owned);
                What::Command(std::iter::once(first.to_owned()).chain(rest).collect())
            }
        };
        Ok(Line { after, what })
    }
}

/// `10us`, `40ms`, `1.5s`
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let number: f64 = number.parse().map_err(|_| format!("{text} is not a time"))?;
    let micros = match unit {
        "us" => number,
        "ms" => number * 1e3,
        "s" => number * 1e6,
        _ => return Err(format!("{text} has no unit: us, ms or s")),
    };
    Ok(Duration::from_micros(micros.round() as u64))
}

/// A number in decimal.
pub(crate) fn number<T: std::str::FromStr>(text: Option<&str>, what: &str) -> Result<T, String> {
    let text = text.ok_or_else(|| format!("{what} has no number"))?;
    text.parse().map_err(|_| format!("{what} {text} is not a number"))
}

impl Pattern {
    fn parse<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<Pattern, String> {
        let mut pattern = Pattern::default();
        let flags = words.next().ok_or("a segment without flags")?;
        for flag in flags.chars() {
            pattern.flags |= match flag {
                'S' => Flags::SYN,
                'F' => Flags::FIN,
                'R' => Flags::RST,
                'P' => Flags::PSH,
                'U' => Flags::URG,
                'E' => Flags::ECE,
                'C' => Flags::CWR,
                '-' => Flags::NONE,
                '.' => {
                    pattern.has_ack = true;
                    Flags::NONE
                }
                _ => return Err(format!("{flag} is not a flag")),
            };
        }
        let seq = words.next().ok_or("a segment without a sequence number")?;
        let (seq, len) = seq.split_once(':').unwrap_or((seq, "0"));
        pattern.seq = number(Some(seq), "sequence number")?;
        pattern.len = number(Some(len), "length")?;
        while let Some(word) = words.next() {
            match word {
                "ack" => pattern.ack = Some(number(words.next(), word)?),
                "win" => pattern.window = Some(number(words.next(), word)?),
                "mss" => pattern.mss = Some(number(words.next(), word)?),
                "scale" => pattern.scale = Some(number(words.next(), word)?),
                "sackok" => pattern.sack_permitted = Some(true),
                "nosackok" => pattern.sack_permitted = Some(false),
                "urg" => pattern.urgent = number(words.next(), word)?,
                "ce" => pattern.ecn = Some(Ecn::Congested),
                "ect" => pattern.ecn = Some(Ecn::Capable0),
                "noect" => pattern.ecn = Some(Ecn::NotCapable),
                "noopt" => pattern.has_no_options = true,
                "ts" => {
                    let value = number(words.next(), word)?;
                    pattern.timestamps = Some((value, number(words.next(), word)?));
                }
                "sack" => {
                    for block in words.next().unwrap_or_default().split(',') {
                        let (left, right) = block.split_once('-').ok_or("sack A-B,C-D")?;
                        let left = number(Some(left), word)?;
                        pattern.sacks.push((left, number(Some(right), word)?));
                    }
                }
                _ => return Err(format!("{word} is not part of a segment")),
            }
        }
        if pattern.has_ack != pattern.ack.is_some() {
            return Err("the flag . and `ack N` go together".to_owned());
        }
        Ok(pattern)
    }
}
