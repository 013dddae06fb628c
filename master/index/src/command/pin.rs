use mc_types::{ClusterTime, PinAction, SOFT_PIN_MAX};
use serde::{Deserialize, Serialize};

/// Protection of an object from eviction.
///
/// A soft pin lets the object be evicted only when nothing without a pin can be, until its time is over. A hard pin
/// protects it until it is removed or replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pin(u32);

impl Pin {
    /// No pin: the object may be evicted.
    pub const NONE: Self = Self(0);
    /// Hard pin: the object is never evicted.
    pub const HARD: Self = Self(u32::MAX);

    /// Evicted last, until `until`, rounded up to whole seconds.
    #[must_use]
    pub fn soft(until: ClusterTime) -> Self {
        let second = u32::try_from(until.0.div_ceil(1000)).unwrap_or(u32::MAX);
        Self(second.clamp(1, u32::MAX - 1))
    }

    /// Returns the pin of a new object, given that of the one that it replaces.
    pub(crate) fn of(action: PinAction<ClusterTime>, before: Self, now: ClusterTime) -> Self {
        match action {
            PinAction::Preserve => before.at(now),
            PinAction::Disable => Self::NONE,
            PinAction::Soft(until) => Self::soft(until.min(now.after(SOFT_PIN_MAX))).at(now),
            PinAction::Hard => Self::HARD,
        }
    }

    /// Reads the pin of a record.
    pub(crate) fn from_u32(pin: u32) -> Self {
        Self(pin)
    }

    /// Returns the pin as a number for a record.
    pub(crate) fn to_u32(self) -> u32 {
        self.0
    }

    /// Whether it is a hard pin.
    #[must_use]
    pub fn is_hard(self) -> bool {
        self == Self::HARD
    }

    /// End of a soft pin; `None` for a hard one and for none.
    #[must_use]
    pub fn soft_until(self) -> Option<ClusterTime> {
        (self != Self::NONE && !self.is_hard()).then_some(ClusterTime(u64::from(self.0) * 1000))
    }

    /// The pin as it is at `now`: a soft pin whose time is over is none.
    #[must_use]
    pub fn at(self, now: ClusterTime) -> Self {
        if self.soft_until().is_some_and(|until| until <= now) { Self::NONE } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_survive_their_number_and_end_with_their_time() {
        let soft = Pin::soft(ClusterTime(1_500));
        assert_eq!(soft.soft_until(), Some(ClusterTime(2_000)));
        assert_eq!((soft.at(ClusterTime(1_999)), soft.at(ClusterTime(2_000))), (soft, Pin::NONE));
        assert!(!Pin::soft(ClusterTime(u64::MAX)).is_hard());
        for pin in [Pin::NONE, Pin::HARD, soft] {
            assert_eq!(Pin::from_u32(pin.to_u32()), pin);
        }
        assert_eq!(Pin::HARD.at(ClusterTime(u64::MAX)), Pin::HARD);
    }

    #[test]
    fn an_action_decides_from_the_pin_before() {
        let now = ClusterTime(10_000);
        let soft = Pin::soft(ClusterTime(20_000));
        assert_eq!(Pin::of(PinAction::Preserve, soft, now), soft);
        assert_eq!(Pin::of(PinAction::Preserve, Pin::soft(now), now), Pin::NONE, "it has ended");
        assert_eq!(Pin::of(PinAction::Disable, Pin::HARD, now), Pin::NONE);
        assert_eq!(Pin::of(PinAction::Hard, soft, now), Pin::HARD);
        let day = Pin::of(PinAction::Soft(ClusterTime(u64::MAX)), Pin::NONE, now);
        assert_eq!(day.soft_until(), Some(now.after(SOFT_PIN_MAX)));
    }
}
