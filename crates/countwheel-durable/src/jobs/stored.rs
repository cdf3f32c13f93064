//! Jobs and purges as settings of the store.
//!
//! A job has one of 16 places, and a purge has the place of its queue. One setting of a place says what is asked for. One
//! setting for each shard says how far the shard is, and changes in the commit that changes the timers.

use std::collections::BTreeMap;

use countwheel_time::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Job, JobAction, JobCounts, JobFilter, JobOrder};
use crate::planted::planted;
use crate::store::{Position, Shard};
use crate::{
    Purge, PurgeFilter, QueueName, Request, Revision, SettingName, SettingPrecondition, Settings,
    SettingsVersion, TimerError,
};

/// The setting of a queue's purge begins so.
const PURGE: &str = "purge/";
/// The setting of a purge's progress in one shard begins so, with the shard and the queue behind it.
const PURGED: &str = "purged/";
/// The setting of a job begins so, with its place behind it.
const JOB: &str = "job/";
/// The setting of a job's progress in one shard begins so, with the shard and the place behind it.
const WORKED: &str = "worked/";
/// The version of all stored forms.
const FORMAT: u8 = 1;

/// Where a job or a purge is stored.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Place {
    /// A queue has one purge.
    Purge(QueueName),
    /// One of [`Job::PLACES`].
    Job(u8),
}

impl Place {
    /// The setting of what is asked for.
    pub(crate) fn setting(&self) -> Result<SettingName, TimerError> {
        Ok(SettingName::new(match self {
            Self::Purge(queue) => format!("{PURGE}{queue}"),
            Self::Job(place) => format!("{JOB}{place}"),
        })?)
    }

    /// The setting of its progress in a shard.
    fn progress(&self, Shard(shard): Shard) -> Result<SettingName, TimerError> {
        Ok(SettingName::new(match self {
            Self::Purge(queue) => format!("{PURGED}{shard}/{queue}"),
            Self::Job(place) => format!("{WORKED}{shard}/{place}"),
        })?)
    }

    fn of_purge(queue: &str) -> Option<Self> {
        QueueName::from_text(queue).ok().map(Self::Purge)
    }

    fn of_job(place: &str) -> Option<Self> {
        place.parse().ok().map(Self::Job)
    }

    /// The place whose setting has this name.
    fn of(name: &str) -> Option<Self> {
        let purge = name.strip_prefix(PURGE).and_then(Self::of_purge);
        purge.or_else(|| name.strip_prefix(JOB).and_then(Self::of_job))
    }

    /// The place and the shard whose progress has this name.
    fn of_progress(name: &str) -> Option<(Self, Shard)> {
        let (of, rest): (fn(&str) -> Option<Self>, _) = match name.strip_prefix(PURGED) {
            Some(rest) => (Self::of_purge, rest),
            None => (Self::of_job, name.strip_prefix(WORKED)?),
        };
        let (shard, place) = rest.split_once('/')?;
        Some((of(place)?, Shard(shard.parse().ok()?)))
    }
}

/// A name that no setting has: a change of it makes an owner look at the store.
pub(crate) fn setting_of_none() -> Result<SettingName, TimerError> {
    Ok(SettingName::new(PURGE)?)
}

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// The version of the setting when the job was asked for. `None` as long as that is the version of the setting.
    pub(crate) id: Option<SettingsVersion>,
    pub(crate) order: JobOrder,
    pub(crate) since: Timestamp,
    /// How many shards there were. In a store of another number, the marks mean nothing.
    pub(crate) shards: u16,
    /// The last revision of each shard that the process owned which took the job.
    pub(crate) marks: BTreeMap<u16, Revision>,
    pub(crate) cancelled: bool,
    pub(crate) ended: Option<Ended>,
}

/// How a job went that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) at: Timestamp,
    pub(crate) counts: JobCounts,
}

/// How far a job is in one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Of which job.
    pub(crate) id: SettingsVersion,
    /// The last revision of the shard when the job came to be known there: the job leaves later ones alone.
    pub(crate) mark: Revision,
    /// Behind which position this pass goes on.
    pub(crate) after: Option<Position>,
    /// Whether this pass has found something.
    pub(crate) found: bool,
    pub(crate) counts: JobCounts,
    pub(crate) is_through: bool,
}

/// The stored form of a purge, which had one before jobs did.
#[derive(Serialize, Deserialize)]
struct StoredPurge {
    filter: PurgeFilter,
    since: Timestamp,
    shards: u16,
    marks: BTreeMap<u16, Revision>,
    ended: Option<StoredEnd>,
}

/// How a purge went that is through.
#[derive(Serialize, Deserialize)]
struct StoredEnd {
    at: Timestamp,
    removed: u64,
    /// The version of the setting while it ran.
    id: SettingsVersion,
}

