use std::time::Duration;

use super::served::{Counted, Served};

/// Longest time without a good answer under a fault that costs nothing: a call takes some of it.
const UNAFFECTED: Duration = Duration::from_millis(500);

/// Service that a fault leaves to each client and each kind of call, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Service {
    /// Longest time without a good answer.
    pub gap: Duration,
    /// Calls that may fail.
    pub failed: Allowed,
    /// Calls whose outcome may stay unknown.
    pub unknown: Allowed,
    /// Calls that the client may answer by itself, without a leader.
    pub local_only: Allowed,
    /// Misses of values that are certainly there.
    pub false_misses: Allowed,
    /// Calls among which these are counted.
    pub counted: Counted,
}

/// Number of answers that are not good, of one client to its calls of one kind in one round, and the reason for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// The most that there may be.
    pub most: usize,
    /// Reason, in a word or two.
    pub why: &'static str,
}

impl Service {
    /// Service that a fault does not change: no client waits longer than 500 ms for a good answer, and no call fails.
    pub const fn unaffected() -> Self {
        Self::interrupted(UNAFFECTED)
    }

    /// Service that stands still for up to `gap`, and in which no call fails.
    pub const fn interrupted(gap: Duration) -> Self {
        const NONE: Allowed = Allowed { most: 0, why: "" };
        Self { gap, failed: NONE, unknown: NONE, local_only: NONE, false_misses: NONE, counted: Counted::All }
    }

    /// Allows a client that had no leader, or no store, anything until its first good answer: its calls end at once meanwhile.
    pub const fn once_back(mut self) -> Self {
        self.counted = Counted::OnceBack;
        self
    }

    /// Allows calls that fail.
    pub const fn failed(mut self, most: usize, why: &'static str) -> Self {
        self.failed = Allowed { most, why };
        self
    }

    /// Allows calls of unknown outcome.
    pub const fn unknown(mut self, most: usize, why: &'static str) -> Self {
        self.unknown = Allowed { most, why };
        self
    }

    /// Allows calls that clients answer by themselves.
    pub const fn local_only(mut self, most: usize, why: &'static str) -> Self {
        self.local_only = Allowed { most, why };
        self
    }

    /// Allows misses of values that are certainly there.
    pub const fn false_misses(mut self, most: usize, why: &'static str) -> Self {
        self.false_misses = Allowed { most, why };
        self
    }

    /// Returns those that got less than this, on a machine that stood still for `stalled` meanwhile.
    pub fn breaches<'a>(&self, served: &'a [Served], stalled: Duration) -> Vec<&'a Served> {
        let gap = self.gap + stalled;
        let is_less = |it: &&Served| {
            it.longest_gap > gap
                || it.failed > self.failed.most
                || it.unknown > self.unknown.most
                || it.local_only > self.local_only.most
                || it.false_misses > self.false_misses.most
        };
        served.iter().filter(is_less).collect()
    }

    /// Returns the allowances that are not zero, in words; empty if every call must be answered.
    #[must_use]
    pub fn allowances(&self) -> String {
        let named = [
            (self.failed, "failed"),
            (self.unknown, "unknown"),
            (self.local_only, "local-only"),
            (self.false_misses, "false misses"),
        ];
        let named = named.iter().filter(|(allowed, _)| allowed.most > 0);
        let named = named.map(|(Allowed { most, why }, what)| format!("{most} {what} ({why})"));
        let back = (self.counted == Counted::OnceBack).then(|| "anything until a client is back".to_owned());
        back.into_iter().chain(named).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the worst figures of any client and kind of call, each figure on its own; `None` of nobody.
#[must_use]
pub fn worst<'a>(served: impl IntoIterator<Item = &'a Served>) -> Option<Served> {
    served.into_iter().cloned().reduce(|one, other| Served {
        client: if one.longest_gap >= other.longest_gap { one.client } else { other.client },
        call: if one.longest_gap >= other.longest_gap { one.call } else { other.call },
        calls: one.calls.min(other.calls),
        failed: one.failed.max(other.failed),
        unknown: one.unknown.max(other.unknown),
        local_only: one.local_only.max(other.local_only),
        false_misses: one.false_misses.max(other.false_misses),
        longest_gap: one.longest_gap.max(other.longest_gap),
    })
}
