//! Golden files: the bytes of an encoding as they were when its format got its number.
//!
//! `MC_BLESS=1` writes the file of a name and format that are new, and a line with its digest to `formats.txt` beside it. It
//! changes no line: bytes that were written under a format are read by that format for good.

use std::fmt::Write as _;
use std::path::PathBuf;

use xxhash_rust::xxh3::xxh3_64;

/// Compares `bytes` with the golden file of this name, and with the digest that was noted for `format`.
#[track_caller]
pub(crate) fn assert_golden(name: &str, format: u8, bytes: &[u8]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
    let list = path.with_file_name("formats.txt");
    let begin = format!("{} {format} ", path.file_name().unwrap().display());
    let line = format!("{begin}{:016x}", xxh3_64(bytes));
    let mut noted = std::fs::read_to_string(&list).unwrap_or_default();
    if std::env::var_os("MC_BLESS").is_some() && !noted.lines().any(|line| line.starts_with(&begin)) {
        std::fs::write(&path, bytes).unwrap();
        writeln!(noted, "{line}").unwrap();
        std::fs::write(&list, &noted).unwrap();
    }
    let Some(was) = noted.lines().find(|line| line.starts_with(&begin)) else {
        panic!("{name} has no digest for format {format}: write it with MC_BLESS=1");
    };
    assert_eq!(
        line,
        was,
        "\n{name}: format {format} had other bytes. Builds that know the format by those misread these, or reach another \
         state by the same commands. Raise the format, or give a changed sample a new name. Correct {} by hand only if \
         no release has the format.\n",
        list.display()
    );
    let golden = std::fs::read(&path).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
    assert!(golden == bytes, "{name}: the file holds other bytes than its digest in {}", list.display());
}
