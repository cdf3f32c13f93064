//! Between what is asked for and answered, and what is written of it.

use std::borrow::Cow;
use std::num::NonZeroU32;

use countwheel_durable::store::StoreError;
use countwheel_durable::{
    BatchError, Configured, CronExpression, Delays, DrainMode, Due, Extended, Jitter, LeaseToken,
    Missed, Moved, Note, Outcome, Overlap, PolicyError, Precondition, Preset, QueueName, Receipt,
    Recurrence, RecurrenceError, Request, Response, RetryPolicy, Revision, Schedule, Set,
    SetOptions, SettingError, SettingName, SettingPrecondition, SettingsVersion, Settled, Shift,
    StateKind, TimerError, TimerId, TimerName, Timestamp, Verdict, Was, Zone, check_policy,
};

use crate::frame;
use crate::wire::{
    WireBody, WireDelays, WireDue, WireError, WireJitter, WireMissed, WireMode, WirePolicy,
    WirePrecondition, WireReceipt, WireRecurrence, WireRequest, WireResponse, WireSchedule,
    WireShift, WireState, WireVerdict,
};

fn options_of(
    missed: WireMissed,
    recurrence: Option<WireRecurrence<'_>>,
) -> Result<SetOptions, TimerError> {
    let recurrence = recurrence.map(WireRecurrence::recurrence).transpose()?;
    Ok(SetOptions {
        missed: missed.missed(),
        recurrence: recurrence.map(Box::new),
        ..SetOptions::default()
    })
}

impl<'a> WireRequest<'a> {
    /// # Errors
    /// [`PolicyError::NotKept`] if there is no form for what the policy says: no owner would take it.
    pub(crate) fn of(request: &'a Request) -> Result<Self, TimerError> {
        let parts = |name: &'a TimerName| (name.queue.as_str(), name.key.as_str());
        Ok(match request {
            Request::Set {
                name,
                due,
                policy,
                payload,
                precondition,
                options,
            } => {
                let (queue, key) = parts(name);
                let due = WireDue::of(*due);
                let policy = WirePolicy::of(policy)?;
                let precondition = WirePrecondition::of(*precondition);
                let missed = WireMissed::of(options.missed);
                let recurrence = options.recurrence.as_deref().map(WireRecurrence::of);
                match options.receipt.as_deref() {
                    None => Self::Set {
                        queue,
                        key,
                        due,
                        policy,
                        payload,
                        precondition,
                        missed,
                        recurrence,
                    },
                    Some(receipt) => Self::SetOnce {
                        queue,
                        key,
                        due,
                        policy,
                        payload,
                        precondition,
                        missed,
                        recurrence,
                        receipt: WireReceipt {
                            key: receipt.key,
                            fingerprint: receipt.fingerprint,
                            keep: receipt.keep,
                        },
                    },
                }
            }
            Request::Move {
                name,
                shift,
                precondition,
            } => {
                let (queue, key) = parts(name);
                Self::Move {
                    queue,
                    key,
                    shift: match *shift {
                        Shift::To(due) => WireShift::To(WireDue::of(due)),
                        Shift::Later(span) => WireShift::Later(span),
                        Shift::Sooner(span) => WireShift::Sooner(span),
                    },
                    precondition: WirePrecondition::of(*precondition),
                }
            }
            Request::Remove {
                name,
                precondition,
                only_pending,
            } => {
                let (queue, key) = parts(name);
                Self::Remove {
                    queue,
                    key,
                    precondition: WirePrecondition::of(*precondition),
                    only_pending: *only_pending,
                }
            }
            // An owner asks itself alone: a job acts on what it has read.
            Request::AsRead { .. } => {
                let reason = "a job acts on the timers of its own process alone".to_owned();
                return Err(TimerError::Unavailable { reason });
            }
            Request::Fire { name } => {
                let (queue, key) = parts(name);
                Self::Fire { queue, key }
            }
            Request::Revive { name, due } => {
                let (queue, key) = parts(name);
                let due = WireDue::of(*due);
                Self::Revive { queue, key, due }
            }
            Request::Settle {
                name,
                token,
                outcome,
            } => {
                let (queue, key) = parts(name);
                Self::Settle {
                    queue,
                    key,
                    revision: token.revision.0,
                    attempt: token.attempt,
                    verdict: WireVerdict::of(outcome)?,
                    detail: outcome.detail.as_str().into(),
                }
            }
            Request::Extend { name, token, lease } => {
                let (queue, key) = parts(name);
                Self::Extend {
                    queue,
                    key,
                    revision: token.revision.0,
                    attempt: token.attempt,
                    lease: *lease,
                }
            }
            Request::Release { name, token } => {
                let (queue, key) = parts(name);
                Self::Release {
                    queue,
                    key,
                    revision: token.revision.0,
                    attempt: token.attempt,
                }
            }
            Request::Configure {
                name,
                value,
                precondition,
            } => {
                let (name, value) = (name.as_str(), value.as_deref());
                let precondition = match *precondition {
                    SettingPrecondition::None => WirePrecondition::None,
                    SettingPrecondition::Absent => WirePrecondition::Absent,
                    SettingPrecondition::Version(version) => WirePrecondition::Version(version.0),
                    SettingPrecondition::Settings(version) => {
                        return Ok(Self::ConfigureUnchanged {
                            name,
                            value,
                            settings: version.0,
                        });
                    }
                };
                Self::Configure {
                    name,
                    value,
                    precondition,
                }
            }
            Request::Noted { request, note } => {
                let inner = Self::of(request)?;
                if matches!(inner, Self::Noted { .. }) {
                    let reason = "a request has one note at the most".to_owned();
                    return Err(TimerError::Unavailable { reason });
                }
                Self::Noted {
                    request: frame::requests(&[inner]).into(),
                    note: note.bytes(),
                    keep: note.keep(),
                }
            }
        })
    }

