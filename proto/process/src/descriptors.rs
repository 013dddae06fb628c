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

/// Returns the soft limit on open descriptors as it is now.
pub fn descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// Whether this process can open `number` files or connections more at this moment. It opens as many, and closes them.
#[must_use]
pub fn has_descriptors(number: usize) -> bool {
    // Any other error than a lack of descriptors says nothing about the limit.
    let lacks = |error: &io::Error| matches!(error.raw_os_error(), Some(23 | 24));
    let opened: Vec<_> = (0..number).map(|_| std::fs::File::open("/dev/null")).collect();
    !opened.iter().any(|file| file.as_ref().is_err_and(lacks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let raised = raise_descriptor_limit().unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, raised);
        assert_eq!(raise_descriptor_limit().unwrap(), raised, "a second time changes nothing");
        assert_eq!(descriptor_limit() as u64, raised.unwrap_or(u64::MAX));
        assert!(has_descriptors(8));
    }
}
