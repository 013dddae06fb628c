//! Entry points of tests/fuzz to decoders that have no public API: each takes any input and says whether it could be
//! read.

use mc_index::Settings;
pub use mc_index::fuzz::*;
pub use mc_log::fuzz::*;
pub use mc_raft::fuzz::*;

pub use crate::api::fuzz::*;
use crate::config::{MasterArgs, PeerList, Setting};
use crate::data_dir;
pub use crate::formation::fuzz::*;

/// Whether `body` is the body of a master's identity file.
pub fn identity(body: &[u8]) -> bool {
    data_dir::fuzz(body)
}

/// Whether these flags of a master pass their checks.
pub fn flags(args: &MasterArgs) -> bool {
    args.check().is_ok()
}

/// Whether `text` is a list of masters as `--peers` takes it.
pub fn peer_list(text: &str) -> bool {
    PeerList::parse(&[text], None).is_ok()
}

/// Whether the replicated setting called `name` takes `value`.
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
