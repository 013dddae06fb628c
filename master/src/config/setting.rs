//! The cluster's replicated settings as people read and write them: names, text, bounds.

use std::time::Duration;

use mc_index::Settings;
use mc_types::{ByteSize, MAX_GRANT_LIFETIME, Ratio, Span};

/// One setting. A flag that seeds it has the same name.
pub(crate) struct Setting {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its effect, in a line.
    pub(crate) help: &'static str,
    read: fn(&Settings) -> String,
    /// Change of the setting while the cluster runs; `None` if it is fixed when the cluster forms.
    change: Option<Change>,
}

/// How a setting is changed.
#[derive(Clone, Copy)]
struct Change {
    /// Values that it can take, in words.
    range: &'static str,
    /// Parses a value into the settings, or says which values are possible.
    write: fn(&mut Settings, &str) -> Result<(), String>,
}

/// A cluster setting as a reference page shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingReference {
    /// Name, also of the flag that seeds it, if there is one.
    pub name: &'static str,
    /// Value in a cluster that forms without such a flag.
    pub default: String,
    /// Values that `mcctl config set` takes, in words; `None` if the setting is fixed when the cluster forms.
    pub range: Option<&'static str>,
    /// Effect, in a line.
    pub help: &'static str,
}

/// Lists the cluster settings of this build, in the order of `mcctl config show`.
#[must_use]
pub fn settings_reference() -> Vec<SettingReference> {
    let defaults = Settings::default();
    let shown = |setting: &Setting| SettingReference {
        name: setting.name,
        default: setting.value(&defaults),
        range: setting.change.map(|change| change.range),
        help: setting.help,
    };
    SETTINGS.iter().map(shown).collect()
}

