//! The steps of jobs and purges in the shards of one process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use countwheel_time::{Instant, Timestamp};

use super::stored::{self, Asked, Ended, Place, Progress, Stored};
use super::{HasTags, Job, JobAction, JobError, JobFilter, JobOrder, JobStep};
use crate::planted::planted;
use crate::store::page::position;
use crate::store::{Filter, Page, Shard, StoreError};
use crate::{
    BatchError, Configured, Due, Namespace, Note, Record, Request, Response, Revision,
    SettingError, Settings, SettingsVersion, Shift, StateKind, TimerError,
};

/// How many pages one step reads while it finds nothing.
const PAGES: usize = 16;
/// A job with a rate acts on the timers of this span in one step.
const STEP_OF_RATE: Duration = Duration::from_millis(100);

/// Where jobs are carried out: the shards of one process. [`Timers`](crate::Timers) is one, and a simulation has its
/// own.
pub trait JobHost {
    /// All settings, as this process has seen them last.
    fn settings(&self) -> Arc<Settings>;

    /// The shards that are owned here, each with the last revision that it has given.
    fn owned(&self) -> BTreeMap<Shard, Revision>;

    /// How many shards the store has.
    fn shard_count(&self) -> u16;

    /// A page of the timers of a shard.
    ///
    /// # Errors
    /// If the store could not be read.
    fn page(&self, shard: Shard, filter: &Filter) -> Result<Page, StoreError>;

    /// Does all of the requests in the shard, which is owned here, or none of them.
    ///
    /// # Errors
    /// As [`Timers::submit_batch`](crate::Timers::submit_batch).
    fn batch(&self, shard: Shard, requests: Vec<Request>) -> Result<Vec<Response>, BatchError>;

    /// Changes a setting, in whichever shard.
    ///
    /// # Errors
    /// As [`Timers::call`](crate::Timers::call).
    fn configure(&self, request: Request) -> Result<Response, TimerError>;

    /// The present time of the wall clock.
    fn wall(&self) -> Timestamp;

    /// The present time of a clock that is never set.
    fn now(&self) -> Instant;

    /// How many requests a batch may have.
    fn max_batch(&self) -> usize;
}

/// What one process remembers between the steps of jobs: whose turn is next, and when rates allow another step. A
/// restart forgets it.
///
/// ```
/// use countwheel_durable::{JobHost, JobSteps, JobStep, TimerError};
///
/// fn work(steps: &mut JobSteps, shards: &dyn JobHost) -> Result<JobStep, TimerError> {
///     steps.step(shards, 256, &|record, tags| tags.is_empty() || record.payload == b"eu")
/// }
/// ```
#[derive(Debug, Default)]
pub struct JobSteps {
    last: Option<Place>,
    next: BTreeMap<SettingsVersion, Instant>,
}

/// One job, as a step sees it.
#[derive(Clone, Copy)]
struct Work<'a> {
    host: &'a dyn JobHost,
    stored: &'a Stored,
    place: &'a Place,
    version: SettingsVersion,
    id: SettingsVersion,
    asked: &'a Asked,
    has_tags: HasTags<'a>,
}

impl JobSteps {
    /// Does one step of the jobs and purges in the shards that are owned here. See
    /// [`Timers::job_step`](crate::Timers::job_step).
    ///
    /// # Errors
    /// As [`Timers::call`](crate::Timers::call): nothing was done, and a later step does it.
    pub fn step(
        &mut self,
        host: &dyn JobHost,
        limit: usize,
        has_tags: HasTags<'_>,
    ) -> Result<JobStep, TimerError> {
        self.step_of(host, limit, has_tags, |_| true)
    }

