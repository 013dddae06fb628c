use std::fmt;
use std::str::FromStr;

/// Who may share memory with this end: a store asks it of clients that read its memory and let it read theirs, and a client of
/// stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShmAccess {
    /// Nobody: bytes go over TCP.
    Off,
    /// Processes of the same user, and of root.
    #[default]
    SameUid,
    /// Every process of this host that reaches the other one's network namespace.
    Any,
}

/// The text is not the name of an access.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not one of off, same-uid, any")]
pub struct ParseShmAccessError(String);

impl FromStr for ShmAccess {
    type Err = ParseShmAccessError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::Off),
            "same-uid" => Ok(Self::SameUid),
            "any" => Ok(Self::Any),
            _ => Err(ParseShmAccessError(text.to_owned())),
        }
    }
}

impl fmt::Display for ShmAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::SameUid => "same-uid",
            Self::Any => "any",
        })
    }
}

impl ShmAccess {
    /// Whether a process of user `theirs` is admitted, or why it is not.
    pub(crate) fn admits(self, theirs: u32) -> Result<(), String> {
        self.admits_to(rustix::process::geteuid().as_raw(), theirs)
    }

    fn admits_to(self, ours: u32, theirs: u32) -> Result<(), String> {
        match self {
            Self::Off => Err("shared memory is switched off".to_owned()),
            Self::SameUid if theirs != ours && theirs != 0 => Err(format!(
                "its user is {theirs}, and only those of user {ours} may share memory (same-uid)"
            )),
            Self::SameUid | Self::Any => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_uid_admits_the_user_itself_and_root() {
        let admits = |access: ShmAccess, theirs| access.admits_to(1000, theirs).is_ok();
        assert!(admits(ShmAccess::SameUid, 1000) && admits(ShmAccess::SameUid, 0));
        assert!(!admits(ShmAccess::SameUid, 1001) && admits(ShmAccess::Any, 1001));
        assert!(!admits(ShmAccess::Off, 1000));
        for access in [ShmAccess::Off, ShmAccess::SameUid, ShmAccess::Any] {
            assert_eq!(access.to_string().parse(), Ok(access));
        }
        assert!("on".parse::<ShmAccess>().unwrap_err().to_string().contains("same-uid"));
    }
}
