//! Built-in pages for errors and redirects, for sites without pages of their own.

use bytes::Bytes;

use crate::status::Status;

/// A page and its header lines.
#[derive(Debug)]
pub(crate) struct Page {
    /// Content-Type, Content-Length, X-Content-Type-Options; each with its CRLF.
    pub(crate) head: Vec<u8>,
    pub(crate) body: Bytes,
}

impl Page {
    /// Makes the page of one status, at start and reload.
    pub(crate) fn built_in(status: Status) -> Page {
        Page::saying(status, status.sentence())
    }

    /// The page of a directory without an index file and without a listing.
    pub(crate) fn no_index() -> Page {
        Page::saying(Status::Forbidden, "This folder has no index page.")
    }

    fn saying(status: Status, sentence: &str) -> Page {
        Page::new("text/html; charset=utf-8", html(status, sentence).into())
    }

    /// Sends `nosniff`: a browser must not interpret a page that repeats the client's words as
    /// another type.
    pub(crate) fn new(content_type: &str, body: Bytes) -> Page {
        let len = body.len();
        let head = format!(
            "Content-Type: {content_type}\r\nContent-Length: {len}\r\n\
             X-Content-Type-Options: nosniff\r\n"
        );
        Page { head: head.into_bytes(), body }
    }
}

fn html(status: Status, sentence: &str) -> String {
    let title = status.title();
    let (code, reason) = title.split_once(' ').expect("a title is a code and a reason");
    let home = match status {
        Status::NotFound | Status::Forbidden => "<p><a href=\"/\">Home</a></p>",
        _ => "",
    };
    format!(
        "<!DOCTYPE html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta name=\"color-scheme\" content=\"light dark\">
<title>{title}</title>
<style>
  :root {{ color-scheme: light dark }}
  body {{ box-sizing: border-box; margin: 0; min-height: 100vh; display: grid; place-content: center; padding: 1rem;
         font: 1.1rem/1.5 system-ui, sans-serif; text-align: center; color: #1c2330; background: #fff }}
  h1 {{ font-size: 1.4rem; font-weight: 500; margin: 0 }}
  b {{ display: block; font-size: 5rem; font-weight: 200; line-height: 1.1; letter-spacing: .05em }}
  p {{ margin: .5rem 0; color: #566072 }}
  a {{ color: #1c5fd4 }}
  @media (prefers-color-scheme: dark) {{
    body {{ color: #e4e8f0; background: #121212 }}
    p {{ color: #a9b2c0 }}
    a {{ color: #7db0ff }}
  }}
</style>
<main><h1><b>{code}</b>{reason}</h1><p>{sentence}</p>{home}</main>
</html>
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_self_contained() {
        let page = Page::built_in(Status::NotFound);
        let body = String::from_utf8(page.body.to_vec()).unwrap();
        assert!(body.contains("<b>404</b>Not Found") && body.contains("nothing at this address"));
        assert!(body.contains("<a href=\"/\">Home</a>"), "the page has no link: {body}");
        let head = String::from_utf8(page.head).unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
    }

    #[test]
    fn no_index_page_says_so() {
        let body = String::from_utf8(Page::no_index().body.to_vec()).unwrap();
        assert!(body.contains("<b>403</b>Forbidden") && body.contains("no index page"));
        assert!(!body.contains("access"), "{body}");
        crate::html_test::check(&body);
    }

    #[test]
    fn every_page_is_sound_html() {
        for status in Status::ALL {
            let page = String::from_utf8(Page::built_in(status).body.to_vec()).unwrap();
            crate::html_test::check(&page);
        }
    }

    #[test]
    fn every_error_has_a_sentence() {
        for status in Status::ALL.into_iter().filter(|status| status.is_error()) {
            assert!(status.sentence().ends_with('.'), "{status:?}");
        }
    }
}
