/// Weights with which the operations are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Put if absent.
    pub put: u64,
    /// Put, and replace an existing object.
    pub upsert: u64,
    /// Get.
    pub get: u64,
    /// Exist.
    pub exist: u64,
    /// Remove, forced, so that leases do not delay it.
    pub remove: u64,
}

impl Mix {
    /// All operations, with many reads.
    pub const ALL: Self = Self { put: 4, upsert: 2, get: 8, exist: 1, remove: 1 };
    /// No removes and no upserts: an acknowledged value must stay.
    pub const GROWING: Self = Self { put: 6, upsert: 0, get: 8, exist: 1, remove: 0 };
}
