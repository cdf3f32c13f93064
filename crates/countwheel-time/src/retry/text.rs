//! Retry policies as text: `15s,15s,30s,3m`, `dubbo`, `exp:1s..1h*3 attempts=6 jitter=equal`.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

use super::{Delays, Jitter, Preset, RetryPolicy, RetryPolicyError, Shape};
use crate::duration::{UNITS, read_duration};

/// Why a text is no [`RetryPolicy`]. Each reason has the word that is at fault.
///
/// ```
/// use countwheel_time::{Preset, RetryPolicy, RetryTextError};
///
/// let error = "15s,15x".parse::<RetryPolicy>().unwrap_err();
/// assert_eq!(error, RetryTextError::Duration("15x".to_owned()));
/// assert_eq!(error.to_string(), "\"15x\" is no duration such as 15s, 1h30m or 250ms");
/// let error = "wechta".parse::<RetryPolicy>().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "\"wechta\" is none of dubbo, dubbo-registry, eureka, go-zero, wechat, 15s,15s,30s, \
///      fixed:5s, linear:3s+5s, exp:1s..1h, exp:1s..1h*3"
/// );
/// let error = "wechat attempts=0".parse::<RetryPolicy>().unwrap_err();
/// assert_eq!(error.to_string(), "\"attempts=0\": there is at least one attempt: the first");
/// assert!(matches!("wechta".parse::<Preset>(), Err(RetryTextError::Schedule(_))));
/// ```
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum RetryTextError {
    /// There is no word.
    Empty,
    /// The first word is neither the name of a preset nor the delays of a schedule.
    Schedule(String),
    /// Not a duration as [`read_duration`] reads it.
    Duration(String),
    /// Not a number where one is needed.
    Number(String),
    /// Not an option.
    Option(String),
    /// An option that was there before.
    Twice(String),
    /// A word that no policy can have.
    Policy {
        /// The word.
        word: String,
        /// What is wrong with it.
        source: RetryPolicyError,
    },
}

impl Display for RetryTextError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a retry policy has at least one word, such as 15s,30s,3m"),
            Self::Schedule(word) => {
                write!(f, "{word:?} is none of ")?;
                for preset in Preset::ALL {
                    write!(f, "{preset}, ")?;
                }
                f.write_str("15s,15s,30s, fixed:5s, linear:3s+5s, exp:1s..1h, exp:1s..1h*3")
            }
            Self::Duration(word) => {
                write!(f, "{word:?} is no duration such as 15s, 1h30m or 250ms")
            }
            Self::Number(word) => write!(f, "{word:?} is no number"),
            Self::Option(word) => write!(
                f,
                "{word:?} is none of attempts=6, age=1h, cap=1m, jitter=equal, jitter=0.05, \
                 repeat, retry-after-cap=2m"
            ),
            Self::Twice(word) => write!(f, "{word:?} is there twice"),
            Self::Policy { word, source } => write!(f, "{word:?}: {source}"),
        }
    }
}

impl Error for RetryTextError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Policy { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl Display for Preset {
    /// Its [`name`](Self::name).
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Preset {
    type Err = RetryTextError;

    /// The preset of that name: see [`from_name`](Self::from_name).
    fn from_str(name: &str) -> Result<Self, RetryTextError> {
        Self::from_name(name).ok_or_else(|| RetryTextError::Schedule(name.to_owned()))
    }
}

impl Display for RetryPolicy {
    /// The shortest text that [`from_str`](Self::from_str) reads as an equal policy.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let settings = self.settings();
        let base = settings.preset.map(Preset::policy);
        let mut cap = settings.cap;
        if let Some(preset) = settings.preset {
            f.write_str(preset.name())?;
            cap = None;
        } else {
            match settings.delays {
                Delays::List(delays) => {
                    for (place, &delay) in delays.iter().enumerate() {
                        let comma = if place == 0 { "" } else { "," };
                        write!(f, "{comma}{}", Span(delay))?;
                    }
                }
                Delays::Fixed(delay) => write!(f, "fixed:{}", Span(delay))?,
                Delays::Linear { first, increment } => {
                    write!(f, "linear:{}", Span(first))?;
                    write_cap(f, cap.take())?;
                    write!(f, "+{}", Span(increment))?;
                }
                Delays::Exponential { first, factor } => {
                    write!(f, "exp:{}", Span(first))?;
                    write_cap(f, cap.take())?;
                    if factor != DOUBLING {
                        write!(f, "*{factor}")?;
                    }
                }
            }
        }
        if settings.repeats_last {
            f.write_str(" repeat")?;
        }
        if let Some(cap) = cap {
            write!(f, " cap={}", Span(cap))?;
        }
        match settings.jitter {
            Jitter::None => {}
            Jitter::Proportional(share) => write!(f, " jitter={}", share.get())?,
            jitter => write!(f, " jitter={}", jitter.name())?,
        }
        if let Some(attempts) = settings.max_attempts
            && base.is_none_or(|base| base.max_attempts != Some(attempts))
        {
            write!(f, " attempts={attempts}")?;
        }
        if let Some(age) = settings.max_age {
            write!(f, " age={}", Span(age))?;
        }
        if let Some(cap) = settings.retry_after_cap {
            write!(f, " retry-after-cap={}", Span(cap))?;
        }
        Ok(())
    }
}

fn write_cap(f: &mut Formatter<'_>, cap: Option<Duration>) -> fmt::Result {
    cap.map_or(Ok(()), |cap| write!(f, "..{}", Span(cap)))
}

/// The factor of an exponential schedule whose text has none.
const DOUBLING: f64 = 2.0;

impl FromStr for RetryPolicy {
    type Err = RetryTextError;

