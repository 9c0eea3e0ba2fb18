//! The Internet checksum, fast, incremental, in pieces and by a table, beside the one of RFC 1071.

extern crate weftwork_netstack as netstack;

use netstack::stack::Pieces;
use netstack::wire::checksum::{Sum, table_of, update};
use proptest::collection::vec;
use proptest::prelude::*;

/// RFC 1071 4.1, word by word.
fn by_the_book(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for word in bytes.chunks(2) {
        sum += u64::from(u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Two sums mean the same if they complete each message to the same checksum: one's complement has
/// two zeros, and no message's own sum is the one of nothing but zeros.
fn same(a: Sum, b: Sum) -> bool {
    let more = Sum::of_word(0x1234);
    (a + more).checksum() == (b + more).checksum()
}

#[test]
fn rfc_1071_example() {
    // RFC 1071 3: the sum is ddf2.
    let sum = Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
    assert_eq!(sum.folded(), 0xddf2);
}

#[test]
fn carries_wrap_at_every_width() {
    for len in [1, 2, 3, 7, 8, 63, 64, 65, 127, 128, 4096, 65_535, 1 << 20] {
        let ones = vec![0xff; len];
        assert_eq!(Sum::of(&ones).checksum(), by_the_book(&ones), "{len}");
    }
    assert_eq!(Sum::of(&[]).folded(), 0);
    assert_eq!(Sum::of(&[0; 100]).folded(), 0);
}

#[test]
fn a_message_of_zeros_is_not_right() {
    // Its checksum would have to be ffff.
    assert!(!Sum::of(&[0; 8]).is_right());
    assert!(Sum::of(&[0, 0, 0xff, 0xff]).is_right());
}

/// RFC 1624 4: the equation of RFC 1141 gives 0xffff here, which is wrong.
#[test]
fn updates_to_zero() {
    let after = update(0xdd2f, Sum::of_word(0x5555), Sum::of_word(0x3285));
    assert_eq!(after, 0x0000);
}

/// A page of random bytes, and its table.
fn page(len: usize) -> (Vec<u8>, Box<[u16]>) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u8
    };
    let bytes: Vec<u8> = (0..len).map(|_| next()).collect();
    let table = table_of(&bytes);
    (bytes, table)
}

/// All of them: of no byte, within a stride, over several, with odd starts and odd ends.
#[test]
fn a_table_knows_each_slice() {
    for len in [0, 1, 63, 64, 65, 127, 128, 129, 300] {
        let (bytes, table) = page(len);
        assert!(size_of_val(&*table) <= 2 + len / 32, "{len}");
        for start in 0..=len {
            for end in start..=len {
                let sum = Sum::of_slice(&bytes, &table, start..end);
                assert!(same(sum, Sum::of(&bytes[start..end])), "{start}..{end} of {len}");
            }
        }
    }
}

#[test]
fn a_table_of_zeros_and_of_ones() {
    for byte in [0u8, 0xff] {
        let bytes = [byte; 200];
        let table = table_of(&bytes);
        for slice in [0..0, 3..77, 5..5, 64..128, 65..128, 0..200, 199..200] {
            let sum = Sum::of_slice(&bytes, &table, slice.clone());
            assert!(same(sum, Sum::of(&bytes[slice.clone()])), "{slice:?} of {byte}");
        }
    }
}

#[test]
#[should_panic(expected = "a table of other bytes")]
fn a_table_is_of_its_bytes() {
    let (_, table) = page(640);
    Sum::of_slice(&[0; 639], &table, 0..1);
}

/// Pieces with a sum begin and end at any offset of the payload.
#[test]
fn known_sums_join_the_others() {
    let (bytes, table) = page(4000);
    for head_len in [0, 1, 2, 301] {
        for slice in [0..1448, 1..1448, 777..2000, 1001..1002, 50..50] {
            let head = &bytes[..head_len];
            let tail = &bytes[100..107];
            let middle = &bytes[slice.clone()];
            let sum = Sum::of_slice(&bytes, &table, slice.clone());
            let mut pieces = Pieces::default();
            pieces.push(head);
            pieces.push_summed(middle, sum);
            pieces.push(tail);
            pieces.push_summed(middle, sum);
            let whole = Sum::of(&[head, middle, tail, middle].concat());
            assert!(same(pieces.sum(), whole), "{slice:?} behind {head_len}");
        }
    }
}

proptest! {
    #[test]
    fn slices_of_pages_by_their_table(len in 0usize..70_000, ends in any::<(u32, u32)>()) {
        let (bytes, table) = page(len);
        let [one, other] = [ends.0, ends.1].map(|end| end as usize % (len + 1));
        let slice = one.min(other)..one.max(other);
        let sum = Sum::of_slice(&bytes, &table, slice.clone());
        prop_assert!(same(sum, Sum::of(&bytes[slice])));
    }

    #[test]
    fn fast_is_by_the_book(bytes in vec(any::<u8>(), 0..3000), from in 0usize..9) {
        let bytes = &bytes[from.min(bytes.len())..];
        prop_assert_eq!(Sum::of(bytes).checksum(), by_the_book(bytes));
    }

    #[test]
    fn pieces_are_the_whole(pieces in vec(vec(any::<u8>(), 0..70), 0..8)) {
        let sums = pieces.iter().map(|piece| (piece.len(), Sum::of(piece)));
        prop_assert!(same(Sum::joined(sums), Sum::of(&pieces.concat())));
    }

    #[test]
    fn an_update_is_a_new_sum(
        mut bytes in vec(any::<u8>(), 4..200),
        at in 0usize..100,
        word in any::<u16>(),
    ) {
        let at = (at * 2) % (bytes.len() - 1) / 2 * 2;
        let before = Sum::of(&bytes).checksum();
        let old = Sum::of(&bytes[at..at + 2]);
        bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
        // A message of nothing but zeros is no message: it has a version, or a pseudo header.
        prop_assume!(bytes.iter().any(|&byte| byte != 0) && before != 0xffff);
        let after = update(before, old, Sum::of_word(word));
        prop_assert_eq!(after, Sum::of(&bytes).checksum());
    }
}