    /// # Errors
    /// The rule that a name, a policy or a schedule breaks here.
    pub(crate) fn request(self) -> Result<Request, TimerError> {
        Ok(match self {
            Self::Set {
                queue,
                key,
                due,
                policy,
                payload,
                precondition,
                missed,
                recurrence,
            } => Request::Set {
                name: TimerName::from_text(queue, key)?,
                due: due.due(),
                policy: policy.policy()?,
                payload: payload.to_vec(),
                precondition: precondition.of_timer(),
                options: options_of(missed, recurrence)?,
            },
            Self::SetOnce {
                queue,
                key,
                due,
                policy,
                payload,
                precondition,
                missed,
                recurrence,
                receipt,
            } => Request::Set {
                name: TimerName::from_text(queue, key)?,
                due: due.due(),
                policy: policy.policy()?,
                payload: payload.to_vec(),
                precondition: precondition.of_timer(),
                options: SetOptions {
                    receipt: Some(Box::new(Receipt {
                        key: receipt.key,
                        fingerprint: receipt.fingerprint,
                        keep: receipt.keep,
                    })),
                    ..options_of(missed, recurrence)?
                },
            },
            Self::Move {
                queue,
                key,
                shift,
                precondition,
            } => Request::Move {
                name: TimerName::from_text(queue, key)?,
                shift: match shift {
                    WireShift::To(due) => Shift::To(due.due()),
                    WireShift::Later(span) => Shift::Later(span),
                    WireShift::Sooner(span) => Shift::Sooner(span),
                },
                precondition: precondition.of_timer(),
            },
            Self::Remove {
                queue,
                key,
                precondition,
                only_pending,
            } => Request::Remove {
                name: TimerName::from_text(queue, key)?,
                precondition: precondition.of_timer(),
                only_pending,
            },
            Self::Fire { queue, key } => Request::Fire {
                name: TimerName::from_text(queue, key)?,
            },
            Self::Revive { queue, key, due } => Request::Revive {
                name: TimerName::from_text(queue, key)?,
                due: due.due(),
            },
            Self::Settle {
                queue,
                key,
                revision,
                attempt,
                verdict,
                detail,
            } => Request::Settle {
                name: TimerName::from_text(queue, key)?,
                token: token_of(revision, attempt),
                outcome: verdict.outcome(&detail),
            },
            Self::Extend {
                queue,
                key,
                revision,
                attempt,
                lease,
            } => Request::Extend {
                name: TimerName::from_text(queue, key)?,
                token: token_of(revision, attempt),
                lease,
            },
            Self::Release {
                queue,
                key,
                revision,
                attempt,
            } => Request::Release {
                name: TimerName::from_text(queue, key)?,
                token: token_of(revision, attempt),
            },
            Self::Configure {
                name,
                value,
                precondition,
            } => Request::Configure {
                name: SettingName::new(name)?,
                value: value.map(<[u8]>::to_vec),
                precondition: match precondition {
                    WirePrecondition::None => SettingPrecondition::None,
                    WirePrecondition::Absent => SettingPrecondition::Absent,
                    WirePrecondition::Version(version) => {
                        SettingPrecondition::Version(SettingsVersion(version))
                    }
                },
            },
            Self::ConfigureUnchanged {
                name,
                value,
                settings,
            } => Request::Configure {
                name: SettingName::new(name)?,
                value: value.map(<[u8]>::to_vec),
                precondition: SettingPrecondition::Settings(SettingsVersion(settings)),
            },
            Self::Noted {
                request,
                note,
                keep,
            } => {
                let inner = frame::read_request(&request);
                let inner = inner.filter(|inner| !matches!(inner, WireRequest::Noted { .. }));
                let inner = inner.ok_or_else(|| TimerError::Unavailable {
                    reason: "the request of a note cannot be read".to_owned(),
                })?;
                inner.request()?.noted(Note::new(note, keep)?)
            }
        })
    }
}

