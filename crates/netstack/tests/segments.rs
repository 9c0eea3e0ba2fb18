//! TCP segments: emitted segments parse back, other parsers agree, and invalid input is refused.

extern crate weftwork_netstack as netstack;

use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::{TcpHeaderSlice, TcpOptionElement};
use netstack::wire::Malformed;
use netstack::wire::checksum::Sum;
use netstack::wire::tcp::{
    self, Flags, SackBlock, SackBlocks, Segment, SeqNumber, TcpOptions, checksum_fits,
    write_checksum,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpAddress, TcpControl, TcpPacket, TcpRepr};

const TCP: u8 = 6;

// ---- Sequence numbers

#[test]
fn sequence_order_wraps() {
    let last = SeqNumber(u32::MAX);
    let first = SeqNumber(0);
    assert!(last.before(first) && first.after(last));
    assert_eq!((first - last, last - first), (1, -1));
    assert_eq!(last + 1, first);
    assert_eq!(first - 1_u32, last);
    assert!(first.within(last, 2) && !first.within(last, 1) && !last.within(last, 0));
}

proptest! {
    /// A model: 64-bit positions in a stream, less than 2^31 apart.
    #[test]
    fn sequence_order_is_stream_order(a in any::<u64>(), ahead in 0u32..1 << 31) {
        let b = a.wrapping_add(u64::from(ahead));
        let low = SeqNumber(a as u32);
        let high = SeqNumber(b as u32);
        prop_assert_eq!(low.before(high), ahead > 0);
        prop_assert_eq!(high.after(low), ahead > 0);
        prop_assert_eq!(high - low, ahead as i32);
        prop_assert_eq!(low + ahead, high);
        prop_assert!(high.within(low, ahead + 1) && !high.within(low, ahead));
    }
}

// ---- What is emitted is parsed

fn seq() -> impl Strategy<Value = SeqNumber> {
    any::<u32>().prop_map(SeqNumber)
}

fn flags() -> impl Strategy<Value = Flags> {
    let all = [Flags::FIN, Flags::SYN, Flags::RST, Flags::PSH, Flags::URG, Flags::ECE, Flags::CWR];
    vec(any::<bool>(), all.len()).prop_map(move |set| {
        let set = all.iter().zip(set).filter(|(_, is_set)| *is_set);
        set.fold(Flags::NONE, |flags, (flag, _)| flags | *flag)
    })
}

/// Options that a segment with these flags can have.
fn options(is_syn: bool) -> BoxedStrategy<TcpOptions> {
    let timestamps = option::of(any::<(u32, u32)>());
    if is_syn {
        let syn = (
            option::of(any::<u16>()),
            option::of(0..=tcp::WINDOW_SCALE_MAX),
            any::<bool>(),
            timestamps,
        );
        let options = syn.prop_map(|(mss, window_scale, sack_permitted, timestamps)| TcpOptions {
            mss,
            window_scale,
            sack_permitted,
            timestamps,
            ..TcpOptions::NONE
        });
        return options.boxed();
    }
    let blocks = vec((seq(), seq()), 0..=SackBlocks::COUNT_MAX);
    let options = (blocks, timestamps).prop_map(|(blocks, timestamps)| {
        let count_max = match timestamps {
            Some(_) => SackBlocks::COUNT_MAX_WITH_TIMESTAMPS,
            None => SackBlocks::COUNT_MAX,
        };
        let mut sacks = SackBlocks::NONE;
        for (left, right) in blocks.into_iter().take(count_max) {
            assert!(sacks.push(SackBlock { left, right }));
        }
        TcpOptions { sacks, timestamps, ..TcpOptions::NONE }
    });
    options.boxed()
}

