use std::time::{SystemTime, UNIX_EPOCH};

use x509_parser::time::ASN1Time;

/// Converts to the time of a certificate: whole seconds, from 1970 to the end of the year 9999; `None` outside of that.
pub(super) fn asn1_time(at: SystemTime) -> Option<ASN1Time> {
    let since = at.duration_since(UNIX_EPOCH).ok()?;
    ASN1Time::from_timestamp(i64::try_from(since.as_secs()).ok()?).ok()
}

/// Writes a time of a certificate as in `2026-03-01T12:00:00Z`.
pub fn rfc3339(at: SystemTime) -> String {
    let Some(at) = asn1_time(at) else { return "a time outside of 1970 to 9999".to_owned() };
    let at = at.to_datetime();
    let (hour, minute, second) = at.to_hms();
    format!("{:04}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", at.year(), u8::from(at.month()), at.day())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_written_in_utc_to_the_second() {
        assert_eq!(rfc3339(UNIX_EPOCH), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_millis(1_772_366_405_900)), "2026-03-01T12:00:05Z");
        assert!(rfc3339(UNIX_EPOCH + Duration::from_secs(1 << 40)).contains("outside"));
        assert!(rfc3339(UNIX_EPOCH - Duration::from_secs(1)).contains("outside"));
    }
}
