use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Json, Response};
use serde::Serialize;

use crate::api::Api;
use crate::leader::Unready;

/// State of a master in Mooncake's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuntimeState {
    /// There is no cluster yet.
    Starting,
    /// Follows a leader, or waits for one.
    Standby,
    Candidate,
    /// Does not have the whole index yet.
    CatchingUp,
    /// Leads, and can't tell yet whether a majority follows.
    LeaderWarmup,
    /// Leads and serves calls.
    Serving,
}

impl RuntimeState {
    pub(super) fn of(api: &Api) -> Self {
        let Some(services) = api.services() else { return Self::Starting };
        let coordinator = &services.coordinator;
        match services.raft.view().role {
            "leader" if coordinator.on_duty().is_some() => Self::Serving,
            "leader" => Self::LeaderWarmup,
            "candidate" => Self::Candidate,
            _ => Self::of_follower(coordinator.readiness_input().readiness()),
        }
    }

    fn of_follower(ready: Result<(), Unready>) -> Self {
        match ready {
            Err(Unready::NoMember | Unready::NoVote | Unready::NothingOfTerm(_) | Unready::Behind(_)) => {
                Self::CatchingUp
            }
            Ok(()) | Err(_) => Self::Standby,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Standby => "standby",
            Self::Candidate => "candidate",
            Self::CatchingUp => "catching_up",
            Self::LeaderWarmup => "leader_warmup",
            Self::Serving => "serving",
        }
    }

    pub(super) fn role(self) -> &'static str {
        match self {
            Self::LeaderWarmup | Self::Serving => "leader",
            _ => "standby",
        }
    }

    /// Whether this master answers clients itself.
    pub(super) fn is_serving(self) -> bool {
        self == Self::Serving
    }
}

/// The leader as a master knows it; the version of its view is the term.
#[derive(Debug, Default, Serialize)]
pub(super) struct LeaderView {
    pub(super) leader_address: Option<String>,
    pub(super) view_version: Option<u64>,
}

impl LeaderView {
    pub(super) fn of(api: &Api) -> Self {
        let leader = api.services().and_then(|services| services.coordinator.leader());
        leader.map_or_else(Self::default, |leader| Self {
            leader_address: Some(leader.address),
            view_version: Some(leader.term),
        })
    }
}

#[derive(Serialize)]
pub(super) struct Health {
    status: &'static str,
    role: &'static str,
    ha_state: &'static str,
    service_ready: bool,
    #[serde(flatten)]
    leader: LeaderView,
}

#[derive(Serialize)]
pub(super) struct Leader {
    present: bool,
    #[serde(flatten)]
    leader: LeaderView,
}

/// `/health`: 200 as long as the process answers.
pub(super) async fn health(State(api): State<Arc<Api>>) -> Json<Health> {
    let state = RuntimeState::of(&api);
    Json(Health {
        status: "ok",
        role: state.role(),
        ha_state: state.name(),
        service_ready: state.is_serving(),
        leader: LeaderView::of(&api),
    })
}

/// Serves `/leader`: who leads, as JSON.
pub(super) async fn leader(State(api): State<Arc<Api>>) -> Json<Leader> {
    let leader = LeaderView::of(&api);
    Json(Leader { present: leader.leader_address.is_some(), leader })
}

/// Serves `/role`: the role of this master, as one word.
pub(super) async fn role(State(api): State<Arc<Api>>) -> Response {
    word(RuntimeState::of(&api).role())
}

/// Serves `/ha_status`: Mooncake's name for the state of this master.
pub(super) async fn ha_status(State(api): State<Arc<Api>>) -> Response {
    word(RuntimeState::of(&api).name())
}

fn word(word: &'static str) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], word).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_without_the_whole_index_catches_up() {
        for unready in [Unready::NoMember, Unready::NoVote, Unready::NothingOfTerm(7), Unready::Behind(2_000)]
        {
            assert_eq!(RuntimeState::of_follower(Err(unready)), RuntimeState::CatchingUp);
        }
        for ready in [Ok(()), Err(Unready::Waiting("no leader is known".into()))] {
            assert_eq!(RuntimeState::of_follower(ready), RuntimeState::Standby);
        }
    }
}
