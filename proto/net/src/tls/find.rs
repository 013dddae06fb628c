use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::error::TlsError;
use super::files::CredentialPaths;

/// Folder of the credentials, where none is named.
const DEFAULT_DIR: &str = "mc-data/tls";
/// Name of a folder that says that no credentials are wanted.
const NONE: &str = "none";

/// Returns the files from which a process has its credentials: those in the folder `named`, else those that the environment
/// names, one by one (`MC_TLS_CA`, `MC_TLS_USERS_CA`, `MC_TLS_CERT`, `MC_TLS_KEY`, `MC_TOKEN_FILE`) or by their folder (`MC_TLS_DIR`), else those in
/// the default folder.
///
/// # Errors
/// [`TlsError::NoAuthority`]
pub(super) fn paths(
    named: Option<&Path>,
    env: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<CredentialPaths>, TlsError> {
    let in_dir = |dir: &Path| (dir != Path::new(NONE)).then(|| CredentialPaths::in_dir(dir));
    if let Some(dir) = named {
        return Ok(in_dir(dir));
    }
    let file = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = file("MC_TLS_DIR");
    if dir.as_deref() == Some(Path::new(NONE)) {
        return Ok(None);
    }
    let [ca, users_ca, certificate, key, token] =
        ["MC_TLS_CA", "MC_TLS_USERS_CA", "MC_TLS_CERT", "MC_TLS_KEY", "MC_TOKEN_FILE"].map(file);
    let is_any_named = dir.is_some() || [&ca, &certificate, &key, &token].iter().any(|file| file.is_some());
    let folder = CredentialPaths::in_dir(dir.as_deref().unwrap_or(Path::new(DEFAULT_DIR)));
    let has_authority = ca.is_some() || dir.is_some() || folder.ca.exists();
    match (has_authority, is_any_named) {
        (false, false) => return Ok(None),
        (false, true) => return Err(TlsError::NoAuthority),
        (true, _) => {}
    }
    Ok(Some(CredentialPaths {
        ca: ca.unwrap_or(folder.ca),
        users_ca: users_ca.unwrap_or(folder.users_ca),
        certificate: certificate.unwrap_or(folder.certificate),
        key: key.unwrap_or(folder.key),
        needs_token: token.is_some(),
        token: token.unwrap_or(folder.token),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(named: Option<&str>, env: &[(&str, &str)]) -> Result<Option<CredentialPaths>, TlsError> {
        let lookup = |name: &str| {
            let set = env.iter().find(|(set, _)| *set == name);
            set.map(|(_, value)| OsString::from(value))
        };
        paths(named.map(Path::new), lookup)
    }

    #[test]
    fn a_flag_counts_before_the_environment_and_files_before_their_folder() {
        let env = [
            ("MC_TLS_DIR", "/dir"),
            ("MC_TOKEN_FILE", "/run/token"),
            ("MC_TLS_CERT", "/c"),
            ("MC_TLS_KEY", "/k"),
        ];
        let paths = found(None, &env).unwrap().unwrap();
        let expected = CredentialPaths {
            ca: "/dir/ca.crt".into(),
            users_ca: "/dir/users-ca.crt".into(),
            certificate: "/c".into(),
            key: "/k".into(),
            token: "/run/token".into(),
            needs_token: true,
        };
        assert_eq!(paths, expected);
        let of_flag = Some(CredentialPaths::in_dir(Path::new("/flag")));
        assert_eq!(found(Some("/flag"), &env).unwrap(), of_flag);
        assert_eq!(found(Some("none"), &env).unwrap(), None);
        assert_eq!(found(None, &[("MC_TLS_DIR", "none"), ("MC_TOKEN_FILE", "/t")]).unwrap(), None);
        assert_eq!(found(None, &[("MC_TLS_DIR", "")]).unwrap(), None, "an empty value is none");
    }

    #[test]
    fn a_token_needs_an_authority_by_which_masters_are_known() {
        assert!(matches!(found(None, &[("MC_TOKEN_FILE", "/t")]), Err(TlsError::NoAuthority)));
        let paths = found(None, &[("MC_TOKEN_FILE", "/t"), ("MC_TLS_CA", "/ca")]).unwrap().unwrap();
        assert_eq!((paths.ca, paths.token), ("/ca".into(), "/t".into()));
        assert_eq!(found(None, &[]).unwrap(), None);
    }
}