/// Why a setting was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SettingError {
    #[error("there is no setting `{name}`; there are {known}", known = names())]
    Unknown { name: String },
    #[error("{name} is fixed while the cluster runs: stores take it from the master when they mount")]
    Fixed { name: &'static str },
    #[error("{name} can't be `{value}`: {why}")]
    Value { name: &'static str, value: String, why: String },
}

/// All settings, in the order of `mcctl config show`.
pub(crate) const SETTINGS: [Setting; 15] = [
    Setting {
        name: "put-deadline-max",
        help: "longest deadline that a put may ask for",
        read: |settings| span(settings.put_deadline_max_ms),
        change: Some(Change {
            range: PUT_DEADLINE_MAX.text,
            write: |settings, text| {
                settings.put_deadline_max_ms = within(text, &PUT_DEADLINE_MAX)?;
                Ok(())
            },
        }),
    },
    Setting {
        name: "read-lease",
        help: "read lease: how long a client may use a placement; the bytes of a removed object are kept twice as \
               long",
        read: |settings| span(settings.read_lease_ms),
        change: Some(Change {
            range: READ_LEASE.text,
            write: |settings, text| {
                settings.read_lease_ms = within(text, &READ_LEASE)?;
                Ok(())
            },
        }),
    },
    Setting {
        name: "read-policy",
        help: "lease: the leader answers reads while its lease holds; read-index: it asks a majority before each \
               answer",
        read: |settings| settings.read_policy.to_string(),
        change: Some(Change {
            range: READ_POLICIES,
            write: |settings, text| {
                settings.read_policy = text.parse().map_err(|_| format!("it can be {READ_POLICIES}"))?;
                Ok(())
            },
        }),
    },
    Setting {
        name: "store-ttl",
        help: "time without a heartbeat after which a store and its replicas are dropped",
        read: |settings| span(settings.store_ttl_ms),
        change: Some(Change {
            range: STORE_TTL.text,
            write: |settings, text| {
                settings.store_ttl_ms = within(text, &STORE_TTL)?;
                Ok(())
            },
        }),
    },
    Setting {
        name: "store-suspect",
        help: "time without a heartbeat after which a store is suspect: it is not offered until it is heard again",
        read: |settings| span(settings.store_suspect_ms),
        change: Some(Change {
            range: STORE_SUSPECT.text,
            write: |settings, text| {
                settings.store_suspect_ms = within(text, &STORE_SUSPECT)?;
                Ok(())
            },
        }),
    },
    Setting {
        name: "eviction-high-watermark",
        help: "share of the pool's bytes, live and in flight, at which eviction starts",
        read: |settings| settings.eviction_high_watermark.to_string(),
        change: Some(Change {
            range: HIGH_WATERMARK,
            write: |settings, text| {
                let high = share(text, HIGH_WATERMARK)?;
                let low = settings.eviction_low_watermark;
                if high <= low {
                    return Err(format!("it must be above eviction-low-watermark, which is {low}"));
                }
                settings.eviction_high_watermark = high;
                Ok(())
            },
        }),
    },
    Setting {
        name: "eviction-low-watermark",
        help: "share of the pool's bytes down to which eviction frees",
        read: |settings| settings.eviction_low_watermark.to_string(),
        change: Some(Change {
            range: LOW_WATERMARK,
            write: |settings, text| {
                let low = share(text, LOW_WATERMARK)?;
                let high = settings.eviction_high_watermark;
                if low >= high {
                    return Err(format!("it must be below eviction-high-watermark, which is {high}"));
                }
                settings.eviction_low_watermark = low;
                Ok(())
            },
        }),
    },
    Setting {
        name: "put-space-wait",
        help: "longest wait of a put for space that an eviction is about to free",
        read: |settings| span(settings.put_space_wait_ms),
        change: Some(Change {
            range: PUT_SPACE_WAIT.text,
            write: |settings, text| {
                settings.put_space_wait_ms = within(text, &PUT_SPACE_WAIT)?;
                Ok(())
            },
        }),
    },
    Setting {
        name: "hard-pin-limit",
        help: "share of the pool's bytes that may be hard-pinned",
        read: |settings| settings.hard_pin_limit.to_string(),
        change: Some(Change {
            range: HARD_PIN_LIMIT,
            write: |settings, text| {
                settings.hard_pin_limit = share(text, HARD_PIN_LIMIT)?;
                Ok(())
            },
        }),
    },
    Setting {
        name: "tenants",
        help: "any: every tenant may put; registered: only tenants with a quota of their own (mcctl tenants set), and \
               the default tenant",
        read: |settings| settings.tenants.to_string(),
        change: Some(Change {
            range: TENANT_POLICIES,
            write: |settings, text| {
                settings.tenants = text.parse().map_err(|_| format!("it can be {TENANT_POLICIES}"))?;
                Ok(())
            },
        }),
    },
    Setting {
        name: "default-quota-bytes",
        help: "most bytes of each tenant that is not registered, all replicas and puts in flight included; 0: no limit",
        read: |settings| ByteSize(settings.default_quota.bytes).to_string(),
        change: Some(Change {
            range: SIZES,
            write: |settings, text| {
                settings.default_quota.bytes = size(text)?;
                Ok(())
            },
        }),
    },
    Setting {
        name: "default-quota-objects",
        help: "most objects of each tenant that is not registered, puts in flight included; 0: no limit",
        read: |settings| settings.default_quota.objects.to_string(),
        change: Some(Change {
            range: COUNTS,
            write: |settings, text| {
                settings.default_quota.objects = count(text)?;
                Ok(())
            },
        }),
    },
    Setting {
        name: "max-objects",
        help: "most objects in the pool, puts in flight included; at the limit objects are evicted; 0: no limit",
        read: |settings| settings.max_objects.to_string(),
        change: Some(Change {
            range: COUNTS,
            write: |settings, text| {
                settings.max_objects = count(text)?;
                Ok(())
            },
        }),
    },
    Setting {
        name: "max-index-memory",
        help: "most memory that the index may take in each master, by its own estimate (mc_index_bytes); at the limit \
               objects are evicted; 0: no limit",
        read: |settings| ByteSize(settings.max_index_bytes).to_string(),
        change: Some(Change {
            range: SIZES,
            write: |settings, text| {
                settings.max_index_bytes = size(text)?;
                Ok(())
            },
        }),
    },
    Setting {
        name: "store-heartbeat",
        help: "interval between the heartbeats of a store",
        read: |settings| span(settings.store_heartbeat_ms),
        change: None,
    },
];

/// Bounds of a duration.
pub(crate) struct Bounds {
    min: Duration,
    max: Duration,
    /// The bounds in words.
    pub(crate) text: &'static str,
}

const HIGH_WATERMARK: &str = "above 0 and at most 1";
const HARD_PIN_LIMIT: &str = "0 to 1";
const LOW_WATERMARK: &str = "0 to 1";
const PUT_SPACE_WAIT: Bounds =
    Bounds { min: Duration::from_millis(10), max: Duration::from_secs(5), text: "10ms to 5s" };
const TENANT_POLICIES: &str = "any or registered";
const SIZES: &str = "0, or a size such as 50gb";
const COUNTS: &str = "0, or a whole number";
const READ_POLICIES: &str = "lease or read-index";
pub(crate) const PUT_DEADLINE_MAX: Bounds =
    Bounds { min: Duration::from_secs(5), max: MAX_GRANT_LIFETIME, text: "5s to 60s" };
/// Bounds of the read lease. A new leader's time may be a second or two behind what stores have heard: shorter leases
/// would be over before they began.
pub(crate) const READ_LEASE: Bounds =
    Bounds { min: Duration::from_secs(5), max: MAX_GRANT_LIFETIME, text: "5s to 60s" };
pub(crate) const STORE_TTL: Bounds =
    Bounds { min: Duration::from_secs(5), max: Duration::MAX, text: "at least 5s" };
/// Bounds of the time after which a store is suspect: at least four heartbeats, since with fewer a short stall would
/// make a store suspect.
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

fn size(text: &str) -> Result<u64, String> {
    text.parse::<ByteSize>().map(|size| size.0).map_err(|error| format!("{error}; it can be {SIZES}"))
}

fn count(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("it can be {COUNTS}"))
}

