//! Schedules of recurring timers on the command line.

use std::num::NonZeroU32;
use std::time::Duration;

use countwheel_durable::{
    CronExpression, Due, Missed, Overlap, Recurrence, Schedule, UnknownZone, Zone,
};
use countwheel_time::Timestamp;

use serde_json::Value;

use super::Failure;
use super::arguments::{duration, time};

/// Stands at each argument, as for the retry policy.
const HEADING: &str = "Recurrence";

/// When it comes again.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Repeat {
    /// Again and again at this interval; with --at, on the grid through that time
    #[arg(long, value_name = "D", value_parser = duration, help_heading = HEADING,
          conflicts_with_all = ["every_after", "cron"])]
    every: Option<Duration>,
    /// Again and again, this long after the end of each run
    #[arg(long, value_name = "D", value_parser = duration, help_heading = HEADING,
          conflicts_with = "cron")]
    every_after: Option<Duration>,
    /// At the times of a cron expression: '0 9 * * MON-FRI', or six fields with the second first
    #[arg(long, value_name = "CRON", help_heading = HEADING)]
    cron: Option<CronExpression>,
    /// Of the cron expression: Europe/Berlin; UTC if not given
    #[arg(long, value_name = "ZONE", value_parser = zone, help_heading = HEADING)]
    zone: Option<Zone>,
    /// How many runs there are in all
    #[arg(long, value_name = "N", help_heading = HEADING)]
    repeats: Option<NonZeroU32>,
    /// No run is nominally later than this
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = HEADING)]
    until: Option<Timestamp>,
    /// Each run starts at a random time in this window after its nominal time
    #[arg(long, value_name = "D", value_parser = duration, help_heading = HEADING)]
    jitter_window: Option<Duration>,
    /// What becomes of a run that comes due while another is under way: skip, queue
    #[arg(long, value_name = "POLICY", value_parser = overlap, help_heading = HEADING)]
    overlap: Option<Overlap>,
}

impl Repeat {
    /// Whether any of it is.
    pub(super) fn is_given(&self) -> bool {
        let interval = self.every.or(self.every_after).is_some();
        let schedule = interval || self.cron.is_some() || self.zone.is_some();
        let rest = self.repeats.is_some() || self.until.is_some() || self.overlap.is_some();
        schedule || rest || self.jitter_window.is_some()
    }

    /// When it is due, with `first` for what `--in` or `--at` say, and when again.
    pub(super) fn schedule(
        &self,
        first: Option<Due>,
    ) -> Result<(Due, Option<Box<Recurrence>>), Failure> {
        if self.zone.is_some() && self.cron.is_none() {
            return Err(Failure::Usage("--zone needs --cron".to_owned()));
        }
        let (due, schedule) = match (self.every, self.every_after, &self.cron) {
            (Some(every), ..) => match first {
                Some(Due::At(at)) => {
                    let anchor = Some(at);
                    (Due::At(at), Schedule::FixedRate { every, anchor })
                }
                first => {
                    let anchor = None;
                    let schedule = Schedule::FixedRate { every, anchor };
                    (first.unwrap_or(Due::In(every)), schedule)
                }
            },
            (_, Some(every), _) => (
                first.unwrap_or(Due::In(every)),
                Schedule::FixedDelay { every },
            ),
            (_, _, Some(expression)) => {
                let schedule = Schedule::Cron {
                    expression: expression.clone(),
                    zone: self.zone.clone().unwrap_or_default(),
                };
                (first.unwrap_or(Due::In(Duration::ZERO)), schedule)
            }
            (None, None, None) => return self.once(first),
        };
        let recurrence = Recurrence {
            repeats: self.repeats,
            until: self.until,
            jitter: self.jitter_window.unwrap_or_default(),
            overlap: self.overlap.unwrap_or_default(),
            ..Recurrence::new(schedule)
        };
        Ok((due, Some(Box::new(recurrence))))
    }

    fn once(&self, first: Option<Due>) -> Result<(Due, Option<Box<Recurrence>>), Failure> {
        let lonely = [
            ("--repeats", self.repeats.is_some()),
            ("--until", self.until.is_some()),
            ("--jitter-window", self.jitter_window.is_some()),
            ("--overlap", self.overlap.is_some()),
        ];
        if let Some((name, _)) = lonely.into_iter().find(|(_, given)| *given) {
            return Err(Failure::Usage(format!(
                "{name} needs one of --every, --every-after, --cron"
            )));
        }
        let due = first.ok_or_else(|| {
            let when = "one of --in, --at, --every, --every-after, --cron is needed";
            Failure::Usage(when.to_owned())
        })?;
        Ok((due, None))
    }
}

fn zone(name: &str) -> Result<Zone, UnknownZone> {
    Zone::new(name)
}

fn overlap(name: &str) -> Result<Overlap, String> {
    let names = Overlap::ALL.map(Overlap::as_str).join(", ");
    Overlap::from_name(name).ok_or_else(|| format!("{name:?} is none of {names}"))
}

/// A schedule as the server shows it, with the run it has come to; `None` if there is none.
pub(crate) fn describe(recurring: &Value) -> Option<String> {
    let field = |name: &str| recurring[name].as_str();
    let mut words = match (field("every"), field("every_after"), field("cron")) {
        (Some(every), ..) => format!("every {every}"),
        (_, Some(every), _) => format!("{every} after each run"),
        (_, _, Some(cron)) => format!("{cron}  {}", field("zone").unwrap_or("UTC")),
        _ => return None,
    };
    if let Some(window) = field("jitter") {
        words.push_str(&format!("; up to {window} later"));
    }
    if let Some(until) = field("until") {
        words.push_str(&format!("; until {until}"));
    }
    let run = &recurring["run"];
    match recurring["repeats"].as_u64() {
        Some(repeats) => words.push_str(&format!("; run {run} of {repeats}")),
        None => words.push_str(&format!("; run {run}")),
    }
    for (name, what) in [
        ("missed_runs", "missed"),
        ("overlapped_runs", "overlapped"),
        ("dead_runs", "dead"),
    ] {
        match recurring[name].as_u64() {
            None | Some(0) => {}
            Some(number) => words.push_str(&format!("; {number} {what}")),
        }
    }
    Some(words)
}

