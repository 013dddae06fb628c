//! Values of `mc-types` as they travel.

use mc_types::PutMode;

use crate::v1;

impl From<PutMode> for v1::PutMode {
    fn from(mode: PutMode) -> Self {
        match mode {
            PutMode::IfAbsent => Self::IfAbsent,
            PutMode::Upsert => Self::Upsert,
        }
    }
}

impl From<v1::PutMode> for PutMode {
    fn from(mode: v1::PutMode) -> Self {
        match mode {
            v1::PutMode::IfAbsent => Self::IfAbsent,
            v1::PutMode::Upsert => Self::Upsert,
        }
    }
}
