//! The built-in pages for errors and redirects, for sites that have none of their own.

use crate::status::Status;

/// A page and its header lines.
#[derive(Debug)]
pub(crate) struct Page {
    /// Content-Type, Content-Length, X-Content-Type-Options; each with its CRLF.
    pub(crate) head: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

impl Page {
    /// Makes the page of one status. Pages are made once, at start and reload.
    pub(crate) fn built_in(status: Status) -> Page {
        let body = html(status).into_bytes();
        Page {
            head: head("text/html; charset=utf-8", body.len() as u64),
            body,
        }
    }
}

/// The header lines of a page. `nosniff`: a page that repeats what a client wrote must not turn
/// into something else in its browser.
pub(crate) fn head(content_type: &str, len: u64) -> Vec<u8> {
    format!(
        "Content-Type: {content_type}\r\nContent-Length: {len}\r\n\
         X-Content-Type-Options: nosniff\r\n"
    )
    .into_bytes()
}

fn html(status: Status) -> String {
    let (title, sentence) = (status.title(), status.sentence());
    let (code, reason) = title
        .split_once(' ')
        .expect("a title is a code and a reason");
    let home = match status {
        Status::NotFound => "<p><a href=\"/\">Home</a></p>",
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
  body {{ margin: 0; min-height: 100vh; display: grid; place-content: center; padding: 1rem;
         font: 1.1rem/1.5 system-ui, sans-serif; text-align: center }}
  h1 {{ font-size: 1.4rem; font-weight: 500; margin: 0 }}
  b {{ display: block; font-size: 5rem; font-weight: 200; line-height: 1.1; letter-spacing: .05em }}
  p {{ opacity: .7; margin: .5rem 0 }}
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
    fn a_page_names_the_error_and_needs_nothing_from_elsewhere() {
        let page = Page::built_in(Status::NotFound);
        let body = String::from_utf8(page.body).unwrap();
        assert!(body.contains("<b>404</b>Not Found") && body.contains("nothing at this address"));
        assert!(
            body.contains("<a href=\"/\">Home</a>"),
            "it leads nowhere: {body}"
        );
        let head = String::from_utf8(page.head).unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
    }

    #[test]
    fn every_page_is_sound_html() {
        for status in Status::ALL {
            let page = String::from_utf8(Page::built_in(status).body).unwrap();
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
