//! Media types by file name extension, as the IANA registry names them.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::lookup::Encoding;

/// The type of a file by its name, from the built-in table.
pub(super) fn by_name(path: &str) -> Option<&'static str> {
    let extension = extension(path)?;
    let mut lower = [0; EXTENSION_LEN_MAX];
    let lower = lower.get_mut(..extension.len())?;
    lower.copy_from_slice(extension.as_bytes());
    lower.make_ascii_lowercase();
    TYPES.get(&*lower).copied()
}

/// Extension: the part after the last dot of the last segment; a leading dot does not count.
pub(super) fn extension(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next()?;
    match name.rsplit_once('.')? {
        ("", _) => None,
        (_, extension) => Some(extension),
    }
}

/// The coding that a file's name declares, for files that are useless to a client otherwise: a
/// compressed picture, script, style sheet or module. Files meant for download (`.tar.gz`,
/// `.csv.gz`) keep their own type.
pub(super) fn coding_by_name(path: &str) -> Option<Encoding> {
    let name = path.rsplit('/').next()?;
    if extension(name).is_some_and(|extension| extension.eq_ignore_ascii_case("svgz")) {
        return Some(Encoding::Gzip);
    }
    let of_name = |encoding: &Encoding| name.ends_with(encoding.suffix());
    let encoding = Encoding::ALL.into_iter().find(of_name)?;
    let inner = by_name(without_coding(name, encoding))?;
    let is_for_browsers = matches!(
        inner.split(';').next(),
        Some("text/javascript" | "text/css" | "application/wasm" | "image/svg+xml")
    );
    is_for_browsers.then_some(encoding)
}

/// The name without the suffix of its coding.
pub(super) fn without_coding(path: &str, encoding: Encoding) -> &str {
    path.strip_suffix(encoding.suffix()).unwrap_or(path)
}

/// True if files of this type are worth compressing, so that variants may appear beside them.
pub(super) fn is_compressible(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim_end();
    essence.starts_with("text/")
        || ["+xml", "+json"].iter().any(|suffix| essence.ends_with(suffix))
        || matches!(
            essence,
            "application/javascript"
                | "application/json"
                | "application/pdf"
                | "application/rtf"
                | "application/sql"
                | "application/toml"
                | "application/vnd.ms-fontobject"
                | "application/wasm"
                | "application/xml"
                | "application/yaml"
                | "font/otf"
                | "font/ttf"
                | "image/bmp"
                | "image/vnd.microsoft.icon"
        )
}

/// Longest extension in the table.
const EXTENSION_LEN_MAX: usize = 11;

/// Types by extension, of lines `EXTENSIONS = TYPE`. Text carries its charset: without it browsers
/// guess, and guess by locale. JSON does not: it is UTF-8 by definition (RFC 8259 8.1). JavaScript
/// is `text/javascript` by RFC 9239.
static TYPES: LazyLock<HashMap<&[u8], &str>> = LazyLock::new(|| {
    let lines = include_str!("mime.txt").lines().filter_map(|line| line.split_once(" = "));
    lines.flat_map(|(names, kind)| names.split(' ').map(move |it| (it.as_bytes(), kind))).collect()
});

#[cfg(test)]
mod tests {
    use super::*;

    /// A repeated extension would silently get its last type.
    #[test]
    fn each_extension_has_one_type() {
        let lines = include_str!("mime.txt").lines().map(|line| line.split_once(" = ").unwrap());
        assert_eq!(lines.flat_map(|(names, _)| names.split(' ')).count(), TYPES.len());
        assert!(TYPES.keys().all(|name| name.to_ascii_lowercase() == *name));
        let longest = TYPES.keys().map(|name| name.len()).max();
        assert_eq!(longest, Some(EXTENSION_LEN_MAX));
    }

    #[test]
    fn the_web_s_own_types_are_right() {
        for (name, content_type) in [
            ("index.html", "text/html; charset=utf-8"),
            ("a/b.min.js", "text/javascript; charset=utf-8"),
            ("m.mjs", "text/javascript; charset=utf-8"),
            ("x.WASM", "application/wasm"),
            ("p.avif", "image/avif"),
            ("f.woff2", "font/woff2"),
            ("site.webmanifest", "application/manifest+json"),
            ("logo.svg", "image/svg+xml"),
            ("archive.tar.gz", "application/gzip"),
        ] {
            assert_eq!(by_name(name), Some(content_type), "{name}");
        }
    }

    #[test]
    fn no_extension_no_type() {
        for name in ["README", ".html", "a.d/README", "x.", "x.averyveryverylongone", "x.html.b"] {
            assert_eq!(by_name(name), None, "{name}");
        }
    }

    #[test]
    fn svgz_has_its_coding() {
        for (name, coding) in [
            ("logo.svgz", Some(Encoding::Gzip)),
            ("a/LOGO.SVGZ", Some(Encoding::Gzip)),
            ("Build/game.framework.js.gz", Some(Encoding::Gzip)),
            ("game.wasm.br", Some(Encoding::Br)),
            ("style.css.zst", Some(Encoding::Zstd)),
            ("archive.tar.gz", None),
            ("dump.sql.gz", None),
            ("data.json.gz", None),
            ("x.gz", None),
            (".gz", None),
            (".js.gz", None),
            ("a.js.d/x", None),
        ] {
            assert_eq!(coding_by_name(name), coding, "{name}");
        }
    }

    #[test]
    fn text_is_compressible() {
        for name in ["a.html", "a.js", "a.json", "a.svg", "a.wasm", "a.webmanifest", "a.ttf"] {
            assert!(is_compressible(by_name(name).unwrap()), "{name}");
        }
        for name in ["a.png", "a.woff2", "a.mp4", "a.zip", "a.gz"] {
            assert!(!is_compressible(by_name(name).unwrap()), "{name}");
        }
    }
}
