//! The limit on files and connections that this process may have open.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit on open descriptors to the hard one, and returns the new limit; `None` means no limit.
///
/// The usual soft limit of 1,024 is for programs that use `select`. A process that serves connections needs one
/// descriptor for each.
///
/// # Errors
/// When the system refuses. It does not refuse a limit within the hard one.
pub fn raise_descriptor_limit() -> io::Result<Option<u64>> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    Ok(limit.maximum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let raised = raise_descriptor_limit().unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, raised);
        assert_eq!(raise_descriptor_limit().unwrap(), raised, "a second time changes nothing");
    }
}