fn token_of(revision: u64, attempt: u32) -> LeaseToken {
    LeaseToken {
        revision: Revision(revision),
        attempt,
    }
}

impl WireVerdict {
    /// # Errors
    /// If there is more to the outcome than a verdict: no request of a worker has that.
    fn of(outcome: &Outcome) -> Result<Self, TimerError> {
        let has_more = outcome.next.is_some() || outcome.answer.is_some();
        match (outcome.verdict, outcome.retry_in) {
            _ if has_more => Self::refuse(),
            (Verdict::Done, _) => Ok(Self::Done),
            (Verdict::Failed { .. }, Some(after)) => Ok(Self::Again { after }),
            (Verdict::Failed { retry_after }, None) => Ok(Self::Failed { retry_after }),
            (Verdict::Stopped, _) => Ok(Self::Stopped),
            (Verdict::Held { .. }, _) => Self::refuse(),
        }
    }

    fn refuse() -> Result<Self, TimerError> {
        let reason = "an outcome with an answer or a wish stays with its owner".to_owned();
        Err(TimerError::Unavailable { reason })
    }

    fn outcome(self, detail: &str) -> Outcome {
        let failed = |retry_after| Outcome::new(Verdict::Failed { retry_after }, detail);
        match self {
            Self::Done => Outcome::new(Verdict::Done, detail),
            Self::Failed { retry_after } => failed(retry_after),
            Self::Stopped => Outcome::new(Verdict::Stopped, detail),
            Self::Again { after } => failed(None).retry_in(after),
        }
    }
}

impl WireDue {
    fn of(due: Due) -> Self {
        match due {
            Due::At(at) => Self::At(at.as_micros()),
            Due::In(delay) => Self::In(delay),
        }
    }

    fn due(self) -> Due {
        match self {
            Self::At(at) => Due::At(Timestamp::from_micros(at)),
            Self::In(delay) => Due::In(delay),
        }
    }
}

