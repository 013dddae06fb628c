//! `generated/mc.v1.rs` is what the `.proto` files generate. It is committed, because a compiler of protobuf and a generator
//! of code take a minute to build: only this test needs them. `MC_BLESS=1` writes the file again.

use std::path::Path;

#[test]
fn the_committed_code_is_what_the_proto_files_generate() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = ["mc/v1/master.proto", "mc/v1/raft.proto"];
    let descriptors = protox::compile(files, [home.join("proto")]).unwrap();
    let out = tempfile::tempdir().unwrap();
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::codec::BoundedCodec")
        // The codes are values of their own: the index uses them, and knows no gRPC.
        .extern_path(".mc.v1.Code", "::mc_types::Code")
        .client_mod_attribute(".", r#"#[cfg(feature = "client")]"#)
        .server_mod_attribute(".", r#"#[cfg(feature = "server")]"#)
        .out_dir(out.path())
        .compile_fds(descriptors)
        .unwrap();
    let generated = std::fs::read_to_string(out.path().join("mc.v1.rs")).unwrap();

    let file = home.join("generated/mc.v1.rs");
    if std::env::var_os("MC_BLESS").is_some() {
        std::fs::write(&file, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap();
    assert!(
        committed == generated,
        "{} is not what the .proto files generate; to write it: MC_BLESS=1 cargo test -p mc-proto --test generated",
        file.display()
    );
}
