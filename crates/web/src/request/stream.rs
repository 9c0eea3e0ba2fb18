//! Heads of HTTP/2, written as heads of HTTP/1.1.

use http2::RequestHead;

/// Writes an HTTP/2 head into `text` in the form of HTTP/1.1, except for the version.
///
/// The bytes were checked (RFC 9113 8.2.1): no line end anywhere, no space in the method and path.
/// Parsing the text therefore gives exactly these fields.
pub(crate) fn write(head: &RequestHead, text: &mut Vec<u8>) {
    text.clear();
    text.extend_from_slice(head.method());
    text.push(b' ');
    text.extend_from_slice(match head.path() {
        [] => head.authority(), // CONNECT. RFC 9112 3.2.3
        path => path,
    });
    text.extend_from_slice(b" HTTP/2.0\r\nhost: ");
    text.extend_from_slice(head.authority());
    for (name, value) in head.fields() {
        if name != b"host" {
            text.extend_from_slice(b"\r\n");
            text.extend_from_slice(name);
            text.extend_from_slice(b": ");
            text.extend_from_slice(value);
        }
    }
    text.extend_from_slice(b"\r\n\r\n");
}
