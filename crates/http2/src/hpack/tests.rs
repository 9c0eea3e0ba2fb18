//! The vectors of RFC 7541 Appendix C, and both sides together.

use proptest::prelude::*;

use super::*;
use crate::field::FieldList;

fn octets(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
    let pairs = digits.chunks(2);
    pairs.map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

/// `name: value` of each field.
fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<String>, CompressionError> {
    let mut list = FieldList::new(1 << 20, 1000);
    decoder.decode(block, &mut list)?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let line = |(name, value): (&[u8], &[u8])| text(name) + ": " + &text(value);
    Ok(list.iter().map(line).collect())
}

/// Decodes the blocks of one conversation: octets, fields, size of the table after it.
fn conversation(limit: usize, blocks: &[(&str, &[&str], usize)]) {
    let mut decoder = Decoder::new(limit);
    for (hex, fields, size) in blocks {
        let block = octets(hex);
        for end in 1..block.len() {
            // A block cut inside a field is an error.
            let mut other = Decoder::new(limit);
            _ = decode(&mut other, &block[..end]);
        }
        let decoded = decode(&mut decoder, &block).unwrap();
        assert_eq!(decoded, *fields, "{hex}");
        assert_eq!(decoder.table.size, *size, "{hex}");
    }
}

#[test]
fn rfc_7541_c_2() {
    let literal = "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572";
    conversation(4096, &[(literal, &["custom-key: custom-header"], 55)]);
    let not_indexed = "040c 2f73 616d 706c 652f 7061 7468";
    conversation(4096, &[(not_indexed, &[":path: /sample/path"], 0)]);
    let never = "1008 7061 7373 776f 7264 0673 6563 7265 74";
    conversation(4096, &[(never, &["password: secret"], 0)]);
    conversation(4096, &[("82", &[":method: GET"], 0)]);
}

const REQUESTS: [&[&str]; 3] = [
    &[":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com"],
    &[
        ":method: GET",
        ":scheme: http",
        ":path: /",
        ":authority: www.example.com",
        "cache-control: no-cache",
    ],
    &[
        ":method: GET",
        ":scheme: https",
        ":path: /index.html",
        ":authority: www.example.com",
        "custom-key: custom-value",
    ],
];

#[test]
fn rfc_7541_c_3() {
    let blocks = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let [one, two, three] = REQUESTS;
    let [a, b, c] = blocks;
    conversation(4096, &[(a, one, 57), (b, two, 110), (c, three, 164)]);
}

#[test]
fn rfc_7541_c_4() {
    let blocks = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    let [one, two, three] = REQUESTS;
    let [a, b, c] = blocks;
    conversation(4096, &[(a, one, 57), (b, two, 110), (c, three, 164)]);
}

const REPLIES: [&[&str]; 3] = [
    &[
        ":status: 302",
        "cache-control: private",
        "date: Mon, 21 Oct 2013 20:13:21 GMT",
        "location: https://www.example.com",
    ],
    &[
        ":status: 307",
        "cache-control: private",
        "date: Mon, 21 Oct 2013 20:13:21 GMT",
        "location: https://www.example.com",
    ],
    &[
        ":status: 200",
        "cache-control: private",
        "date: Mon, 21 Oct 2013 20:13:22 GMT",
        "location: https://www.example.com",
        "content-encoding: gzip",
        "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
    ],
];

#[test]
fn rfc_7541_c_5() {
    let blocks = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133
         2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70
         6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d
         54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049
         5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e
         3d31",
    ];
    let [one, two, three] = REPLIES;
    let [a, b, c] = blocks;
    conversation(256, &[(a, one, 222), (b, two, 222), (c, three, 215)]);
}

#[test]
fn rfc_7541_c_6() {
    let blocks = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6
         2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab
         77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f
         9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ];
    let [one, two, three] = REPLIES;
    let [a, b, c] = blocks;
    conversation(256, &[(a, one, 222), (b, two, 222), (c, three, 215)]);
}

#[test]
fn faults_of_a_block() {
    let fault = |limit, hex: &str| decode(&mut Decoder::new(limit), &octets(hex)).unwrap_err();
    for (hex, expected) in [
        ("80", CompressionError::BadIndex),
        ("be", CompressionError::BadIndex),
        ("7f00", CompressionError::BadIndex),
        ("ff ffff ffff 0f", CompressionError::IntegerTooLong),
        ("00", CompressionError::Truncated),
        ("0001 61", CompressionError::Truncated),
        ("0001 6102 62", CompressionError::Truncated),
        ("0081 ff00", CompressionError::BadHuffman),
        ("3fe2 1f", CompressionError::BadTableSize), // 4097
        ("82 20", CompressionError::BadTableSize),   // behind a field
    ] {
        assert_eq!(fault(4096, hex), expected, "{hex}");
    }
    assert_eq!(fault(0, "21"), CompressionError::BadTableSize);
}

