//! Generates messages and clients from the protos of this repository.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files =
        ["session_service", "kernel_service", "account_service"].map(|name| format!("retinue/manager/v1/{name}.proto"));
    let protos = protox::compile(files, ["../../protos"])?;
    println!("cargo:rerun-if-changed=../../protos");
    tonic_prost_build::configure()
        .build_server(false)
        .extern_path(".google.rpc.Status", "::tonic_types::Status")
        .compile_fds(protos)?;
    Ok(())
}
