//! Lists of timers: which ones, in which order, and what is shown of each.
//!
//! A list in order of due time has pages as the store reads them. In any other order all that match are looked at, up to a
//! bound, and a page is what comes next of them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use countwheel_durable::store::page::position;
use countwheel_durable::store::{Cursor, Filter, Page, QueueCounts};
use countwheel_durable::{
    AcrossError, AcrossFilter, QueueName, Record, StateKind, TimerName, Timers,
};

use super::App;
use super::described::operations;
use super::pages::{self, Tail, place};
use super::problem::{Code, Problem};
use super::queues;
use super::reach::Reach;
use super::request::{Query, queue_of};
use super::tags;
use super::timers::{TimerBody, View, WholeTimer, read_cursor};
use crate::job::Job;
use crate::time::parse_time;

/// A list in an order that no index has looks at so many timers at the most.
pub(crate) const ORDERED_MAX: usize = 10_000;
/// And reads payloads of so many bytes.
const ORDERED_MAX_BYTES: usize = 64 << 20;
/// So many of one queue are read at a time. A page that finds fewer has looked at as many entries as it may.
const ORDERED_AT_ONCE: usize = 500;
/// And so often it may look at as many entries as a page may, and find less than that.
const ORDERED_SHORT_MAX: usize = 8;

/// In which order a list is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Due,
    Created,
    Trouble,
}

impl Order {
    fn read(text: &str) -> Option<Self> {
        match text {
            "due" => Some(Self::Due),
            "created" => Some(Self::Created),
            "trouble" => Some(Self::Trouble),
            _ => None,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Due => "due",
            Self::Created => "created",
            Self::Trouble => "trouble",
        }
    }

    /// By what a record is ordered. No two have the same.
    fn key(self, record: &Record, at: Cursor) -> Key {
        let (due, revision) = (at.position.due.as_micros(), at.position.revision.0);
        let shard = u64::from(at.shard.0);
        match self {
            Self::Due => [due, revision, shard, 0],
            Self::Created => [record.created.as_micros(), revision, shard, 0],
            Self::Trouble => {
                let is_dead = record.state.kind() == StateKind::Dead;
                let failures = u64::from(u32::MAX - record.failures);
                let first = u64::from(!is_dead) << 32 | failures;
                [first, due, revision, shard]
            }
        }
    }
}

/// A place in an order.
type Key = [u64; 4];

/// The timers of one queue or of all.
#[derive(Clone, Debug)]
pub(super) enum Scope {
    Queue(Filter),
    All(AcrossFilter),
}

impl Scope {
    /// A page in order of due time, and whether the counts that it rests on are exact.
    pub(super) fn page(
        &self,
        timers: &Timers,
        limit: usize,
        after: Option<Cursor>,
    ) -> Result<(Page<Cursor>, bool), Problem> {
        match self {
            Self::Queue(filter) => {
                let filter = Filter {
                    limit,
                    ..filter.clone()
                };
                let page = timers.page(&filter, after);
                Ok((page.map_err(|error| Problem::from(&error))?, true))
            }
            Self::All(filter) => {
                let filter = AcrossFilter {
                    limit,
                    ..filter.clone()
                };
                match timers.page_across(&filter, after) {
                    Ok(found) => Ok((found.page, found.exact)),
                    Err(AcrossError::Store(error)) => Err(Problem::from(&error)),
                    Err(error) => Err(too_broad(&format!(
                        "{error}: state=pending, queue_prefix or the list of one queue narrows it"
                    ))),
                }
            }
        }
    }

    /// Whether a timer that matched still does, as its record is now.
    fn still_has(&self, record: &Record) -> bool {
        let (state, from, before) = match self {
            Self::Queue(it) => (it.state, it.due_from, it.due_before),
            Self::All(it) => (it.state, it.due_from, it.due_before),
        };
        let due = position(record).due;
        state.is_none_or(|state| record.state.kind() == state)
            && from.is_none_or(|from| due >= from)
            && before.is_none_or(|before| due < before)
    }

    /// How many timers are read at a time to put them in an order.
    fn at_once(&self) -> usize {
        match self {
            Self::Queue(_) => ORDERED_AT_ONCE,
            // Each page of it asks each queue that has timers which have ended.
            Self::All(_) => ORDERED_MAX + 1,
        }
    }

