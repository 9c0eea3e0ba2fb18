//! A session that lends the driver its own buffer for long bodies: netstrings (`5:hello,`).

extern crate weftwork_session as session;

use session::replay::{Script, replay};
use session::{Next, NoWork, Now, Outbox, Phase, Received, Session};

/// Receives netstrings and replies with each one's length and byte sum.
#[derive(Default)]
struct Netstrings {
    body: Vec<u8>,
    filled: usize,
    body_bytes_copied: usize,
}

impl Netstrings {
    fn reply_when_whole(&mut self, out: &mut Outbox) -> Next {
        if self.filled < self.body.len() {
            return Next::Receive(Phase::Body);
        }
        let sum: u64 = self.body.iter().map(|&byte| u64::from(byte)).sum();
        out.put(format!("{} bytes, sum {sum}\n", self.body.len()).as_bytes());
        self.body = Vec::new();
        self.filled = 0;
        Next::Receive(Phase::Idle)
    }
}

impl Session for Netstrings {
    type Work = NoWork;

    fn receive(&mut self, input: &[u8], _now: Now, out: &mut Outbox) -> Received {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            if self.body.is_empty() {
                let rest = rest.strip_prefix(b",").inspect(|_| used += 1).unwrap_or(rest);
                let Some(colon) = rest.iter().position(|&byte| byte == b':') else {
                    let phase = if rest.is_empty() { Phase::Idle } else { Phase::Head };
                    return Received { used, next: Next::Receive(phase) };
                };
                let digits = std::str::from_utf8(&rest[..colon]).unwrap();
                self.body = vec![0; digits.parse().unwrap()];
                used += colon + 1;
            } else {
                let len = rest.len().min(self.body.len() - self.filled);
                self.body[self.filled..self.filled + len].copy_from_slice(&rest[..len]);
                self.filled += len;
                self.body_bytes_copied += len;
                used += len;
                let next = self.reply_when_whole(out);
                if used == input.len() || next == Next::Receive(Phase::Body) {
                    return Received { used, next };
                }
            }
        }
    }

    fn body_buffer(&mut self) -> &mut [u8] {
        &mut self.body[self.filled..]
    }

    fn body_filled(&mut self, len: usize, _now: Now, out: &mut Outbox) -> Next {
        self.filled += len;
        self.reply_when_whole(out)
    }
}

#[test]
fn long_body_bypasses_the_input() {
    let body = "x".repeat(100_000);
    let sum = u64::from(b'x') * 100_000;
    replay(
        Netstrings::default,
        &Script::new()
            .send(format!("100000:{body},3:abc,"))
            .expect(format!("100000 bytes, sum {sum}\n3 bytes, sum 294\n")),
    );
}
