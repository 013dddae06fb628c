use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A part of a whole in steps of 0.0001, written `0.95` or `95%`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ratio(u32);

/// Error of a text that is not a [`Ratio`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a ratio: write a number from 0 to 1 with up to four decimals, such as 0.95, or a \
         percentage, such as 95%"
)]
pub struct ParseRatioError {
    text: String,
}

impl Ratio {
    const ONE: u32 = 10_000;

    /// Returns the ratio of `n` ten-thousandths, at most 1.
    #[must_use]
    pub const fn of_ten_thousandths(n: u32) -> Self {
        Self(if n > Self::ONE { Self::ONE } else { n })
    }

    /// Returns this part of `whole`, rounded down.
    #[must_use]
    pub fn of(self, whole: u64) -> u64 {
        let part = u128::from(whole) * u128::from(self.0.min(Self::ONE)) / u128::from(Self::ONE);
        u64::try_from(part).unwrap_or(whole)
    }

    /// Returns the smallest whole of which this part is at least `part`. The ratio must not be 0.
    #[must_use]
    pub fn whole(self, part: u64) -> u64 {
        let whole = (u128::from(part) * u128::from(Self::ONE)).div_ceil(u128::from(self.0.max(1)));
        u64::try_from(whole).unwrap_or(u64::MAX)
    }
}

impl FromStr for Ratio {
    type Err = ParseRatioError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseRatioError { text: text.to_owned() };
        let trimmed = text.trim();
        let (number, decimals) = match trimmed.strip_suffix('%') {
            Some(percent) => (percent.trim_end(), 2),
            None => (trimmed, 4),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty()
            || whole.len() > 3
            || fraction.len() > decimals
            || !digits(whole)
            || !digits(fraction)
        {
            return Err(fail());
        }
        let scaled: u32 = format!("{whole}{fraction:0<decimals$}").parse().map_err(|_| fail())?;
        if scaled > Self::ONE { Err(fail()) } else { Ok(Self(scaled)) }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:04}", self.0 / Self::ONE, self.0 % Self::ONE);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl fmt::Debug for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_read_as_numbers_or_percentages_and_written_as_numbers() {
        for (text, written) in [
            ("0.95", "0.95"),
            ("95%", "0.95"),
            ("1", "1"),
            ("0", "0"),
            ("0.1250", "0.125"),
            ("12.34 %", "0.1234"),
        ] {
            assert_eq!(text.parse::<Ratio>().unwrap().to_string(), written, "{text}");
        }
        for text in ["", "1.0001", "101%", "-0.5", "0.12345", ".5", "1e-1", "0.9x", "95%%", "4294967297"] {
            assert!(text.parse::<Ratio>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_part_of_any_whole_is_rounded_down() {
        let ratio: Ratio = "0.95".parse().unwrap();
        assert_eq!((ratio.of(100), ratio.of(1), ratio.of(u64::MAX)), (95, 0, u64::MAX / 20 * 19 + 14));
        assert_eq!(Ratio::of_ten_thousandths(20_000).of(7), 7);
    }
}