    /// How many timers the list has at least, by the counts. Zero where these do not say it: of a part of a queue, and of
    /// timers that have ended, whose retention may be over.
    fn at_least(&self, timers: &Timers) -> Result<u64, Problem> {
        let (state, is_whole) = match self {
            Self::Queue(Filter {
                state,
                prefix: None,
                due_from: None,
                due_before: None,
                ..
            })
            | Self::All(AcrossFilter {
                state,
                prefix: None,
                due_from: None,
                due_before: None,
                ..
            }) => (*state, true),
            _ => (None, false),
        };
        let states: &[StateKind] = match state {
            _ if !is_whole => &[],
            None => &[StateKind::Pending, StateKind::Delivering],
            Some(StateKind::Pending) => &[StateKind::Pending],
            Some(StateKind::Delivering) => &[StateKind::Delivering],
            Some(StateKind::Done | StateKind::Dead) => &[],
        };
        if states.is_empty() {
            return Ok(0);
        }
        let of = |counts: &QueueCounts| states.iter().map(|state| counts.of(*state)).sum::<u64>();
        let (count, exact) = match self {
            Self::Queue(filter) => {
                let overview = timers.queue_overview(&filter.queue);
                let counts = overview.map_err(|error| Problem::from(&error))?.counts;
                (of(&counts), timers.counts_are_exact())
            }
            Self::All(filter) => {
                let counted = timers.counted().map_err(|error| Problem::from(&error))?;
                let prefix = filter.queue_prefix.as_deref().unwrap_or_default();
                let queues = counted.queues.iter();
                let queues = queues.filter(|counts| counts.queue.as_str().starts_with(prefix));
                (queues.map(of).sum(), counted.exact)
            }
        };
        Ok(if exact { count } else { 0 })
    }

    /// Everything that decides what is in the list.
    fn canonical(&self) -> String {
        let (queue, queue_prefix, state, prefix, due_from, due_before) = match self {
            Self::Queue(f) => (
                Some(f.queue.as_str()),
                None,
                f.state,
                &f.prefix,
                f.due_from,
                f.due_before,
            ),
            Self::All(f) => (
                None,
                f.queue_prefix.as_deref(),
                f.state,
                &f.prefix,
                f.due_from,
                f.due_before,
            ),
        };
        let state = state.map(StateKind::as_str);
        let (due_from, due_before) = (
            due_from.map(countwheel_durable::Timestamp::as_micros),
            due_before.map(countwheel_durable::Timestamp::as_micros),
        );
        format!("{queue:?} {queue_prefix:?} {state:?} {prefix:?} {due_from:?} {due_before:?}")
    }
}

/// What is shown of each timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shown {
    bodies: bool,
    next_attempts: bool,
}

impl Shown {
    pub(super) fn write(
        self,
        text: &mut Vec<u8>,
        record: &Record,
        view: &View,
    ) -> serde_json::Result<()> {
        let timer = TimerBody::listed(record, view, self.next_attempts);
        match self.bodies {
            true => serde_json::to_writer(text, &WholeTimer::of(timer, record)),
            false => serde_json::to_writer(text, &timer),
        }
    }
}

/// A list that was asked for.
#[derive(Clone, Debug)]
pub(super) struct List {
    pub(super) scope: Scope,
    /// Only timers that have all of these. What tags a timer has, its payload says.
    pub(super) tags: Vec<String>,
    pub(super) shown: Shown,
    order: Order,
    pages: Pages,
}

impl List {
    /// The cursor behind this place.
    pub(super) fn cursor(&self, place: &str) -> String {
        self.pages.cursor(place)
    }

    /// The answer with a page, and where the next page is.
    pub(super) fn answer(&self, body: Body, next: Option<&str>) -> Response {
        let json = HeaderValue::from_static("application/json");
        let response = (StatusCode::OK, [(header::CONTENT_TYPE, json)], body).into_response();
        self.pages.linked(response, next)
    }
}

/// What the pages of one list have in common: the path and the query but for the cursor, and what tells the cursors of the list
/// from those of others.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    path: String,
    of: u32,
}

impl Pages {
    /// Of the list at this address, in which `canonical` decides what there is.
    pub(super) fn of(uri: &Uri, canonical: &str) -> Self {
        let query = uri.query().unwrap_or_default().split('&');
        let rest = query.filter(|pair| {
            let name = pair.split('=').next().unwrap_or_default();
            !name.is_empty() && name != "after"
        });
        let mut path = format!("{}?", uri.path());
        for pair in rest {
            path.push_str(pair);
            path.push('&');
        }
        path.push_str("after=");
        // FNV-1a (Fowler, Noll and Vo): the same in every process. A cursor is no secret.
        let of = canonical.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        Self { path, of }
    }