/// The stored form of the progress of a purge.
#[derive(Serialize, Deserialize)]
struct StoredProgress {
    id: SettingsVersion,
    mark: Revision,
    after: Option<Position>,
    found: bool,
    removed: u64,
    is_through: bool,
}

fn to_value(what: &impl Serialize) -> Option<Vec<u8>> {
    postcard::to_extend(what, vec![FORMAT]).ok()
}

fn of_value<T: for<'de> Deserialize<'de>>(value: &[u8]) -> Option<T> {
    let (format, rest) = value.split_first()?;
    if *format != FORMAT {
        return None;
    }
    postcard::from_bytes(rest).ok()
}

impl Asked {
    fn of(place: &Place, value: &[u8]) -> Option<Self> {
        match place {
            Place::Purge(queue) => of_value::<StoredPurge>(value).map(|purge| Self {
                id: purge.ended.as_ref().map(|ended| ended.id),
                order: JobOrder {
                    queue: queue.clone(),
                    action: JobAction::Remove,
                    filter: purge.filter.into(),
                    rate: None,
                    dry_run: false,
                },
                since: purge.since,
                shards: purge.shards,
                marks: purge.marks,
                cancelled: false,
                ended: purge.ended.map(|ended| Ended {
                    at: ended.at,
                    counts: JobCounts::all_done(ended.removed),
                }),
            }),
            Place::Job(_) => {
                let mut asked: Self = of_value(value)?;
                if planted!(JobForgetsTags) {
                    asked.order.filter.tags.clear();
                }
                Some(asked)
            }
        }
    }

    fn to_value(&self, place: &Place) -> Option<Vec<u8>> {
        match place {
            Place::Purge(_) => to_value(&StoredPurge {
                filter: self.order.filter.clone().into(),
                since: self.since,
                shards: self.shards,
                marks: self.marks.clone(),
                ended: self.ended.map(|ended| StoredEnd {
                    at: ended.at,
                    removed: ended.counts.done,
                    id: self.id.unwrap_or_default(),
                }),
            }),
            Place::Job(_) => to_value(self),
        }
    }

    /// Whether it need not be shown any more.
    pub(crate) fn is_over(&self, wall: Timestamp) -> bool {
        let since = |ended: Ended| wall.saturating_since(ended.at);
        self.ended
            .is_some_and(|ended| since(ended) >= Job::SHOWN_FOR)
    }
}

impl Progress {
    pub(crate) fn new(id: SettingsVersion, mark: Revision) -> Self {
        Self {
            id,
            mark,
            after: None,
            found: false,
            counts: JobCounts::default(),
            is_through: false,
        }
    }

    fn of(place: &Place, value: &[u8]) -> Option<Self> {
        match place {
            Place::Purge(_) => of_value::<StoredProgress>(value).map(|stored| Self {
                id: stored.id,
                mark: stored.mark,
                after: stored.after,
                found: stored.found,
                counts: JobCounts::all_done(stored.removed),
                is_through: stored.is_through,
            }),
            Place::Job(_) => of_value(value),
        }
    }

    fn to_value(self, place: &Place) -> Option<Vec<u8>> {
        match place {
            Place::Purge(_) => to_value(&StoredProgress {
                id: self.id,
                mark: self.mark,
                after: self.after,
                found: self.found,
                removed: self.counts.done,
                is_through: self.is_through,
            }),
            Place::Job(_) => to_value(&self),
        }
    }
}

fn precondition(before: Option<SettingsVersion>) -> SettingPrecondition {
    before.map_or(SettingPrecondition::Absent, SettingPrecondition::Version)
}

/// A request that stores what is asked for, if the place is as it was read.
pub(crate) fn ask(
    place: &Place,
    asked: &Asked,
    before: Option<SettingsVersion>,
) -> Result<Request, TimerError> {
    Ok(Request::Configure {
        name: place.setting()?,
        value: asked.to_value(place),
        precondition: precondition(before),
    })
}

/// A request that stores how far a shard is, if that is as it was read.
pub(crate) fn note(
    place: &Place,
    shard: Shard,
    progress: Progress,
    before: Option<SettingsVersion>,
) -> Result<Request, TimerError> {
    Ok(Request::Configure {
        name: place.progress(shard)?,
        value: progress.to_value(place),
        precondition: precondition(before),
    })
}

/// A request that removes what is asked for, if it is as it was read.
pub(crate) fn forget(place: &Place, version: SettingsVersion) -> Result<Request, TimerError> {
    Ok(remove(place.setting()?, version))
}

/// A request that removes how far a shard is, if that is as it was read.
pub(crate) fn forget_progress(
    place: &Place,
    shard: Shard,
    version: SettingsVersion,
) -> Result<Request, TimerError> {
    Ok(remove(place.progress(shard)?, version))
}