    pub(crate) fn step_of(
        &mut self,
        host: &dyn JobHost,
        limit: usize,
        has_tags: HasTags<'_>,
        is_meant: impl Fn(&Place) -> bool,
    ) -> Result<JobStep, TimerError> {
        let owned = host.owned();
        if owned.is_empty() {
            return Ok(JobStep::default());
        }
        let stored = Stored::of(&host.settings());
        self.next.retain(|id, _| {
            let place = stored.place_of(*id);
            place.is_some_and(|place| stored.is_running(place, *id))
        });
        clear(host, &stored, &owned)?;
        let (mut failure, mut wait) = (None, None::<Duration>);
        // The job that had the last step comes last.
        let is_behind = |place: &Place| self.last.as_ref().is_none_or(|last| place > last);
        let (behind, before): (Vec<_>, Vec<_>) =
            stored.asked.keys().partition(|place| is_behind(place));
        for place in behind.into_iter().chain(before) {
            if !is_meant(place) {
                continue;
            }
            let Some((version, Some(asked))) = stored.asked.get(place) else {
                continue;
            };
            let work = Work {
                host,
                stored: &stored,
                place,
                version: *version,
                id: asked.id.unwrap_or(*version),
                asked,
                has_tags,
            };
            if asked.ended.is_some() {
                if owned.contains_key(&Shard::ONLY) && asked.is_over(host.wall()) {
                    ask_at(host, Shard::ONLY, stored::forget(place, *version)?)?;
                }
                continue;
            }
            match self.step_job(&work, &owned, limit) {
                Ok(Stepped::Nothing) => {}
                Ok(Stepped::Later(pause)) => {
                    wait = Some(wait.map_or(pause, |wait| wait.min(pause)));
                }
                Ok(Stepped::Acted(acted)) => {
                    self.last = Some(place.clone());
                    return Ok(JobStep {
                        acted,
                        goes_on: true,
                        wait: None,
                    });
                }
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(JobStep {
                wait,
                ..JobStep::default()
            }),
        }
    }

    fn step_job(
        &mut self,
        work: &Work<'_>,
        owned: &BTreeMap<Shard, Revision>,
        limit: usize,
    ) -> Result<Stepped, TimerError> {
        // In a store of another number of shards, the marks mean nothing.
        let is_from_elsewhere = work.asked.shards != work.host.shard_count();
        if !is_from_elsewhere {
            let is_through = |shard: &Shard| {
                let progress = work.stored.of_shard(work.place, work.id, *shard);
                progress.is_some_and(|progress| progress.is_through)
            };
            let own_left = owned.keys().filter(|shard| !is_through(shard)).count();
            let all_left = (0..work.asked.shards).map(Shard);
            let all_left = all_left.filter(|shard| !is_through(shard)).count();
            let rate = Rate::of(&work.asked.order, own_left, all_left);
            let now = work.host.now();
            let next = self.next.get(&work.id).filter(|next| **next > now);
            let left = owned.iter().filter(|(shard, _)| !is_through(shard));
            let (marked, unmarked): (Vec<_>, Vec<_>) =
                left.partition(|(shard, _)| work.is_marked(**shard));
            // Whoever asked for the job waits for the marks.
            for (shard, last) in unmarked.into_iter().chain(marked) {
                if let Some(next) = next.filter(|_| work.is_marked(*shard))
                    && !work.asked.cancelled
                {
                    return Ok(Stepped::Later(next.saturating_since(now)));
                }
                let most = rate.map_or(usize::MAX, Rate::most);
                if let Some(acted) = work.step_shard(*shard, *last, limit, most)? {
                    if let Some(rate) = rate.filter(|_| !planted!(JobIgnoresRate)) {
                        self.next.insert(work.id, now + rate.span_of(acted));
                    }
                    return Ok(Stepped::Acted(acted));
                }
            }
        }
        let leads = owned.contains_key(&Shard::ONLY);
        let job = work.stored.job(work.place);
        let is_over = |job: &Job| job.shards_left == 0 || is_from_elsewhere;
        let Some(job) = job.filter(is_over).filter(|_| leads) else {
            return Ok(Stepped::Nothing);
        };
        if is_from_elsewhere {
            let queue = &work.asked.order.queue;
            tracing::warn!(%queue, "a job has ended, since all timers have moved");
        }
        let ended = Asked {
            id: Some(work.id),
            cancelled: work.asked.cancelled || is_from_elsewhere,
            ended: Some(Ended {
                at: work.host.wall(),
                counts: job.counts,
            }),
            ..work.asked.clone()
        };
        let request = stored::ask(work.place, &ended, Some(work.version))?;
        ask_at(work.host, Shard::ONLY, request)?;
        Ok(Stepped::Acted(0))
    }
}

/// What a step of one job has done.
enum Stepped {
    Nothing,
    /// The rate allows the next one then.
    Later(Duration),
    Acted(usize),
}

/// What this process may do of the rate of a job: the part of its shards among those that are not through.
#[derive(Clone, Copy)]
struct Rate {
    per_second: u64,
    own_left: u64,
    all_left: u64,
}

impl Rate {
    fn of(order: &JobOrder, own_left: usize, all_left: usize) -> Option<Self> {
        Some(Self {
            per_second: u64::from(order.rate?.get()),
            own_left: own_left.max(1) as u64,
            all_left: all_left.max(1) as u64,
        })
    }