impl WirePrecondition {
    fn of(precondition: Precondition) -> Self {
        match precondition {
            Precondition::None => Self::None,
            Precondition::Absent => Self::Absent,
            Precondition::Revision(revision) => Self::Version(revision.0),
        }
    }

    fn of_timer(self) -> Precondition {
        match self {
            Self::None => Precondition::None,
            Self::Absent => Precondition::Absent,
            Self::Version(revision) => Precondition::Revision(Revision(revision)),
        }
    }
}

impl WireMissed {
    fn of(missed: Missed) -> Self {
        match missed {
            Missed::Fire => Self::Fire,
            Missed::SkipIfOlderThan(age) => Self::SkipIfOlderThan(age),
            Missed::Collapse => Self::Collapse,
        }
    }

    fn missed(self) -> Missed {
        match self {
            Self::Fire => Missed::Fire,
            Self::SkipIfOlderThan(age) => Missed::SkipIfOlderThan(age),
            Self::Collapse => Missed::Collapse,
        }
    }
}

impl<'a> WireRecurrence<'a> {
    fn of(recurrence: &'a Recurrence) -> Self {
        // Every field by its name: a new one cannot be lost.
        let Recurrence {
            schedule,
            repeats,
            until,
            jitter,
            overlap,
        } = recurrence;
        Self {
            schedule: match schedule {
                Schedule::FixedRate { every, anchor } => WireSchedule::FixedRate {
                    every: *every,
                    anchor: anchor.map(Timestamp::as_micros),
                },
                Schedule::FixedDelay { every } => WireSchedule::FixedDelay { every: *every },
                Schedule::Cron { expression, zone } => WireSchedule::Cron {
                    expression: expression.as_str(),
                    zone: zone.name(),
                },
            },
            repeats: repeats.map_or(0, NonZeroU32::get),
            until: until.map(Timestamp::as_micros),
            jitter: *jitter,
            queues_overlap: *overlap == Overlap::Queue,
        }
    }

    fn recurrence(self) -> Result<Recurrence, TimerError> {
        Ok(Recurrence {
            schedule: match self.schedule {
                WireSchedule::FixedRate { every, anchor } => Schedule::FixedRate {
                    every,
                    anchor: anchor.map(Timestamp::from_micros),
                },
                WireSchedule::FixedDelay { every } => Schedule::FixedDelay { every },
                WireSchedule::Cron { expression, zone } => Schedule::Cron {
                    expression: CronExpression::new(expression)?,
                    zone: Zone::new(zone)?,
                },
            },
            repeats: NonZeroU32::new(self.repeats),
            until: self.until.map(Timestamp::from_micros),
            jitter: self.jitter,
            overlap: match self.queues_overlap {
                true => Overlap::Queue,
                false => Overlap::Skip,
            },
        })
    }
}

impl<'a> WirePolicy<'a> {
    fn of(policy: &'a RetryPolicy) -> Result<Self, TimerError> {
        if let Err(refused @ PolicyError::NotKept { .. }) = check_policy(policy) {
            return Err(refused.into());
        }
        let settings = policy.settings();
        let delays = match (settings.preset, settings.delays) {
            (Some(preset), _) => WireDelays::Preset(preset.name()),
            (None, Delays::List(list)) => WireDelays::List(list.to_vec()),
            (None, Delays::Fixed(delay)) => WireDelays::Fixed(delay),
            (None, Delays::Exponential { first, factor }) => {
                WireDelays::Exponential { first, factor }
            }
            (None, Delays::Linear { first, increment }) => WireDelays::Linear { first, increment },
        };
        let jitter = match settings.jitter {
            Jitter::Full => WireJitter::Full,
            Jitter::Equal => WireJitter::Equal,
            // Any other is not kept.
            _ => WireJitter::None,
        };
        Ok(Self {
            delays,
            // A preset with another cap is none.
            cap: settings.cap.filter(|_| settings.preset.is_none()),
            jitter,
            max_attempts: settings.max_attempts,
            max_age: settings.max_age,
        })
    }

