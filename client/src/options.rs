use std::time::Duration;

use mc_types::{PinAction, PutMode, Replication, SOFT_PIN_MAX, StoreId};

/// Options of a put. One call sets what differs from the default:
///
/// ```
/// # use mc_client::{PutMode, PutOptions};
/// let options = PutOptions::default().with_mode(PutMode::Upsert).with_replicas(2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutOptions {
    /// Behaviour when the key exists. A put whose object stays returns [`Put::AlreadyExists`].
    pub mode: PutMode,
    /// Number of replicas.
    pub replicas: u32,
    /// Whether fewer replicas will do when fewer stores have room.
    pub replication: Replication,
    /// Time limit of the whole put, its transfer included. After it the masters free the space of a put that has not
    /// ended.
    pub deadline: Duration,
    /// Stores to prefer for the replicas, in this order.
    pub preferred: Vec<StoreId>,
    /// Stores to prefer after those, by name or by host:port. Unknown ones are passed over.
    pub preferred_names: Vec<String>,
    /// Host to prefer after these stores.
    pub near: Near,
    /// Tag of the objects, which the pool keeps and does not interpret. [`Description::data_type`](crate::Description)
    /// has it.
    pub data_type: u8,
    /// Group that the objects join, unless their items name another. Empty: none. See [`PutFrom::group`](crate::PutFrom).
    pub group: Vec<u8>,
    /// Protection of the object from eviction. A put-if-absent that finds its key changes nothing. A put that stays local
    /// (see [`Builder::publish_local`](crate::Builder::publish_local)) is published without a pin.
    pub pin: PinAction,
}

/// Host whose stores a put prefers while they have room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Near {
    /// No preference: stores with more free space first.
    #[default]
    Any,
    /// The host of this client, as the masters see its address.
    Client,
    /// One host for all objects of a call: the one with the most free space.
    EachOther,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self {
            mode: PutMode::IfAbsent,
            replicas: 1,
            deadline: Duration::from_secs(30),
            replication: Replication::BestEffort,
            preferred: Vec::new(),
            preferred_names: Vec::new(),
            near: Near::Any,
            data_type: 0,
            group: Vec::new(),
            pin: PinAction::Preserve,
        }
    }
}

impl PutOptions {
    /// Sets the [behaviour when the key exists](Self::mode). Default: the existing object stays.
    #[must_use]
    pub fn with_mode(mut self, mode: PutMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the [number of replicas](Self::replicas). Default: 1.
    #[must_use]
    pub fn with_replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets [whether fewer replicas will do](Self::replication). Default: they do.
    #[must_use]
    pub fn with_replication(mut self, replication: Replication) -> Self {
        self.replication = replication;
        self
    }

    /// Sets the [time limit](Self::deadline). Default: 30 s.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the [stores to prefer](Self::preferred). Default: none.
    #[must_use]
    pub fn with_preferred(mut self, stores: impl Into<Vec<StoreId>>) -> Self {
        self.preferred = stores.into();
        self
    }

    /// Sets the [stores to prefer by name](Self::preferred_names). Default: none.
    #[must_use]
    pub fn with_preferred_names(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.preferred_names = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the [host to prefer](Self::near). Default: none.
    #[must_use]
    pub fn with_near(mut self, near: Near) -> Self {
        self.near = near;
        self
    }

    /// Sets the [tag of the objects](Self::data_type). Default: 0.
    #[must_use]
    pub fn with_data_type(mut self, data_type: u8) -> Self {
        self.data_type = data_type;
        self
    }

    /// Sets the [group that the objects join](Self::group). Default: none.
    #[must_use]
    pub fn with_group(mut self, group: impl Into<Vec<u8>>) -> Self {
        self.group = group.into();
        self
    }

    /// Sets the [protection from eviction](Self::pin). Default: that of the object that it replaces.
    #[must_use]
    pub fn with_pin(mut self, pin: PinAction) -> Self {
        self.pin = pin;
        self
    }

    /// Checks the options that no master can serve. Some would take a zero for their own default.
    ///
    /// # Errors
    /// The reason.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.deadline.is_zero() {
            return Err("a deadline of 0 s: a put needs some time".to_owned());
        }
        if self.replicas == 0 {
            return Err("0 replicas: at least 1 is needed".to_owned());
        }
        match self.pin {
            PinAction::Soft(length) if length.is_zero() || length > SOFT_PIN_MAX => {
                let length = length.as_secs_f64();
                Err(format!("a soft pin of {length} s: it can last from above 0 s to 24 hours"))
            }
            _ => Ok(()),
        }
    }
}

/// Result of a successful put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The value is in the pool, acknowledged by a majority of the masters.
    Stored,
    /// The key existed; its value stays.
    AlreadyExists,
    /// No leader was in reach, and this is no acknowledgement. The value is in this client's local cache. If the client knew a value of the
    /// key, that one stays, and this one is not published later either.
    LocalOnly,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_no_put_can_have_are_named() {
        let of =
            |options: PutOptions| options.check().map_err(|why| why.split(':').next().unwrap().to_owned());
        let usual = PutOptions::default;
        assert_eq!(of(usual()), Ok(()));
        assert_eq!(of(usual().with_deadline(Duration::ZERO)), Err("a deadline of 0 s".to_owned()));
        assert_eq!(of(usual().with_replicas(0)), Err("0 replicas".to_owned()));
        for (length, ok) in [
            (Duration::ZERO, false),
            (Duration::from_millis(1), true),
            (Duration::from_secs(24 * 3600), true),
            (Duration::from_secs(24 * 3600 + 1), false),
            (Duration::MAX, false),
        ] {
            assert_eq!(of(usual().with_pin(PinAction::Soft(length))).is_ok(), ok, "{length:?}");
        }
    }
}