    /// How many timers one step may change.
    fn most(self) -> usize {
        let span = u64::try_from(STEP_OF_RATE.as_millis()).unwrap_or(1);
        let most = self.per_second * self.own_left * span / (self.all_left * 1_000);
        usize::try_from(most).unwrap_or(usize::MAX).max(1)
    }

    /// How long so many timers take at this rate.
    fn span_of(self, timers: usize) -> Duration {
        let nanos = 1_000_000_000 * timers as u128 * u128::from(self.all_left);
        let nanos = nanos.div_ceil(u128::from(self.per_second * self.own_left));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Removes the progress of jobs that have ended.
fn clear(
    host: &dyn JobHost,
    stored: &Stored,
    owned: &BTreeMap<Shard, Revision>,
) -> Result<(), TimerError> {
    let leads = owned.contains_key(&Shard::ONLY);
    for ((place, shard), noted) in &stored.progress {
        if let (version, Some(progress)) = noted
            && !stored.is_running(place, progress.id)
        {
            let request = stored::forget_progress(place, *shard, *version)?;
            if owned.contains_key(shard) {
                ask_at(host, *shard, request)?;
            } else if leads && shard.0 >= host.shard_count() {
                // Of a store with more shards, from which all timers have moved here.
                ask_at(host, Shard::ONLY, request)?;
            }
        }
    }
    Ok(())
}

impl Work<'_> {
    /// Whether it is known which timers of the shard were there before the job.
    fn is_marked(&self, shard: Shard) -> bool {
        let is_marked = self.asked.marks.contains_key(&shard.0);
        is_marked || self.stored.of_shard(self.place, self.id, shard).is_some()
    }

    /// A step of the job in one shard; `None` if there is nothing to do.
    fn step_shard(
        &self,
        shard: Shard,
        last: Revision,
        limit: usize,
        most: usize,
    ) -> Result<Option<usize>, TimerError> {
        let noted = self.stored.progress.get(&(self.place.clone(), shard));
        let before = noted.map(|(version, _)| *version);
        let progress = match (noted, self.stored.of_shard(self.place, self.id, shard)) {
            (_, Some(progress)) if progress.is_through => return Ok(None),
            (_, Some(progress)) => *progress,
            // A later version has written it.
            (Some((_, None)), None) => return Ok(None),
            (_, None) => match self.asked.marks.get(&shard.0) {
                Some(mark) => Progress::new(self.id, *mark),
                None => {
                    let progress = Progress::new(self.id, last);
                    let note = stored::note(self.place, shard, progress, before)?;
                    ask_at(self.host, shard, note)?;
                    return Ok(Some(0));
                }
            },
        };
        if self.asked.cancelled && !planted!(JobCancelUnseen) {
            let progress = Progress {
                is_through: true,
                ..progress
            };
            let note = stored::note(self.place, shard, progress, before)?;
            ask_at(self.host, shard, note)?;
            return Ok(Some(0));
        }
        let mut limit = limit.min(self.host.max_batch().saturating_sub(1)).max(1);
        loop {
            let (met, next) = self.look(shard, progress, limit, most)?;
            match self.act(shard, met, next, before) {
                Err(TimerError::BatchTooLong { .. }) if limit > 1 => limit /= 2,
                // Somebody has changed the setting meanwhile: the next step sees to what.
                Err(error) if is_overtaken(&error) => return Ok(Some(0)),
                Err(error) => return Err(error),
                Ok(acted) => return Ok(Some(acted)),
            }
        }
    }

    /// The next timers that the job is for, and how far the job is in this shard once it has acted on them.
    fn look(
        &self,
        shard: Shard,
        mut progress: Progress,
        limit: usize,
        most: usize,
    ) -> Result<(Vec<Met>, Progress), TimerError> {
        let mut bytes = 0;
        for _ in 0..PAGES {
            let page = self.host.page(shard, &self.page(&progress, limit))?;
            bytes += page
                .records
                .iter()
                .map(Record::content_bytes)
                .sum::<usize>();
            let (met, next) = self.over(&progress, &page, most);
            progress = next;
            if !met.is_empty() || progress.is_through || bytes >= Filter::PAGE_MAX_BYTES {
                return Ok((met, progress));
            }
        }
        Ok((Vec::new(), progress))
    }

    /// What is to be read next.
    fn page(&self, progress: &Progress, limit: usize) -> Filter {
        let JobFilter {
            states,
            prefix,
            due_from,
            due_before,
            ..
        } = &self.asked.order.filter;
        Filter {
            state: match states[..] {
                [state] => Some(state),
                _ => None,
            },
            prefix: prefix.clone(),
            due_from: *due_from,
            due_before: *due_before,
            after: progress.after,
            limit,
            ..Filter::queue(self.asked.order.queue.clone())
        }
    }

    /// The timers of the page that the job is for, at most so many, and how far the job is in this shard once it has
    /// acted on them. The page is that of [`page`](Self::page).
    ///
    /// A pass that removes something is followed by another: a timer that was delivered while the pass came by, or that
    /// was moved, may be behind. A job that changes timers leaves those alone that have changed since it was asked for,
    /// and what has not changed stands where it stood. So one pass meets all of them, and none twice.
    fn over(&self, progress: &Progress, page: &Page, most: usize) -> (Vec<Met>, Progress) {
        let (mut met, mut cut) = (Vec::new(), None);
        let mut last = progress.after;
        for record in &page.records {
            if self.wants(progress.mark, record) {
                if met.len() >= most {
                    cut = last;
                    break;
                }
                met.push(Met::of(record));
            }
            last = Some(position(record));
        }
        let is_last = cut.is_none() && page.next.is_none();
        let found = progress.found || !met.is_empty();
        let order = &self.asked.order;
        let removes = order.action == JobAction::Remove && !order.dry_run;
        let again = removes && found && !planted!(PurgePassesOnce);
        let mut next = Progress {
            after: if is_last { None } else { cut.or(page.next) },
            found: found && !is_last,
            is_through: is_last && !again,
            ..*progress
        };
        let matched = met.len() as u64;
        next.counts.matched += matched;
        if !order.dry_run {
            next.counts.done += matched;
        }
        (met, next)
    }

    fn wants(&self, mark: Revision, record: &Record) -> bool {
        let JobOrder {
            action,
            filter,
            dry_run,
            ..
        } = &self.asked.order;
        let kind = record.state.kind();
        // A remove is for what was set before it, and others are for what has not changed since.
        let of = match action {
            JobAction::Remove if !dry_run => record.id.set,
            _ if planted!(JobMeetsAgain) => record.id.set,
            _ => record.revision,
        };
        let is_older = of <= mark || planted!(PurgeTakesLaterSets);
        is_older
            && kind != StateKind::Delivering
            && filter.states.contains(&kind)
            && (filter.tags.is_empty() || (self.has_tags)(record, &filter.tags))
    }

    /// Acts on the timers, and notes how far the job is, in one commit. Says on how many.
    fn act(
        &self,
        shard: Shard,
        mut met: Vec<Met>,
        mut next: Progress,
        before: Option<SettingsVersion>,
    ) -> Result<usize, TimerError> {
        let order = &self.asked.order;
        if order.dry_run && !planted!(JobDryRunActs) {
            let note = stored::note(self.place, shard, next, before)?;
            self.commit(shard, &[], Some(note))?;
            return Ok(met.len());
        }
        if let JobAction::Move(Shift::Later(span)) = order.action {
            let latest = self.host.wall() + Due::MAX_AHEAD;
            let is_too_far = |met: &Met| met.due + span > latest;
            let before = met.len();
            met.retain(|met| !is_too_far(met));
            for _ in met.len()..before {
                next = without_one(next, order.action);
            }
        }
        loop {
            let note = stored::note(self.place, shard, next, before)?;
            let committed = if planted!(JobNotesLater) {
                self.commit(shard, &met, None)
                    .and_then(|()| self.commit(shard, &[], Some(note)))
            } else {
                self.commit(shard, &met, Some(note))
            };
            match committed {
                Ok(()) => return Ok(met.len()),
                Err(Refused::Of(index)) => {
                    met.remove(index);
                    if !planted!(JobCountsRefused) {
                        next = without_one(next, order.action);
                    }
                }
                Err(Refused::All(error)) => return Err(error),
            }
        }
    }

    fn commit(&self, shard: Shard, met: &[Met], note: Option<Request>) -> Result<(), Refused> {
        let action = self.asked.order.action;
        let act = met.iter().map(|met| Request::AsRead {
            name: met.name.clone(),
            revision: met.revision,
            state: met.state,
            action,
        });
        match self.host.batch(shard, act.chain(note).collect()) {
            Ok(_) => Ok(()),
            Err(BatchError {
                index: Some(index),
                error,
            }) if index < met.len() && has_changed(&error) => Err(Refused::Of(index)),
            Err(refused) => Err(Refused::All(refused.error)),
        }
    }
}

/// Why a commit of a step did nothing.
enum Refused {
    /// This timer is not as it was read.
    Of(usize),
    All(TimerError),
}

impl From<Refused> for TimerError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Of(_) => Self::NotFound,
            Refused::All(error) => error,
        }
    }
}

