//! The `countwheel` program.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use countwheel_server::config::{Cluster, Database, Dev, Init, Serve};
use countwheel_server::maintain::{Anew, Check, Verify};
use countwheel_server::moving::back::{self, MoveFrom};
use countwheel_server::server::{self, StartError};
use countwheel_server::{cli, dumps, maintain, memory};

/// Durable timers: set one now, get a request when it is due.
#[derive(Parser)]
#[command(name = "countwheel", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Try it out: server, dashboard and a receiver, with data thrown away at exit
    Dev(Dev),
    /// Run the service
    Serve(Box<Serve>),
    /// Make an empty store in a data directory that has none
    Init(Init),
    /// Make and upgrade the tables of a cluster in a PostgreSQL, and see to its nodes
    #[command(subcommand)]
    Cluster(Cluster),
    /// Check whether a PostgreSQL holds the store, in schemas of its own
    Conformance {
        /// Where
        #[command(flatten)]
        database: Database,
    },
    /// Read all of a data directory, also beside a service, and say what is wrong with it
    Check(Check),
    /// Make a new data directory of what can be read of a damaged one, and a list of what is lost
    Repair(Anew),
    /// Read all of a snapshot, and say what is wrong with it
    Verify(Verify),
    /// Make a data directory of a snapshot, which is verified first
    Restore(Anew),
    /// Move all timers of a cluster whose nodes are stopped to a new data directory
    MoveFrom(MoveFrom),
    #[command(flatten)]
    Client(Box<cli::Command>),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Dev(args) => {
            args.log.start_for(&args.front);
            end(server::dev(&args))
        }
        Command::Serve(args) => {
            memory::keep_little();
            args.log.start_for(&args.front);
            dumps::keep_out(args.core_dumps);
            end(server::serve(&args))
        }
        Command::Init(args) => {
            args.log.start();
            maintain::init(&args)
        }
        Command::Cluster(Cluster::Nodes(command)) => cli::run(cli::Command::Cluster(command)),
        Command::Cluster(Cluster::Tables(args)) => maintain::cluster(&args),
        Command::Conformance { database } => maintain::conformance(&database),
        Command::Check(args) => {
            args.log.start();
            maintain::check(&args)
        }
        Command::Repair(args) => {
            args.log.start();
            maintain::repair(&args)
        }
        Command::Verify(args) => {
            args.log.start();
            maintain::verify(&args)
        }
        Command::Restore(args) => {
            args.log.start();
            maintain::restore(&args)
        }
        Command::MoveFrom(args) => {
            args.log.start();
            back::run(&args)
        }
        Command::Client(command) => cli::run(*command),
    }
}

/// One line for the operator: 2 is a bad command line, 1 anything else.
fn end(result: Result<ExitCode, StartError>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("countwheel: {error}");
            ExitCode::from(if error.is_usage() { 2 } else { 1 })
        }
    }
}
