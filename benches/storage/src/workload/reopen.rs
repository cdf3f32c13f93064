//! S5: `kill -9` while it writes, and open again.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use super::random::Keys;
use super::{BATCH, Figures, check};
use crate::item::Op;
use crate::peer::Name;
use crate::stopwatch::Stopwatch;
use crate::traffic::Traffic;

/// What the process before knows of the store, and the one after has to find in it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) traffic: Traffic,
    /// How many there are.
    pub(crate) live: u64,
    /// So many of the random keys were moved or removed, or might have been.
    pub(crate) touched: u64,
}

const FILE: &str = "state.json";

impl State {
    pub(crate) fn write(&self, directory: &Path) -> anyhow::Result<()> {
        Ok(std::fs::write(
            directory.join(FILE),
            serde_json::to_string(self)?,
        )?)
    }

    pub(crate) fn read(directory: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(directory.join(FILE))?;
        serde_json::from_str(&text).context("the state of the process before cannot be read")
    }

    /// Timers that nobody has touched.
    fn untouched(&self) -> Keys {
        let mut keys = Keys::new(self.traffic.far);
        keys.skip_to(self.touched);
        keys
    }
}

/// Inserts until it is killed, and prints how many commits were acknowledged.
pub(crate) fn write_until_killed(name: Name, directory: &Path) -> anyhow::Result<()> {
    let mut state = State::read(directory)?;
    let mut peer = name.open(directory, false)?;
    let mut out = std::io::stdout().lock();
    for commit in 1_u64.. {
        let ops: Vec<Op> = (0..BATCH).map(|_| state.traffic.far.insert()).collect();
        peer.commit(&ops)?;
        writeln!(out, "{commit}")?;
        out.flush()?;
    }
    Ok(())
}

/// Opens it again, and looks for everything that was acknowledged.
pub(crate) fn measure(name: Name, directory: &Path, acknowledged: u64) -> anyhow::Result<Figures> {
    let mut state = State::read(directory)?;
    let watch = Stopwatch::start();
    let mut peer = name.open(directory, false)?;
    // Open is who can answer: what is due next, or, of who has no order, how much there is.
    if peer
        .scan(state.traffic.far.next_due_ms(), &mut |_| false)
        .is_err()
    {
        peer.count()?;
    }
    let mut figures = Figures::from([("reopen_ms".to_owned(), watch.milliseconds())]);

    let batch = BATCH as u64;
    let found = peer.count()?;
    let sure = state.live + acknowledged * batch;
    // The commit that was under way may have been made, and not acknowledged.
    let whole = found == sure || found == sure + batch;
    let partly = name == Name::Beanstalkd && (sure..=sure + batch).contains(&found);
    ensure!(
        whole || partly,
        "REFUSED: {sure} records were acknowledged, {found} are there after a kill"
    );
    figures.insert("unacknowledged".to_owned(), (found - sure) as f64);
    figures.insert("acknowledged_commits".to_owned(), acknowledged as f64);
    let untouched = state.untouched();
    check::records(&mut *peer, untouched)?;
    if name != Name::Beanstalkd {
        // Its ids of these went with the process that knew them.
        let from = state.traffic.far.inserted;
        for _ in 0..acknowledged * batch {
            state.traffic.far.insert();
        }
        if acknowledged > 0 {
            let new = check::scattered(from, state.traffic.far.inserted);
            check::records(&mut *peer, new.map(|number| state.traffic.far.item(number)))?;
        }
    }
    Ok(figures)
}