    fn policy(self) -> Result<RetryPolicy, TimerError> {
        let refused = |reason: String| TimerError::Unavailable { reason };
        let policy = match self.delays {
            WireDelays::List(list) => {
                RetryPolicy::list(list).map_err(|error| refused(error.to_string()))?
            }
            WireDelays::Preset(name) => Preset::from_name(name)
                .ok_or_else(|| refused(format!("the owner knows no retry preset {name}")))?
                .policy(),
            WireDelays::Fixed(delay) => RetryPolicy::fixed(delay),
            WireDelays::Exponential { first, factor } => RetryPolicy::exponential(first, factor)
                .map_err(|error| refused(error.to_string()))?,
            WireDelays::Linear { first, increment } => RetryPolicy::linear(first, increment),
        };
        let policy = match self.cap {
            Some(cap) => policy.cap(cap),
            None => policy,
        };
        let policy = policy.jitter(match self.jitter {
            WireJitter::None => Jitter::None,
            WireJitter::Full => Jitter::Full,
            WireJitter::Equal => Jitter::Equal,
        });
        let policy = match self.max_age {
            Some(age) => policy.max_age(age),
            None => policy,
        };
        match self.max_attempts {
            Some(attempts) => policy
                .repeat_last()
                .max_attempts(attempts)
                .map_err(|error| refused(error.to_string())),
            None => Ok(policy),
        }
    }
}

impl WireState {
    fn of(state: StateKind) -> Self {
        match state {
            StateKind::Pending => Self::Pending,
            StateKind::Delivering => Self::Delivering,
            StateKind::Done => Self::Done,
            StateKind::Dead => Self::Dead,
        }
    }

    fn state(self) -> StateKind {
        match self {
            Self::Pending => StateKind::Pending,
            Self::Delivering => StateKind::Delivering,
            Self::Done => StateKind::Done,
            Self::Dead => StateKind::Dead,
        }
    }
}

impl<'a> WireResponse<'a> {
    fn of(response: &'a Response) -> Self {
        match response {
            Response::Set(set) if set.replayed => Self::Replayed {
                store: set.id.store,
                set: set.id.set.0,
                due: set.due.as_micros(),
            },
            Response::Set(set) => Self::Set {
                store: set.id.store,
                set: set.id.set.0,
                revision: set.revision.0,
                due: set.due.as_micros(),
                replaced: set.replaced.map(WireState::of),
            },
            Response::Moved(moved) => Self::Moved {
                revision: moved.revision.0,
                old_due: moved.old_due.as_micros(),
                due: moved.due.as_micros(),
            },
            Response::Removed(was) => match *was {
                Was::Pending { due } => Self::RemovedPending {
                    due: due.as_micros(),
                },
                Was::Delivering { attempt } => Self::RemovedDelivering { attempt },
                Was::Dead => Self::RemovedDead,
                Was::Unreadable => Self::RemovedUnreadable,
            },
            // No request that comes from a peer has this answer.
            Response::Forgotten(_) => Self::RemovedUnreadable,
            Response::Configured(Configured { name, version }) => Self::Configured {
                name: name.as_str().into(),
                version: version.0,
            },
            Response::Settled(settled) => Self::Settled {
                state: WireState::of(settled.state),
                due: settled.due.map(Timestamp::as_micros),
            },
            Response::Extended(extended) => Self::Extended {
                until: extended.until.as_micros(),
            },
        }
    }

