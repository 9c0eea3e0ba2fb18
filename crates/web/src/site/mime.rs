//! Media types by file name extension, as the IANA registry names them.

use crate::lookup::Encoding;

/// The type of a file by its name, from the built-in table.
pub(super) fn by_name(path: &str) -> Option<&'static str> {
    let extension = extension(path)?;
    let mut lower = [0; EXTENSION_LEN_MAX];
    let lower = lower.get_mut(..extension.len())?;
    lower.copy_from_slice(extension.as_bytes());
    lower.make_ascii_lowercase();
    let at = TYPES.binary_search_by(|(name, _)| name.as_bytes().cmp(lower)).ok()?;
    Some(TYPES[at].1)
}

/// Extension: the part after the last dot of the last segment; a leading dot does not count.
pub(super) fn extension(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next()?;
    match name.rsplit_once('.')? {
        ("", _) => None,
        (_, extension) => Some(extension),
    }
}

/// The coding that a file's name says its bytes are in, where a client could do nothing with them
/// otherwise: a compressed picture, script, style sheet or module. What is downloaded to be kept
/// (`.tar.gz`, `.csv.gz`) stays a file of its own type.
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

/// The name without what says how it is compressed.
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

/// Sorted by extension. Text carries its charset: without it browsers guess, and guess by locale.
/// JSON does not: it is UTF-8 by definition (RFC 8259 8.1). JavaScript is `text/javascript` by RFC
/// 9239.
#[rustfmt::skip]
const TYPES: &[(&str, &str)] = &[
    ("3gp", "video/3gpp"),
    ("7z", "application/x-7z-compressed"),
    ("aac", "audio/aac"),
    ("apk", "application/vnd.android.package-archive"),
    ("apng", "image/apng"),
    ("appcache", "text/cache-manifest; charset=utf-8"),
    ("asc", "application/pgp-signature"),
    ("atom", "application/atom+xml"),
    ("avi", "video/x-msvideo"),
    ("avif", "image/avif"),
    ("bin", "application/octet-stream"),
    ("bmp", "image/bmp"),
    ("br", "application/octet-stream"),
    ("bz2", "application/x-bzip2"),
    ("c", "text/x-c; charset=utf-8"),
    ("cjs", "text/javascript; charset=utf-8"),
    ("conf", "text/plain; charset=utf-8"),
    ("cpp", "text/x-c; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("csv", "text/csv; charset=utf-8"),
    ("deb", "application/vnd.debian.binary-package"),
    ("diff", "text/x-diff; charset=utf-8"),
    ("djvu", "image/vnd.djvu"),
    ("dmg", "application/octet-stream"),
    ("doc", "application/msword"),
    ("docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    ("eot", "application/vnd.ms-fontobject"),
    ("epub", "application/epub+zip"),
    ("exe", "application/octet-stream"),
    ("flac", "audio/flac"),
    ("geojson", "application/geo+json"),
    ("gif", "image/gif"),
    ("glb", "model/gltf-binary"),
    ("gltf", "model/gltf+json"),
    ("go", "text/plain; charset=utf-8"),
    ("gpx", "application/gpx+xml"),
    ("gz", "application/gzip"),
    ("h", "text/x-c; charset=utf-8"),
    ("heic", "image/heic"),
    ("heif", "image/heif"),
    ("htm", "text/html; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("ico", "image/vnd.microsoft.icon"),
    ("ics", "text/calendar; charset=utf-8"),
    ("img", "application/octet-stream"),
    ("ini", "text/plain; charset=utf-8"),
    ("iso", "application/octet-stream"),
    ("jar", "application/java-archive"),
    ("java", "text/plain; charset=utf-8"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("json5", "application/json5"),
    ("jsonl", "application/jsonl"),
    ("jsonld", "application/ld+json"),
    ("jxl", "image/jxl"),
    ("key", "application/pgp-keys"),
    ("kml", "application/vnd.google-earth.kml+xml"),
    ("kmz", "application/vnd.google-earth.kmz"),
    ("log", "text/plain; charset=utf-8"),
    ("lua", "text/plain; charset=utf-8"),
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("m4a", "audio/mp4"),
    ("m4s", "video/iso.segment"),
    ("m4v", "video/mp4"),
    ("map", "application/json"),
    ("markdown", "text/markdown; charset=utf-8"),
    ("md", "text/markdown; charset=utf-8"),
    ("mid", "audio/midi"),
    ("midi", "audio/midi"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("mkv", "video/matroska"),
    ("mov", "video/quicktime"),
    ("mp3", "audio/mpeg"),
    ("mp4", "video/mp4"),
    ("mpd", "application/dash+xml"),
    ("mpeg", "video/mpeg"),
    ("mpg", "video/mpeg"),
    ("odp", "application/vnd.oasis.opendocument.presentation"),
    ("ods", "application/vnd.oasis.opendocument.spreadsheet"),
    ("odt", "application/vnd.oasis.opendocument.text"),
    ("oga", "audio/ogg"),
    ("ogg", "audio/ogg"),
    ("ogv", "video/ogg"),
    ("opus", "audio/ogg"),
    ("otf", "font/otf"),
    ("parquet", "application/vnd.apache.parquet"),
    ("patch", "text/x-diff; charset=utf-8"),
    ("pdf", "application/pdf"),
    ("pem", "application/x-pem-file"),
    ("png", "image/png"),
    ("ppt", "application/vnd.ms-powerpoint"),
    ("pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
    ("ps", "application/postscript"),
    ("py", "text/x-python; charset=utf-8"),
    ("rar", "application/vnd.rar"),
    ("rpm", "application/x-rpm"),
    ("rs", "text/plain; charset=utf-8"),
    ("rss", "application/rss+xml"),
    ("rst", "text/plain; charset=utf-8"),
    ("rtf", "application/rtf"),
    ("sh", "text/x-shellscript; charset=utf-8"),
    ("sig", "application/pgp-signature"),
    ("sql", "application/sql"),
    ("srt", "text/plain; charset=utf-8"),
    ("svg", "image/svg+xml"),
    ("svgz", "image/svg+xml"),
    ("swf", "application/vnd.adobe.flash.movie"),
    ("tar", "application/x-tar"),
    ("tex", "application/x-tex"),
    ("tgz", "application/gzip"),
    ("tif", "image/tiff"),
    ("tiff", "image/tiff"),
    ("toml", "application/toml"),
    ("torrent", "application/x-bittorrent"),
    ("ts", "video/mp2t"),
    ("tsv", "text/tab-separated-values; charset=utf-8"),
    ("ttc", "font/collection"),
    ("ttf", "font/ttf"),
    ("txt", "text/plain; charset=utf-8"),
    ("vcf", "text/vcard; charset=utf-8"),
    ("vtt", "text/vtt; charset=utf-8"),
    ("wasm", "application/wasm"),
    ("wav", "audio/wav"),
    ("weba", "audio/webm"),
    ("webm", "video/webm"),
    ("webmanifest", "application/manifest+json"),
    ("webp", "image/webp"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("xhtml", "application/xhtml+xml"),
    ("xls", "application/vnd.ms-excel"),
    ("xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    ("xml", "text/xml; charset=utf-8"),
    ("xpi", "application/x-xpinstall"),
    ("xsl", "text/xml; charset=utf-8"),
    ("xz", "application/x-xz"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("zip", "application/zip"),
    ("zst", "application/zstd"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// A binary search in an unsorted table silently finds nothing.
    #[test]
    fn table_is_sorted() {
        assert!(TYPES.is_sorted_by(|(a, _), (b, _)| a < b));
        let longest = TYPES.iter().map(|(name, _)| name.len()).max();
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
