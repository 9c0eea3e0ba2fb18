use std::fmt;

/// Priority of a reply. RFC 9218 4
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// From 0, the most urgent, to 7.
    pub urgency: u8,
    /// True if the client can use parts of the reply as they come.
    pub is_incremental: bool,
}

/// Number of urgencies.
pub(crate) const URGENCIES: usize = 8;

impl Default for Priority {
    fn default() -> Priority {
        Priority { urgency: 3, is_incremental: false }
    }
}

impl Priority {
    /// Reads the value of a `priority` field or of PRIORITY_UPDATE. Unknown parameters and values
    /// out of range have no effect. RFC 9218 4
    pub fn parse(value: &[u8]) -> Priority {
        let mut priority = Priority::default();
        for member in value.split(|&byte| byte == b',') {
            let member = member.split(|&byte| byte == b';').next();
            match member.unwrap_or_default().trim_ascii() {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.is_incremental = true,
                b"i=?0" => priority.is_incremental = false,
                _ => {}
            }
        }
        priority
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let incremental = if self.is_incremental { ", i" } else { "" };
        write!(f, "u={}{incremental}", self.urgency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_rfc_9218() {
        for (value, read) in [
            ("", "u=3"),
            ("u=5, i", "u=5, i"),
            ("i,u=0", "u=0, i"),
            (" u=7 ;x=1 , i=?0 ", "u=7"),
            ("i=?1;a;b, u=1", "u=1, i"),
            ("u=8", "u=3"),
            ("u=-1", "u=3"),
            ("u=10", "u=3"),
            ("u", "u=3"),
            ("i=1", "u=3"),
            ("x=\"a\", u=2, y", "u=2"),
            ("u=1, u=4", "u=4"),
            (",,,", "u=3"),
        ] {
            let priority = Priority::parse(value.as_bytes());
            assert_eq!(priority.to_string(), read, "{value}");
        }
    }
}
