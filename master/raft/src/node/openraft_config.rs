use std::time::Duration;

use mc_index::bound;
use openraft::{Config, ConfigError, SnapshotPolicy, StepDownPolicy};

use crate::apply::snapshot_limits::SnapshotLimits;
use crate::timing::{RaftTiming, whole_ms};

/// Length of the queue of writes. A write that finds it full waits; a longer queue would only be slower (256 x 64
/// queued entries took 104 ms each, measured).
const API_QUEUE: u64 = 4096;
/// Length of openraft's own queue. openraft waits when it is full, so it is well above what a burst of appends needs.
const NOTIFICATION_QUEUE: u64 = 65_536;
/// Length of the queue to the index. openraft waits when it is full, and then sends no heartbeat and grants no vote.
/// Each append of the leader may add an element while the index is read, so it holds the appends of some seconds.
const INDEX_QUEUE: u64 = 65_536;
/// Number of entries in one append; the log reader bounds their bytes.
const APPEND_ENTRIES: u64 = 4096;
/// Time limit of a follower that takes a snapshot. openraft has no limit of its own: it passes three quarters of this
/// to the network, which waits that long for each piece, and longer for the last one, depending on the snapshot's
/// size.
const INSTALL_SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(40);

/// openraft's configuration for `timing`. `enable_elect` is off: the node turns it on when its
/// [`RestartWait`](crate::lease::restart_wait::RestartWait) is over.
pub(crate) fn raft_config(timing: RaftTiming, limits: &SnapshotLimits) -> Result<Config, ConfigError> {
    Config {
        cluster_name: "mc".into(),
        heartbeat_interval: whole_ms(timing.answer_limit()),
        election_timeout_min: whole_ms(timing.election_min),
        election_timeout_max: whole_ms(timing.election_max),
        enable_elect: false,
        enable_pre_vote: Some(true),
        // A restored leader would serve from an index that may lack entries that were committed before it stopped.
        enable_leader_restore: Some(false),
        // A log that lost entries after acknowledging them must not go unnoticed.
        allow_log_reversion: Some(false),
        install_snapshot_timeout: whole_ms(INSTALL_SNAPSHOT_TIMEOUT),
        snapshot_policy: SnapshotPolicy::Never,
        // Only `take_snapshots` purges what a snapshot covers, because it also considers bytes.
        max_in_snapshot_log_to_keep: u64::MAX,
        // Above what a snapshot leaves. It only decides how long `add_learner` waits, which is not used here.
        replication_lag_threshold: limits.keep_entries.saturating_mul(2).max(10_000),
        max_payload_entries: bound(APPEND_ENTRIES, 2),
        api_channel_size: Some(API_QUEUE),
        notification_channel_size: Some(NOTIFICATION_QUEUE),
        state_machine_channel_size: Some(INDEX_QUEUE),
        removed_leader_step_down: StepDownPolicy::After(whole_ms(timing.election_min)),
        ..Config::default()
    }
    .validate()
}
