//! Readiness of one master, for those who stop and start masters one after the other.
//!
//! A master that reports itself ready can do without the next one: it votes, it has the whole index, and the leader that it
//! follows is followed by a majority. It is judged alone, so one master that lost its disk does not make the others
//! unready. A nearly full disk does not count: it keeps no read from being answered.

use mc_log::LogId;
use mc_raft::MemberRole;
use mc_types::NodeId;

/// Committed entries that a ready member may still have to apply. Under load there are always some, and they take
/// milliseconds.
const READY_WITHIN: u64 = 1000;

/// State of a master that decides whether it is ready.
#[derive(Clone, Debug)]
pub(crate) struct ReadinessInput {
    /// Why this master cannot serve the cluster; empty if it can. A master that knows no leader that a majority follows
    /// has a reason here.
    pub(crate) waiting_for: String,
    /// Its part in the committed membership.
    pub(crate) role: MemberRole,
    /// Why it cannot write, if it leads and cannot.
    pub(crate) blocked: Option<String>,
    /// The highest term that it has seen.
    pub(crate) term: u64,
    /// Index of the last entry that it knows to be committed.
    pub(crate) committed: u64,
    /// The last entry that it has applied.
    pub(crate) applied: Option<LogId>,
}

/// Why a master is not ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unready {
    #[error("{0}")]
    Waiting(String),
    #[error("this master knows no committed membership with itself in it yet")]
    NoMember,
    #[error("this master has no vote yet: it copies the index, then the leader gives it one")]
    NoVote,
    #[error(
        "member {0} has the same address as this master: the leader removes it before this master is ready"
    )]
    SharesAddress(NodeId),
    #[error("{0}")]
    Blocked(String),
    #[error("no entry of term {0} is applied yet, so committed entries of earlier terms may be missing")]
    NothingOfTerm(u64),
    #[error("{0} committed entries are not applied yet")]
    Behind(u64),
}

impl ReadinessInput {
    /// Says whether the master is ready, or why it is not.
    pub(crate) fn readiness(&self) -> Result<(), Unready> {
        if !self.waiting_for.is_empty() {
            return Err(Unready::Waiting(self.waiting_for.clone()));
        }
        match self.role {
            MemberRole::Voter => {}
            MemberRole::None => return Err(Unready::NoMember),
            MemberRole::Learner => return Err(Unready::NoVote),
            MemberRole::SharesAddress(other) => return Err(Unready::SharesAddress(other)),
        }
        if let Some(blocked) = &self.blocked {
            return Err(Unready::Blocked(blocked.clone()));
        }
        // A leader's first entry of its term lies after everything that earlier leaders got committed. Without it, the
        // commit index that this master knows may be an old one.
        let Some(applied) = self.applied.filter(|applied| applied.leader_id.term == self.term) else {
            return Err(Unready::NothingOfTerm(self.term));
        };
        match self.committed.saturating_sub(applied.index) {
            0..=READY_WITHIN => Ok(()),
            behind => Err(Unready::Behind(behind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn well() -> ReadinessInput {
        ReadinessInput {
            waiting_for: String::new(),
            role: MemberRole::Voter,
            blocked: None,
            term: 7,
            committed: 5_000,
            applied: Some(LogId::new_term_index(7, 5_000)),
        }
    }

    #[test]
    fn a_voter_with_the_whole_index_that_hears_a_followed_leader_is_ready() {
        assert_eq!(well().readiness(), Ok(()));
        let almost = ReadinessInput { applied: Some(LogId::new_term_index(7, 4_000)), ..well() };
        assert_eq!(almost.readiness(), Ok(()), "under load there are always some left");
        let ahead = ReadinessInput { committed: 4_990, ..well() };
        assert_eq!(ahead.readiness(), Ok(()), "the commit index was read before the applied one");
    }

    #[test]
    fn each_thing_that_is_missing_is_named() {
        let unready = |condition: ReadinessInput| condition.readiness().unwrap_err();
        let alone = ReadinessInput { waiting_for: "no leader is known".into(), ..well() };
        assert_eq!(unready(alone).to_string(), "no leader is known");
        let learner = ReadinessInput { role: MemberRole::Learner, ..well() };
        assert_eq!(unready(learner), Unready::NoVote, "a wiped master that has copied the index");
        let replaces = ReadinessInput { role: MemberRole::SharesAddress(NodeId(3)), ..well() };
        assert!(unready(replaces).to_string().contains("member 0000000000000003 has the same address"));
        assert_eq!(unready(ReadinessInput { role: MemberRole::None, ..well() }), Unready::NoMember);
        let blocked = ReadinessInput { blocked: Some("this leader can't write".into()), ..well() };
        assert_eq!(unready(blocked), Unready::Blocked("this leader can't write".into()));
        let older = ReadinessInput { applied: Some(LogId::new_term_index(6, 5_000)), ..well() };
        assert_eq!(unready(older), Unready::NothingOfTerm(7), "it may not know what is committed");
        assert_eq!(unready(ReadinessInput { applied: None, ..well() }), Unready::NothingOfTerm(7));
        let behind = ReadinessInput { applied: Some(LogId::new_term_index(7, 3_999)), ..well() };
        assert_eq!(unready(behind), Unready::Behind(1_001));
    }
}