    /// The cursor behind this place of the list.
    pub(super) fn cursor(&self, place: &str) -> String {
        format!("{:08x}.{place}", self.of)
    }

    /// The place behind which the page is wanted.
    pub(super) fn after<T>(
        &self,
        query: &Query<'_>,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let of = self.of;
        let found = query.read("after", "the cursor of the page before", |text| {
            let (list, place) = text.split_once('.')?;
            let number = u32::from_str_radix(list, 16).ok()?;
            (format!("{number:08x}") == list).then_some((number, read(place)))
        })?;
        match found {
            None => Ok(None),
            Some((list, _)) if list != of => Err(Problem::malformed(
                "the query parameter \"after\" is the cursor of another list: of another queue, filter or order",
            )),
            Some((_, Some(place))) => Ok(Some(place)),
            Some((_, None)) => Err(Problem::malformed(
                "the query parameter \"after\" must be the cursor of the page before",
            )),
        }
    }

    /// The answer with a link to the page behind this cursor.
    pub(super) fn linked(&self, mut response: Response, next: Option<&str>) -> Response {
        let link = next.map(|next| format!("<{}{next}>; rel=\"next\"", self.path));
        if let Some(link) = link.and_then(|link| HeaderValue::try_from(link).ok()) {
            response.headers_mut().insert(header::LINK, link);
        }
        response
    }
}

