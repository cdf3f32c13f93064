//! What each client of another language asks of itself: its types, its tests, its page and its package.

use std::path::PathBuf;
use std::process::Command;

use super::speakers::{directory, node};
use crate::harness::turn;

/// Runs `check.sh` of a client, whose tools are below cargo's directory or beside the client.
fn check(client: &str) {
    let _turn = turn();
    let run = |arguments: &[&str]| {
        let mut command = Command::new("sh");
        command.arg("check.sh").args(arguments);
        command.current_dir(directory(client));
        command.env("COUNTWHEEL", env!("CARGO_BIN_EXE_countwheel"));
        let tmp = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        command.env(
            "COUNTWHEEL_PYTHON_TOOLS",
            tmp.with_file_name("client-python-checks"),
        );
        if let Some(bin) = PathBuf::from(node().get_program()).parent() {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let paths = std::iter::once(bin.to_owned()).chain(std::env::split_paths(&path));
            let paths = paths.filter(|path| !path.as_os_str().is_empty());
            command.env("PATH", std::env::join_paths(paths).unwrap());
        }
        let status = command.status().unwrap();
        assert!(
            status.success(),
            "{client}: check.sh {arguments:?}: {status}"
        );
    };
    run(&["install"]);
    run(&[]);
}

#[test]
#[ignore = "needs Node with packages: cargo xtask check clients"]
fn the_client_in_typescript_passes_its_checks() {
    check("typescript");
}

#[test]
#[ignore = "needs Python with packages: cargo xtask check clients"]
fn the_client_in_python_passes_its_checks() {
    check("python");
}