fn share(text: &str, range: &str) -> Result<Ratio, String> {
    text.parse::<Ratio>().map_err(|error| format!("{error}; it can be {range}"))
}

fn names() -> String {
    SETTINGS.map(|setting| setting.name).join(", ")
}

impl Setting {
    /// Returns the setting with this name.
    pub(crate) fn named(name: &str) -> Result<&'static Self, SettingError> {
        SETTINGS
            .iter()
            .find(|setting| setting.name == name)
            .ok_or_else(|| SettingError::Unknown { name: name.to_owned() })
    }

    /// Whether the setting cannot be changed.
    pub(crate) fn is_fixed(&self) -> bool {
        self.change.is_none()
    }

    /// Returns its value in `settings`, as text.
    pub(crate) fn value(&self, settings: &Settings) -> String {
        (self.read)(settings)
    }

    /// Sets it in `settings` to `value`.
    pub(crate) fn set(&self, settings: &mut Settings, value: &str) -> Result<(), SettingError> {
        let Some(Change { write, .. }) = self.change else {
            return Err(SettingError::Fixed { name: self.name });
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
            ("eviction-high-watermark", "0.99"),
            ("eviction-low-watermark", "0.5"),
            ("put-space-wait", "20ms"),
            ("hard-pin-limit", "0.25"),
            ("tenants", "registered"),
            ("default-quota-bytes", "50GiB"),
            ("default-quota-objects", "1000"),
            ("max-objects", "30000000"),
            ("max-index-memory", "8GiB"),
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
    fn a_value_out_of_the_range_that_the_reference_shows_is_refused_with_that_range() {
        for SettingReference { name, default, range, .. } in settings_reference() {
            let setting = Setting::named(name).unwrap();
            let mut settings = Settings::default();
            assert_eq!(setting.set(&mut settings, &default).is_ok(), range.is_some(), "{name}");
            let refused = setting.set(&mut settings, "1ms").unwrap_err().to_string();
            assert!(range.is_none_or(|range| refused.ends_with(&format!("it can be {range}"))), "{refused}");
        }
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
            refused("store-heartbeat", "1s").starts_with("store-heartbeat is fixed while the cluster runs")
        );
        assert_eq!(
            refused("eviction-high-watermark", "0.9"),
            "eviction-high-watermark can't be `0.9`: it must be above eviction-low-watermark, which is 0.92"
        );
        assert_eq!(
            refused("eviction-low-watermark", "95%"),
            "eviction-low-watermark can't be `95%`: it must be below eviction-high-watermark, which is 0.95"
        );
        assert!(refused("eviction-high-watermark", "1.1").ends_with("it can be above 0 and at most 1"));
        assert_eq!(settings, Settings::default());
    }
}
