//! Does what a carriage wants to have sent, one thing at a time.

use std::io;
use std::ops::ControlFlow::{self, Continue};

use session::{Now, Session};

use super::wire::{Waits, Wire};
use crate::carriage::{Carriage, Carried, Want};
use crate::clock;
use crate::file::DiskRead;

/// Does one thing that the carriage wants, if that is output. Says how much was sent. `now` is the
/// time of the last look; `slow` has files read that are not in memory.
///
/// # Panics
/// If the carriage wants something else.
#[inline]
pub(crate) fn output<S: Session>(
    carriage: &mut Carriage<S>,
    wire: &mut Wire,
    now: &mut Now,
    slow: Option<impl FnOnce(DiskRead)>,
) -> ControlFlow<Waits, u64> {
    let sent = match carriage.want() {
        Want::Send {
            out,
            until,
            is_last,
        } => {
            let sent = wire.send_out(out, until, is_last)?;
            match sent.taken {
                // What was taken at once took no time.
                Ok(len) if sent.is_all && !carriage.is_timed() => {
                    carriage.sent(len, *now);
                    return Continue(len);
                }
                taken => taken,
            }
        }
        Want::File(piece) => {
            let carried = wire.carry_file(&piece, slow)?;
            let len = match &carried {
                Ok(Carried::Sent(len)) => *len,
                _ => 0,
            };
            tell(carriage, carried, look(now), Carriage::carried);
            return Continue(len);
        }
        Want::Read(piece) => {
            let read = wire.read_file(&piece, slow)?;
            tell(carriage, read, look(now), Carriage::read);
            return Continue(0);
        }
        Want::Untaken(look) => {
            let untaken = wire.untaken(&look, *now)?;
            tell(carriage, untaken, *now, Carriage::untaken);
            return Continue(0);
        }
        Want::Finish => {
            tell(carriage, wire.finish(), *now, Carriage::finished);
            return Continue(0);
        }
        _ => unreachable!("its engine does what is no output"),
    };
    let len = *sent.as_ref().unwrap_or(&0);
    tell(carriage, sent, look(now), Carriage::sent);
    Continue(len)
}

fn look(now: &mut Now) -> Now {
    *now = clock::now();
    *now
}

/// Tells the carriage what came of what it wanted.
#[inline]
pub(crate) fn tell<S: Session, R>(
    carriage: &mut Carriage<S>,
    result: io::Result<R>,
    now: Now,
    told: impl FnOnce(&mut Carriage<S>, R, Now),
) {
    match result {
        Ok(result) => told(carriage, result, now),
        Err(error) => carriage.failed(&error, now),
    }
}
