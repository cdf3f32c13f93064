use std::collections::BTreeMap;
use std::time::Duration;

use jiff::civil::{Date, DateTime};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};

use super::{CronError, CronExpression};
use countwheel_time::Random;

fn expression(text: &str) -> CronExpression {
    CronExpression::new(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn zone(name: &str) -> TimeZone {
    TimeZoneDatabase::bundled().get(name).expect("a zone")
}

/// The next `count` times after `after`, as texts in UTC.
fn next(text: &str, name: &str, after: &str, count: usize) -> Vec<String> {
    let (expression, zone) = (expression(text), zone(name));
    let mut after: Timestamp = after.parse().expect("a time");
    let mut found = Vec::new();
    for _ in 0..count {
        after = expression.fields.next_after(&zone, after).expect("a time");
        found.push(after.to_string());
    }
    found
}

/// The days of a year, as month and day, that an expression with midnight names.
fn days(text: &str, year: i16) -> Vec<String> {
    let fields = expression(text).fields;
    let first = Date::new(year, 1, 1).expect("a date");
    let days = first.series(jiff::Span::new().days(1));
    days.take_while(|date| date.year() == year)
        .filter(|date| fields.match_local(date.at(0, 0, 0, 0)))
        .map(|date| date.strftime("%m-%d").to_string())
        .collect()
}

#[test]
fn a_time_that_is_left_out_comes_after_the_gap_and_one_that_is_there_twice_comes_once() {
    let berlin = "Europe/Berlin";
    assert_eq!(
        next("30 2 * * *", berlin, "2026-03-28T12:00:00Z", 2),
        ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
    );
    assert_eq!(
        next("30 2 * * *", berlin, "2026-10-24T12:00:00Z", 2),
        ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
    );
    // Two that come at the same instant are one, also with one that was not left out.
    assert_eq!(
        next("0,30 2,3 * * *", berlin, "2026-03-29T00:30:00Z", 3),
        [
            "2026-03-29T01:00:00Z",
            "2026-03-29T01:30:00Z",
            "2026-03-30T00:00:00Z"
        ]
    );
    // A whole day was left out, the 30th of December 2011.
    assert_eq!(
        next("0 9 * * *", "Pacific/Apia", "2011-12-29T12:00:00Z", 3),
        [
            "2011-12-29T19:00:00Z",
            "2011-12-30T10:00:00Z",
            "2011-12-30T19:00:00Z"
        ]
    );
}

#[test]
fn a_star_in_the_hour_or_the_minute_follows_the_clock() {
    let berlin = "Europe/Berlin";
    assert_eq!(
        next("0 * * * *", berlin, "2026-03-29T00:00:00Z", 2),
        ["2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"]
    );
    assert_eq!(
        next("0 * * * *", berlin, "2026-10-24T23:30:00Z", 3),
        [
            "2026-10-25T00:00:00Z",
            "2026-10-25T01:00:00Z",
            "2026-10-25T02:00:00Z"
        ]
    );
    // The hour that is left out has no minutes, the one that is there twice has them twice.
    assert_eq!(
        next("*/30 2 * * *", berlin, "2026-03-28T12:00:00Z", 1),
        ["2026-03-30T00:00:00Z"]
    );
    assert_eq!(
        next("*/30 2 * * *", berlin, "2026-10-25T00:00:00Z", 4),
        [
            "2026-10-25T00:30:00Z",
            "2026-10-25T01:00:00Z",
            "2026-10-25T01:30:00Z",
            "2026-10-26T01:00:00Z"
        ]
    );
    // The clocks of Lord Howe move by half an hour.
    assert_eq!(
        next(
            "0 * * * *",
            "Australia/Lord_Howe",
            "2026-04-04T13:30:00Z",
            3
        ),
        [
            "2026-04-04T14:00:00Z",
            "2026-04-04T15:30:00Z",
            "2026-04-04T16:30:00Z"
        ]
    );
}

#[test]
fn the_days_are_those_of_the_calendar() {
    assert_eq!(
        days("0 0 L 1-4 *", 2028),
        ["01-31", "02-29", "03-31", "04-30"]
    );
    assert_eq!(days("0 0 L-2 2,3 *", 2026), ["02-26", "03-29"]);
    assert_eq!(days("0 0 L-30 * *", 2026).len(), 7);
    // 2026-08-01 is a Saturday, 2026-02-01 and 2026-11-01 are Sundays.
    assert_eq!(days("0 0 1W 2,8,11 *", 2026), ["02-02", "08-03", "11-02"]);
    assert_eq!(days("0 0 15W 3,8 *", 2026), ["03-16", "08-14"]);
    assert_eq!(days("0 0 31W 4,5 *", 2026), ["05-29"]);
    assert_eq!(days("0 0 LW 1,2 *", 2026), ["01-30", "02-27"]);
    assert_eq!(days("0 0 * 1 FRI#2,TUE#5", 2026), ["01-09"]);
    assert_eq!(days("0 0 * 3 2#5", 2026), ["03-31"]);
    assert_eq!(days("0 0 ? 1 5L", 2026), ["01-30"]);
    assert_eq!(days("0 0 ? 1 7L", 2026), days("0 0 ? 1 sunl", 2026));
    assert_eq!(days("0 0 * 1 SAT-SUN", 2026), days("0 0 * 1 6,7", 2026));
    assert_eq!(days("0 0 * 1 5-7", 2026), days("0 0 * 1 fri,sat,sun", 2026));
    assert_eq!(days("0 0 * 1 */2", 2026), days("0 0 * 1 0,2,4,6", 2026));
    assert_eq!(days("0 0 * 1 1/3", 2026), days("0 0 * 1 1,4", 2026));
    assert_eq!(days("0 0 28/2 1 *", 2026), ["01-28", "01-30"]);
}

#[test]
fn two_restricted_day_fields_are_alternatives_and_a_star_is_no_restriction() {
    assert_eq!(
        days("0 0 13 2 FRI", 2026),
        ["02-06", "02-13", "02-20", "02-27"]
    );
    assert_eq!(
        days("0 0 14 2 FRI", 2026),
        ["02-06", "02-13", "02-14", "02-20", "02-27"]
    );
    // Every other day that is a Friday.
    assert_eq!(days("0 0 */2 2 FRI", 2026), ["02-13", "02-27"]);
    assert_eq!(days("0 0 14 2 ?", 2026), ["02-14"]);
}

#[test]
fn an_expression_has_five_fields_or_six_with_the_second_first() {
    let second = expression("*/20 5 10 * * *");
    let found = second.fields.next_after(
        &TimeZone::UTC,
        "2026-01-01T10:05:20.5Z".parse().expect("a time"),
    );
    assert_eq!(found.unwrap().to_string(), "2026-01-01T10:05:40Z");
    for (nickname, spelled_out) in [
        ("@hourly", "0 * * * *"),
        ("@Daily", "0 0 * * *"),
        ("@midnight", "0 0 0 * * *"),
        ("@weekly", "0 0 * * SUN"),
        ("@monthly", "0 0 1 * ?"),
        ("@yearly", "0 0 1 JAN *"),
        (" @annually ", "0\t0 1  1 *"),
    ] {
        assert_eq!(expression(nickname).fields, expression(spelled_out).fields);
    }
    for found in [0, 1, 4, 7] {
        let text = vec!["*"; found].join(" ");
        assert_eq!(CronExpression::new(text), Err(CronError::Fields { found }));
    }
}

#[test]
fn what_is_wrong_is_refused_with_its_field() {
    for (text, at_fault) in [
        ("60 * * * *", "minute"),
        ("-1 * * * *", "minute"),
        ("+1 * * * *", "minute"),
        ("1.5 * * * *", "minute"),
        ("001 * * * *", "minute"),
        ("5-1 * * * *", "minute"),
        ("*/0 * * * *", "minute"),
        ("*/ * * * *", "minute"),
        ("1,,2 * * * *", "minute"),
        (", * * * *", "minute"),
        ("? * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* 22-2 * * *", "hour"),
        ("* * 0 * *", "day of the month"),
        ("* * 32 * *", "day of the month"),
        ("* * L-31 * *", "day of the month"),
        ("* * L-0 * *", "day of the month"),
        ("* * W * *", "day of the month"),
        ("* * 1-5W * *", "day of the month"),
        ("* * ?/2 * *", "day of the month"),
        ("* * * 0 *", "month"),
        ("* * * 13 *", "month"),
        ("* * * JUNE *", "month"),
        ("* * * ? *", "month"),
        ("* * * * 8", "day of the week"),
        ("* * * * L", "day of the week"),
        ("* * * * 5#0", "day of the week"),
        ("* * * * 5#6", "day of the week"),
        ("* * * * #1", "day of the week"),
        ("* * * * FRI-MON", "day of the week"),
        ("* * * * ö", "day of the week"),
        ("60 * * * * *", "second"),
    ] {
        match CronExpression::new(text) {
            Err(CronError::Part { field, .. }) => assert_eq!(field, at_fault, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    assert!(matches!(
        CronExpression::new("@reboot"),
        Err(CronError::Nickname { .. })
    ));
    let long = format!("{} * * * *", vec!["1"; 125].join(","));
    assert_eq!(
        CronExpression::new(&long),
        Err(CronError::Length { found: 257 })
    );
    for never in [
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "0 0 31W 2 *",
        "0 0 L-29 2 *",
    ] {
        assert_eq!(CronExpression::new(never), Err(CronError::Never), "{never}");
    }
    assert!(CronExpression::new("0 0 L-28 2 *").is_ok());
}

#[test]
fn the_rarest_dates_are_found_and_the_search_ends() {
    // A 29th of February that is the month's fifth Monday: both must hold.
    assert_eq!(
        next("0 0 */28 2 MON#5", "UTC", "2080-01-01T00:00:00Z", 2),
        ["2112-02-29T00:00:00Z", "2140-02-29T00:00:00Z"]
    );
    let rare = expression("0 0 29 2 *");
    let late: Timestamp = "9996-03-01T00:00:00Z".parse().expect("a time");
    assert_eq!(rare.fields.next_after(&TimeZone::UTC, late), None);
    let every = expression("* * * * * *");
    for name in ["UTC", "Europe/Berlin", "Pacific/Apia"] {
        let next = every.fields.next_after(&zone(name), Timestamp::MAX);
        assert_eq!(next, None);
    }
}

/// What one field of a random expression names, worked out apart from the code that is tested.
enum Days {
    All,
    Listed(Vec<i8>),
    Last,
    Nearest(i8),
    LastWeekDay(i8),
    Nth(i8, i8),
}

struct Reference {
    text: String,
    minutes: Vec<i8>,
    hours: Vec<i8>,
    months: Vec<i8>,
    month_days: Days,
    week_days: Days,
    follows_the_clock: bool,
}

fn below(random: &mut Random, bound: i8) -> i8 {
    let drawn = random.draw() % u64::try_from(bound).expect("a bound");
    i8::try_from(drawn).expect("it is below an i8")
}

/// A random field: its text, its values, and whether it begins with a star.
fn field(random: &mut Random, min: i8, max: i8, star: i8) -> (String, Vec<i8>, bool) {
    let all = || min..=max;
    match below(random, 10) {
        kind if kind < star => ("*".to_owned(), all().collect(), true),
        kind if kind == star => {
            let step = 1 + below(random, max / 2);
            let values = all().filter(|value| (value - min) % step == 0).collect();
            (format!("*/{step}"), values, true)
        }
        kind if kind == star + 1 => {
            let first = min + below(random, max - min);
            let last = first + below(random, max - first + 1);
            (format!("{first}-{last}"), (first..=last).collect(), false)
        }
        _ => {
            let count = 1 + below(random, 3);
            let span = max - min + 1;
            let values: Vec<_> = (0..count).map(|_| min + below(random, span)).collect();
            let texts: Vec<_> = values.iter().map(ToString::to_string).collect();
            (texts.join(","), values, false)
        }
    }
}

fn random_reference(random: &mut Random) -> Reference {
    let (minute, minutes, minute_star) = field(random, 0, 59, 2);
    // Most clocks move between midnight and three.
    let (hour, hours, hour_star) = match below(random, 3) {
        0 => field(random, 0, 23, 3),
        1 => field(random, 0, 3, -1),
        _ => ("0-3".to_owned(), vec![0, 1, 2, 3], false),
    };
    let (month, months, _) = field(random, 1, 12, 6);
    let (month_day, month_days) = match below(random, 6) {
        0 => ("L".to_owned(), Days::Last),
        1 => {
            let day = 1 + below(random, 31);
            (format!("{day}W"), Days::Nearest(day))
        }
        2 => {
            let (text, days, star) = field(random, 1, 31, 0);
            // A star with a step needs the other field to match as well, which is tested with
            // examples.
            match star {
                true => ("*".to_owned(), Days::All),
                false => (text, Days::Listed(days)),
            }
        }
        _ => ("*".to_owned(), Days::All),
    };
    let (week_day, week_days) = match below(random, 6) {
        0 => {
            let day = below(random, 7);
            (format!("{day}L"), Days::LastWeekDay(day))
        }
        1 => {
            let (day, nth) = (below(random, 7), 1 + below(random, 4));
            (format!("{day}#{nth}"), Days::Nth(day, nth))
        }
        2 => {
            let days = vec![below(random, 7), below(random, 7)];
            (format!("{},{}", days[0], days[1]), Days::Listed(days))
        }
        _ => ("*".to_owned(), Days::All),
    };
    Reference {
        text: format!("{minute} {hour} {month_day} {month} {week_day}"),
        minutes,
        hours,
        months,
        month_days,
        week_days,
        follows_the_clock: minute_star || hour_star,
    }
}

impl Reference {
    fn names_day(&self, date: Date) -> bool {
        let month_day = self.month_days.name(date, date.day());
        let week_day = self
            .week_days
            .name(date, date.weekday().to_sunday_zero_offset());
        let day = match (&self.month_days, &self.week_days) {
            (Days::All, Days::All) => true,
            (Days::All, _) => week_day,
            (_, Days::All) => month_day,
            _ => month_day || week_day,
        };
        day && self.months.contains(&date.month())
    }
}

impl Days {
    fn name(&self, date: Date, number: i8) -> bool {
        let day_in = |days: i64| date.checked_add(SignedDuration::from_hours(24 * days));
        let leaves_month = |days| day_in(days).expect("a date").month() != date.month();
        match self {
            Self::All => true,
            Self::Listed(numbers) => numbers.contains(&number),
            Self::Last => leaves_month(1),
            Self::LastWeekDay(day) => *day == number && leaves_month(7),
            Self::Nth(day, nth) => {
                *day == number
                    && (*nth == 1 || !leaves_month(-7 * i64::from(nth - 1)))
                    && leaves_month(-7 * i64::from(*nth))
            }
            Self::Nearest(target) => {
                // All weekdays of the month, and which of them is nearest.
                let month = (1..=date.days_in_month())
                    .map(|day| Date::new(date.year(), date.month(), day).expect("a date"));
                let weekdays = month.filter(|day| day.weekday().to_monday_one_offset() <= 5);
                *target <= date.days_in_month()
                    && weekdays.min_by_key(|day| (day.day() - target).abs()) == Some(date)
            }
        }
    }
}

/// A zone's local minutes, one for each minute of real time.
struct Walk {
    zone: TimeZone,
    start: Timestamp,
    /// Minutes of local time since 1970.
    local: Vec<i64>,
}

impl Walk {
    fn of(name: &str, from: i16, years: i16) -> Self {
        let zone = zone(name);
        let instant = |year| {
            let date = Date::new(year, 1, 1).expect("a date").at(0, 0, 0, 0);
            TimeZone::UTC
                .to_timestamp(date)
                .expect("a time")
                .as_second()
                / 60
        };
        let local = (instant(from)..instant(from + years)).map(|minute| {
            let at = Timestamp::from_second(60 * minute).expect("a time");
            let offset = i64::from(zone.to_offset(at).seconds());
            assert_eq!(offset % 60, 0, "{name} has whole minutes in these years");
            minute + offset / 60
        });
        Self {
            start: Timestamp::from_second(60 * instant(from)).expect("a time"),
            local: local.collect(),
            zone: zone.clone(),
        }
    }

    fn at(&self, index: usize) -> Timestamp {
        let minutes = i64::try_from(index).expect("a few years");
        self.start + SignedDuration::from_mins(minutes)
    }

    /// When an expression comes, by watching the clock minute by minute.
    fn times(&self, reference: &Reference) -> Vec<Timestamp> {
        let mut days = BTreeMap::new();
        let mut named = |minute: i64| {
            let (day, of_day) = (minute.div_euclid(1_440), minute.rem_euclid(1_440));
            let number = |of_day| i8::try_from(of_day).expect("a part of a day");
            reference.minutes.contains(&number(of_day % 60))
                && reference.hours.contains(&number(of_day / 60))
                && *days.entry(day).or_insert_with(|| {
                    let epoch = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
                    let date = epoch + SignedDuration::from_hours(24 * day);
                    reference.names_day(date.date())
                })
        };
        let mut shown = self.local[0] - 1;
        let mut times = Vec::new();
        for (index, &local) in self.local.iter().enumerate() {
            let comes = if reference.follows_the_clock {
                named(local)
            } else {
                // What the clock shows for the first time, or passes over.
                let any = (shown + 1..=local).any(&mut named);
                shown = shown.max(local);
                any
            };
            if comes {
                times.push(self.at(index));
            }
        }
        times
    }

    /// Compares, and gives how many times there were.
    fn check(&self, reference: &Reference, random: &mut Random) -> usize {
        let text = &reference.text;
        let expected = self.times(reference);
        let Ok(expression) = CronExpression::new(text) else {
            assert_eq!(expected, [], "{text} is refused");
            return 0;
        };
        let next = |after| expression.fields.next_after(&self.zone, after);
        let mut found = Vec::new();
        let (end, mut after) = (self.at(self.local.len()), self.start);
        after -= SignedDuration::from_micros(1);
        while let Some(comes) = next(after).filter(|&comes| comes < end) {
            assert!(comes > after, "{text} goes back");
            found.push(comes);
            after = comes;
        }
        let name = self.zone.iana_name();
        let first_difference = found.iter().zip(&expected).find(|(a, b)| a != b);
        assert_eq!(first_difference, None, "{text} in {name:?}");
        assert_eq!(found.len(), expected.len(), "{text} in {name:?}");
        // And from times between the minutes.
        let span = Duration::from_secs(60 * u64::try_from(self.local.len()).expect("minutes"));
        for _ in 0..200 {
            let offset = random.micros_up_to(span);
            let after = self.start + SignedDuration::try_from(offset).expect("years");
            let index = expected.partition_point(|&time| time <= after);
            if let Some(&expected) = expected.get(index) {
                assert_eq!(
                    next(after),
                    Some(expected),
                    "{text} in {name:?} after {after}"
                );
            }
        }
        expected.len()
    }
}

#[test]
fn a_time_that_no_clock_ever_shows_is_looked_for_in_vain() {
    // On the second Sunday of March, clocks there go from two o'clock to three.
    let never = expression("* 2 ? 3 0#2");
    let zone = zone("America/New_York");
    for year in 2026..2126 {
        let after: Timestamp = format!("{year}-01-01T00:00:00Z").parse().expect("a time");
        assert_eq!(never.fields.next_after(&zone, after), None);
    }
    // Where they do not, it is there.
    let shown = next("* 2 ? 3 0#2", "UTC", "2026-01-01T00:00:00Z", 1);
    assert_eq!(shown, ["2026-03-08T02:00:00Z"]);
}

/// The zones with the oddest rules, and years in which they were in force.
const WALKS: [(&str, i16, i16); 9] = [
    ("UTC", 2027, 2),
    ("Europe/Berlin", 2025, 2),
    ("America/New_York", 2025, 2),
    ("Australia/Lord_Howe", 2025, 2), // by half an hour
    ("Pacific/Apia", 2010, 3),        // a day left out
    ("Africa/Casablanca", 2022, 2),   // back for Ramadan
    ("Asia/Kathmandu", 1985, 2),      // by a quarter of an hour, at a new year
    ("Antarctica/Troll", 2025, 1),    // by two hours
    ("America/Sao_Paulo", 2017, 2),   // at midnight
];

#[test]
fn every_time_is_that_of_somebody_who_watches_the_clock() {
    let mut random = Random::new(6);
    for (name, from, years) in WALKS {
        let walk = Walk::of(name, from, years);
        let compared: usize = (0..16)
            .map(|_| walk.check(&random_reference(&mut random), &mut random))
            .sum();
        assert!(compared > 1_000, "{name}: {compared} times say little");
    }
}
