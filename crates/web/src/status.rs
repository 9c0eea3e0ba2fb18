//! Status codes that this server sends.

/// One row per status: its number, its counter label, and its status line.
struct Row {
    code: u16,
    label: &'static str,
    line: &'static str,
    /// For people, on the built-in page.
    sentence: &'static str,
}

macro_rules! statuses {
    ($($name:ident $code:literal $reason:literal $sentence:literal)*) => {
        /// Status codes of RFC 9110 15 that a static site needs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Status {
            $($name),*
        }

        /// Indexed by [`Status`].
        const ROWS: [Row; Status::COUNT] = [$(Row {
            code: $code,
            label: concat!("status=\"", $code, "\""),
            line: concat!("HTTP/1.1 ", $code, " ", $reason, "\r\n"),
            sentence: $sentence,
        }),*];

        impl Status {
            /// Number of statuses.
            pub(crate) const COUNT: usize = [$($code),*].len();

            /// Every status, in numerical order.
            pub(crate) const ALL: [Status; Status::COUNT] = [$(Status::$name),*];
        }
    };
}

statuses! {
    Ok 200 "OK" ""
    NoContent 204 "No Content" ""
    PartialContent 206 "Partial Content" ""
    MovedPermanently 301 "Moved Permanently" "This page has moved to another address."
    Found 302 "Found" "This page is at another address for now."
    SeeOther 303 "See Other" "The answer is at another address."
    NotModified 304 "Not Modified" ""
    TemporaryRedirect 307 "Temporary Redirect" "This page is at another address for now."
    PermanentRedirect 308 "Permanent Redirect" "This page has moved to another address."
    BadRequest 400 "Bad Request" "The server could not understand this request."
    Unauthorized 401 "Unauthorized" "This page needs a name and a password."
    Forbidden 403 "Forbidden" "You don't have access to this page."
    NotFound 404 "Not Found" "There is nothing at this address."
    MethodNotAllowed 405 "Method Not Allowed" "Only GET and HEAD are supported here."
    NotAcceptable 406 "Not Acceptable" "This file exists only in compressed form, which your program does not accept."
    RequestTimeout 408 "Request Timeout" "The request took too long to arrive."
    PreconditionFailed 412 "Precondition Failed" "The file has changed since the version that the request names."
    ContentTooLarge 413 "Content Too Large" "The request body is larger than the server accepts."
    UriTooLong 414 "URI Too Long" "The address is longer than the server accepts."
    RangeNotSatisfiable 416 "Range Not Satisfiable" "The file does not contain the requested range."
    ExpectationFailed 417 "Expectation Failed" "The server does not support the Expect header of this request."
    Misdirected 421 "Misdirected Request" "This server has no site of this name."
    TooManyRequests 429 "Too Many Requests" "Your address has sent too many requests. Please wait a moment and try again."
    FieldsTooLarge 431 "Request Header Fields Too Large" "The request header is larger than the server accepts."
    InternalServerError 500 "Internal Server Error" "An internal error occurred. The request itself may be valid."
    NotImplemented 501 "Not Implemented" "The server does not support this kind of request."
    ServiceUnavailable 503 "Service Unavailable" "The server is busy. Please try again soon."
    VersionNotSupported 505 "HTTP Version Not Supported" "The server supports HTTP/1.0 and HTTP/1.1."
}

impl Status {
    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The three digits.
    pub(crate) fn code(self) -> u16 {
        self.row().code
    }

    /// The label of its counter, as Prometheus text.
    pub(crate) fn label(self) -> &'static str {
        self.row().label
    }

    /// The status line with its CRLF. It always names this server's version: RFC 9112 2.3.
    pub(crate) fn line(self) -> &'static [u8] {
        self.row().line.as_bytes()
    }

    /// Code and reason: `404 Not Found`.
    pub(crate) fn title(self) -> &'static str {
        self.row().line.trim_start_matches("HTTP/1.1 ").trim_end()
    }

    /// A sentence for people, on the built-in page.
    pub(crate) fn sentence(self) -> &'static str {
        self.row().sentence
    }

    /// True for an error, which has a page that explains it.
    pub(crate) fn is_error(self) -> bool {
        self.code() >= 400
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_its_own_row() {
        for (at, status) in Status::ALL.into_iter().enumerate() {
            assert_eq!(status as usize, at);
        }
        assert!(ROWS.windows(2).all(|pair| pair[0].code < pair[1].code));
        assert_eq!(Status::NotFound.line(), b"HTTP/1.1 404 Not Found\r\n");
        assert_eq!(Status::NotFound.title(), "404 Not Found");
        assert_eq!(Status::VersionNotSupported.code(), 505);
    }
}
