//! Decoders that nobody outside calls, for tests/fuzz: each function takes anything and says whether it could be read.

pub use crate::api::fuzz::*;
pub use crate::formation::fuzz::*;
pub use mc_index::fuzz::*;
pub use mc_log::fuzz::*;
pub use mc_raft::fuzz::*;

use mc_index::Settings;

use crate::identity;
use crate::setting::Setting;

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
