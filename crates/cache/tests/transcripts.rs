//! Every transcript, replayed whole, byte by byte, and cut at seeded random places.

use cache::transcript;
use session::replay::replay;

#[test]
fn transcripts_replay() {
    for (file, text) in transcript::FILES {
        for (name, script) in transcript::parse(file, text) {
            println!("{name}");
            replay(|| transcript::conversation().expect("a store"), &script);
        }
    }
}
