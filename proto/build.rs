//! Compiles the `.proto` files with protox, so that a build needs no `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["mc/v1/master.proto", "mc/v1/raft.proto"];
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(files, ["proto"])?;
    let codec = "crate::codec::BoundedCodec";
    tonic_prost_build::configure().bytes(".").codec_path(codec).compile_fds(descriptors)?;
    Ok(())
}