/// RFC 7541 4.2: after a smaller limit the next block begins with a size within it.
#[test]
fn smaller_limit_must_be_obeyed() {
    let mut decoder = Decoder::new(4096);
    let literal = octets("4001 6101 62");
    decode(&mut decoder, &literal).unwrap();
    decoder.set_limit(100);
    let error = decode(&mut decoder, &octets("be"));
    assert_eq!(error, Err(CompressionError::BadTableSize));
    assert_eq!(decode(&mut decoder, &octets("3f45 be")).unwrap(), ["a: b"]);
    assert_eq!(decode(&mut decoder, &octets("20")).unwrap(), [""; 0]);
    let error = decode(&mut decoder, &octets("be"));
    assert_eq!(error, Err(CompressionError::BadIndex), "0 has emptied it");
    // A larger limit need not be used.
    decoder.set_limit(4096);
    assert_eq!(decode(&mut decoder, &literal).unwrap(), ["a: b"]);
    assert_eq!(decoder.table.size, 0);
}

#[test]
fn bomb_costs_one_list() {
    let mut decoder = Decoder::new(4096);
    let mut list = FieldList::new(16 * 1024, 100);
    let mut block = octets("4001 61 7fa1 1e");
    block.extend([b'x'; 4000]);
    // Each of these bytes stands for a field of 4,001.
    block.extend([0xbe; 12_000]);
    decoder.decode(&block, &mut list).unwrap();
    assert!(list.is_cut());
    assert_eq!(list.len(), 4);
    assert!(list.allocated_len() < 64 * 1024, "{}", list.allocated_len());
    // The tables agree as before.
    list.clear();
    decoder.decode(&octets("be"), &mut list).unwrap();
    assert_eq!(list.iter().next().unwrap().1.len(), 4000);
}

/// Seen: a block of 32 KiB whose literals name an entry of 4,000 bytes took 48 ms. Cause: the name
/// was judged again for each. Cure: an entry keeps the validity of its name and of its value.
#[test]
fn an_entry_knows_if_its_name_is_valid() {
    let valid = |first: &str, second: &str| {
        let mut decoder = Decoder::new(4096);
        let mut list = FieldList::new(1 << 10, 10);
        decoder.decode(&octets(first), &mut list).unwrap();
        list.clear();
        decoder.decode(&octets(second), &mut list).unwrap();
        list.fields().map(|field| field.is_valid).collect::<Vec<_>>()
    };
    // Of an entry `a: \0` and of `A: b`: the entry; another with its name, which is the newest
    // then, both once more; and another whose value is a control byte.
    let bad_value = "40 0161 0100";
    let bad_name = "40 0141 0162";
    assert_eq!(valid(bad_value, "be"), [false]);
    assert_eq!(valid(bad_value, "7e 0162 be bf"), [true, true, false]);
    assert_eq!(valid(bad_value, "7e 0100"), [false]);
    assert_eq!(valid(bad_name, "be"), [false]);
    assert_eq!(valid(bad_name, "7e 0162 be bf"), [false, false, false]);
}

#[test]
fn repeated_field_becomes_one_byte() {
    let mut encoder = Encoder::new(4096);
    let mut decoder = Decoder::new(4096);
    let server = RepeatedField::new(b"server", b"weft");
    let vary = RepeatedField::new(b"vary", b"accept-encoding");
    let get = RepeatedField::new(b":method", b"GET");
    let mut lens = Vec::new();
    for _ in 0..3 {
        let mut block = Vec::new();
        encoder.begin(&mut block);
        encoder.status(304, &mut block);
        for field in [&server, &vary, &get] {
            encoder.repeated(field, &mut block);
        }
        let expected = [":status: 304", "server: weft", "vary: accept-encoding", ":method: GET"];
        assert_eq!(decode(&mut decoder, &block).unwrap(), expected);
        lens.push(block.len());
    }
    assert_eq!(lens[1..], [4, 4]);
    assert_eq!((server.name(), server.value()), (&b"server"[..], &b"weft"[..]));
}

#[test]
fn status_is_three_digits() {
    let mut encoder = Encoder::new(4096);
    let mut decoder = Decoder::new(4096);
    for status in [100, 200, 204, 206, 301, 304, 400, 404, 421, 431, 500, 503] {
        let mut block = Vec::new();
        encoder.status(status, &mut block);
        let decoded = decode(&mut decoder, &block).unwrap();
        assert_eq!(decoded, [format!(":status: {status}")]);
    }
}