/// A request that removes a setting which has this version.
pub(crate) fn remove(name: SettingName, version: SettingsVersion) -> Request {
    Request::Configure {
        name,
        value: None,
        precondition: SettingPrecondition::Version(version),
    }
}

/// All that the settings say of jobs and purges.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    /// What a later version has written is `None`, and left alone.
    pub(crate) asked: BTreeMap<Place, (SettingsVersion, Option<Asked>)>,
    pub(crate) progress: BTreeMap<(Place, Shard), (SettingsVersion, Option<Progress>)>,
}

impl Stored {
    pub(crate) fn of(settings: &Settings) -> Self {
        let mut stored = Self::default();
        for (name, value) in settings.iter() {
            let name = name.as_str();
            if let Some(place) = Place::of(name) {
                let asked = Asked::of(&place, &value.value);
                stored.asked.insert(place, (value.version, asked));
            } else if let Some((place, shard)) = Place::of_progress(name) {
                let progress = Progress::of(&place, &value.value);
                let progress = progress.filter(|_| !planted!(PurgeForgetsPosition));
                let noted = (value.version, progress);
                stored.progress.insert((place, shard), noted);
            }
        }
        stored
    }

    /// How far the job of this id is in a shard; `None` if that is not known.
    pub(crate) fn of_shard(
        &self,
        place: &Place,
        id: SettingsVersion,
        shard: Shard,
    ) -> Option<&Progress> {
        let (_, progress) = self.progress.get(&(place.clone(), shard))?;
        progress.as_ref().filter(|progress| progress.id == id)
    }

    /// The job of a place, if this version can read it.
    pub(crate) fn job(&self, place: &Place) -> Option<Job> {
        let (version, asked) = self.asked.get(place)?;
        let asked = asked.as_ref()?;
        let id = asked.id.unwrap_or(*version);
        let (mut counts, mut shards_left) = (JobCounts::default(), 0);
        for shard in (0..asked.shards).map(Shard) {
            let progress = self.of_shard(place, id, shard);
            counts.add(progress.map_or(JobCounts::default(), |progress| progress.counts));
            shards_left += u16::from(progress.is_none_or(|progress| !progress.is_through));
        }
        if let Some(ended) = asked.ended {
            (counts, shards_left) = (ended.counts, 0);
        }
        Some(Job {
            id,
            order: asked.order.clone(),
            since: asked.since,
            counts,
            shards_left,
            cancelled: asked.cancelled,
            ended: asked.ended.map(|ended| ended.at),
        })
    }

    /// The purge of a queue, if this version can read it.
    pub(crate) fn purge(&self, queue: &QueueName) -> Option<Purge> {
        self.job(&Place::Purge(queue.clone())).map(Purge::from)
    }

    /// The place of the job with this id.
    pub(crate) fn place_of(&self, id: SettingsVersion) -> Option<&Place> {
        let mut jobs = self.asked.iter();
        let found = jobs.find(|(place, (version, asked))| {
            let own = asked.as_ref().and_then(|asked| asked.id);
            matches!(place, Place::Job(_)) && own.unwrap_or(*version) == id
        });
        found.map(|(place, _)| place)
    }

    /// A shard of which it is not known yet which timers were there before the job.
    pub(crate) fn unmarked(&self, place: &Place, id: SettingsVersion) -> Option<Shard> {
        let (_, asked) = self.asked.get(place)?;
        let asked = asked.as_ref()?;
        let mut shards = (0..asked.shards).map(Shard);
        shards.find(|shard| {
            let is_marked = asked.marks.contains_key(&shard.0);
            !is_marked && self.of_shard(place, id, *shard).is_none()
        })
    }

    /// Whether the job of this id runs.
    pub(crate) fn is_running(&self, place: &Place, id: SettingsVersion) -> bool {
        let asked = self.asked.get(place);
        asked.is_some_and(|(version, asked)| match asked {
            Some(asked) => asked.id.unwrap_or(*version) == id && asked.ended.is_none(),
            // A later version has written it, and may go by this progress.
            None => true,
        })
    }
}

impl JobCounts {
    /// Of a purge, which counts nothing else.
    const fn all_done(done: u64) -> Self {
        Self {
            matched: done,
            done,
            skipped: 0,
        }
    }

    fn add(&mut self, other: Self) {
        self.matched += other.matched;
        self.done += other.done;
        self.skipped += other.skipped;
    }
}

impl From<PurgeFilter> for JobFilter {
    fn from(filter: PurgeFilter) -> Self {
        Self {
            states: filter.states,
            prefix: filter.prefix,
            tags: Vec::new(),
            due_from: filter.due_from,
            due_before: filter.due_before,
        }
    }
}

impl From<JobFilter> for PurgeFilter {
    fn from(filter: JobFilter) -> Self {
        Self {
            states: filter.states,
            prefix: filter.prefix,
            due_from: filter.due_from,
            due_before: filter.due_before,
        }
    }
}
