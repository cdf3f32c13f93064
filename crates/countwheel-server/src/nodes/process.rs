//! A process that ends with what started it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus};

use rustix::process::{Pid, Signal, kill_process_group};

/// A process in a group of its own: what is typed at the terminal does not reach it. It is ended when
/// this is dropped.
pub(super) struct Process {
    child: Child,
    last: Signal,
}

impl Process {
    /// Starts it. `last` is the signal that ends it at once.
    pub(super) fn start(command: &mut Command, last: Signal) -> io::Result<Self> {
        let child = command.process_group(0).spawn()?;
        Ok(Self { child, last })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it prints, and what it logs, as far as both are piped.
    pub(super) fn outputs(&mut self) -> Option<(ChildStdout, ChildStderr)> {
        self.child.stdout.take().zip(self.child.stderr.take())
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        // It is ours, so it can be asked for.
        self.child.try_wait().ok().flatten()
    }

    /// Sends it, and what it has started in its group, a signal.
    pub(super) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // It may have ended meanwhile; its number is not given away before it is waited for.
            let _gone_already = kill_process_group(pid, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.signal(self.last);
            let _status = self.child.wait();
        }
    }
}