/// A timer that the job is for, as it was read.
struct Met {
    name: crate::TimerName,
    revision: Revision,
    state: StateKind,
    due: Timestamp,
}

impl Met {
    fn of(record: &Record) -> Self {
        Self {
            name: record.name.clone(),
            revision: record.revision,
            state: record.state.kind(),
            due: record.due,
        }
    }
}

/// The same without one of those that were met. A remove looks at its shard once more, and others leave the timer
/// alone.
fn without_one(progress: Progress, action: JobAction) -> Progress {
    let mut counts = progress.counts;
    counts.done = counts.done.saturating_sub(1);
    if action == JobAction::Remove {
        counts.matched = counts.matched.saturating_sub(1);
    } else {
        counts.skipped += 1;
    }
    Progress { counts, ..progress }
}

/// Whether a part of a batch is refused because its timer is not as it was read, or cannot be changed so.
fn has_changed(error: &TimerError) -> bool {
    matches!(
        error,
        TimerError::Changed { .. }
            | TimerError::NotFound
            | TimerError::Gone { .. }
            | TimerError::Conflict { .. }
            | TimerError::Unreadable { .. }
            | TimerError::TooFar
    )
}

/// Whether a setting is refused because somebody else has changed it.
pub(crate) fn is_overtaken(error: &TimerError) -> bool {
    matches!(
        error,
        TimerError::Setting(
            SettingError::Exists { .. } | SettingError::Changed { .. } | SettingError::NotFound
        )
    )
}

