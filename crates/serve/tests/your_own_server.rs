//! `docs/your-own-server.md` and `examples/line.rs` are one program, which does what the page says.
//! The system suite runs it on the netstack, which needs root.

extern crate weftwork_serve as serve;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};

use serve::listen::{self, Address};

#[path = "../examples/line.rs"]
#[allow(dead_code, reason = "main is for those who run it")]
mod line;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(repository().join(path)).unwrap()
}

/// The page's fenced blocks in one language, in order.
fn blocks(language: &str) -> Vec<String> {
    let page = read("docs/your-own-server.md");
    let fences = page.split("```").skip(1).step_by(2);
    let blocks = fences.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n'));
    blocks.map(str::to_owned).collect()
}

#[test]
fn the_page_is_the_example() {
    let example = read("crates/serve/examples/line.rs");
    let lines = example.lines().skip_while(|line| !line.starts_with("use"));
    let example: Vec<_> = lines.collect();
    let page = blocks("rust").join("\n");
    assert_eq!(page.lines().collect::<Vec<_>>(), example);
}

#[test]
fn the_manifest_names_packages_that_exist() {
    let manifest = blocks("toml").concat();
    let dependencies: Vec<_> = manifest.lines().filter(|line| line.contains("path")).collect();
    assert_eq!(dependencies.len(), 3, "{manifest}");
    for line in dependencies {
        let [_, package, _, path, ..] = line.split('"').collect::<Vec<_>>()[..] else {
            panic!("{line}: a package and a path");
        };
        let path = path.strip_prefix("../weftwork/").expect(line);
        let named = read(Path::new(path).join("Cargo.toml"));
        assert!(named.contains(&format!("name = \"{package}\"\n")), "{line}");
    }
}

#[test]
fn every_engine_serves_it() {
    let example = read("crates/serve/examples/line.rs");
    let names = example.lines().filter_map(|line| {
        let (name, engine) = line.trim().strip_prefix('"')?.split_once("\" => Ok(")?;
        engine.starts_with("Engine").then(|| name.to_owned())
    });
    let names: Vec<String> = names.collect();
    assert!(names.len() >= 2, "{names:?}");
    for name in names {
        let listeners = listen::bind(&"127.0.0.1:0".parse().unwrap(), None).unwrap();
        let Address::Tcp(address) = listeners[0].address else {
            unreachable!("bound as such");
        };
        let server = line::start(listeners, line::engine(&name).unwrap()).unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"hello\nworld\n").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut replies = String::new();
        client.read_to_string(&mut replies).unwrap();
        assert_eq!(replies, "olleh\ndlrow\n", "{name}");
        assert_eq!(server.drain(), 0, "{name}");
    }
    assert!(line::engine("steam").is_err());
}