    /// Reads a schedule and, after spaces, its options.
    ///
    /// | schedule | what |
    /// |---|---|
    /// | `wechat`, `dubbo`, `dubbo-registry`, `eureka`, `go-zero` | a [`Preset`] |
    /// | `15s,15s,30s,3m` | a [`list`](RetryPolicy::list) |
    /// | `fixed:5s` | [`fixed`](RetryPolicy::fixed) |
    /// | `linear:3s+5s`, `linear:3s..1h+5s` | [`linear`](RetryPolicy::linear), without a cap and with one |
    /// | `exp:1s`, `exp:1s..1h`, `exp:1s..1h*3` | [`exponential`](RetryPolicy::exponential): doubling, with a cap, with another factor |
    ///
    /// | option | what |
    /// |---|---|
    /// | `attempts=6` | [`max_attempts`](RetryPolicy::max_attempts) |
    /// | `age=5m` | [`max_age`](RetryPolicy::max_age) |
    /// | `cap=1m` | [`cap`](RetryPolicy::cap), for schedules that have no place for one |
    /// | `jitter=full`, `jitter=equal`, `jitter=none`, `jitter=0.05` | [`jitter`](RetryPolicy::jitter), the last a share up and down |
    /// | `repeat` | [`repeat_last`](RetryPolicy::repeat_last) |
    /// | `retry-after-cap=2m` | [`retry_after_cap`](RetryPolicy::retry_after_cap) |
    ///
    /// A duration is one that [`read_duration`] reads, such as `1h30m`, without blanks.
    ///
    /// ```
    /// use countwheel_time::{Jitter, RetryPolicy, RetryTextError};
    /// use std::time::Duration;
    ///
    /// let secs = Duration::from_secs;
    /// let list: RetryPolicy = "15s,15s,30s,3m".parse()?;
    /// assert_eq!(list, RetryPolicy::list([15, 15, 30, 180].map(secs)).unwrap());
    /// assert_eq!("dubbo".parse(), Ok(RetryPolicy::dubbo_failback()));
    /// let sofa: RetryPolicy = "linear:3s+5s attempts=3".parse()?;
    /// assert_eq!(sofa, RetryPolicy::linear(secs(3), secs(5)).max_retries(2));
    /// let default: RetryPolicy = "exp:10s..6h jitter=full attempts=20".parse()?;
    /// assert_eq!(default, RetryPolicy::default());
    /// assert_eq!(default.to_string(), "exp:10s..6h jitter=full attempts=20");
    /// # Ok::<(), RetryTextError>(())
    /// ```
    fn from_str(text: &str) -> Result<Self, RetryTextError> {
        let mut words = text.split_ascii_whitespace();
        let mut policy = schedule(words.next().ok_or(RetryTextError::Empty)?)?;
        let mut seen: Vec<&str> = Vec::new();
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            policy = match name {
                "repeat" if word == name => policy.repeat_last(),
                "attempts" => {
                    let attempts = value.parse().map_err(|_| number(word))?;
                    policy.max_attempts(attempts).map_err(wrong(word))?
                }
                "age" => policy.max_age(duration(value)?),
                "cap" => policy.cap(duration(value)?),
                "jitter" => policy.jitter(jitter(word, value)?),
                "retry-after-cap" => policy.retry_after_cap(duration(value)?),
                _ => return Err(RetryTextError::Option(word.to_owned())),
            };
            if seen.contains(&name) {
                return Err(RetryTextError::Twice(name.to_owned()));
            }
            seen.push(name);
        }
        Ok(policy)
    }
}

