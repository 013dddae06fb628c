//! docs/reference.md is the page that `mcctl reference` prints.

use std::path::Path;
use std::process::Command;

const BLESS: &str = "MC_BLESS=1 cargo test -p mc-cli --test it reference";

/// The first line in which two texts differ: its number, and the line in each.
fn first_difference<'a>(a: &'a str, b: &'a str) -> Option<(usize, &'a str, &'a str)> {
    const END: &str = "(end of the page)";
    let (mut a, mut b) = (a.lines(), b.lines());
    for number in 1.. {
        match (a.next(), b.next()) {
            (None, None) => break,
            (x, y) if x == y => {}
            (x, y) => return Some((number, x.unwrap_or(END), y.unwrap_or(END))),
        }
    }
    None
}

#[test]
fn the_page_in_docs_is_the_one_that_this_build_prints() {
    let output = Command::new(env!("CARGO_BIN_EXE_mcctl")).arg("reference").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference.md");
    if std::env::var_os("MC_BLESS").is_some() {
        std::fs::write(&path, &printed).unwrap();
    }
    let page = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}\nto write it: {BLESS}", path.display()));
    if let Some((number, page, printed)) = first_difference(&page, &printed) {
        panic!(
            "docs/reference.md is not the page of this build. They differ first in line {number}:\n\
             page:  {page}\n\
             build: {printed}\n\
             to write the page: {BLESS}"
        );
    }
}

#[test]
fn the_first_line_that_differs_is_named() {
    assert_eq!(first_difference("a\nb\nc", "a\nb\nc"), None);
    assert_eq!(first_difference("a\nb\nc", "a\nx\nc"), Some((2, "b", "x")));
    assert_eq!(first_difference("a\nb", "a"), Some((2, "b", "(end of the page)")));
    assert_eq!(first_difference("", "a"), Some((1, "(end of the page)", "a")));
}