/// A segment and its payload.
fn segment() -> impl Strategy<Value = (Segment<'static>, Vec<u8>)> {
    let with_flags = flags().prop_flat_map(|flags| {
        let header = (
            any::<(u16, u16, u16, u16)>(),
            seq(),
            option::of(seq()),
            options(flags.contains(Flags::SYN)),
        );
        header.prop_map(move |((src_port, dst_port, window, urgent), seq, ack, options)| Segment {
            src_port,
            dst_port,
            seq,
            ack,
            flags,
            window,
            urgent,
            options,
            payload: &[],
        })
    });
    (with_flags, vec(any::<u8>(), 0..100))
}

/// The bytes of a segment, without a checksum.
fn emitted(segment: &Segment<'_>, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xaa; tcp::HEADER_LEN_MAX];
    let len = segment.emit(&mut bytes);
    assert_eq!(len, segment.header_len());
    bytes.truncate(len);
    bytes.extend_from_slice(payload);
    bytes
}

proptest! {
    #[test]
    fn emitted_segments_parse((segment, payload) in segment()) {
        let bytes = emitted(&segment, &payload);
        let parsed = Segment::parse(&bytes).unwrap();
        prop_assert_eq!(parsed, Segment { payload: &payload, ..segment });
        let controls = [Flags::SYN, Flags::FIN].map(|flag| segment.flags.contains(flag) as u32);
        let seq_len = payload.len() as u32 + controls.iter().sum::<u32>();
        prop_assert_eq!(parsed.seq_len(), seq_len);
    }

    #[test]
    fn etherparse_reads_emitted_segments((segment, payload) in segment()) {
        let bytes = emitted(&segment, &payload);
        let read = TcpHeaderSlice::from_slice(&bytes).unwrap();
        agree_on_fixed_fields(&segment, &read);
        prop_assert_eq!(usize::from(read.data_offset()) * 4, segment.header_len());
        let elements = read.options_iterator().map(Result::unwrap);
        let elements: Vec<_> = elements.filter(|it| *it != TcpOptionElement::Noop).collect();
        let mut expected = Vec::new();
        let is = &segment.options;
        expected.extend(is.mss.map(TcpOptionElement::MaximumSegmentSize));
        expected.extend(is.window_scale.map(TcpOptionElement::WindowScale));
        if is.sack_permitted {
            expected.push(TcpOptionElement::SelectiveAcknowledgementPermitted);
        }
        expected.extend(is.timestamps.map(|(a, b)| TcpOptionElement::Timestamp(a, b)));
        let blocks: Vec<_> = is.sacks.as_slice().iter().map(|it| (it.left.0, it.right.0)).collect();
        if let Some((first, others)) = blocks.split_first() {
            let others = [0, 1, 2].map(|index| others.get(index).copied());
            expected.push(TcpOptionElement::SelectiveAcknowledgement(*first, others));
        }
        prop_assert_eq!(elements, expected);
    }

    #[test]
    fn any_bytes_are_read_as_by_etherparse(
        mut bytes in vec(any::<u8>(), 0..100),
        words in 0u8..16,
    ) {
        // A length field that fits is rare by chance.
        if let Some(byte) = bytes.get_mut(12) {
            *byte = words << 4;
        }
        match (Segment::parse(&bytes), TcpHeaderSlice::from_slice(&bytes)) {
            (Ok(ours), Ok(theirs)) => {
                agree_on_fixed_fields(&ours, &theirs);
                prop_assert_eq!(ours.payload, &bytes[theirs.slice().len()..]);
            }
            (Err(_), Err(_)) => {}
            (ours, theirs) => panic!("{ours:?} but {theirs:?}"),
        }
    }

    /// The parser of options never goes beyond them, and reads the same from what it wrote.
    #[test]
    fn any_options_survive_a_round_trip(
        bytes in vec(prop_oneof![0u8..11, any::<u8>()], 0..40),
        is_syn in any::<bool>(),
    ) {
        let flags = if is_syn { Flags::SYN } else { Flags::NONE };
        let bytes = with_options(flags, &bytes);
        let first = Segment::parse(&bytes).unwrap();
        let options = TcpOptions { has_illegal_length: false, ..first.options };
        // A sender would not put so much into one header.
        prop_assume!(options.len() <= 40);
        let mut buffer = [0; tcp::HEADER_LEN_MAX];
        let len = Segment { options, ..first }.emit(&mut buffer);
        prop_assert_eq!(Segment::parse(&buffer[..len]).unwrap().options, options);
    }

    #[test]
    fn checksums_agree_with_etherparse_and_smoltcp(
        (segment, payload) in segment(),
        v4 in any::<([u8; 4], [u8; 4])>(),
        v6 in any::<([u8; 16], [u8; 16])>(),
    ) {
        let src = Ipv4Addr::from(v4.0);
        let dst = Ipv4Addr::from(v4.1);
        let bytes = emitted(&segment, &payload);
        let len = bytes.len();
        let pseudo = Sum::pseudo_header_v4(src, dst, TCP, len as u32);
        let summed = checksummed(&bytes, segment.header_len(), pseudo);
        let theirs = TcpHeaderSlice::from_slice(&summed).unwrap();
        let expected = theirs.calc_checksum_ipv4_raw(v4.0, v4.1, &payload).unwrap();
        prop_assert_eq!(theirs.checksum(), expected);
        prop_assert!(checksum_fits(pseudo, &summed));
        let packet = TcpPacket::new_checked(&summed[..]).unwrap();
        prop_assert!(packet.verify_checksum(&IpAddress::Ipv4(src), &IpAddress::Ipv4(dst)));

        let src = Ipv6Addr::from(v6.0);

        let dst = Ipv6Addr::from(v6.1);
        let pseudo = Sum::pseudo_header_v6(src, dst, TCP, len as u32);
        let summed = checksummed(&bytes, segment.header_len(), pseudo);
        let theirs = TcpHeaderSlice::from_slice(&summed).unwrap();
        let expected = theirs.calc_checksum_ipv6_raw(v6.0, v6.1, &payload).unwrap();
        prop_assert_eq!(theirs.checksum(), expected);
        prop_assert!(checksum_fits(pseudo, &summed));
    }

    #[test]
    fn flipped_bits_are_noticed((segment, payload) in segment(), bit in any::<usize>()) {
        let pseudo = Sum::pseudo_header_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), TCP, 99);
        let mut bytes = checksummed(&emitted(&segment, &payload), segment.header_len(), pseudo);
        let bit = bit % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(!checksum_fits(pseudo, &bytes));
    }

    #[test]
    fn smoltcp_segments_are_parsed(
        ports in (1..=u16::MAX, 1..=u16::MAX),
        numbers in any::<(u32, u32)>(),
        control in 0..5usize,
        window in any::<u16>(),
        payload in vec(any::<u8>(), 0..50),
        sacks in vec(any::<(u32, u32)>(), 0..4),
    ) {
        let controls = [
            (TcpControl::None, Flags::NONE),
            (TcpControl::Psh, Flags::PSH),
            (TcpControl::Syn, Flags::SYN),
            (TcpControl::Fin, Flags::FIN),
            (TcpControl::Rst, Flags::RST),
        ];
        let (control, flags) = controls[control];
        let is_syn = control == TcpControl::Syn;
        let repr = TcpRepr {
            src_port: ports.0,
            dst_port: ports.1,
            control,
            seq_number: smoltcp::wire::TcpSeqNumber(numbers.0 as i32),
            ack_number: Some(smoltcp::wire::TcpSeqNumber(numbers.1 as i32)),
            window_len: window,
            window_scale: is_syn.then_some(7),
            max_seg_size: is_syn.then_some(1460),
            sack_permitted: is_syn,
            sack_ranges: [0, 1, 2].map(|index| sacks.get(index).copied().filter(|_| !is_syn)),
            timestamp: None,
            payload: &payload,
        };
        let mut bytes = vec![0; repr.buffer_len()];
        let src = Ipv4Addr::new(10, 0, 0, 1);
        let dst = Ipv4Addr::new(10, 0, 0, 2);
        let ends = (IpAddress::Ipv4(src), IpAddress::Ipv4(dst));
        let mut packet = TcpPacket::new_unchecked(&mut bytes[..]);
        repr.emit(&mut packet, &ends.0, &ends.1, &ChecksumCapabilities::default());
        let pseudo = Sum::pseudo_header_v4(src, dst, TCP, bytes.len() as u32);
        prop_assert!(checksum_fits(pseudo, &bytes));
        let ours = Segment::parse(&bytes).unwrap();
        prop_assert_eq!((ours.src_port, ours.dst_port, ours.flags), (ports.0, ports.1, flags));
        prop_assert_eq!((ours.seq.0, ours.ack.unwrap().0), numbers);
        prop_assert_eq!((ours.window, ours.payload), (window, &payload[..]));
        let options = &ours.options;
        prop_assert_eq!(options.mss, repr.max_seg_size);
        prop_assert_eq!(options.window_scale, repr.window_scale);
        prop_assert_eq!(options.sack_permitted, is_syn);
        let blocks = options.sacks.as_slice().iter().map(|it| (it.left.0, it.right.0));
        let theirs = repr.sack_ranges.iter().flatten().copied();
        prop_assert_eq!(blocks.collect::<Vec<_>>(), theirs.collect::<Vec<_>>());
    }
}