    fn response(self) -> Result<Response, TimerError> {
        Ok(match self {
            Self::Set {
                store,
                set,
                revision,
                due,
                replaced,
            } => Response::Set(Set {
                id: TimerId {
                    store,
                    set: Revision(set),
                },
                revision: Revision(revision),
                due: Timestamp::from_micros(due),
                replaced: replaced.map(WireState::state),
                replayed: false,
            }),
            Self::Replayed { store, set, due } => Response::Set(Set {
                id: TimerId {
                    store,
                    set: Revision(set),
                },
                revision: Revision(set),
                due: Timestamp::from_micros(due),
                replaced: None,
                replayed: true,
            }),
            Self::Moved {
                revision,
                old_due,
                due,
            } => Response::Moved(Moved {
                revision: Revision(revision),
                old_due: Timestamp::from_micros(old_due),
                due: Timestamp::from_micros(due),
            }),
            Self::RemovedPending { due } => Response::Removed(Was::Pending {
                due: Timestamp::from_micros(due),
            }),
            Self::RemovedDelivering { attempt } => Response::Removed(Was::Delivering { attempt }),
            Self::RemovedDead => Response::Removed(Was::Dead),
            Self::RemovedUnreadable => Response::Removed(Was::Unreadable),
            Self::Configured { name, version } => Response::Configured(Configured {
                name: SettingName::new(name)?,
                version: SettingsVersion(version),
            }),
            Self::Settled { state, due } => Response::Settled(Settled {
                state: state.state(),
                due: due.map(Timestamp::from_micros),
            }),
            Self::Extended { until } => Response::Extended(Extended {
                until: Timestamp::from_micros(until),
            }),
        })
    }
}

impl<'a> WireBody<'a> {
    /// What is written of an answer.
    pub(crate) fn of(answer: &'a Result<Vec<Response>, BatchError>) -> Self {
        match answer {
            Ok(responses) => Self::Done(responses.iter().map(WireResponse::of).collect()),
            Err(refused) if is_elsewhere(&refused.error) => Self::NotOwner,
            Err(refused) => Self::Refused {
                index: refused.index.and_then(|index| u32::try_from(index).ok()),
                error: WireError::of(&refused.error),
            },
        }
    }

    /// What it says; `None` if nothing was done, and somebody else may do it.
    pub(crate) fn answer(self) -> Option<Result<Vec<Response>, BatchError>> {
        match self {
            Self::Done(responses) => {
                let responses = responses.into_iter().map(WireResponse::response);
                Some(responses.collect::<Result<_, _>>().map_err(|error| {
                    // It was done, and what was answered is not to be read.
                    let error = TimerError::Unknown(error.to_string());
                    BatchError { index: None, error }
                }))
            }
            Self::Refused { index, error } => Some(Err(BatchError {
                index: index.and_then(|index| usize::try_from(index).ok()),
                error: error.error(),
            })),
            Self::NotOwner | Self::Expired => None,
        }
    }
}

/// Whether nothing was done since the shard is not owned there, or not for much longer.
pub(crate) fn is_elsewhere(error: &TimerError) -> bool {
    matches!(
        error,
        TimerError::NotOwned { .. } | TimerError::ShardUnavailable { .. } | TimerError::Closed
    )
}

/// The most that is written of a reason.
const REASON_MAX: usize = 1_000;

fn reason<'a>(text: &impl ToString) -> Cow<'a, str> {
    text.to_string()
        .chars()
        .take(REASON_MAX)
        .collect::<String>()
        .into()
}

