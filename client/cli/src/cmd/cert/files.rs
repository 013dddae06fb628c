//! Files of a TLS directory and of the directory of an authority.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result};

/// Certificates of the authorities that a process trusts. This name and the next two are those of a TLS secret in Kubernetes.
pub(super) const CA_CERT: &str = "ca.crt";
/// Certificate of the process, and those above it except the authority's.
pub(super) const CERT: &str = "tls.crt";
/// Private key of the process.
pub(super) const KEY: &str = "tls.key";
/// Private key of an authority, which only its own directory has.
pub(super) const CA_KEY: &str = "ca.key";

/// Directory of the authority, where none is named.
pub(super) const DEFAULT_CA_DIR: &str = "mc-data/ca";
/// TLS directory, where none is named.
pub(super) const DEFAULT_TLS_DIR: &str = "mc-data/tls";

/// Returns the text of a file; `None` if there is no such file.
pub(super) fn read(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Writes files that are not there yet, for this user alone, into a directory that is made if it is missing.
pub(super) fn create(dir: &Path, files: &[(&str, &str)]) -> Result<()> {
    // Displayed, because the text of such an error has its cause already.
    mc_durable::create_dir(dir).map_err(Error::msg)?;
    for (name, text) in files {
        write_new(&dir.join(name), text)?;
    }
    mc_durable::sync_dir(dir).map_err(Error::msg)
}

/// Replaces files of a directory, or makes them, in this order. A reader never finds a part of a file, and for a moment finds
/// the new key beside the old certificate: it has to read both again.
pub(super) fn replace(dir: &Path, files: &[(&str, &str)]) -> Result<()> {
    mc_durable::create_dir(dir).map_err(Error::msg)?;
    let partial = |name: &str| dir.join(format!("{name}.partial"));
    for (name, text) in files {
        // A run that was killed may have left one.
        remove(&partial(name))?;
        write_new(&partial(name), text)?;
    }
    for (name, _) in files {
        mc_durable::durable_rename(&partial(name), &dir.join(name)).map_err(Error::msg)?;
    }
    Ok(())
}

/// Returns the paths of files that were written.
pub(super) fn paths(dir: &Path, files: &[(&str, &str)]) -> Vec<PathBuf> {
    files.iter().map(|(name, _)| dir.join(name)).collect()
}

/// Writes a file that is not there yet, and that this user alone can read.
pub(crate) fn write_new(path: &Path, text: &str) -> Result<()> {
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(path).with_context(|| format!("cannot create {}", path.display()))?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn files_are_replaced_as_a_whole_and_are_for_their_owner_alone() {
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join("a/tls");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        replace(&dir, &[(KEY, "one"), (CERT, "two")]).unwrap();
        fs::write(dir.join("tls.key.partial"), "left by a run that was killed").unwrap();
        replace(&dir, &[(KEY, "three")]).unwrap();
        assert_eq!(read(&dir.join(KEY)).unwrap().as_deref(), Some("three"));
        assert_eq!(read(&dir.join(CERT)).unwrap().as_deref(), Some("two"));
        assert_eq!(read(&dir.join(CA_CERT)).unwrap(), None);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2, "nothing is left over");
        assert_eq!((mode(&dir), mode(&dir.join(KEY))), (0o700, 0o600));
    }

    #[test]
    fn a_file_that_is_there_is_not_created_again() {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path(), &[(CA_KEY, "one")]).unwrap();
        let error = create(dir.path(), &[(CA_KEY, "two")]).unwrap_err();
        assert!(format!("{error:#}").contains("ca.key"), "{error:#}");
        assert_eq!(read(&dir.path().join(CA_KEY)).unwrap().as_deref(), Some("one"));
    }
}
