//! Texts with a range of numbers in them, such as `/item/{1..1000}`.

/// A text for each number of a range. Numbers are as wide as the first is: `{001..100}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    before: String,
    first: u64,
    last: u64,
    width: usize,
    behind: String,
}

impl Template {
    /// Parses a text; `None` if it has no range. It has at most `most` numbers.
    ///
    /// # Errors
    /// A sentence about the range.
    pub fn parse(text: &str, most: u64) -> Result<Option<Template>, String> {
        let range = text.split_once('{').and_then(|(before, rest)| {
            let (range, behind) = rest.split_once('}')?;
            let (first, last) = range.split_once("..")?;
            Some((before, first, last, behind))
        });
        let Some((before, first, last, behind)) = range else {
            return Ok(None);
        };
        let wrong = |why: &str| {
            format!("'{{{first}..{last}}}' {why}; write {{FIRST..LAST}}, such as {{1..1000}}")
        };
        let number = |text: &str| {
            let has_sign = text.starts_with('+');
            let number = text.parse::<u64>().ok().filter(|_| !has_sign);
            number.ok_or_else(|| wrong("is no range of numbers"))
        };
        let from = number(first)?;
        let to = number(last)?;
        if from > to {
            return Err(wrong("ends before it begins"));
        }
        if to - from >= most {
            return Err(wrong(&format!("is more than {}", crate::units::count_of(most))));
        }
        if behind.contains('{') {
            return Err(format!("'{text}' has a second '{{': one range is supported"));
        }
        Ok(Some(Template {
            before: before.to_owned(),
            first: from,
            last: to,
            width: first.len(),
            behind: behind.to_owned(),
        }))
    }

    /// Number of texts.
    pub fn count(&self) -> u64 {
        self.last - self.first + 1
    }

    /// Text number `index`, counted from 0.
    ///
    /// # Panics
    /// When it has no such text.
    pub fn text(&self, index: u64) -> String {
        assert!(index < self.count(), "text {index} of {}", self.count());
        let mut text = Vec::new();
        self.write(index, &mut text);
        String::from_utf8(text).expect("it is made of text and digits")
    }

    /// Appends text number `index`.
    pub(crate) fn write(&self, index: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(self.before.as_bytes());
        let mut digits = [b'0'; 20];
        let mut left = self.first + index;
        let mut begins = digits.len();
        while left > 0 || digits.len() - begins < self.width.clamp(1, digits.len()) {
            begins -= 1;
            digits[begins] = b'0' + (left % 10) as u8;
            left /= 10;
        }
        out.extend(std::iter::repeat_n(b'0', self.width.saturating_sub(digits.len())));
        out.extend_from_slice(&digits[begins..]);
        out.extend_from_slice(self.behind.as_bytes());
    }

    /// Index of a text, if it is one of these.
    pub(crate) fn index_of(&self, text: &[u8]) -> Option<u64> {
        let digits = text.strip_prefix(self.before.as_bytes())?;
        let digits = digits.strip_suffix(self.behind.as_bytes())?;
        let is_padded = digits.len() > self.width && digits[0] == b'0';
        if digits.len() < self.width || is_padded || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
        (self.first..=self.last).contains(&number).then(|| number - self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> Template {
        Template::parse(text, 1_000_000).unwrap().unwrap()
    }

    #[test]
    fn texts_of_a_template() {
        let texts = |text: &str| {
            let template = template(text);
            let texts: Vec<_> = (0..template.count()).map(|index| template.text(index)).collect();
            for (index, text) in (0..).zip(&texts) {
                assert_eq!(template.index_of(text.as_bytes()), Some(index), "{text}");
            }
            texts.join(" ")
        };
        assert_eq!(texts("/{9..11}/x?y"), "/9/x?y /10/x?y /11/x?y");
        assert_eq!(texts("/i{08..10}"), "/i08 /i09 /i10");
        assert_eq!(texts("{0..1}"), "0 1");
        assert_eq!(texts("a{0000000000000000000000001..2}"), format!("a{:025} a{:025}", 1, 2));
        assert_eq!(template("/{1..1000000}").count(), 1_000_000);
        let last = u64::MAX;
        assert_eq!(texts(&format!("{{{last}..{last}}}")), last.to_string());
    }

    #[test]
    fn other_texts_have_no_index() {
        let template = template("u{08..100}:x");
        for other in ["u8:x", "u07:x", "u101:x", "u008:x", "u08:y", "v08:x", "u:x", "u+9:x", ""] {
            assert_eq!(template.index_of(other.as_bytes()), None, "{other}");
        }
        assert_eq!(template.index_of(b"u100:x"), Some(92));
    }

    #[test]
    fn wrong_ranges_are_told() {
        for text in ["/a", "/%7B{id}", "{", "}{..", "{1..2"] {
            assert_eq!(Template::parse(text, 10), Ok(None), "{text}");
        }
        for (text, why) in [
            ("/{0..1000000}", "more than 1,000,000"),
            ("/{2..1}", "ends before"),
            ("/{a..b}", "no range"),
            ("/{+1..+3}", "no range"),
            ("/{1..2}/{1..2}", "a second"),
        ] {
            let said = Template::parse(text, 1_000_000).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