fn wide(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn narrow(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl<'a> WireError<'a> {
    fn of(error: &'a TimerError) -> Self {
        match error {
            TimerError::NotFound => Self::NotFound,
            TimerError::Gone { at } => Self::Gone { at: at.as_micros() },
            TimerError::Conflict { state } => Self::Conflict(WireState::of(*state)),
            TimerError::LeaseLost { state, until } => Self::LeaseLost {
                state: WireState::of(*state),
                until: until.map(Timestamp::as_micros),
            },
            TimerError::ReceiptMismatch => Self::ReceiptMismatch,
            TimerError::ReceiptPending => Self::ReceiptPending,
            TimerError::Changed { current } => Self::Changed { current: current.0 },
            TimerError::Exists { state } => Self::Exists(WireState::of(*state)),
            TimerError::Draining { queue, mode } => Self::Draining {
                queue: queue.as_str().into(),
                mode: match mode {
                    DrainMode::Fire { until } => WireMode::Fire {
                        until: until.map(Timestamp::as_micros),
                    },
                    DrainMode::Remove => WireMode::Remove,
                    _ => WireMode::Hold,
                },
            },
            TimerError::TooFar => Self::TooFar,
            TimerError::PayloadTooLarge { bytes, limit } => Self::PayloadTooLarge {
                bytes: wide(*bytes),
                limit: wide(*limit),
            },
            TimerError::BatchTooLarge { requests, limit } => Self::BatchTooLarge {
                requests: wide(*requests),
                limit: wide(*limit),
            },
            TimerError::BatchTooLong { limit } => Self::BatchTooLong {
                limit: wide(*limit),
            },
            TimerError::Full => Self::Full,
            TimerError::StorageFull => Self::StorageFull,
            TimerError::Unavailable { reason: why } => Self::Unavailable {
                reason: reason(why),
            },
            TimerError::Unknown(why) => Self::Unknown {
                reason: reason(why),
            },
            TimerError::Unreadable { name, source } => Self::Unreadable {
                queue: name.queue.as_str().into(),
                key: name.key.as_str().into(),
                problem: reason(&source.finding().1),
            },
            TimerError::Store(error) => Self::Store {
                reason: reason(&error.finding().1),
            },
            TimerError::Setting(error) => Self::of_setting(error),
            TimerError::Policy(error) => Self::of_policy(error),
            TimerError::Recurrence(error) => Self::of_recurrence(error),
            TimerError::Zone(unknown) => Self::Zone {
                name: reason(&unknown.name),
            },
            other => Self::Other {
                reason: reason(other),
            },
        }
    }

    fn of_setting(error: &SettingError) -> Self {
        match error {
            SettingError::ValueTooLong { bytes } => Self::SettingTooLong {
                bytes: wide(*bytes),
            },
            SettingError::Exists { version } => Self::SettingExists { version: version.0 },
            SettingError::Changed { current } => Self::SettingChanged { current: current.0 },
            SettingError::SettingsChanged { current } => {
                Self::SettingsChanged { current: current.0 }
            }
            SettingError::NotFound => Self::SettingNotFound,
            SettingError::TooMany { bytes } => Self::SettingsTooMany {
                bytes: wide(*bytes),
            },
            other => Self::Other {
                reason: reason(other),
            },
        }
    }

    fn of_policy(error: &PolicyError) -> Self {
        match error {
            PolicyError::ListLength { found } => Self::PolicyListLength {
                found: wide(*found),
            },
            PolicyError::Delay { found } => Self::PolicyDelay { found: *found },
            PolicyError::Factor => Self::PolicyFactor,
            PolicyError::Cap => Self::PolicyCap,
            PolicyError::Attempts { found } => Self::PolicyAttempts { found: *found },
            PolicyError::Age { found } => Self::PolicyAge { found: *found },
            other => Self::Other {
                reason: reason(other),
            },
        }
    }

    fn of_recurrence(error: &RecurrenceError) -> Self {
        match error {
            RecurrenceError::Every { found } => Self::RecurrenceEvery { found: *found },
            RecurrenceError::Jitter { found } => Self::RecurrenceJitter { found: *found },
            RecurrenceError::NoRun => Self::RecurrenceNoRun,
            RecurrenceError::NoRunInTime => Self::RecurrenceNoRunInTime,
            RecurrenceError::Missed { found } => Self::RecurrenceMissed { found: *found },
            other => Self::Other {
                reason: reason(other),
            },
        }
    }

    fn error(self) -> TimerError {
        match self {
            Self::NotFound => TimerError::NotFound,
            Self::Gone { at } => TimerError::Gone {
                at: Timestamp::from_micros(at),
            },
            Self::Conflict(state) => TimerError::Conflict {
                state: state.state(),
            },
            Self::LeaseLost { state, until } => TimerError::LeaseLost {
                state: state.state(),
                until: until.map(Timestamp::from_micros),
            },
            Self::ReceiptMismatch => TimerError::ReceiptMismatch,
            Self::ReceiptPending => TimerError::ReceiptPending,
            Self::Changed { current } => TimerError::Changed {
                current: Revision(current),
            },
            Self::Exists(state) => TimerError::Exists {
                state: state.state(),
            },
            Self::Draining { queue, mode } => match QueueName::from_text(&queue) {
                Ok(queue) => TimerError::Draining {
                    queue,
                    mode: match mode {
                        WireMode::Fire { until } => DrainMode::Fire {
                            until: until.map(Timestamp::from_micros),
                        },
                        WireMode::Hold => DrainMode::Hold,
                        WireMode::Remove => DrainMode::Remove,
                    },
                },
                Err(error) => error.into(),
            },
            Self::TooFar => TimerError::TooFar,
            Self::PayloadTooLarge { bytes, limit } => TimerError::PayloadTooLarge {
                bytes: narrow(bytes),
                limit: narrow(limit),
            },
            Self::BatchTooLarge { requests, limit } => TimerError::BatchTooLarge {
                requests: narrow(requests),
                limit: narrow(limit),
            },
            Self::BatchTooLong { limit } => TimerError::BatchTooLong {
                limit: narrow(limit),
            },
            Self::Full => TimerError::Full,
            Self::StorageFull => TimerError::StorageFull,
            Self::Unavailable { reason } | Self::Other { reason } => TimerError::Unavailable {
                reason: reason.into_owned(),
            },
            Self::Unknown { reason } => TimerError::Unknown(reason.into_owned()),
            Self::Unreadable {
                queue,
                key,
                problem,
            } => match TimerName::from_text(&queue, &key) {
                Ok(name) => TimerError::Unreadable {
                    name,
                    source: StoreError::Unreadable {
                        problem: problem.into_owned(),
                    },
                },
                Err(error) => error.into(),
            },
            Self::Store { reason } => TimerError::Store(StoreError::Unreadable {
                problem: reason.into_owned(),
            }),
            Self::SettingTooLong { bytes } => SettingError::ValueTooLong {
                bytes: narrow(bytes),
            }
            .into(),
            Self::SettingExists { version } => SettingError::Exists {
                version: SettingsVersion(version),
            }
            .into(),
            Self::SettingChanged { current } => SettingError::Changed {
                current: SettingsVersion(current),
            }
            .into(),
            Self::SettingsChanged { current } => SettingError::SettingsChanged {
                current: SettingsVersion(current),
            }
            .into(),
            Self::SettingNotFound => SettingError::NotFound.into(),
            Self::SettingsTooMany { bytes } => SettingError::TooMany {
                bytes: narrow(bytes),
            }
            .into(),
            Self::PolicyListLength { found } => PolicyError::ListLength {
                found: narrow(found),
            }
            .into(),
            Self::PolicyDelay { found } => PolicyError::Delay { found }.into(),
            Self::PolicyFactor => PolicyError::Factor.into(),
            Self::PolicyCap => PolicyError::Cap.into(),
            Self::PolicyAttempts { found } => PolicyError::Attempts { found }.into(),
            Self::PolicyAge { found } => PolicyError::Age { found }.into(),
            Self::RecurrenceEvery { found } => RecurrenceError::Every { found }.into(),
            Self::RecurrenceJitter { found } => RecurrenceError::Jitter { found }.into(),
            Self::RecurrenceNoRun => RecurrenceError::NoRun.into(),
            Self::RecurrenceNoRunInTime => RecurrenceError::NoRunInTime.into(),
            Self::RecurrenceMissed { found } => RecurrenceError::Missed { found }.into(),
            Self::Zone { name } => countwheel_durable::UnknownZone {
                name: name.into_owned(),
            }
            .into(),
        }
    }
}
