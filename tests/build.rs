//! The simulation replaces `getrandom` of the C library, which some callers look up by name at run time.

fn main() {
    println!("cargo::rustc-link-arg-tests=-Wl,--export-dynamic-symbol=getrandom");
    println!("cargo::rerun-if-changed=build.rs");
}
