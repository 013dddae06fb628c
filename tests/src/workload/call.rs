use mc_client::{Bytes, Error, Mode, Presence, Put};

use super::judged::Judged;
use crate::checker::{Action, Outcome};
use crate::digest;

/// A call under way, of one operation for each of its keys. It is recorded when it is answered, or as
/// [untold](Outcome::Untold) when its caller drops it.
pub(super) struct Call<'a> {
    client: &'a Judged,
    asked: Vec<(String, Action)>,
    start: u64,
    /// Time of the answer, if what follows only tells which it was.
    end: Option<u64>,
    before: Reach,
    /// Number of values that the client could not read from any store before.
    unread: u64,
}

/// Whether a leader is in reach, and how often the client has lost reach of one.
type Reach = (Mode, u64);

impl Judged {
    /// Notes that a call begins; the keys are those of the history.
    pub(super) fn call(&self, asked: Vec<(String, Action)>) -> Call<'_> {
        let (start, before, unread) = (self.recorder.now(), self.reach(), self.unread());
        Call { client: self, asked, start, end: None, before, unread }
    }

    fn unread(&self) -> u64 {
        self.client.stats().unreachable_replicas
    }

    fn reach(&self) -> Reach {
        (self.client.mode(), self.client.stats().local_only_entries)
    }
}

impl Call<'_> {
    /// Notes that the answer is that of this moment.
    pub(super) fn ends_now(&mut self) {
        self.end = Some(self.client.recorder.now());
    }

    /// Records the answers, one for each key, in order, and returns what they say.
    pub(super) fn answered<A>(
        mut self,
        answers: impl IntoIterator<Item = A>,
        outcome: impl Fn(&Self, A) -> Outcome,
    ) -> Vec<Outcome> {
        let outcomes: Vec<_> = answers.into_iter().map(|answer| outcome(&self, answer)).collect();
        assert_eq!(outcomes.len(), self.asked.len(), "one answer for each key");
        self.record(&outcomes);
        outcomes
    }

    fn record(&mut self, outcomes: &[Outcome]) {
        let end = self.end.unwrap_or_else(|| self.client.recorder.now());
        for ((key, action), outcome) in self.asked.drain(..).zip(outcomes) {
            let during = self.start..end;
            if action.writes().is_some() && !matches!(outcome, Outcome::Unknown | Outcome::Untold) {
                self.client.puts.ended(&key);
            }
            self.client.recorder.record_during(self.client.number, &key, action, *outcome, during);
        }
    }

    /// Reads the answer to a put.
    pub(super) fn put(&self, answer: Result<Put, Error>) -> Outcome {
        match answer {
            Ok(Put::Stored) => Outcome::Stored,
            Ok(Put::AlreadyExists) if !self.client.workload.cached || self.asked_the_pool() => {
                Outcome::Exists
            }
            // Without a leader, the client has a value of its own and stores nothing.
            Ok(Put::AlreadyExists) => Outcome::Failed,
            Ok(Put::LocalOnly) => Outcome::LocalOnly,
            Err(error) => self.failed(&error),
        }
    }

    /// Reads the answer to a get.
    pub(super) fn got(&self, answer: Result<Option<Bytes>, Error>) -> Outcome {
        match answer {
            Ok(Some(value)) if !self.client.workload.cached || self.asked_the_pool() => {
                Outcome::Value(digest(&value))
            }
            Ok(Some(value)) => Outcome::LocalValue(digest(&value)),
            Ok(None) => self.missed(),
            Err(error) => self.failed(&error),
        }
    }

    /// Reads a miss. Where several calls of a client are under way, it may be another one that found a value and could not read
    /// it. A value that is gone is then missed by the final reads.
    pub(super) fn missed(&self) -> Outcome {
        let may_not_read = self.client.workload.may_not_read;
        match self.asked_the_pool() {
            true if may_not_read && self.client.unread() > self.unread => Outcome::Unread,
            true => Outcome::Miss,
            false => Outcome::LocalMiss,
        }
    }

    /// Reads the answer to the question whether there is an object.
    pub(super) fn found(&self, answer: Result<Presence, Error>) -> Outcome {
        match answer {
            Ok(Presence::Present(_)) if !self.client.workload.cached || self.asked_the_pool() => {
                Outcome::Present
            }
            Ok(Presence::BeingWritten | Presence::Absent) if self.asked_the_pool() => Outcome::Absent,
            Ok(Presence::BeingWritten | Presence::Absent) => Outcome::LocalMiss,
            Ok(_) => Outcome::Failed,
            Err(error) => self.failed(&error),
        }
    }

    /// Reads the answer to a remove.
    pub(super) fn removed(&self, answer: Result<bool, Error>) -> Outcome {
        match answer {
            Ok(true) => Outcome::Removed,
            Ok(false) => Outcome::NothingToRemove,
            Err(error) => self.failed(&error),
        }
    }

    /// Reads an error.
    pub(super) fn failed(&self, error: &Error) -> Outcome {
        self.client.errors.note(error);
        if error.is_unknown() { Outcome::Unknown } else { Outcome::Failed }
    }

    /// Returns whether an answer came from the pool: the client was in reach of a leader at the start of the call and
    /// ever since. Any other answer may come from its own cache.
    fn asked_the_pool(&self) -> bool {
        self.before.0 == Mode::Connected && self.before == self.client.reach()
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.record(&vec![Outcome::Untold; self.asked.len()]);
    }
}
