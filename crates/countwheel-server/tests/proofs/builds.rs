//! Two builds of the program as nodes of one cluster, while one takes the place of the other under load and the tables
//! are upgraded: nothing that was acknowledged is lost.
//!
//! `COUNTWHEEL_OLD_BUILD` and `COUNTWHEEL_NEW_BUILD` name the two programs, `COUNTWHEEL_SEED` repeats what is asked.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use countwheel_postgres::testing;
use rustix::process::Signal;

use crate::harness::load::Load;
use crate::harness::process::{Launch, Server};
use crate::harness::receiver::Receiver;
use crate::harness::{Directory, PATIENCE, Random, now_us, seed, turn, wait};
use crate::nodes::asked as ask;

fn build(name: &str) -> PathBuf {
    let named = std::env::var_os(name);
    let path: PathBuf = named
        .unwrap_or_else(|| panic!("{name} names no program"))
        .into();
    std::path::absolute(path).expect("a path")
}

fn version(node: &Server) -> String {
    let nodes = ask(node, "GET", "/v1/cluster/nodes", None).body;
    let all = nodes["nodes"].as_array().expect("a list").iter();
    let versions: Vec<_> = all.map(|node| node["version"].to_string()).collect();
    versions.join(", ")
}

/// How a node of this build is started. One that knows the answers of attempts keeps none: a build that
/// knows nothing of them takes its place.
fn options_of(build: &Path) -> Vec<&'static str> {
    let help = Command::new(build).args(["serve", "--help"]).output();
    let help = help.expect("the program starts").stdout;
    let mut options = vec!["--lease-ttl", "2s"];
    if String::from_utf8_lossy(&help).contains("--keep-answers") {
        options.extend(["--keep-answers", "off"]);
    }
    options
}

/// Stops a node in good order, and starts another build in its place. Why that does not start, if it does not.
fn replace(node: &mut Server, by: &Path) -> Result<(), String> {
    node.signal(Signal::TERM);
    let ended = node.end_within(PATIENCE).expect("it ends");
    assert!(ended.success(), "{ended}: {}", node.said());
    node.launch.program = Some(by.to_path_buf());
    node.launch.options = options_of(by);
    node.try_restart()
}

#[test]
#[ignore = "needs two builds: cargo xtask nodes-builds OLD NEW"]
fn two_builds_are_nodes_of_one_cluster_while_one_replaces_the_other() {
    const UNDER_LOAD: Duration = Duration::from_secs(2);
    let _turn = turn();
    let (old, new) = (build("COUNTWHEEL_OLD_BUILD"), build("COUNTWHEEL_NEW_BUILD"));
    let mut random = Random::new(seed());
    let directory = Directory::new("builds");
    let receiver = Receiver::start();
    let database = testing::Server::start(&[]).expect("it is installed");
    let options = database.fresh();
    let cluster = |build: &PathBuf, what: &str| -> Output {
        let asked = Command::new(build)
            .args(["cluster", what, "--store", &options.url])
            .args(["--schema", &options.schema])
            .output();
        asked.expect("the program starts")
    };
    let tables = || {
        let version = format!("SELECT schema_version FROM \"{}\".meta", options.schema);
        let version = database.execute(&version).expect("it answers");
        version.trim().to_owned()
    };
    assert!(cluster(&old, "init").status.success());
    let of_old = tables();
    let launch = Launch {
        program: Some(old.clone()),
        database: Some((options.url.clone(), options.schema.clone())),
        options: options_of(&old),
        ..Launch::default()
    };
    let start = now_us();
    let [mut asked, mut second, mut third] =
        [(), (), ()].map(|()| Server::start_as(&directory.join("data"), launch.clone()));
    let mut load = Load::of_a_node(&receiver.url, &mut random);

    // The old one is asked; its tables are upgraded, and the others replaced.
    load.until(&mut asked, |asked| {
        wait(UNDER_LOAD);
        let upgraded = cluster(&new, "upgrade");
        assert!(upgraded.status.success(), "{upgraded:?}");
        println!("tables {of_old}, upgraded to {}", tables());
        wait(UNDER_LOAD);
        for node in [&mut second, &mut third] {
            let replaced = replace(node, &new);
            replaced.unwrap_or_else(|why| panic!("the new build: {why}"));
            wait(UNDER_LOAD);
        }
        println!("versions {}", version(asked));
    });
    // Back: the old build among two new ones, if the tables are still for it.
    let back = asked.try_restart();
    match &back {
        Ok(()) => load.until(&mut asked, |_| wait(UNDER_LOAD)),
        Err(why) => {
            println!("the old build refuses the tables: {why}");
            assert_ne!(of_old, tables(), "it refuses what it has made");
            assert_eq!(
                why.lines().filter(|line| !line.is_empty()).count(),
                1,
                "{why}"
            );
        }
    }
    // And forth: the new one is asked.
    asked.launch.program = Some(new.clone());
    asked.launch.options = options_of(&new);
    asked.restart();
    load.until(&mut asked, |_| {
        wait(UNDER_LOAD);
        if back.is_ok() {
            let returned = replace(&mut second, &old);
            returned.unwrap_or_else(|why| panic!("the old build: {why}"));
            wait(UNDER_LOAD);
        }
    });
    asked.restart();
    let took_us = now_us() - start;
    let settled = load.settle(&asked, &receiver);
    settled.demand_innocence("two builds in one cluster under load", &asked, took_us);
}
