//! The module `lab` in a build without the feature: there is no such command, and a
//! [tip](crate::args) explains how to get it.

pub(crate) use std::convert::Infallible as LabCommand;
use std::io::Write;

use clap::error::ErrorKind;
use clap::{ArgMatches, Command};

use crate::failure::Failure;

pub(crate) fn command() -> Option<Command> {
    None
}

pub(crate) fn typed(_: &ArgMatches) -> Result<LabCommand, clap::Error> {
    Err(clap::Error::new(ErrorKind::InvalidSubcommand))
}

pub(crate) fn experiments() -> Vec<&'static str> {
    Vec::new()
}

pub(crate) fn with_names(weft: Command) -> Command {
    weft
}

pub(crate) fn run(asked: LabCommand, _: &mut impl Write) -> Result<(), Failure> {
    match asked {}
}
