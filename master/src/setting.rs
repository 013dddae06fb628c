//! The cluster's replicated settings as people read and write them: names, text, bounds.

use std::time::Duration;

use mc_index::Settings;
use mc_types::{MAX_GRANT_LIFETIME, Span};

use crate::config::RaftTiming;

/// Name of the Raft timing.
pub(crate) const RAFT_TIMING: &str = "raft-timing";

/// One setting. Where a flag seeds it, both have one name.
pub(crate) struct Setting {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its effect, in a line.
    pub(crate) help: &'static str,
    read: fn(&Settings) -> String,
    /// `None`: fixed when the cluster forms.
    write: Option<Write>,
}

/// Reads a value and puts it into the settings, or says what it can be.
type Write = fn(&mut Settings, &str) -> Result<(), String>;

/// Why a setting was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SettingError {
    #[error("there is no setting `{name}`; there are {known}", known = names())]
    Unknown { name: String },
    #[error("{name} is fixed while the cluster runs: {why}")]
    Fixed { name: &'static str, why: &'static str },
    #[error("{name} can't be `{value}`: {why}")]
    Value { name: &'static str, value: String, why: String },
}

/// All of them.
pub(crate) const SETTINGS: [Setting; 7] = [
    Setting {
        name: "put-deadline-max",
        help: "longest deadline that a put may ask for",
        read: |settings| span(settings.put_deadline_max_ms),
        write: Some(|settings, text| {
            settings.put_deadline_max_ms = within(text, &PUT_DEADLINE_MAX)?;
            Ok(())
        }),
    },
    Setting {
        name: "read-lease",
        help: "how long a read may use what it was told, and how long the bytes of a removed object are kept",
        read: |settings| span(settings.read_lease_ms),
        write: Some(|settings, text| {
            settings.read_lease_ms = within(text, &READ_LEASE)?;
            Ok(())
        }),
    },
    Setting {
        name: "read-policy",
        help: "lease: a leader answers by its lease; read-index: it asks a majority each time",
        read: |settings| settings.read_policy.to_string(),
        write: Some(|settings, text| {
            settings.read_policy = text.parse().map_err(|_| "it can be lease or read-index".to_owned())?;
            Ok(())
        }),
    },
    Setting {
        name: "store-ttl",
        help: "a store that is silent for so long is given up, with all it holds",
        read: |settings| span(settings.store_ttl_ms),
        write: Some(|settings, text| {
            settings.store_ttl_ms = within(text, &STORE_TTL)?;
            Ok(())
        }),
    },
    Setting {
        name: "store-suspect",
        help: "a store that is silent for so long is not offered until it is heard again",
        read: |settings| span(settings.store_suspect_ms),
        write: Some(|settings, text| {
            settings.store_suspect_ms = within(text, &STORE_SUSPECT)?;
            Ok(())
        }),
    },
    Setting {
        name: "store-heartbeat",
        help: "how often a store is heard",
        read: |settings| span(settings.store_heartbeat_ms),
        write: None,
    },
    Setting {
        name: RAFT_TIMING,
        help: "heartbeats and election timeouts of Raft",
        read: RaftTiming::describe,
        write: None,
    },
];

/// Bounds of a duration.
pub(crate) struct Bounds {
    min: Duration,
    max: Duration,
    /// In words.
    pub(crate) text: &'static str,
}

pub(crate) const PUT_DEADLINE_MAX: Bounds =
    Bounds { min: Duration::from_secs(5), max: MAX_GRANT_LIFETIME, text: "5s to 60s" };
/// A new leader's time may be a second or two behind what stores have heard: shorter leases would be over before they
/// began.
pub(crate) const READ_LEASE: Bounds =
    Bounds { min: Duration::from_secs(5), max: MAX_GRANT_LIFETIME, text: "5s to 60s" };
pub(crate) const STORE_TTL: Bounds =
    Bounds { min: Duration::from_secs(5), max: Duration::MAX, text: "at least 5s" };
/// Four heartbeats at least: fewer would make a short stall a suspicion.
pub(crate) const STORE_SUSPECT: Bounds =
    Bounds { min: Duration::from_millis(800), max: Duration::from_secs(5), text: "800ms to 5s" };

impl Bounds {
    pub(crate) fn hold(&self, value: Duration) -> bool {
        (self.min..=self.max).contains(&value)
    }
}

fn span(ms: u64) -> String {
    Span(Duration::from_millis(ms)).to_string()
}

fn within(text: &str, bounds: &Bounds) -> Result<u64, String> {
    let Span(value) = text.parse::<Span>().map_err(|error| error.to_string())?;
    if !bounds.hold(value) {
        return Err(format!("it can be {}", bounds.text));
    }
    u64::try_from(value.as_millis()).map_err(|_| "it is too long".to_owned())
}

fn names() -> String {
    SETTINGS.map(|setting| setting.name).join(", ")
}

impl Setting {
    /// The one with this name.
    pub(crate) fn named(name: &str) -> Result<&'static Self, SettingError> {
        SETTINGS
            .iter()
            .find(|setting| setting.name == name)
            .ok_or_else(|| SettingError::Unknown { name: name.to_owned() })
    }

    /// Whether it cannot be changed.
    pub(crate) fn is_fixed(&self) -> bool {
        self.write.is_none()
    }

    /// Its value.
    pub(crate) fn value(&self, settings: &Settings) -> String {
        (self.read)(settings)
    }

    /// Changes it in `settings`.
    pub(crate) fn set(&self, settings: &mut Settings, value: &str) -> Result<(), SettingError> {
        let Some(write) = self.write else {
            let why = match self.name {
                RAFT_TIMING => {
                    "masters whose timing differs refuse each other, so that leases stay sound; stop all masters and \
                     start them with another --raft-timing"
                }
                _ => "stores take it from the master when they mount",
            };
            return Err(SettingError::Fixed { name: self.name, why });
        };
        let failed = |why| SettingError::Value { name: self.name, value: value.to_owned(), why };
        write(settings, value).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_that_can_be_written_reads_back_what_was_written() {
        let mut settings = Settings::default();
        let written = [
            ("put-deadline-max", "45s"),
            ("read-lease", "7s"),
            ("read-policy", "read-index"),
            ("store-ttl", "2h"),
            ("store-suspect", "1500ms"),
        ];
        for (name, value) in written {
            let setting = Setting::named(name).unwrap();
            assert_ne!(setting.value(&settings), value);
            setting.set(&mut settings, value).unwrap();
            assert_eq!(setting.value(&settings), value);
        }
        assert_eq!(SETTINGS.iter().filter(|setting| !setting.is_fixed()).count(), written.len());
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        let mut settings = Settings::default();
        let mut refused = |name: &str, value: &str| {
            let outcome = Setting::named(name).and_then(|setting| setting.set(&mut settings, value));
            outcome.unwrap_err().to_string()
        };
        assert!(
            refused("read-leas", "7s")
                .starts_with("there is no setting `read-leas`; there are put-deadline-max")
        );
        assert_eq!(refused("read-lease", "1s"), "read-lease can't be `1s`: it can be 5s to 60s");
        assert!(refused("read-lease", "soon").starts_with("read-lease can't be `soon`: "));
        assert_eq!(refused("read-policy", "x"), "read-policy can't be `x`: it can be lease or read-index");
        assert!(
            refused("raft-timing", "wan").contains("stop all masters"),
            "{}",
            refused("raft-timing", "wan")
        );
        assert_eq!(settings, Settings::default());
    }
}
