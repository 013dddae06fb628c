use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A number of bytes, written `50gb`, `50GiB`, `512mb`, `64KiB` or `4096`. `gb` means GiB, as the users of KV
/// caches expect (SGLang parses its segment size so).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ByteSize(pub u64);

/// The error of a text that is not a [`ByteSize`], with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a size ({why}): write a whole number with an optional unit, such as 4096, 64KiB, 512mb or 50gb"
)]
pub struct ParseSizeError {
    text: String,
    why: &'static str,
}

impl FromStr for ByteSize {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |why| ParseSizeError { text: text.to_owned(), why };
        let trimmed = text.trim().to_ascii_lowercase();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let number: u64 = number.parse().map_err(|_| fail("no whole number before the unit"))?;
        let shift = match unit.trim_start() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(fail("unknown unit")),
        };
        number.checked_mul(1 << shift).map(Self).ok_or_else(|| fail("larger than 2^64 bytes"))
    }
}

impl TryFrom<String> for ByteSize {
    type Error = ParseSizeError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ByteSize> for String {
    fn from(size: ByteSize) -> Self {
        size.to_string()
    }
}

impl fmt::Display for ByteSize {
    /// Writes the exact size in the largest binary unit that divides it, so that the output can be parsed again. `{:#}`
    /// writes it rounded, for people, as in `1.5 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() { self.rounded(f) } else { self.exact(f) }
    }
}

impl ByteSize {
    fn rounded(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        for unit in ["KiB", "MiB", "GiB"] {
            if value < 1024.0 {
                return write!(f, "{value:.1} {unit}");
            }
            value /= 1024.0;
        }
        write!(f, "{value:.1} TiB")
    }

    fn exact(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 >> shift > 0 && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        // 0 mostly means that there is no limit.
        write!(f, "{}{}", self.0, if self.0 == 0 { "" } else { "B" })
    }
}

impl fmt::Debug for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.exact(f)
    }
}

/// A length of time, written `500ms`, `5s`, `10m`, `2h`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(pub Duration);

/// The error of a text that is not a [`Span`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a duration: write a whole number with a unit, such as 500ms, 5s, 10m or 2h")]
pub struct ParseSpanError {
    text: String,
}

impl FromStr for Span {
    type Err = ParseSpanError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseSpanError { text: text.to_owned() };
        let trimmed = text.trim().to_ascii_lowercase();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit()).ok_or_else(fail)?;
        let (number, unit) = trimmed.split_at(digits);
        let number: u64 = number.parse().map_err(|_| fail())?;
        let ms = match unit.trim_start() {
            "ms" => 1,
            "s" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            _ => return Err(fail()),
        };
        number.checked_mul(ms).map(|ms| Self(Duration::from_millis(ms))).ok_or_else(fail)
    }
}

impl TryFrom<String> for Span {
    type Error = ParseSpanError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        span.to_string()
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        for (unit_ms, unit) in [(3_600_000, "h"), (60_000, "m"), (1_000, "s")] {
            if ms > 0 && ms.is_multiple_of(unit_ms) {
                return write!(f, "{}{unit}", ms / unit_ms);
            }
        }
        write!(f, "{ms}ms")
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_any_case_and_gb_means_gib() {
        for (text, bytes) in
            [("50gb", 50 << 30), ("50GiB", 50 << 30), ("512mb", 512 << 20), ("64 KiB", 65536), ("4096", 4096)]
        {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "gb", "1.5gb", "5xb", "-1", "99999999999tb"] {
            let err = text.parse::<ByteSize>().unwrap_err().to_string();
            assert!(err.contains(text) && err.contains("50gb"), "{err}");
        }
    }

    #[test]
    fn sizes_read_well() {
        let rounded = |bytes| format!("{:#}", ByteSize(bytes));
        assert_eq!(
            [0, 512, 3_274_752, 3 << 29, 5 << 39].map(rounded),
            ["0 B", "512 B", "3.1 MiB", "1.5 GiB", "2.5 TiB"]
        );
    }

    #[test]
    fn what_is_printed_can_be_pasted_back() {
        for bytes in [0, 1, 1023, 1024, 3_274_752, 1 << 30, (1 << 30) + 1] {
            assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
        }
        assert_eq!(
            [0, 1, 2048, 3_274_753].map(|bytes| ByteSize(bytes).to_string()),
            ["0", "1B", "2KiB", "3274753B"]
        );
        for ms in [0, 1, 500, 1000, 90_000, 600_000, 7_200_000] {
            let span = Span(Duration::from_millis(ms));
            assert_eq!(span.to_string().parse(), Ok(span));
        }
        assert!("5".parse::<Span>().is_err(), "a duration without a unit is ambiguous");
    }
}
