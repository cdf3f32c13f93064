//! The exit code of every command in every case that stops it, as the tables of `docs/operate.md`
//! have it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use countwheel_disk::{DiskOptions, DiskStore};

use crate::support::{Directory, Server, output_of_refusal, pause, program, unprivileged};

/// In what state a directory is that a command is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Given {
    /// Not there.
    Nothing,
    Empty,
    /// Another process has it.
    Locked,
    Damaged,
    File,
    /// Somebody else's, who lets nobody in.
    Forbidden,
    /// As the command wants it.
    Right,
}

/// What a command wants to be given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wants {
    /// A directory with a log and tables.
    Store,
    Snapshot,
    /// A place for a new store.
    Place,
}

use Given::{Damaged, Empty, File, Forbidden, Locked, Nothing, Right};

/// A command, one of its directories, and the code for each state of that one. `None` is not tried:
/// it is what the command wants.
struct Row {
    command: &'static [&'static str],
    /// What stands for the directory of this row is `{}`, for the other `{other}`.
    wants: Wants,
    other: Option<Wants>,
    codes: [(Given, Option<i32>); 6],
}

const fn codes(
    nothing: Option<i32>,
    empty: Option<i32>,
    locked: i32,
    damaged: i32,
    file: i32,
    forbidden: i32,
) -> [(Given, Option<i32>); 6] {
    [
        (Nothing, nothing),
        (Empty, empty),
        (Locked, Some(locked)),
        (Damaged, Some(damaged)),
        (File, Some(file)),
        (Forbidden, Some(forbidden)),
    ]
}

fn rows() -> Vec<Row> {
    let row = |command, wants, other, codes| Row {
        command,
        wants,
        other,
        codes,
    };
    vec![
        row(
            &[
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--must-exist",
                "--data",
                "{}",
            ],
            Wants::Store,
            None,
            codes(Some(1), Some(1), 1, 1, 1, 1),
        ),
        row(
            &["serve", "--listen", "127.0.0.1:0", "--data", "{}"],
            Wants::Store,
            None,
            codes(None, None, 1, 1, 1, 1),
        ),
        row(
            &["check", "{}"],
            Wants::Store,
            None,
            // Beside whoever has it.
            codes(Some(2), Some(2), 0, 1, 2, 2),
        ),
        row(
            &["verify", "{}"],
            Wants::Snapshot,
            None,
            codes(Some(2), Some(2), 4, 1, 2, 2),
        ),
        row(
            &["init", "{}"],
            Wants::Place,
            None,
            codes(Some(0), Some(0), 4, 1, 2, 2),
        ),
        row(
            &["repair", "{}", "{other}"],
            Wants::Store,
            Some(Wants::Place),
            codes(Some(2), Some(2), 4, 1, 2, 2),
        ),
        row(
            &["repair", "{other}", "{}"],
            Wants::Place,
            Some(Wants::Store),
            codes(Some(0), Some(0), 4, 1, 2, 2),
        ),
        row(
            &["restore", "{}", "{other}"],
            Wants::Snapshot,
            Some(Wants::Place),
            codes(Some(2), Some(2), 4, 1, 2, 2),
        ),
        row(
            &["restore", "{other}", "{}"],
            Wants::Place,
            Some(Wants::Snapshot),
            codes(Some(0), Some(0), 4, 1, 2, 2),
        ),
    ]
}

fn options() -> DiskOptions {
    let mut options = DiskOptions::default();
    options.log.segment_bytes = 1 << 20;
    options
}

/// What keeps a directory locked, as a process does that has it.
enum Holder {
    Nobody,
    Process(
        #[expect(dead_code, reason = "it is held")] Option<fs::File>,
        #[expect(dead_code, reason = "it is held")] Option<fs::File>,
    ),
}

/// Makes `path` what is given to a command that wants something.
fn make(path: &Path, wants: Wants, given: Given) -> Holder {
    match given {
        Nothing => return Holder::Nobody,
        Empty => {
            fs::create_dir(path).unwrap();
            return Holder::Nobody;
        }
        File => {
            fs::write(path, "x").unwrap();
            return Holder::Nobody;
        }
        Forbidden => {
            fs::create_dir(path).unwrap();
            fs::set_permissions(path, PermissionsExt::from_mode(0o000)).unwrap();
            return Holder::Nobody;
        }
        Right if wants == Wants::Place => return Holder::Nobody,
        Right | Locked | Damaged => {}
    }
    match wants {
        Wants::Snapshot => {
            let data = path.with_extension("data");
            let store = DiskStore::open(&data, 7, options()).unwrap();
            store.snapshot(path).unwrap();
        }
        Wants::Store | Wants::Place => drop(DiskStore::open(path, 7, options()).unwrap()),
    }
    // Who forks meanwhile, as other tests do, holds the locks of what is open until he has another
    // program.
    let lock = || {
        let [directory, file] = [path.to_owned(), path.join("LOCK")].map(|path| {
            let file = fs::File::open(path).ok()?;
            file.try_lock().ok().map(|()| file)
        });
        let is_free = directory.is_some() && (file.is_some() || !path.join("LOCK").exists());
        is_free.then_some((directory, file))
    };
    while lock().is_none() {
        pause();
    }
    match (given, wants) {
        (Damaged, _) => {
            let format = path.join("FORMAT");
            let sound = fs::read(&format).unwrap();
            fs::write(&format, &sound[..sound.len() / 2]).unwrap();
            Holder::Nobody
        }
        (Locked, _) => loop {
            if let Some((directory, file)) = lock() {
                break Holder::Process(directory, file);
            }
            pause();
        },
        _ => Holder::Nobody,
    }
}

