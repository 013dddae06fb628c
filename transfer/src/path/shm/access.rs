use std::fmt;
use std::str::FromStr;

/// Processes that may share memory with this one. A store applies it to clients that read its memory and let the store
/// read theirs; a client applies it to stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShmAccess {
    /// No process: bytes go over TCP.
    Off,
    /// As [`Self::SameUid`]; but a store shares its memory with nobody while it requires TLS.
    #[default]
    Auto,
    /// Processes of the same user, and of root.
    SameUid,
    /// Every process of this host that reaches the other one's network namespace.
    Any,
}

/// The text is not the name of an access.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not one of auto, off, same-uid, any")]
pub struct ParseShmAccessError(String);

impl FromStr for ShmAccess {
    type Err = ParseShmAccessError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
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
            Self::Auto => "auto",
            Self::SameUid => "same-uid",
            Self::Any => "any",
        })
    }
}

impl ShmAccess {
    /// Whether a process of user `theirs` is admitted, or why it is not.
    pub(crate) fn admits(self, theirs: u32) -> Result<(), String> {
        self.admits_to(rustix::process::geteuid().as_raw(), theirs, shared_uid())
    }

    /// `shared` is the number that stands for several users.
    fn admits_to(self, ours: u32, theirs: u32, shared: Option<u32>) -> Result<(), String> {
        match self {
            Self::Off => Err("shared memory is switched off".to_owned()),
            Self::Auto | Self::SameUid if shared == Some(theirs) => Err(format!(
                "its user is shown as {theirs}, which stands for every user without a number in this user namespace: \
                 run both as a user that is mapped into it, or allow any"
            )),
            Self::Auto | Self::SameUid if theirs != ours && theirs != 0 => Err(format!(
                "its user is {theirs}, and only those of user {ours} may share memory (same-uid)"
            )),
            Self::Auto | Self::SameUid | Self::Any => Ok(()),
        }
    }
}

/// Number of users that the kernel knows: all but the last number.
const ALL_USERS: u64 = u32::MAX as u64;
/// The kernel's default for users without a number.
const OVERFLOW_UID: u32 = 65_534;

/// Number by which the kernel shows this process every user that has none in its user namespace. `None` if all have one, as in
/// the first namespace.
fn shared_uid() -> Option<u32> {
    let mapped = std::fs::read_to_string("/proc/self/uid_map").map_or(0, |map| mapped_users(&map));
    let overflow = || std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?.trim().parse().ok();
    (mapped < ALL_USERS).then(|| overflow().unwrap_or(OVERFLOW_UID))
}

/// Counts the users that have a number, from lines of `first-inside first-outside count`. The kernel admits no overlaps.
fn mapped_users(uid_map: &str) -> u64 {
    let count = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    uid_map.lines().filter_map(count).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_uid_admits_the_user_itself_and_root() {
        let admits = |access: ShmAccess, theirs| access.admits_to(1000, theirs, None).is_ok();
        assert!(admits(ShmAccess::SameUid, 1000) && admits(ShmAccess::SameUid, 0));
        assert!(admits(ShmAccess::Auto, 1000) && !admits(ShmAccess::Auto, 1001));
        assert!(!admits(ShmAccess::SameUid, 1001) && admits(ShmAccess::Any, 1001));
        assert!(!admits(ShmAccess::Off, 1000));
        for access in [ShmAccess::Off, ShmAccess::Auto, ShmAccess::SameUid, ShmAccess::Any] {
            assert_eq!(access.to_string().parse(), Ok(access));
        }
        assert!("on".parse::<ShmAccess>().unwrap_err().to_string().contains("same-uid"));
    }

    #[test]
    fn same_uid_admits_no_number_that_stands_for_several_users() {
        let admits = |access: ShmAccess, shared| access.admits_to(65_534, 65_534, shared).is_ok();
        assert!(!admits(ShmAccess::SameUid, Some(65_534)), "any other user is shown so, too");
        assert!(admits(ShmAccess::SameUid, None), "the real user of this number");
        assert!(admits(ShmAccess::SameUid, Some(65_533)) && admits(ShmAccess::Any, Some(65_534)));
        assert!(ShmAccess::SameUid.admits_to(1000, 1000, Some(65_534)).is_ok());
    }

    #[test]
    fn only_a_namespace_that_maps_every_user_shows_each_by_a_number_of_its_own() {
        assert_eq!(mapped_users("         0          0 4294967295\n"), ALL_USERS);
        assert_eq!(mapped_users("0 1000 1\n1 100000 65536\n"), 65_537);
        assert_eq!([mapped_users(""), mapped_users("0 0 many\n")], [0, 0]);
    }
}
