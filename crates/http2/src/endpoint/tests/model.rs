//! Random conversations with an honest client: it gets every byte that it asked for, and never more
//! than its windows allow.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Act {
    /// A request whose reply has this many bytes, at an urgency.
    Request(u64, u8, bool),
    /// More window for the connection and for all streams.
    Window(u32),
    InitialWindow(u32),
    Cancel(usize),
    Ping,
    /// The server sends up to so many pieces.
    Send(usize, u64),
    /// A stream is paused, another resumed.
    Pause(usize),
    Cut(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0_u64..200_000, 0_u8..8, any::<bool>())
            .prop_map(|(len, urgency, is_incremental)| Act::Request(len, urgency, is_incremental)),
        3 => (1_u32..100_000).prop_map(Act::Window),
        1 => (0_u32..200_000).prop_map(Act::InitialWindow),
        1 => (0_usize..10).prop_map(Act::Cancel),
        1 => Just(Act::Ping),
        4 => (1_usize..10, 1_u64..100_000).prop_map(|(count, len)| Act::Send(count, len)),
        1 => (0_usize..10).prop_map(Act::Pause),
        1 => (0_usize..40).prop_map(Act::Cut),
    ]
}

/// A stream as the client knows it.
struct Asked {
    key: StreamKey,
    len: u64,
    taken: u64,
    window: i64,
    is_ended: bool,
}

struct Client {
    world: World,
    streams: BTreeMap<u32, Asked>,
    paused: Option<StreamKey>,
    window: i64,
    initial_window: u32,
    next_id: u32,
}

impl Client {
    fn act(&mut self, act: Act) {
        match act {
            Act::Request(len, urgency, is_incremental) => {
                let priority = Priority { urgency, is_incremental }.to_string();
                let bytes = headers(self.next_id, true, &[("priority", &priority)]);
                let key = self.world.open(bytes);
                self.world.answer(key, len);
                let window = i64::from(self.initial_window);
                let taken = 0;
                let is_ended = false;
                let asked = Asked { key, len, taken, window, is_ended };
                self.streams.insert(self.next_id, asked);
                self.next_id += 2;
            }
            Act::Window(increment) => {
                self.window += i64::from(increment);
                self.world.send(&window(0, increment));
                for (id, stream) in &mut self.streams {
                    stream.window += i64::from(increment);
                    self.world.send(&window(*id, increment));
                }
            }
            Act::InitialWindow(value) => {
                let change = i64::from(value) - i64::from(self.initial_window);
                self.initial_window = value;
                for stream in self.streams.values_mut() {
                    stream.window += change;
                }
                self.world.send(&settings(&[(setting::INITIAL_WINDOW_SIZE, value)]));
            }
            Act::Cancel(at) => {
                if let Some(&id) = self.streams.keys().nth(at) {
                    self.read();
                    let asked = self.streams.remove(&id).unwrap();
                    let cancel = frame(kind::RST_STREAM, 0, id, &8_u32.to_be_bytes());
                    let events = self.world.send(&cancel);
                    let code = ErrorCode::CANCEL;
                    let stream = asked.key;
                    let expected = StreamEvent::Reset { stream, code };
                    assert_eq!(events.contains(&expected), !asked.is_ended);
                }
            }
            Act::Ping => {
                self.world.send(&frame(kind::PING, 0, 0, &[7; 8]));
            }
            Act::Send(count, len_max) => {
                for _ in 0..count {
                    let Some(mut piece) = self.world.endpoint.next_piece(len_max) else {
                        break;
                    };
                    let World { endpoint, out, .. } = &mut self.world;
                    while let Some(len) = endpoint.write_frame(&mut piece, out) {
                        out.extend(vec![0; len as usize]);
                    }
                }
            }
            Act::Pause(at) => {
                if let Some(key) = self.paused.take() {
                    self.world.endpoint.resume(key);
                }
                self.paused = self.streams.values().nth(at).map(|stream| stream.key);
                if let Some(key) = self.paused {
                    self.world.endpoint.pause(key);
                }
            }
            Act::Cut(len) => self.world.cut = len,
        }
        self.read();
    }

    fn read(&mut self) {
        for line in self.world.said() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u32>().unwrap();
            let (id, len) = match words[0] {
                "DATA" => (number(1), u64::from(number(2))),
                "HEADERS" => (number(1), 0),
                "SETTINGS" | "PING" => continue,
                _ => panic!("{line}"),
            };
            let stream = self.streams.get_mut(&id).expect("the stream is open");
            assert!(!stream.is_ended, "{line}");
            stream.taken += len;
            stream.window -= len as i64;
            self.window -= len as i64;
            assert!(len == 0 || (stream.window >= 0 && self.window >= 0), "{line}");
            assert!(stream.taken <= stream.len);
            stream.is_ended = words.contains(&"END_STREAM");
            assert_eq!(stream.is_ended, stream.taken == stream.len);
        }
    }
}

proptest! {
    #[test]
    fn every_byte_arrives(acts in prop::collection::vec(act(), 0..100)) {
        let mut client = Client {
            world: World::with(|limits| limits.streams_max = 1000),
            streams: BTreeMap::new(),
            paused: None,
            window: 65_535,
            initial_window: 65_535,
            next_id: 1,
        };
        for act in acts {
            client.act(act);
        }
        client.act(Act::Pause(1000));
        client.act(Act::Window(1 << 25));
        client.act(Act::Send(1_000_000, 65_536));
        prop_assert_eq!(client.world.endpoint.open_streams(), 0);
        prop_assert!(client.streams.values().all(|stream| stream.is_ended));
        prop_assert_eq!(client.world.endpoint.take_counters().failed, 0);
    }
}