fn number(word: &str) -> RetryTextError {
    RetryTextError::Number(word.to_owned())
}

fn wrong(word: &str) -> impl FnOnce(RetryPolicyError) -> RetryTextError {
    let word = word.to_owned();
    move |source| RetryTextError::Policy { word, source }
}

fn schedule(word: &str) -> Result<RetryPolicy, RetryTextError> {
    if let Some(preset) = Preset::from_name(word) {
        return Ok(preset.policy());
    }
    if let Some(delay) = word.strip_prefix("fixed:") {
        return Ok(RetryPolicy::fixed(duration(delay)?));
    }
    if let Some(rest) = word.strip_prefix("linear:") {
        let split = rest.split_once('+');
        let (range, increment) = split.ok_or_else(|| RetryTextError::Schedule(word.to_owned()))?;
        let (first, cap) = range_of(range)?;
        let increment = duration(increment)?;
        let policy = RetryPolicy::new(Shape::Linear { first, increment });
        return Ok(capped(policy, cap));
    }
    if let Some(rest) = word.strip_prefix("exp:") {
        let (range, factor) = match rest.split_once('*') {
            Some((range, text)) => (range, text.parse().map_err(|_| number(text))?),
            None => (rest, DOUBLING),
        };
        let (first, cap) = range_of(range)?;
        let policy = RetryPolicy::exponential(first, factor).map_err(wrong(word))?;
        return Ok(capped(policy, cap));
    }
    if word.starts_with(|first: char| first.is_ascii_digit()) {
        let delays: Result<Vec<_>, _> = word.split(',').map(duration).collect();
        return RetryPolicy::list(delays?).map_err(wrong(word));
    }
    Err(RetryTextError::Schedule(word.to_owned()))
}

fn range_of(range: &str) -> Result<(Duration, Option<Duration>), RetryTextError> {
    match range.split_once("..") {
        Some((first, cap)) => Ok((duration(first)?, Some(duration(cap)?))),
        None => Ok((duration(range)?, None)),
    }
}

fn capped(policy: RetryPolicy, cap: Option<Duration>) -> RetryPolicy {
    match cap {
        Some(cap) => policy.cap(cap),
        None => policy,
    }
}

fn jitter(word: &str, value: &str) -> Result<Jitter, RetryTextError> {
    match value {
        "none" => Ok(Jitter::None),
        "full" => Ok(Jitter::Full),
        "equal" => Ok(Jitter::Equal),
        share => {
            let share = share.parse().map_err(|_| number(word))?;
            Jitter::proportional(share).map_err(wrong(word))
        }
    }
}

/// A duration, written as [`duration`] reads it.
struct Span(Duration);

impl Display for Span {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut nanos = self.0.as_nanos();
        if nanos == 0 {
            return f.write_str("0s");
        }
        // Without weeks: ten days are 10d.
        for unit in &UNITS[1..] {
            let count = nanos / u128::from(unit.nanos);
            nanos %= u128::from(unit.nanos);
            if count > 0 {
                write!(f, "{count}{}", unit.name())?;
            }
        }
        Ok(())
    }
}

fn duration(word: &str) -> Result<Duration, RetryTextError> {
    read_duration(word).map_err(|_| RetryTextError::Duration(word.to_owned()))
}

#[cfg(feature = "serde")]
mod data {
    use std::fmt::{self, Formatter};
    use std::marker::PhantomData;
    use std::str::FromStr;

    use serde::de::{Deserialize, Deserializer, Error, Visitor};
    use serde::ser::{Serialize, Serializer};

    use super::{Display, Preset, RetryPolicy, RetryTextError};

    /// Reads a text by its `FromStr`, without a copy of it.
    struct Text<T>(PhantomData<T>);

    impl<T: FromStr<Err = RetryTextError>> Visitor<'_> for Text<T> {
        type Value = T;

        fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
            f.write_str("a retry policy such as 15s,15s,30s,3m")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }

    fn write<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    /// As its text, with the feature `serde`.
    impl Serialize for RetryPolicy {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            write(self, serializer)
        }
    }

    /// From its text, with the feature `serde`.
    impl<'de> Deserialize<'de> for RetryPolicy {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_str(Text(PhantomData))
        }
    }

    /// As its name, with the feature `serde`.
    impl Serialize for Preset {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            write(self, serializer)
        }
    }

    /// From its name, with the feature `serde`.
    impl<'de> Deserialize<'de> for Preset {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_str(Text(PhantomData))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<RetryPolicy, RetryTextError> {
        text.parse()
    }

    #[test]
    fn every_policy_is_read_as_it_was_written() {
        let secs = Duration::from_secs;
        let doubling = RetryPolicy::exponential(secs(1), 2.0).unwrap();
        let odd = Duration::new(90_061, 2_003_004);
        let list = RetryPolicy::list([secs(0), odd, Duration::MAX]).unwrap();
        let mut policies = vec![
            RetryPolicy::default(),
            RetryPolicy::fixed(odd).cap(secs(3)),
            RetryPolicy::linear(secs(3), secs(5)),
            RetryPolicy::linear(secs(3), secs(5)).cap(secs(60)),
            RetryPolicy::exponential(odd, 1.1).unwrap().cap(secs(9)),
            list.clone(),
            list.clone().repeat_last(),
            list.repeat_last().max_retries(7).cap(odd),
            doubling.retry_after_cap(odd).max_age(odd),
        ];
        for preset in Preset::ALL {
            let policy = preset.policy();
            policies.push(policy.clone().max_retries(2).repeat_last());
            policies.push(policy.clone().max_retries(99).repeat_last());
            policies.push(policy.clone().cap(secs(7)));
            policies.push(policy.jitter(Jitter::proportional(0.05).unwrap()));
        }
        for policy in policies {
            let text = policy.to_string();
            assert_eq!(read(&text), Ok(policy), "{text}");
        }
        for text in [
            "15s,15s,30s,3m",
            "wechat",
            "dubbo",
            "dubbo-registry",
            "eureka",
            "go-zero",
            "dubbo attempts=3",
            "fixed:1d1h1m1s1ms1us1ns",
            "linear:3s..1m+5s jitter=equal",
            "exp:1s*3 age=1h30m",
            "1s,2s repeat cap=1s jitter=0.25 attempts=9 age=1m retry-after-cap=0s",
        ] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
        assert_eq!(read("dubbo-failback"), read("dubbo"));
        assert_eq!(read("1.5s,PT30M,1min"), read("1s500ms,30m,60s"));
        assert_eq!(
            read(" go-zero-cleaner  attempts=2 "),
            read("go-zero attempts=2")
        );
    }

    #[test]
    fn a_text_that_is_no_policy_is_refused_with_the_word_at_fault() {
        use RetryTextError::{Duration as Span, Empty, Number, Option, Schedule, Twice};
        let of = |error: fn(String) -> RetryTextError, word: &str| error(word.to_owned());
        let cases = [
            ("", Empty),
            ("  ", Empty),
            ("wechta", of(Schedule, "wechta")),
            ("Wechat", of(Schedule, "Wechat")),
            ("linear:3s", of(Schedule, "linear:3s")),
            ("15", of(Span, "15")),
            ("15s,", of(Span, "")),
            ("15s,,3m", of(Span, "")),
            ("15s,3x", of(Span, "3x")),
            ("15s,1m1h", of(Span, "1m1h")),
            ("fixed:", of(Span, "")),
            ("fixed:s", of(Span, "s")),
            ("fixed:-1s", of(Span, "-1s")),
            ("fixed:1s5", of(Span, "1s5")),
            (
                "fixed:99999999999999999999d",
                of(Span, "99999999999999999999d"),
            ),
            ("fixed:9999999999999999999999999999999999999999d", {
                of(Span, "9999999999999999999999999999999999999999d")
            }),
            ("linear:3s+", of(Span, "")),
            ("linear:3s..+1s", of(Span, "")),
            ("exp:1s..", of(Span, "")),
            ("exp:1s*two", of(Number, "two")),
            ("wechat attempts=many", of(Number, "attempts=many")),
            ("wechat attempts=-1", of(Number, "attempts=-1")),
            ("wechat jitter=some", of(Number, "jitter=some")),
            ("wechat repeat=1", of(Option, "repeat=1")),
            ("wechat 5", of(Option, "5")),
            ("wechat age=", of(Span, "")),
            ("wechat age=1m age=1m", of(Twice, "age")),
        ];
        for (text, expected) in cases {
            let error = read(text).unwrap_err();
            assert_eq!(error, expected, "{text}");
            assert!(!error.to_string().is_empty() && error.source().is_none());
        }
        for (text, at_fault) in [
            ("exp:1s*0.5", "exp:1s*0.5"),
            ("exp:1s*NaN", "exp:1s*NaN"),
            ("exp:1s*inf", "exp:1s*inf"),
            ("wechat attempts=0", "attempts=0"),
            ("wechat jitter=1.5", "jitter=1.5"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.source().is_some());
            let RetryTextError::Policy { word, .. } = error else {
                panic!("{text}: {error}");
            };
            assert_eq!(word, at_fault);
        }
    }
}