pub(super) async fn of_queue(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Problem> {
    let query = Query::of(&uri, &operations::LIST.query_names())?;
    let queue = queue_of(&uri)?;
    let wanted = across(&query)?;
    let AcrossFilter {
        state,
        prefix,
        due_from,
        due_before,
        limit,
        scan_limit,
        ..
    } = wanted;
    let scope = Scope::Queue(Filter {
        queue: queue.clone(),
        state,
        prefix,
        due_from,
        due_before,
        after: None,
        limit,
        scan_limit,
    });
    answer(app, &uri, &query, scope, limit, Some(queue)).await
}

pub(super) async fn of_all(
    State(app): State<Arc<App>>,
    reach: Reach,
    uri: Uri,
) -> Result<Response, Problem> {
    let query = Query::of(&uri, &operations::LIST_ALL.query_names())?;
    let filter = AcrossFilter {
        queue_prefix: reach.narrowed(queue_prefix(&query, "queue_prefix")?),
        ..across(&query)?
    };
    let limit = filter.limit;
    answer(app, &uri, &query, Scope::All(filter), limit, None).await
}

/// The beginning of names of queues.
pub(super) fn queue_prefix(query: &Query<'_>, name: &str) -> Result<Option<String>, Problem> {
    let what = "1 to 193 ASCII letters, digits and . _ : - /";
    query.read(name, what, |text| {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-/".contains(&byte);
        let is_prefix = (1..=193).contains(&text.len()) && text.bytes().all(is_of_name);
        is_prefix.then(|| text.to_owned())
    })
}

/// How long a page is.
pub(super) fn limit(query: &Query<'_>) -> Result<Option<usize>, Problem> {
    query.read("limit", "a number from 1 to 1000", |text| {
        let limit = text.parse().ok();
        limit.filter(|limit| (1..=1_000).contains(limit))
    })
}

/// A state.
pub(super) fn state(query: &Query<'_>) -> Result<Option<StateKind>, Problem> {
    query.read("state", "pending, delivering, done or dead", |text| {
        text.parse().ok()
    })
}

/// What every list filters by.
fn across(query: &Query<'_>) -> Result<AcrossFilter, Problem> {
    let a_time = "a time in RFC 3339 with an offset, from 1970 to 9999";
    Ok(AcrossFilter {
        queue_prefix: None,
        state: state(query)?,
        prefix: query.get("prefix").map(str::to_owned),
        due_from: query.read("due_after", a_time, parse_time)?,
        due_before: query.read("due_before", a_time, parse_time)?,
        limit: limit(query)?.unwrap_or(100),
        scan_limit: Filter::SCAN_LIMIT,
    })
}

async fn answer(
    app: Arc<App>,
    uri: &Uri,
    query: &Query<'_>,
    scope: Scope,
    limit: usize,
    queue: Option<QueueName>,
) -> Result<Response, Problem> {
    let order = query.read("order", "due, created or trouble", Order::read)?;
    let order = order.unwrap_or(Order::Due);
    let tags = tags::of_query(query)?;
    let bodies = query.read("bodies", "text", |bodies| (bodies == "text").then_some(()))?;
    let include = query.read("include", "next_attempts", |text| {
        (text == "next_attempts").then_some(())
    })?;
    let canonical = format!("{} {tags:?} {}", order.as_str(), scope.canonical());
    let pages = Pages::of(uri, &canonical);
    let place = match order {
        Order::Due => pages.after(query, read_cursor)?.map(Place::Due),
        Order::Created | Order::Trouble => pages.after(query, read_key)?.map(Place::Key),
    };
    if let Some(queue) = queue.filter(|_| place.is_some())
        && !queues::is_there(&app, &queue).await?
    {
        let detail = "the queue of the cursor has no timers and no settings any more";
        return Err(Problem::new(Code::Gone, detail));
    }
    let list = List {
        scope,
        tags,
        shown: Shown {
            bodies: bodies.is_some(),
            next_attempts: include.is_some(),
        },
        order,
        pages,
    };
    match (order, place) {
        (Order::Due, Some(Place::Due(after))) => pages::answer(app, list, limit, Some(after)).await,
        (Order::Due, _) => pages::answer(app, list, limit, None).await,
        (_, Some(Place::Key(after))) => list.ordered(&app, limit, Some(after)).await,
        (_, _) => list.ordered(&app, limit, None).await,
    }
}

/// A place in a list.
enum Place {
    Due(Cursor),
    Key(Key),
}

fn write_key(key: Key) -> String {
    let [a, b, c, d] = key;
    format!("{a:x}-{b:x}-{c:x}-{d:x}")
}

fn read_key(text: &str) -> Option<Key> {
    let numbers = text.split('-').map(|part| u64::from_str_radix(part, 16));
    let numbers: Result<Vec<_>, _> = numbers.collect();
    let key: Key = numbers.ok()?.try_into().ok()?;
    // Only what we wrote.
    (write_key(key) == text).then_some(key)
}

fn too_broad(detail: &str) -> Problem {
    Problem::new(Code::TooBroad, detail)
}

/// All that match, up to the bounds.
struct Matches {
    found: Vec<(Key, TimerName)>,
    unreadable: usize,
    exact: bool,
}

impl List {
    /// A page in an order that no index has.
    async fn ordered(
        self,
        app: &App,
        limit: usize,
        after: Option<Key>,
    ) -> Result<Response, Problem> {
        let view = View::of(app).await;
        app.read(move |timers| {
            let Matches {
                mut found,
                unreadable,
                exact,
            } = self.matches(timers)?;
            found.sort_unstable_by_key(|(key, _)| *key);
            let behind = found.partition_point(|(key, _)| after.is_some_and(|it| *key <= it));
            let mut text = b"{\"items\":[".to_vec();
            let (mut items, mut bytes, mut last) = (0, 0, None);
            let mut rest = found.drain(behind..).peekable();
            while items < limit
                && bytes < Filter::PAGE_MAX_BYTES
                && let Some((key, name)) = rest.next()
            {
                last = Some(key);
                // One that is gone since, matches no more or cannot be read now, is left out.
                let Ok(Some(record)) = timers.get(&name) else {
                    continue;
                };
                let has_tags = Job::has_tags(&record.payload, &self.tags);
                if !has_tags || !self.scope.still_has(&record) {
                    continue;
                }
                bytes += record.content_bytes();
                if items > 0 {
                    text.push(b',');
                }
                items += 1;
                self.shown
                    .write(&mut text, &record, &view)
                    .map_err(|error| {
                        tracing::error!(%error, "a page could not be written");
                        Problem::new(Code::Internal, "the page could not be written")
                    })?;
            }
            let has_more = rest.peek().is_some();
            let next = last.filter(|_| has_more);
            let next = next.map(|key| self.cursor(&write_key(key)));
            text.extend_from_slice(b"],");
            let tail = Tail {
                next: next.clone(),
                bound_reached: has_more && items < limit,
                unreadable,
                exact,
            };
            tail.write(&mut text);
            Ok(self.answer(Body::from(text), next.as_deref()))
        })
        .await
    }

    fn matches(&self, timers: &Timers) -> Result<Matches, Problem> {
        let narrows = match self.scope {
            Scope::Queue(_) => "state, prefix, due_after or due_before narrows it",
            Scope::All(_) => {
                "state, prefix, due_after, due_before, queue_prefix or the list of one queue narrows it"
            }
        };
        let order = self.order.as_str();
        let too_many = || {
            too_broad(&format!(
                "the order {order} is for at most {ORDERED_MAX} timers that match but for tags: {narrows}"
            ))
        };
        if self.scope.at_least(timers)? > ORDERED_MAX as u64 {
            return Err(too_many());
        }
        let mut matches = Matches {
            found: Vec::new(),
            unreadable: 0,
            exact: true,
        };
        let (mut looked, mut bytes, mut short, mut after) = (0, 0, 0, None);
        loop {
            let (page, exact) = self.scope.page(timers, self.scope.at_once(), after)?;
            matches.exact &= exact;
            matches.unreadable += page.unreadable;
            // One that cannot be read is counted as well, as the counts do.
            looked += page.records.len() + page.unreadable;
            short += usize::from(page.records.len() < ORDERED_AT_ONCE);
            for record in page.records {
                bytes += record.content_bytes();
                if Job::has_tags(&record.payload, &self.tags) {
                    let at = place(timers.shards(), &record);
                    matches
                        .found
                        .push((self.order.key(&record, at), record.name));
                }
            }
            after = page.next;
            let is_over = after.is_none();
            if looked > ORDERED_MAX || looked == ORDERED_MAX && !is_over {
                return Err(too_many());
            }
            if is_over {
                return Ok(matches);
            }
            if bytes > ORDERED_MAX_BYTES || short > ORDERED_SHORT_MAX {
                return Err(too_broad(&format!(
                    "the order {order} would look at too much of the store: {narrows}"
                )));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use countwheel_durable::store::MemoryStore;
    use countwheel_durable::{Attempt, Config, Outcome};
    use countwheel_time::{Clock, SystemClock, Timestamp};

    use super::*;

    /// Between the look at all and the page, a timer may have come to another state or due time.
    #[test]
    fn a_timer_that_has_changed_is_in_a_page_only_if_it_matches_still() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let handler = |_: &Attempt| Outcome::done();
        let timers = Timers::open(MemoryStore::new(1), handler, clock, Config::default()).unwrap();
        let name = TimerName::new("orders", "a").unwrap();
        timers
            .set("orders/a", Duration::from_secs(3_600), Vec::new())
            .unwrap();
        let record = timers.get(&name).unwrap().unwrap();
        let due = position(&record).due;
        let later = Timestamp::from_micros(due.as_micros() + 1);
        let whole = Filter::queue(name.queue);
        let has = |change: &dyn Fn(&mut Filter)| {
            let mut filter = whole.clone();
            change(&mut filter);
            Scope::Queue(filter).still_has(&record)
        };
        assert!(has(&|_| {}));
        assert!(has(&|it| it.state = Some(StateKind::Pending)));
        assert!(!has(&|it| it.state = Some(StateKind::Dead)));
        assert!(has(&|it| it.due_from = Some(due)));
        assert!(!has(&|it| it.due_from = Some(later)));
        assert!(has(&|it| it.due_before = Some(later)));
        assert!(!has(&|it| it.due_before = Some(due)));
    }

    #[test]
    fn a_place_reads_back_and_nothing_else_does() {
        for key in [[0; 4], [1, 2, 3, 4], [u64::MAX; 4]] {
            assert_eq!(read_key(&write_key(key)), Some(key));
        }
        for text in [
            "",
            "1-2-3",
            "1-2-3-4-5",
            "01-2-3-4",
            "+1-2-3-4",
            "A-2-3-4",
            "g-2-3-4",
        ] {
            assert_eq!(read_key(text), None, "{text}");
        }
    }

    #[test]
    fn a_link_keeps_the_query_but_for_the_cursor() {
        let uri: Uri = "/v1/timers?state=dead&after=x&limit=2".parse().unwrap();
        let pages = Pages::of(&uri, "list");
        let response = pages.linked(StatusCode::OK.into_response(), Some("0.1"));
        let link = response.headers()[header::LINK].to_str().unwrap();
        assert_eq!(
            link,
            "</v1/timers?state=dead&limit=2&after=0.1>; rel=\"next\""
        );
        let last = pages.linked(StatusCode::OK.into_response(), None);
        assert!(!last.headers().contains_key(header::LINK));
    }
}
