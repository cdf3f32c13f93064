//! The life of one store: loaded once, then measured in every other way (S2 to S6).

use std::path::Path;

use super::reopen::State;
use super::{Figures, LOAD_BATCH, check, footprint, random, scan, steady};
use crate::item::Op;
use crate::peer::{Name, Peer, Skill};
use crate::stopwatch::Stopwatch;
use crate::traffic::{Pattern, Stream, Traffic};

/// What a life depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameters {
    /// How many far timers there are.
    pub(crate) live: u64,
    /// How many near ones there are in the near-heavy pattern.
    pub(crate) near: u64,
    /// How long each part takes; a steady state takes [`STEADY`] times as long.
    pub(crate) seconds: f64,
}

/// A steady state has to go on for long enough to be one: to fill memtables and segments.
pub(crate) const STEADY: f64 = 4.0;

/// Everything but the kill. Leaves the store closed, and what is known of it in a file.
pub(crate) fn measure(
    name: Name,
    parameters: Parameters,
    directory: &Path,
) -> anyhow::Result<Figures> {
    let Parameters {
        live,
        near,
        seconds,
    } = parameters;
    let mut figures = Figures::new();
    let mut traffic = Traffic::new(live);
    let mut peer = open_loaded(name, &mut traffic, directory, &mut figures)?;

    steady::measure(
        &mut *peer,
        &mut traffic,
        Pattern::AllFar,
        STEADY * seconds,
        directory,
        &mut figures,
    )?;
    let stream = traffic.begin_near(near);
    load(&mut *peer, stream, near)?;
    steady::measure(
        &mut *peer,
        &mut traffic,
        Pattern::NearHeavy,
        STEADY * seconds,
        directory,
        &mut figures,
    )?;
    if !name.can(Skill::Get) {
        return Ok(figures);
    }
    check::count(&mut *peer, traffic.len())?;
    footprint::measure(&*peer, directory, traffic.len(), &mut figures)?;

    // From here on only far ones, so that the oldest is known.
    if let Some(near) = &mut traffic.near {
        let mut ops = Vec::with_capacity(LOAD_BATCH);
        while near.len() > 0 {
            ops.clear();
            ops.extend(
                std::iter::from_fn(|| (near.len() > 0).then(|| near.deliver_or_pass()))
                    .take(LOAD_BATCH)
                    .flatten(),
            );
            peer.commit(&ops)?;
        }
    }
    if name.can(Skill::Scan) {
        scan::warm(&mut *peer, &mut traffic, &mut figures)?;
    }
    let mut keys = random::Keys::new(traffic.far).but_a_quarter();
    random::get(&mut *peer, &mut keys, seconds, "get_per_s", &mut figures)?;
    if name.can(Skill::Scan) {
        drop(peer);
        peer = scan::cold(name, directory, &traffic, &mut figures)?;
        random::get(
            &mut *peer,
            &mut keys,
            seconds,
            "get_cold_per_s",
            &mut figures,
        )?;
    }
    let removed = random::change(name, &mut *peer, &mut keys, seconds, &mut figures)?;

    let live = traffic.len() - removed;
    check::count(&mut *peer, live)?;
    peer.remember()?;
    let state = State {
        traffic,
        live,
        touched: keys.position(),
    };
    state.write(directory)?;
    Ok(figures)
}

/// Loads it, closes it, and opens it again.
fn open_loaded(
    name: Name,
    traffic: &mut Traffic,
    directory: &Path,
    figures: &mut Figures,
) -> anyhow::Result<Box<dyn Peer>> {
    if !name.can(Skill::Get) {
        // Only bytes are appended; nothing has to be there.
        for _ in 0..traffic.far.live {
            traffic.far.insert();
        }
        return name.open(directory, false);
    }
    let mut peer = name.open(directory, true)?;
    let watch = Stopwatch::start();
    let live = traffic.far.live;
    load(&mut *peer, &mut traffic.far, live)?;
    let rate = live as f64 / watch.seconds();
    figures.insert("load_per_s".to_owned(), rate);
    peer.remember()?;
    drop(peer);
    let watch = Stopwatch::start();
    let peer = name.open(directory, false)?;
    figures.insert("open_clean_ms".to_owned(), watch.milliseconds());
    Ok(peer)
}

pub(crate) fn load(peer: &mut dyn Peer, stream: &mut Stream, count: u64) -> anyhow::Result<()> {
    let mut left = count;
    while left > 0 {
        let batch = left.min(LOAD_BATCH as u64);
        let ops: Vec<Op> = (0..batch).map(|_| stream.insert()).collect();
        peer.commit(&ops)?;
        left -= batch;
    }
    Ok(())
}
