//! Tells the program which compiler built it.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let compiler = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let version = Command::new(compiler)
        .arg("--version")
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default();
    println!("cargo::rustc-env=COMPILER={version}");
    println!(
        "cargo::rustc-env=OPTIMISATION={}",
        std::env::var("OPT_LEVEL").unwrap_or_default()
    );
}