/// RFC 7541 4.2: the lowest size between two blocks is announced, then the last.
#[test]
fn encoder_says_each_change_of_size() {
    let field = RepeatedField::new(b"server", b"weft");
    let mut encoder = Encoder::new(1000);
    let mut decoder = Decoder::new(4096);
    let mut block_after = |limits: &[usize]| {
        let mut block = Vec::new();
        for &limit in limits {
            encoder.set_limit(limit);
        }
        encoder.begin(&mut block);
        encoder.repeated(&field, &mut block);
        assert_eq!(decode(&mut decoder, &block).unwrap(), ["server: weft"]);
        block
    };
    assert!(block_after(&[]).starts_with(&octets("3fc9 07")), "1000");
    assert_eq!(block_after(&[]), octets("be"));
    assert_eq!(block_after(&[1 << 20, 5000]), octets("be"), "no more than 1000");
    assert!(block_after(&[0, 900]).starts_with(&octets("20 3fe5 06")));
    assert_eq!(block_after(&[900]), octets("be"));
    assert!(block_after(&[0]).starts_with(&octets("20 76")));
    assert!(block_after(&[]).starts_with(&octets("76")), "nothing is kept");
}

#[test]
fn secrets_are_never_indexed() {
    let mut block = Vec::new();
    let mut encoder = Encoder::new(4096);
    encoder.literal(b"set-cookie", b"a", Indexing::Never, &mut block);
    assert_eq!(block, octets("1f28 0161"));
    encoder.literal(b"x", b"a", Indexing::Never, &mut block);
    assert_eq!(block[4..], octets("1001 7801 61"));
}

#[test]
fn literals_stand_in_any_block() {
    let fields: [(&[u8], &[u8]); 3] = [(b":path", b"/"), (b"etag", b"\"1-2\""), (b"x", b"")];
    let block = encode_literals(fields);
    let mut decoder = Decoder::new(0);
    let decoded = decode(&mut decoder, &block).unwrap();
    assert_eq!(decoded, [":path: /", "etag: \"1-2\"", "x: "]);
}

/// A step of the encoder's owner.
#[derive(Clone, Debug)]
enum Step {
    Limit(usize),
    Repeated(usize),
    Literal(Vec<u8>, Vec<u8>, bool),
    Status(u16),
    Block,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_usize..5000).prop_map(Step::Limit),
        (0_usize..200).prop_map(Step::Repeated),
        (any::<Vec<u8>>(), any::<Vec<u8>>(), any::<bool>())
            .prop_map(|(name, value, secret)| Step::Literal(name, value, secret)),
        (100_u16..600).prop_map(Step::Status),
        Just(Step::Block),
    ]
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(steps in prop::collection::vec(step(), 0..100), limit in 0_usize..5000) {
        let fields: Vec<RepeatedField> = (0..200_usize)
            .map(|at| RepeatedField::new(b"repeated", &vec![b'a' + (at % 26) as u8; at]))
            .collect();
        let mut encoder = Encoder::new(limit);
        let mut decoder = Decoder::new(4096);
        let mut block = Vec::new();
        let mut expected: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        encoder.begin(&mut block);
        for step in steps.into_iter().chain([Step::Block]) {
            match step {
                // The limit changes only between blocks.
                Step::Limit(limit) if block.is_empty() => {
                    encoder.set_limit(limit);
                    decoder.set_limit(limit);
                    encoder.begin(&mut block);
                }
                Step::Limit(_) => {}
                Step::Repeated(at) => {
                    encoder.repeated(&fields[at], &mut block);
                    expected.push((fields[at].name().to_vec(), fields[at].value().to_vec()));
                }
                Step::Literal(name, value, secret) => {
                    let indexing = if secret { Indexing::Never } else { Indexing::Allowed };
                    encoder.literal(&name, &value, indexing, &mut block);
                    expected.push((name, value));
                }
                Step::Status(status) => {
                    encoder.status(status, &mut block);
                    expected.push((b":status".to_vec(), status.to_string().into_bytes()));
                }
                Step::Block => {
                    let mut list = FieldList::new(1 << 20, 1000);
                    prop_assert_eq!(decoder.decode(&block, &mut list), Ok(()));
                    let decoded: Vec<_> = list.iter().map(|(n, v)| (n.to_vec(), v.to_vec())).collect();
                    prop_assert_eq!(&decoded, &expected);
                    expected.clear();
                    block.clear();
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_a_block_or_a_fault(block: Vec<u8>) {
        let mut list = FieldList::new(1000, 10);
        _ = Decoder::new(4096).decode(&block, &mut list);
        prop_assert!(list.len() <= 10);
    }
}
