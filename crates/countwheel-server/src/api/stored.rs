//! What queues and endpoints have in common: a setting that is changed by its revision.

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use countwheel_durable::{
    self as durable, Configured, Precondition, Revision, SettingError, SettingName,
    SettingPrecondition, SettingsVersion, TimerError,
};
use serde::Serialize;

use super::problem::{Code, Problem};
use super::request::{Condition, Known, has_already};
use super::timers::{TRIES, tagged};
use super::{App, answer};
use crate::resources::Resources;

/// In so many tries no other setting may change.
const TRIES_OF_ALL: usize = TRIES - 4;

/// What a change did.
pub(crate) struct Changed {
    /// The setting's version, or that of all settings if it was removed.
    pub(crate) version: SettingsVersion,
    /// Whether the setting was there before.
    pub(crate) was_there: bool,
}

/// Changes a setting to what `make` makes of what is known; `None` removes it. A change of any setting, at whatever node,
/// that comes between what `make` looks at and this change has it tried again. Where other settings change all the time, the
/// last tries let changes of others come between.
pub(crate) async fn change(
    app: &App,
    name: &SettingName,
    condition: Condition,
    version_of: impl Fn(&Resources) -> Option<SettingsVersion>,
    what: &str,
    make: impl Fn(&Resources) -> Result<Option<Vec<u8>>, Problem>,
) -> Result<Changed, Problem> {
    let missing = || Problem::new(Code::NotFound, format!("there is no {what} of that name"));
    let _in_order = app.changes.lock().await;
    for tried in 0..TRIES {
        let known = app.look().await?;
        let current = version_of(&known);
        match (condition, current) {
            (Condition::Exists | Condition::Engine(Precondition::Revision(_)), None) => {
                return Err(missing());
            }
            (Condition::Engine(Precondition::Absent), Some(version)) => {
                return Err(Problem::from(&SettingError::Exists { version }));
            }
            (Condition::Engine(Precondition::Revision(asked)), Some(current))
                if asked != Revision(current.0) =>
            {
                return Err(Problem::from(&SettingError::Changed { current }));
            }
            (Condition::Engine(_) | Condition::Exists, _) => {}
        }
        let value = make(&known)?;
        let note = app.note_of_setting(name, current, value.as_deref()).await;
        let request = durable::Request::Configure {
            name: name.clone(),
            value,
            // Jobs note their progress in settings. However many there are, a token can be revoked.
            precondition: match current {
                _ if tried < TRIES_OF_ALL => SettingPrecondition::Settings(known.version()),
                None => SettingPrecondition::Absent,
                Some(current) => SettingPrecondition::Version(current),
            },
        };
        let request = match note {
            Some(note) => request.noted(note),
            None => request,
        };
        // One owner sees all changes in order: others learn of them later.
        match app.ask_first_shard::<Configured>(request).await {
            Ok(Configured { version, .. }) => {
                app.look().await?;
                return Ok(Changed {
                    version,
                    was_there: current.is_some(),
                });
            }
            Err(TimerError::Setting(
                SettingError::SettingsChanged { .. }
                | SettingError::Changed { .. }
                | SettingError::Exists { .. }
                | SettingError::NotFound,
            )) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let detail = format!("the {what} kept changing meanwhile: try again");
    Err(Problem::new(Code::Overloaded, detail))
}

/// Removes a setting, which has to be there, unless `check` refuses it.
pub(super) async fn remove(
    app: &App,
    name: &SettingName,
    condition: Condition,
    version_of: impl Fn(&Resources) -> Option<SettingsVersion>,
    what: &str,
    missing: fn() -> Problem,
    check: impl Fn(&Resources) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let gone = |known: &Resources| match version_of(known) {
        None => Err(missing()),
        Some(_) => check(known).map(|()| None),
    };
    change(app, name, condition, &version_of, what, gone).await?;
    Ok(())
}

/// An answer about a setting, with its revision as a tag.
pub(super) fn shown(
    status: StatusCode,
    body: &impl Serialize,
    version: SettingsVersion,
) -> Response {
    tagged(answer(status, body), Revision(version.0))
}

/// The same for a GET, whose caller may know it already.
pub(super) fn shown_unless_known(
    headers: &HeaderMap,
    body: &impl Serialize,
    version: SettingsVersion,
) -> Response {
    match has_already(headers, Revision(version.0)) {
        Known::Nothing => shown(StatusCode::OK, body, version),
        Known::Revision | Known::Anything => tagged(
            StatusCode::NOT_MODIFIED.into_response(),
            Revision(version.0),
        ),
    }
}

/// The same for a GET of what changes without its revision: only `*` says that the caller knows it.
pub(super) fn shown_unless_any(
    headers: &HeaderMap,
    body: &impl Serialize,
    version: SettingsVersion,
) -> Response {
    match has_already(headers, Revision(version.0)) {
        Known::Nothing | Known::Revision => shown(StatusCode::OK, body, version),
        Known::Anything => shown_unless_known(headers, body, version),
    }
}

/// The status of what was put.
pub(super) fn put_status(changed: &Changed) -> StatusCode {
    if changed.was_there {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    }
}

/// What a later version of the program has stored.
pub(super) fn unreadable(what: &str) -> Problem {
    Problem::new(
        Code::Unreadable,
        format!("the {what} was stored in a form that this version does not read"),
    )
}
