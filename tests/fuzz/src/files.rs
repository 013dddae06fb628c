//! Small files of masters and stores.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use mc_durable::SmallFile;
use tempfile::NamedTempFile;

/// Has `data` read from a file.
pub(crate) fn in_file(data: &[u8], read: impl FnOnce(&Path) -> bool) -> bool {
    let Ok(mut file) = NamedTempFile::new() else { return false };
    file.write_all(data).is_ok() && read(file.path())
}

const KIND: SmallFile = SmallFile { magic: *b"mcTS", version: 1 };

/// Reads the frame that every small file has.
pub(crate) fn small_file(data: &[u8]) -> bool {
    in_file(data, |path| {
        let Ok(Some(body)) = KIND.read(path) else { return false };
        assert_eq!(body, data[8..data.len() - 4], "the body stands between head and checksum");
        true
    })
}

/// An empty one, and one with a body.
pub(crate) fn small_files() -> Vec<Vec<u8>> {
    let written = |body: &[u8]| {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("file");
        KIND.write(&path, body).expect("a file that can be written");
        fs::read(&path).expect("the file that was written")
    };
    vec![written(b""), written(b"body")]
}

/// Bodies of masters' identities: new, accepted, and formed.
pub(crate) fn identities() -> Vec<Vec<u8>> {
    [&b"\x05\0\0"[..], b"\x05\x01\x07\x01\x09\0", b"\x05\x01\x07\0\x01"].map(<[u8]>::to_vec).into()
}

/// Bodies of stores' identities: without a cluster, and with one.
pub(crate) fn store_identities() -> Vec<Vec<u8>> {
    let of = |cluster: u128| [&5u64.to_be_bytes()[..], &cluster.to_be_bytes()].concat();
    vec![of(0), of(7)]
}
