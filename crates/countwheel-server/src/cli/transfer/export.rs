//! `countwheel export`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use countwheel_durable::StateKind;
use countwheel_time::{Clock, Instant};

use super::line;
use crate::cli::arguments::queue;
use crate::cli::connection::Service;
use crate::cli::{Exit, Failure, Terminal, interrupted, text};
use crate::client::{Client, ClientError};

/// So often progress is told.
pub(super) const TELL_EVERY: Duration = Duration::from_secs(5);

/// `countwheel export`.
#[derive(Clone, Debug, clap::Args)]
pub struct Export {
    /// Only this queue; may be given more than once
    #[arg(long = "queue", value_name = "QUEUE", value_parser = queue)]
    queues: Vec<String>,
    /// Also timers that are done
    #[arg(long)]
    done: bool,
    /// The file to write, in place of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    service: Service,
}

/// What was written, and when that was told last.
struct Written {
    timers: u64,
    unreadable: u64,
    not_settable: u64,
    told: Instant,
}

/// The file of an export. It comes under its name once it is whole, with what was there before until then.
struct Output {
    file: BufWriter<File>,
    /// Where it is written, and what its name is to be; none of both if that is no ordinary file.
    becomes: Option<(PathBuf, PathBuf)>,
}

impl Output {
    fn create(path: &Path) -> io::Result<Self> {
        let becomes = match fs::metadata(path) {
            Ok(found) if !found.is_file() => None,
            // The file behind a link, and not the link, is replaced.
            Ok(_) => Some(fs::canonicalize(path)?),
            Err(_) => Some(path.to_owned()),
        };
        let becomes = becomes.map(|path| {
            let mut partial = path.clone().into_os_string();
            partial.push(".partial");
            (PathBuf::from(partial), path)
        });
        let mut options = OpenOptions::new();
        // It has what the timers deliver.
        options.write(true).mode(0o600);
        let file = match &becomes {
            Some((partial, _)) => {
                // What an export before left that was killed.
                fs::remove_file(partial).unwrap_or_default();
                options.create_new(true).open(partial)?
            }
            None => options.open(path)?,
        };
        let file = BufWriter::new(file);
        Ok(Self { file, becomes })
    }

    fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        let Some((partial, path)) = self.becomes.take() else {
            return Ok(());
        };
        let renamed = self.file.get_ref().sync_all();
        let renamed = renamed.and_then(|()| fs::rename(&partial, path));
        renamed.inspect_err(|_| fs::remove_file(partial).unwrap_or_default())
    }
}

impl Drop for Output {
    /// What is not whole is not left there.
    fn drop(&mut self) {
        if let Some((partial, _)) = &self.becomes {
            fs::remove_file(partial).unwrap_or_default();
        }
    }
}

impl Export {
    /// Whether it is standard output that the timers are written to.
    pub(in crate::cli) fn prints(&self) -> bool {
        self.output.is_none()
    }

    pub(in crate::cli) async fn run(&self, terminal: &mut Terminal<'_>) -> Result<Exit, Failure> {
        let client = self.service.client()?;
        let queues = match self.queues.is_empty() {
            false => self.queues.clone(),
            true => {
                let (mut all, mut after) = (Vec::new(), None);
                loop {
                    let page = client.queues(after.as_deref()).await?.value;
                    all.extend(page.queues.into_iter().map(|it| it.queue));
                    after = page.next;
                    if after.is_none() {
                        break all;
                    }
                }
            }
        };
        let mut written = Written {
            timers: 0,
            unreadable: 0,
            not_settable: 0,
            told: terminal.clock.now(),
        };
        match &self.output {
            None => {
                let done = self.write(&client, &queues, None, &mut written, terminal);
                match done.await {
                    Err(Failure::Output(source)) => return Err(Failure::Export(source)),
                    done => done?,
                }
            }
            Some(path) => {
                let failed = |source| Failure::File {
                    path: path.display().to_string(),
                    source,
                };
                let mut output = Output::create(path).map_err(failed)?;
                let file = Some(&mut output.file);
                let done = self.write(&client, &queues, file, &mut written, terminal);
                let done = tokio::select! {
                    biased;
                    () = interrupted() => Err(Failure::Interrupted("nothing was exported".to_owned())),
                    done = done => done,
                };
                match done {
                    Err(Failure::Output(source)) => return Err(failed(source)),
                    done => done?,
                }
                output.finish().map_err(failed)?;
            }
        }
        let Written {
            timers,
            unreadable,
            not_settable,
            ..
        } = written;
        let timers = text::count(timers, "timer", "timers");
        let queues = text::count(queues.len() as u64, "queue", "queues");
        writeln!(terminal.err, "exported {timers} of {queues}")?;
        if unreadable > 0 {
            writeln!(terminal.err, "{unreadable} timers cannot be read")?;
        }
        if not_settable > 0 {
            writeln!(
                terminal.err,
                "{not_settable} timers deliver what no request can set"
            )?;
        }
        match unreadable + not_settable {
            0 => Ok(Exit::Done),
            _ => Ok(Exit::Refused),
        }
    }

    /// Those that are delivered first: an attempt that ends meanwhile is found again in another state.
    fn states(&self) -> &'static [StateKind] {
        const STATES: [StateKind; 4] = [
            StateKind::Delivering,
            StateKind::Pending,
            StateKind::Dead,
            StateKind::Done,
        ];
        match self.done {
            true => &STATES,
            false => &STATES[..3],
        }
    }

    async fn write(
        &self,
        client: &Client,
        queues: &[String],
        mut file: Option<&mut BufWriter<File>>,
        written: &mut Written,
        terminal: &mut Terminal<'_>,
    ) -> Result<(), Failure> {
        let mut put = |line: &str, terminal: &mut Terminal<'_>| match &mut file {
            Some(file) => writeln!(file, "{line}"),
            None => writeln!(terminal.out, "{line}"),
        };
        put(&line::first(terminal.clock.timestamp()), terminal)?;
        for queue in queues {
            for state in self.states() {
                let mut cursor = None;
                loop {
                    let page = client.list_with_bodies(queue, *state, cursor.as_deref());
                    let page = match page.await {
                        // Nothing is left of the queue since the page before.
                        Err(ClientError::Refused(problem)) if problem.code == "gone" => break,
                        page => page?.value,
                    };
                    for item in &page.items {
                        let line =
                            line::of(item).map_err(|source| ClientError::Unintelligible {
                                status: 200,
                                source,
                            })?;
                        match line {
                            Some(line) => {
                                put(&line, terminal)?;
                                written.timers += 1;
                            }
                            None => written.not_settable += 1,
                        }
                    }
                    written.unreadable += page.unreadable as u64;
                    let now = terminal.clock.now();
                    if now.saturating_since(written.told) >= TELL_EVERY {
                        written.told = now;
                        let timers = written.timers;
                        writeln!(terminal.err, "{timers} timers exported, and more to come")?;
                    }
                    cursor = page.next;
                    if cursor.is_none() {
                        break;
                    }
                }
            }
        }
        put(&line::last(written.timers), terminal)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_export_takes_its_name_when_it_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("timers.jsonl");
        let all = || fs::read_dir(directory.path()).unwrap().count();
        fs::write(&path, "before").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();

        let mut output = Output::create(&path).unwrap();
        writeln!(output.file, "half").unwrap();
        drop(output);
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        assert_eq!(all(), 1);

        let mut output = Output::create(&path).unwrap();
        writeln!(output.file, "whole").unwrap();
        output.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole\n");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!((mode & 0o777, all()), (0o600, 1));
    }
}
