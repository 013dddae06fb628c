//! Decoders that nobody outside calls, for tests/fuzz: each function takes anything and says whether it could be read.

use mc_types::{ClusterId, NodeId};

pub use crate::api::fuzz::*;
pub use crate::formation::fuzz::*;
use crate::identity;
pub use crate::log::fuzz::*;
pub use crate::raft::fuzz::*;
use crate::setting::Setting;
use crate::state::{Settings, State, seal_chunks};

/// The cluster that is meant by what can be read.
pub const CLUSTER: ClusterId = ClusterId(7);
/// The master that is meant.
pub const NODE: NodeId = NodeId(2);
/// Its longest election timeout.
pub const ELECTION_MAX_MS: u64 = 300;

/// The index in a snapshot, with the checksums of its chunks made right.
pub fn index(data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    seal_chunks(&mut bytes);
    let Ok(state) = State::read_snapshot(&mut &bytes[..]) else { return false };
    let mut again = Vec::new();
    let written = state.write_snapshot(&mut again);
    assert!(written.is_ok() && State::read_snapshot(&mut &again[..]).is_ok(), "what was written is read");
    true
}

/// The body of a master's identity.
pub fn identity(body: &[u8]) -> bool {
    identity::fuzz(body)
}

/// A replicated setting, by its name, and its value.
pub fn setting(name: &str, value: &str) -> bool {
    let Ok(setting) = Setting::named(name) else { return false };
    let mut settings = Settings::default();
    if setting.set(&mut settings, value).is_err() {
        assert_eq!(settings, Settings::default(), "what is refused changes nothing");
        return false;
    }
    let mut again = Settings::default();
    assert_eq!(setting.set(&mut again, &setting.value(&settings)), Ok(()));
    assert_eq!(again, settings, "a setting reads back as it is shown");
    true
}