fn agree_on_fixed_fields(ours: &Segment<'_>, theirs: &TcpHeaderSlice<'_>) {
    assert_eq!(ours.src_port, theirs.source_port());
    assert_eq!(ours.dst_port, theirs.destination_port());
    assert_eq!(ours.seq.0, theirs.sequence_number());
    assert_eq!(ours.ack.is_some(), theirs.ack());
    if let Some(ack) = ours.ack {
        assert_eq!(ack.0, theirs.acknowledgment_number());
    }
    let flags = [
        (Flags::FIN, theirs.fin()),
        (Flags::SYN, theirs.syn()),
        (Flags::RST, theirs.rst()),
        (Flags::PSH, theirs.psh()),
        (Flags::URG, theirs.urg()),
        (Flags::ECE, theirs.ece()),
        (Flags::CWR, theirs.cwr()),
    ];
    for (flag, is_set) in flags {
        assert_eq!(ours.flags.contains(flag), is_set, "{flag:?}");
    }
    assert_eq!(ours.window, theirs.window_size());
    assert_eq!(ours.urgent, theirs.urgent_pointer());
}

fn checksummed(bytes: &[u8], header_len: usize, pseudo: Sum) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let (header, payload) = bytes.split_at_mut(header_len);
    write_checksum(header, pseudo, Sum::of(payload));
    bytes
}

