//! Compiles the `.proto` files with protox, so that a build needs no `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["mc/v1/master.proto", "mc/v1/raft.proto"];
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::codec::BoundedCodec")
        // The codes are values of their own: the index uses them, and knows no gRPC.
        .extern_path(".mc.v1.Code", "::mc_types::Code")
        .build_client(feature("CLIENT"))
        .build_server(feature("SERVER"))
        .compile_fds(descriptors)?;
    Ok(())
}

fn feature(name: &str) -> bool {
    std::env::var_os(format!("CARGO_FEATURE_{name}")).is_some()
}