/// Gives everything below to whoever the program is run as, but for what is forbidden.
fn give(path: &Path) {
    let Ok(owner) = fs::metadata(path.parent().unwrap()) else {
        return;
    };
    let Ok(found) = fs::symlink_metadata(path) else {
        return;
    };
    if found.permissions().mode().trailing_zeros() >= 9 {
        return;
    }
    use std::os::unix::fs::MetadataExt;
    std::os::unix::fs::chown(path, Some(owner.uid()), Some(owner.gid())).unwrap();
    if found.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path());
        }
    }
}

#[test]
fn every_command_says_by_its_exit_code_what_stopped_it() {
    let directory = Directory::new();
    let mut number = 0;
    let mut wrong = Vec::new();
    for row in rows() {
        for (given, code) in row.codes {
            let Some(code) = code else { continue };
            number += 1;
            let place = directory.0.join(number.to_string());
            fs::create_dir(&place).unwrap();
            let mut command = unprivileged(&place);
            let path = |name: &str| -> PathBuf { place.join(name) };
            let mut holders = vec![make(&path("it"), row.wants, given)];
            if let Some(other) = row.other {
                holders.push(make(&path("other"), other, Right));
            }
            for entry in fs::read_dir(&place).unwrap() {
                give(&entry.unwrap().path());
            }
            for argument in row.command {
                match *argument {
                    "{}" => command.arg(path("it")),
                    "{other}" => command.arg(path("other")),
                    argument => command.arg(argument),
                };
            }
            if row.command[0] != "check" && row.command[0] != "verify" {
                command.args(["--log-segment-mib", "1"]);
            }
            let name = format!("{} with {given:?}", row.command.join(" "));
            let output = if row.command[0] == "serve" {
                output_of_refusal(command)
            } else {
                command.output().ok()
            };
            drop(holders);
            let Some(output) = output else {
                wrong.push(format!("{name}: it is ready"));
                continue;
            };
            let said = String::from_utf8_lossy(&output.stderr);
            let lines = said.lines().filter(|line| line.starts_with("countwheel: "));
            let (found, lines) = (output.status.code(), lines.count());
            // What is damaged is the answer of a check; everything else is one line for the operator.
            let answers = ["check", "verify", "repair"].contains(&row.command[0]);
            let expected = usize::from(code != 0 && !(answers && lines == 0 && code == 1));
            if found != Some(code) || lines != expected {
                wrong.push(format!("{name}: {found:?} instead of {code}: {said}"));
            }
        }
    }
    // So that they can be removed.
    for number in 1..=number {
        let path = directory.0.join(number.to_string()).join("it");
        if path.is_dir() {
            fs::set_permissions(path, PermissionsExt::from_mode(0o700)).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_command_refuses_a_command_line_that_is_wrong_with_the_same_code() {
    let run = |arguments: &[&str]| program().args(arguments).output().unwrap();
    let help = run(&["--help"]);
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let commands: Vec<_> = commands
        .lines()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !name.is_empty() && *name != "help")
        .collect();
    assert!(commands.len() >= 15, "{commands:?}");
    for name in &commands {
        assert_eq!(
            run(&[name, "--no-such-flag"]).status.code(),
            Some(2),
            "{name}"
        );
    }
    // Each of the tables above is there.
    for row in rows() {
        assert!(commands.contains(&row.command[0]), "{:?}", row.command);
    }
    assert_eq!(run(&["no-such-command"]).status.code(), Some(2));
}

/// Those that talk to a server cannot reach one.
#[test]
fn every_command_that_needs_a_server_says_that_there_is_none() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    let commands: [&[&str]; 18] = [
        &["set", "k", "--in", "5s", "--post", "http://127.0.0.1:9/"],
        &["move", "k", "--in", "5s"],
        &["remove", "k"],
        &["get", "k"],
        &["list"],
        &["fire", "k"],
        &["revive", "k"],
        &["resend", "k"],
        &["queues"],
        &["snapshot", "first"],
        &["endpoint", "put", "shop", "--url", "http://127.0.0.1:9/"],
        &["endpoint", "get", "shop"],
        &["endpoint", "list"],
        &["endpoint", "test", "shop"],
        &["endpoint", "remove", "shop"],
        &["queue", "put", "--endpoint", "shop"],
        &["queue", "get"],
        &["queue", "remove"],
    ];
    for command in commands {
        let output = program().args(command).args(["--server", &server]).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{command:?}: {said}");
    }
}

/// It ended with 0, and the timers were gone: the standard library opens `/dev/null` in the place of an
/// output that is closed, where every write succeeds.
#[test]
fn a_drain_that_removes_does_nothing_if_its_output_is_closed() {
    let directory = Directory::new();
    let server = Server::start(&directory.0.join("data"));
    let mut client = server.client();
    let far = r#"{"in":"30d","target":{"url":"http://127.0.0.1:9/"}}"#;
    client
        .json("PUT", "/v1/queues/default/timers/k", far)
        .expect(201);
    let drain = |redirected: &str| {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("exec \"$@\" {redirected}"));
        shell.arg("sh").arg(program().get_program());
        shell.args(["drain", "--mode", "remove", "--server"]);
        shell.arg(format!("http://{}", server.address));
        shell.output().unwrap()
    };
    for redirected in [">&-", "<&- >&-"] {
        let output = drain(redirected);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("standard output is closed"), "{said}");
        assert!(said.contains("nothing was removed"), "{said}");
    }
    let timer = client.get("/v1/queues/default/timers/k").expect(200);
    assert_eq!(timer["state"], "pending");
    // Thrown away by somebody who says so.
    let output = drain("> /dev/null");
    assert_eq!(output.status.code(), Some(0));
    client.get("/v1/queues/default/timers/k").expect(404);
}
