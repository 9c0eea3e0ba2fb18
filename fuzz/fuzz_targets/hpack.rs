//! Any bytes as header blocks and as fields, which another implementation must read the same.

#![no_main]

use http2::{Decoder, Encoder, FieldList, Indexing, RepeatedField};
use libfuzzer_sys::fuzz_target;

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

fuzz_target!(|input: &[u8]| {
    if input.len() > 4096 {
        return;
    }
    let middle = input.first().map_or(0, |&first| usize::from(first).min(input.len()));
    let blocks = [&input[..middle], &input[middle..]];
    let mut ours = Decoder::new(4096);
    let mut theirs = httlib_hpack::Decoder::with_dynamic_size(4096);
    for block in blocks {
        let Ok(fields) = decode(&mut ours, block) else {
            break; // The other implementation may accept more.
        };
        assert_eq!(oracle(&mut theirs, block), Some(fields));
    }
    encode(input);
});

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Fields, http2::CompressionError> {
    let mut list = FieldList::new(usize::MAX, usize::MAX);
    decoder.decode(block, &mut list)?;
    Ok(list.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect())
}

fn oracle(decoder: &mut httlib_hpack::Decoder<'_>, block: &[u8]) -> Option<Fields> {
    let mut rest = block.to_vec();
    let mut fields = Vec::new();
    decoder.decode(&mut rest, &mut fields).ok()?;
    Some(fields.into_iter().map(|(name, value, _)| (name, value)).collect())
}

/// Encodes fields; both decoders must return them unchanged.
fn encode(input: &[u8]) {
    let mut encoder = Encoder::new(256);
    let mut ours = Decoder::new(4096);
    let mut theirs = httlib_hpack::Decoder::with_dynamic_size(4096);
    for part in input.chunks(64) {
        let mut block = Vec::new();
        let mut expected = Vec::new();
        encoder.begin(&mut block);
        for field in part.chunks(8) {
            let (name, value) = field.split_at(field.len() / 2);
            if field[0].is_multiple_of(2) {
                encoder.repeated(&RepeatedField::new(name, value), &mut block);
            } else {
                encoder.literal(name, value, Indexing::Never, &mut block);
            }
            expected.push((name.to_vec(), value.to_vec()));
        }
        assert_eq!(decode(&mut ours, &block), Ok(expected.clone()));
        assert_eq!(oracle(&mut theirs, &block), Some(expected));
    }
}