// ---- Invalid options

/// A header with these bytes as its options, filled up with zeros: the end of the options.
fn with_options(flags: Flags, options: &[u8]) -> Vec<u8> {
    let segment = Segment {
        src_port: 1,
        dst_port: 2,
        seq: SeqNumber(3),
        ack: Some(SeqNumber(4)),
        flags,
        window: 5,
        urgent: 0,
        options: TcpOptions::NONE,
        payload: &[],
    };
    let mut bytes = emitted(&segment, options);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes[12] = ((bytes.len() / 4) as u8) << 4;
    bytes
}

fn options_of(flags: Flags, options: &[u8]) -> TcpOptions {
    Segment::parse(&with_options(flags, options)).unwrap().options
}

#[test]
fn illegal_option_lengths_end_parsing() {
    let mss = TcpOptions { mss: Some(1460), has_illegal_length: true, ..TcpOptions::NONE };
    // RFC 9293 3.1, MUST-7. A length of 0, of 1, beyond the header, and none at all.
    for illegal in [&[8, 0][..], &[8, 1], &[8, 40], &[1, 1, 1, 8]] {
        let bytes = [&[2, 4, 0x05, 0xb4], illegal].concat();
        assert_eq!(options_of(Flags::SYN, &bytes), mss, "{illegal:?}");
    }
}