/// What becomes of a missed timer: `fire`, `collapse`, `skip:5m`.
pub(crate) fn missed(text: &str) -> Result<Missed, String> {
    match text {
        "fire" => Ok(Missed::Fire),
        "collapse" => Ok(Missed::Collapse),
        _ => match text.strip_prefix("skip:") {
            Some(age) => Ok(Missed::SkipIfOlderThan(duration(age)?)),
            None => Err(format!("{text:?} is none of fire, collapse, skip:5m")),
        },
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::super::arguments::When;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        when: When,
        #[command(flatten)]
        repeat: Repeat,
    }

    /// What these arguments ask for; `None` if they are refused.
    fn read(arguments: &[&str]) -> Option<(Due, Option<Box<Recurrence>>)> {
        let line = Line::try_parse_from([&["set"], arguments].concat()).ok()?;
        line.repeat.schedule(line.when.due()).ok()
    }

    #[test]
    fn the_first_run_is_after_one_interval_unless_it_is_said() {
        let seconds = Duration::from_secs;
        let every = seconds(30);
        let noon = Timestamp::from_micros(1_772_366_400_000_000);
        let rate = |anchor| Schedule::FixedRate { every, anchor };
        for (arguments, due, schedule) in [
            (&["--every", "30s"][..], Due::In(every), rate(None)),
            (
                &["--every", "30s", "--in", "5s"],
                Due::In(seconds(5)),
                rate(None),
            ),
            (
                &["--every", "30s", "--at", "2026-03-01T12:00:00Z"],
                Due::At(noon),
                rate(Some(noon)),
            ),
            (
                &["--every-after", "30s"],
                Due::In(every),
                Schedule::FixedDelay { every },
            ),
            (
                &["--cron", "0 9 * * MON", "--zone", "asia/kathmandu"],
                Due::In(seconds(0)),
                Schedule::Cron {
                    expression: "0 9 * * MON".parse().unwrap(),
                    zone: Zone::new("Asia/Kathmandu").unwrap(),
                },
            ),
        ] {
            let (found, recurrence) = read(arguments).unwrap();
            assert_eq!(found, due, "{arguments:?}");
            assert_eq!(*recurrence.unwrap(), Recurrence::new(schedule));
        }
        assert_eq!(read(&["--in", "5s"]), Some((Due::In(seconds(5)), None)));
    }

    #[test]
    fn the_rest_of_a_recurrence_needs_a_schedule() {
        let rest = [
            "--repeats",
            "3",
            "--until",
            "2026-03-01T12:00:00Z",
            "--jitter-window",
            "5s",
            "--overlap",
            "queue",
        ];
        let (_, recurrence) = read(&[&["--every", "30s"], &rest[..]].concat()).unwrap();
        let recurrence = recurrence.unwrap();
        assert_eq!(recurrence.repeats, NonZeroU32::new(3));
        assert_eq!(
            recurrence.until,
            Some(Timestamp::from_micros(1_772_366_400_000_000))
        );
        assert_eq!(recurrence.jitter, Duration::from_secs(5));
        assert_eq!(recurrence.overlap, Overlap::Queue);
        for option in rest.chunks(2) {
            assert_eq!(read(&[&["--in", "5s"], option].concat()), None);
        }
        for refused in [
            &[][..],
            &["--every", "1s", "--every-after", "1s"],
            &["--every", "1s", "--cron", "@daily"],
            &["--every", "1s", "--zone", "UTC"],
            &["--cron", "60 * * * *"],
            &["--cron", "@daily", "--zone", "Nowhere"],
            &["--every", "1s", "--repeats", "0"],
            &["--every", "1s", "--overlap", "allow"],
        ] {
            assert_eq!(read(refused), None, "{refused:?}");
        }
    }

    #[test]
    fn a_schedule_is_described_in_one_line() {
        let cron = json!({"cron": "0 9 * * MON-FRI", "zone": "Europe/Berlin", "overlap": "skip",
                          "repeats": 9, "jitter": "1m", "run": 3, "missed_runs": 2,
                          "overlapped_runs": 0, "dead_runs": 1});
        assert_eq!(
            describe(&cron).unwrap(),
            "0 9 * * MON-FRI  Europe/Berlin; up to 1m later; run 3 of 9; 2 missed; 1 dead"
        );
        let rate = json!({"every": "30s", "run": 1});
        assert_eq!(describe(&rate).unwrap(), "every 30s; run 1");
        assert_eq!(describe(&Value::Null), None);
    }

    #[test]
    fn what_becomes_of_a_missed_timer_has_three_forms() {
        assert_eq!(missed("fire"), Ok(Missed::Fire));
        assert_eq!(missed("collapse"), Ok(Missed::Collapse));
        let minutes = Duration::from_secs(300);
        assert_eq!(missed("skip:5m"), Ok(Missed::SkipIfOlderThan(minutes)));
        for bad in ["", "skip", "skip:", "skip:5", "ignore"] {
            assert!(missed(bad).is_err(), "{bad}");
        }
    }
}
