use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Behaviour of a put whose key exists.
///
/// This enum and those below are logged by the number of their variant: their order is part of the formats of commands and
/// snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PutMode {
    /// The existing object stays, and the put says so. For content-addressed keys.
    #[default]
    IfAbsent,
    /// The new object replaces the existing one.
    Upsert,
}

/// Whether a put may have fewer replicas than it asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Replication {
    /// As many as there is room for, at least one.
    #[default]
    BestEffort,
    /// All of them; otherwise the put fails with [`Code::NoAvailableHandle`](crate::Code::NoAvailableHandle).
    Strict,
}

/// Protection from eviction that a put requests for its object.
///
/// `T` says how long a soft pin protects: by its length, as a caller asks for it, or by its end, as the masters log it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PinAction<T = Duration> {
    /// The object gets the pin of the one that it replaces, if any.
    #[default]
    Preserve,
    /// The object is not pinned.
    Disable,
    /// The object is evicted only when nothing without a pin can be, for at most [`SOFT_PIN_MAX`]. Reads do not renew it.
    Soft(T),
    /// The object is never evicted. The setting `hard-pin-limit` bounds the bytes of all such objects; beyond it the put
    /// fails with [`Code::NoAvailableHandle`](crate::Code::NoAvailableHandle).
    Hard,
}

/// Length of a soft pin that names none.
pub const SOFT_PIN: Duration = Duration::from_secs(30 * 60);
/// The longest soft pin.
pub const SOFT_PIN_MAX: Duration = Duration::from_secs(24 * 60 * 60);

impl PinAction {
    /// A soft pin of 30 minutes.
    pub const SOFT: Self = Self::Soft(SOFT_PIN);
}
