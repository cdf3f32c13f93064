//! The peers in Java: compiled when they are asked for, run as programs of their own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use super::peer::Name;

/// Which class to run, and what to tell it first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Program {
    pub(crate) class: &'static str,
    pub(crate) option: &'static str,
}

/// What every peer needs, and what each has for itself.
const SHARED: [(&str, &str); 2] = [
    ("Bench.java", include_str!("../../java/Bench.java")),
    ("Peer.java", include_str!("../../java/Peer.java")),
];
const PEERS: [(&str, &str); 3] = [
    ("Netty.java", include_str!("../../java/Netty.java")),
    (
        "JdkExecutor.java",
        include_str!("../../java/JdkExecutor.java"),
    ),
    ("Nothing.java", include_str!("../../java/Nothing.java")),
];

/// Where Debian's package `libnetty-java` puts it.
const NETTY: &str = "/usr/share/java/netty-common.jar";

/// The packages of Debian that all of it needs.
const PACKAGES: [&str; 2] = ["default-jdk-headless", "libnetty-java"];

/// Compiled classes, gone when this is dropped.
pub(crate) struct Java {
    classes: TempDir,
    /// Who cannot run, and why.
    missing: Vec<(Name, String)>,
}

impl Java {
    /// Compiles what these peers need; installs what is missing, where that is allowed.
    /// `None` if none of them needs anything.
    pub(crate) fn prepare(names: &[Name]) -> anyhow::Result<Option<Self>> {
        let names = names.iter().copied();
        let names: Vec<Name> = names.filter(|name| name.program().is_some()).collect();
        if names.is_empty() {
            return Ok(None);
        }
        if names.iter().any(|&name| obstacle(name).is_some()) {
            install();
        }
        let mut java = Self {
            classes: TempDir::new().context("there is no place for classes")?,
            missing: Vec::new(),
        };
        let mut compiled = BTreeSet::new();
        for name in names {
            let program = name.program().context("it was asked above")?;
            if let Some(why) = obstacle(name) {
                java.missing.push((name, why));
            } else if compiled.insert(program.class) {
                java.compile(program.class)?;
            }
        }
        Ok(Some(java))
    }

    /// Who cannot run, and why.
    pub(crate) fn missing(&self) -> &[(Name, String)] {
        &self.missing
    }

    /// The program, up to and with its option.
    pub(crate) fn command(&self, program: Program) -> Command {
        let mut command = Command::new("java");
        command
            .arg("-cp")
            .arg(self.class_path())
            .args([program.class, program.option]);
        command
    }

    /// The versions of the machine and of Netty, as far as they tell.
    pub(crate) fn version(&self) -> String {
        let told = Command::new("java").arg("-version").output();
        let told = told.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
        let told = told.unwrap_or_default();
        let runtime = told.lines().nth(1).unwrap_or_default();
        format!("{runtime}; Netty {}", netty_version().unwrap_or_default())
    }

    fn class_path(&self) -> String {
        format!("{}:{NETTY}", self.classes.path().display())
    }

    fn compile(&self, class: &str) -> anyhow::Result<()> {
        let own = format!("{class}.java");
        let own = PEERS.iter().filter(|(file, _)| **file == own);
        let mut files: Vec<PathBuf> = Vec::new();
        for (file, text) in SHARED.iter().chain(own) {
            let path = self.classes.path().join(file);
            std::fs::write(&path, text).with_context(|| path.display().to_string())?;
            files.push(path);
        }
        let compiler = Command::new("javac")
            .arg("-d")
            .arg(self.classes.path())
            .args(["-cp", &self.class_path()])
            .args(&files)
            .output()
            .context("javac does not start")?;
        let complaint = String::from_utf8_lossy(&compiler.stderr);
        let first = complaint.lines().next().unwrap_or_default();
        ensure!(
            compiler.status.success(),
            "{class} does not compile: {first}"
        );
        Ok(())
    }
}

/// As Debian names the file beside, `netty-common-4.1.48.Final.jar`.
fn netty_version() -> Option<String> {
    let directory = Path::new(NETTY).parent()?;
    let versioned = |file: &str| {
        let version = file.strip_prefix("netty-common-")?.strip_suffix(".jar")?;
        Some(version.to_owned())
    };
    let files = std::fs::read_dir(directory).ok()?.flatten();
    files
        .filter_map(|file| versioned(&file.file_name().to_string_lossy()))
        .next()
}

/// Why a peer cannot run.
fn obstacle(name: Name) -> Option<String> {
    let starts = |program: &str| Command::new(program).arg("-version").output().is_ok();
    let class = name.program()?.class;
    if let Some(program) = ["java", "javac"]
        .into_iter()
        .find(|program| !starts(program))
    {
        return Some(format!("{program} is not installed"));
    }
    (class == "Netty" && !Path::new(NETTY).exists())
        .then(|| format!("{NETTY} does not exist; Debian has it in the package libnetty-java"))
}

/// Asks Debian for what is missing, where there is an `apt-get` and this is root. What
/// comes of it shows when it is looked for again.
fn install() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    eprintln!("installing {}", PACKAGES.join(" "));
    for arguments in [
        vec!["update"],
        vec!["install", "--yes", "--no-install-recommends"],
    ] {
        let packages: &[&str] = if arguments[0] == "install" {
            &PACKAGES
        } else {
            &[]
        };
        let _ = Command::new("apt-get")
            .args(arguments)
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .output();
    }
}