#[test]
fn known_options_of_wrong_length_are_skipped() {
    // MSS, window scale, SACK permitted, SACK and timestamps, each too long or too short; then a
    // window scale as it should be.
    let wrong: [&[u8]; 7] = [
        &[2, 3, 1],
        &[2, 5, 1, 1, 1],
        &[3, 2],
        &[4, 3, 1],
        &[5, 2],
        &[5, 9, 1, 1, 1, 1, 1, 1, 1],
        &[8, 9, 1, 1, 1, 1, 1, 1, 1],
    ];
    for option in wrong {
        let bytes = [option, &[3, 3, 7]].concat();
        let expected = TcpOptions { window_scale: Some(7), ..TcpOptions::NONE };
        assert_eq!(options_of(Flags::SYN, &bytes), expected, "{option:?}");
    }
}

#[test]
fn unknown_options_are_skipped() {
    // RFC 9293 3.1, MUST-6: here TCP fast open's.
    let options = options_of(Flags::SYN, &[34, 4, 1, 2, 2, 4, 0x05, 0xb4]);
    assert_eq!(options.mss, Some(1460));
}

#[test]
fn unaligned_options_and_early_ends() {
    // RFC 9293 3.1, MUST-64: not aligned. Bytes after the end option do not count.
    let options = options_of(Flags::SYN, &[1, 2, 4, 0x05, 0xb4, 3, 3, 2, 0, 4, 2, 0]);
    let expected = TcpOptions { mss: Some(1460), window_scale: Some(2), ..TcpOptions::NONE };
    assert_eq!(options, expected);
}

#[test]
fn a_window_scale_above_14_is_14() {
    // RFC 7323 2.3
    for shift in [14, 15, 255] {
        let options = options_of(Flags::SYN, &[3, 3, shift]);
        assert_eq!(options.window_scale, Some(14));
    }
}

#[test]
fn syn_options_count_in_a_syn_only() {
    let bytes = [&[2, 4, 0x05, 0xb4, 3, 3, 7, 4, 2][..], &[5, 10], &[9; 8]].concat();
    let syn = options_of(Flags::SYN, &bytes);
    assert!(syn.sack_permitted && syn.sacks.is_empty());
    let other = options_of(Flags::NONE, &bytes);
    assert_eq!((other.mss, other.window_scale), (None, None));
    assert!(!other.sack_permitted);
    assert_eq!(other.sacks.as_slice().len(), 1);
}

#[test]
fn short_segments_are_refused() {
    let bytes = with_options(Flags::NONE, &[1; 12]);
    for len in 0..bytes.len() {
        let parsed = Segment::parse(&bytes[..len]);
        assert_eq!(parsed, Err(Malformed::Truncated), "{len}");
    }
    let mut short = bytes.clone();
    for words in 0..5 {
        short[12] = words << 4;
        assert_eq!(Segment::parse(&short), Err(Malformed::Header));
    }
}

#[test]
fn a_fifth_block_is_left_out() {
    let mut sacks = SackBlocks::NONE;
    for _ in 0..4 {
        assert!(sacks.push(SackBlock::default()));
    }
    assert!(!sacks.push(SackBlock::default()));
    assert_eq!(sacks.as_slice().len(), 4);
}

#[test]
#[should_panic(expected = "options of 48 bytes")]
fn four_blocks_and_timestamps_do_not_fit() {
    let mut sacks = SackBlocks::NONE;
    while sacks.push(SackBlock::default()) {}
    let options = TcpOptions { sacks, timestamps: Some((1, 2)), ..TcpOptions::NONE };
    let bytes = with_options(Flags::NONE, &[]);
    let segment = Segment::parse(&bytes).unwrap();
    Segment { options, ..segment }.emit(&mut [0; 100]);
}
