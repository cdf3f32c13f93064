//! Writes departures as a trace for `countwheel replay` to standard output.

use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use countwheel_departures::{WriteError, open, write_trace};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(file), None) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: countwheel-departures FILE.csv[.gz] > FILE.jsonl");
        return ExitCode::from(2);
    };
    let file = PathBuf::from(file);
    match write(&file) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has enough.
        Err(WriteError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("countwheel-departures: {}: {error}", file.display());
            ExitCode::FAILURE
        }
    }
}

fn write(file: &Path) -> Result<(), WriteError> {
    write_trace(open(file)?, &mut BufWriter::new(io::stdout().lock()))
}
