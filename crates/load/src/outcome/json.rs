//! Outcome as JSON. A histogram in it is HdrHistogram's V2 encoding, deflated and in base64, as its
//! other tools write it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer as Read};

/// Histogram as text.
pub(super) mod histogram_text {
    use super::*;

    pub(crate) fn serialize<S: serde::Serializer>(
        histogram: &Histogram<u64>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(histogram, &mut bytes)
            .map_err(|error| serde::ser::Error::custom(format!("{error:?}")))?;
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Read<'de>>(from: D) -> Result<Histogram<u64>, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = STANDARD.decode(text).map_err(D::Error::custom)?;
        let read: Histogram<u64> = Deserializer::new()
            .deserialize(&mut &bytes[..])
            .map_err(|error| D::Error::custom(format!("no histogram: {error}")))?;
        // Ours have bounds of their own; adding checks that the other's fit into them.
        let mut ours = crate::outcome::histogram();
        ours.add(&read).map_err(|error| D::Error::custom(format!("another range: {error}")))?;
        Ok(ours)
    }
}

/// Known classes: their names are static.
const CLASSES: [&str; 3] = ["request", "get", "set"];

pub(super) fn class_name<'de, D: Read<'de>>(from: D) -> Result<&'static str, D::Error> {
    let name = String::deserialize(from)?;
    let known = CLASSES.into_iter().find(|class| *class == name);
    known.ok_or_else(|| D::Error::custom(format!("there is no class '{name}'")))
}
