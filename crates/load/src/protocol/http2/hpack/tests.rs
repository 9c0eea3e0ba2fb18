//! The examples of RFC 7541 Appendix C, and blocks that are wrong.

use proptest::prelude::*;

use super::*;
use crate::random::Random;

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
    let octets = digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8);
    octets.collect()
}

fn decoded(decoder: &mut Decoder, block: &[u8]) -> Result<String, BadBlock> {
    let mut shown = Vec::new();
    decoder.decode(block, |name, value| {
        let text = String::from_utf8_lossy;
        shown.push(format!("{}: {}", text(name), text(value)));
    })?;
    Ok(shown.join("\n"))
}

/// Decodes the blocks of a connection; each has to show these fields and leave this table size.
fn check(size_max: usize, blocks: &[(&str, &str, usize)]) {
    let mut decoder = Decoder::default();
    decoder.table.resize(size_max).unwrap();
    for (hex, fields, size) in blocks {
        let shown = decoded(&mut decoder, &bytes_of(hex)).unwrap();
        assert_eq!(shown, *fields, "{hex}");
        assert_eq!(decoder.table.size, *size, "{hex}");
    }
}

#[test]
fn integers_of_appendix_c_1() {
    for (value, prefix_bits, hex) in [(10, 5, "0a"), (1337, 5, "1f9a0a"), (42, 8, "2a")] {
        let mut out = Vec::new();
        write_integer(&mut out, 0, prefix_bits, value);
        assert_eq!(out, bytes_of(hex));
        assert_eq!(integer(&mut &out[..], prefix_bits).unwrap(), value);
    }
    for wrong in ["", "1f", "1f9a", "1fffffffffffff7f"] {
        assert!(integer(&mut &bytes_of(wrong)[..], 5).is_err(), "{wrong}");
    }
}

#[test]
fn fields_of_appendix_c_2() {
    let custom = "400a637573746f6d2d6b65790d637573746f6d2d686561646572";
    check(4096, &[(custom, "custom-key: custom-header", 55)]);
    check(4096, &[("040c2f73616d706c652f70617468", ":path: /sample/path", 0)]);
    check(4096, &[("100870617373776f726406736563726574", "password: secret", 0)]);
    check(4096, &[("82", ":method: GET", 0)]);
}

const REQUESTS: [(&str, usize); 3] = [
    (":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com", 57),
    (
        ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\ncache-control: no-cache",
        110,
    ),
    (
        ":method: GET\n:scheme: https\n:path: /index.html\n:authority: www.example.com\n\
         custom-key: custom-value",
        164,
    ),
];

#[test]
fn requests_of_appendix_c_3_and_c_4() {
    for blocks in [
        [
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ],
        [
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ],
    ] {
        let seen = blocks.iter().zip(REQUESTS);
        let seen: Vec<_> = seen.map(|(hex, (fields, size))| (*hex, fields, size)).collect();
        check(4096, &seen);
    }
}

#[test]
fn replies_of_appendix_c_5_and_c_6() {
    let first = ":status: 302\ncache-control: private\ndate: Mon, 21 Oct 2013 20:13:21 GMT\n\
                 location: https://www.example.com";
    let second = first.replace("302", "307");
    let third = ":status: 200\ncache-control: private\ndate: Mon, 21 Oct 2013 20:13:22 GMT\n\
                 location: https://www.example.com\ncontent-encoding: gzip\n\
                 set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
    for blocks in [
        [
            "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54\
             6e1768747470733a2f2f7777772e6578616d706c652e636f6d",
            "4803333037c1c0bf",
            "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f\
             3d4153444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b20\
             76657273696f6e3d31",
        ],
        [
            "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f\
             0b97c8e9ae82ae43d3",
            "4883640effc1c0bf",
            "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335df\
             dfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
        ],
    ] {
        let [a, b, c] = blocks;
        check(256, &[(a, first, 222), (b, &second, 222), (c, third, 215)]);
    }
}

#[test]
fn wrong_blocks_are_refused() {
    for wrong in [
        "80",         // Index 0.
        "be",         // Behind both tables.
        "8220",       // A size update behind a field.
        "3fe21f",     // A table of 4097.
        "40",         // No name.
        "4001",       // A name that is cut off.
        "40016105",   // No value.
        "00816bff",   // Wrong padding.
        "ffffffffff", // An endless index.
    ] {
        let read = decoded(&mut Decoder::default(), &bytes_of(wrong));
        assert!(read.is_err(), "{wrong}: {read:?}");
    }
}

#[test]
fn entries_beyond_the_table_are_dropped() {
    let mut decoder = Decoder::default();
    for size in [1, 100, 4063, 4064, 5000] {
        let mut block = Vec::new();
        write_field(&mut block, b"a", &vec![b'x'; size - 1], true);
        decoded(&mut decoder, &block).unwrap();
        let is_kept = size + ENTRY_SIZE <= TABLE_SIZE_MAX;
        assert_eq!(decoder.table.get(NEWEST).is_ok(), is_kept, "{size}");
    }
}

proptest! {
    #[test]
    fn any_block_is_read_or_refused(block in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut decoder = Decoder::default();
        for _ in 0..3 {
            let _ = decoded(&mut decoder, &block);
            prop_assert!(decoder.table.size <= TABLE_SIZE_MAX);
            prop_assert!(decoder.table.bytes.len() <= 5 * TABLE_SIZE_MAX);
        }
    }
}

/// Many fields, so that entries are evicted and the table's bytes move.
#[test]
fn written_fields_read_back() {
    let mut decoder = Decoder::default();
    let mut random = Random::stream(1, 1);
    for _ in 0..2000 {
        let name = ["x-a", "cookie", "accept-encoding"][random.below(3) as usize];
        let value: String =
            (0..random.below(300)).map(|_| random.below(256) as u8 as char).collect();
        let mut block = Vec::new();
        let adds = random.below(2) == 0;
        write_field(&mut block, name.as_bytes(), value.as_bytes(), adds);
        let read = decoded(&mut decoder, &block).unwrap();
        assert_eq!(read, format!("{name}: {value}"));
    }
}