/// The same, where a setting that somebody has changed meanwhile is no failure.
fn ask_at(host: &dyn JobHost, shard: Shard, request: Request) -> Result<(), TimerError> {
    match host.batch(shard, vec![request]) {
        Ok(_) => Ok(()),
        Err(refused) if is_overtaken(&refused.error) => Ok(()),
        Err(refused) => Err(refused.error),
    }
}

/// Makes an owner look at what others have changed of the settings.
pub(crate) fn look_at_settings(host: &dyn JobHost) -> Result<(), TimerError> {
    let nothing = stored::remove(stored::setting_of_none()?, SettingsVersion(u64::MAX));
    match host.configure(nothing) {
        // A disk that is full has one owner, who has seen everything.
        Ok(_) | Err(TimerError::Setting(_) | TimerError::StorageFull) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Stores a job, in a place of which `before` is the version. Says which version the setting has then.
pub(crate) fn store_asked(
    host: &dyn JobHost,
    place: &Place,
    order: JobOrder,
    before: Option<SettingsVersion>,
    note: Option<&Note>,
) -> Result<(SettingsVersion, Asked), TimerError> {
    let marks = host.owned().into_iter();
    let asked = Asked {
        id: None,
        order,
        since: host.wall(),
        shards: host.shard_count(),
        marks: marks.map(|(shard, mark)| (shard.0, mark)).collect(),
        cancelled: false,
        ended: None,
    };
    let request = noted(stored::ask(place, &asked, before)?, note);
    match host.configure(request)? {
        Response::Configured(Configured { version, .. }) => Ok((version, asked)),
        _ => Err(TimerError::Closed),
    }
}

/// The request with the note, if there is one.
pub(crate) fn noted(request: Request, note: Option<&Note>) -> Request {
    match note {
        Some(note) => request.noted(note.clone()),
        None => request,
    }
}

/// How often another place is looked for, if others take places in the same moment.
const TRIES: usize = 20;

impl JobSteps {
    /// Stores a job, without a wait for the owners of other shards. See [`Timers::begin_job`](crate::Timers::begin_job).
    ///
    /// # Errors
    /// As [`Timers::begin_job`](crate::Timers::begin_job).
    pub fn begin(host: &dyn JobHost, order: &JobOrder) -> Result<Job, JobError> {
        Self::begin_noted(host, order, None)
    }

    /// The same, with a note.
    pub(crate) fn begin_noted(
        host: &dyn JobHost,
        order: &JobOrder,
        note: Option<&Note>,
    ) -> Result<Job, JobError> {
        let mut refusal = TimerError::Closed;
        for _ in 0..TRIES {
            look_at_settings(host)?;
            let stored = Stored::of(&host.settings());
            let (place, before) = free_place(&stored, order.queue.namespace())?;
            match store_asked(host, &place, order.clone(), before, note) {
                Ok((id, asked)) => {
                    return Ok(Job {
                        id,
                        shards_left: asked.shards,
                        order: asked.order,
                        since: asked.since,
                        counts: super::JobCounts::default(),
                        cancelled: false,
                        ended: None,
                    });
                }
                Err(error) if is_overtaken(&error) => refusal = error,
                Err(error) => return Err(error.into()),
            }
        }
        Err(refusal.into())
    }

    /// Whether each shard has noted which timers there were before the job: then what is set later is not touched.
    #[must_use]
    pub fn is_marked(host: &dyn JobHost, id: SettingsVersion) -> bool {
        let stored = Stored::of(&host.settings());
        let place = stored.place_of(id);
        place.is_some_and(|place| stored.unmarked(place, id).is_none())
    }

    /// Ends a job. See [`Timers::cancel_job`](crate::Timers::cancel_job).
    ///
    /// # Errors
    /// As [`Timers::call`](crate::Timers::call).
    pub fn cancel(host: &dyn JobHost, id: SettingsVersion) -> Result<Option<Job>, TimerError> {
        Self::cancel_noted(host, id, None)
    }

    /// The same, with a note.
    pub(crate) fn cancel_noted(
        host: &dyn JobHost,
        id: SettingsVersion,
        note: Option<&Note>,
    ) -> Result<Option<Job>, TimerError> {
        for _ in 0..TRIES {
            look_at_settings(host)?;
            let stored = Stored::of(&host.settings());
            let Some(place) = stored.place_of(id) else {
                return Ok(None);
            };
            let Some((version, Some(asked))) = stored.asked.get(place) else {
                return Ok(None);
            };
            let job = stored.job(place);
            if asked.cancelled || asked.ended.is_some() {
                return Ok(job);
            }
            let cancelled = Asked {
                id: Some(id),
                cancelled: true,
                ..asked.clone()
            };
            let request = stored::ask(place, &cancelled, Some(*version))?;
            match host.configure(noted(request, note)) {
                Ok(_) => {
                    let cancelled = true;
                    return Ok(job.map(|job| Job { cancelled, ..job }));
                }
                Err(error) if is_overtaken(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(TimerError::Unavailable {
            reason: "the job kept changing meanwhile".to_owned(),
        })
    }

    /// The jobs that run and those that have ended within the last hour, in the order in which they were asked for.
    #[must_use]
    pub fn all(host: &dyn JobHost) -> Vec<Job> {
        let stored = Stored::of(&host.settings());
        let wall = host.wall();
        let shown = stored.asked.iter().filter(|(place, (_, asked))| {
            let is_shown = asked.as_ref().is_some_and(|asked| !asked.is_over(wall));
            matches!(place, Place::Job(_)) && is_shown
        });
        let mut jobs: Vec<_> = shown.filter_map(|(place, _)| stored.job(place)).collect();
        jobs.sort_by_key(|job| job.id);
        jobs
    }
}

/// A place without a job, or else that of the job which ended first: one of its own namespace, if that has all of its
/// places.
fn free_place(
    stored: &Stored,
    namespace: &str,
) -> Result<(Place, Option<SettingsVersion>), JobError> {
    let places = || (0..Job::PLACES).map(Place::Job);
    let of_namespace = |place: &Place| {
        let asked = stored.asked.get(place).and_then(|(_, it)| it.as_ref());
        asked.is_some_and(|it| it.order.queue.namespace() == namespace)
    };
    let most = usize::from(Job::PLACES_OF_NAMESPACE);
    let is_limited =
        namespace != Namespace::DEFAULT_NAME && places().filter(of_namespace).count() >= most;
    let mut free = places().filter(|place| !stored.asked.contains_key(place));
    if let Some(place) = free.next().filter(|_| !is_limited) {
        return Ok((place, None));
    }
    let ended = places().filter(|place| !is_limited || of_namespace(place));
    let ended = ended.filter_map(|place| {
        let (version, asked) = stored.asked.get(&place)?;
        let ended = asked.as_ref()?.ended?;
        Some((ended.at, place, *version))
    });
    match ended.min() {
        Some((_, place, version)) => Ok((place, Some(version))),
        None if is_limited => Err(JobError::TooManyOfNamespace),
        None => Err(JobError::TooMany),
    }
}
