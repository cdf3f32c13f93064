//! Which requests are made again after a failure, and when.

use std::time::Duration;

use countwheel_time::{Random, RetryPolicy};
use hyper::Method;
use hyper::http::request::Parts;
use tokio::time::Instant;

use super::ClientError;

/// The header of a request that is done once however often it comes.
pub(super) const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// How long a server may make a caller wait whose policy does not say it.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Put into a request that is the same however often it comes, although its method does not say so.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repeatable(pub(super) bool);

/// What a failure says of its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failed {
    /// Nothing was done, and the next try may go better.
    NothingDone,
    /// It may have been done.
    Unsure,
    /// The next try would fail as well.
    ForGood,
}

fn failed(error: &ClientError) -> Failed {
    match error {
        ClientError::Unreachable { .. } => Failed::NothingDone,
        ClientError::Broken { .. } | ClientError::Silent { .. } => Failed::Unsure,
        ClientError::Foreign { status, .. } if *status >= 500 => Failed::Unsure,
        ClientError::Refused(problem) => match (problem.status, problem.code.as_str()) {
            // A wait leaves the quota and what the namespace has as they are.
            (_, "quota_exceeded") => Failed::ForGood,
            (429 | 507, _)
            | (409, "idempotency_in_progress")
            | (503, "unavailable" | "shard_unavailable" | "store_unavailable") => {
                Failed::NothingDone
            }
            (503, _) => Failed::Unsure,
            _ => Failed::ForGood,
        },
        _ => Failed::ForGood,
    }
}

/// The tries of one request.
pub(super) struct Tries<'a> {
    policy: Option<&'a RetryPolicy>,
    is_repeatable: bool,
    seed: u64,
    began: Instant,
    failures: u32,
    /// A try before this one may have taken effect.
    is_unsure: bool,
}

impl<'a> Tries<'a> {
    pub(super) fn new(policy: Option<&'a RetryPolicy>, request: &Parts) -> Self {
        let by_method = matches!(request.method, Method::GET | Method::PUT | Method::DELETE);
        let is_repeatable = match request.extensions.get() {
            Some(Repeatable(is_repeatable)) => *is_repeatable,
            None => by_method || request.headers.contains_key(IDEMPOTENCY_KEY),
        };
        Self {
            policy,
            is_repeatable,
            seed: Random::unseeded().draw(),
            began: Instant::now(),
            failures: 0,
            is_unsure: false,
        }
    }

    /// Whether a try before the last one may have taken effect.
    pub(super) fn is_unsure(&self) -> bool {
        self.is_unsure
    }

    /// After how long the request is made again; `None` if it is not.
    pub(super) fn again_after(&mut self, error: &ClientError) -> Option<Duration> {
        let policy = self.policy?;
        match failed(error) {
            Failed::NothingDone => {}
            Failed::Unsure if self.is_repeatable => self.is_unsure = true,
            Failed::Unsure | Failed::ForGood => return None,
        }
        self.failures += 1;
        let settings = policy.settings();
        let asked = error.problem().and_then(|problem| problem.retry_after);
        let most = settings.retry_after_cap.unwrap_or(RETRY_AFTER_MAX);
        let delay = policy.seeded_delay(self.failures, self.seed)?;
        let delay = delay.max(asked.unwrap_or_default().min(most));
        let is_late = |age| self.began.elapsed() + delay > age;
        (!settings.max_age.is_some_and(is_late)).then_some(delay)
    }

    /// Marks a refusal that may be of the effect of an earlier try.
    pub(super) fn mark(&self, mut error: ClientError) -> ClientError {
        if let ClientError::Refused(problem) = &mut error {
            problem.repeated = self.is_unsure;
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::super::Problem;
    use super::*;

    fn parts(method: Method, key: Option<&str>, repeatable: Option<bool>) -> Parts {
        let mut request = hyper::Request::builder().method(method).uri("/v1/queues");
        if let Some(key) = key {
            request = request.header(IDEMPOTENCY_KEY, key);
        }
        if let Some(is_repeatable) = repeatable {
            request = request.extension(Repeatable(is_repeatable));
        }
        request.body(()).unwrap().into_parts().0
    }

    fn refused(status: u16, code: &str) -> ClientError {
        ClientError::Refused(Box::new(Problem {
            status,
            code: code.to_owned(),
            ..Problem::default()
        }))
    }

    fn silent() -> ClientError {
        ClientError::Silent {
            server: "http://x".to_owned(),
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn what_may_have_been_done_is_repeated_only_if_that_does_no_harm() {
        let policy = RetryPolicy::fixed(Duration::from_millis(5)).max_retries(2);
        for (method, key, repeatable, expected) in [
            (Method::GET, None, None, true),
            (Method::PUT, None, None, true),
            (Method::DELETE, None, None, true),
            (Method::POST, None, None, false),
            (Method::POST, Some("\"k\""), None, true),
            (Method::PATCH, None, None, false),
            (Method::PATCH, None, Some(true), true),
            (Method::PUT, None, Some(false), false),
        ] {
            let request = parts(method, key, repeatable);
            let mut tries = Tries::new(Some(&policy), &request);
            let again = tries.again_after(&silent()).is_some();
            assert_eq!(again, expected, "{request:?}");
            assert_eq!(tries.is_unsure(), expected, "{request:?}");
            // Nothing was done, so nothing can be done twice.
            let mut tries = Tries::new(Some(&policy), &request);
            let error = refused(503, "store_unavailable");
            assert!(tries.again_after(&error).is_some(), "{request:?}");
            assert!(!tries.is_unsure(), "{request:?}");
            // What the server does not take, it does not take later either.
            for (status, code) in [(422, "invalid_target"), (507, "quota_exceeded")] {
                let error = refused(status, code);
                assert!(tries.again_after(&error).is_none(), "{request:?}: {code}");
            }
        }
    }

    #[test]
    fn the_policy_says_how_often_and_the_server_how_late() {
        let policy = RetryPolicy::fixed(Duration::from_millis(5))
            .max_retries(2)
            .retry_after_cap(Duration::from_secs(9));
        let request = parts(Method::GET, None, None);
        let mut tries = Tries::new(Some(&policy), &request);
        let mut asked = refused(429, "overloaded");
        if let ClientError::Refused(problem) = &mut asked {
            problem.retry_after = Some(Duration::from_secs(3_600));
        }
        assert_eq!(tries.again_after(&asked), Some(Duration::from_secs(9)));
        assert_eq!(tries.again_after(&silent()), Some(Duration::from_millis(5)));
        assert_eq!(tries.again_after(&silent()), None, "two retries");
        assert_eq!(Tries::new(None, &request).again_after(&silent()), None);
        let short = RetryPolicy::fixed(Duration::from_secs(5)).max_age(Duration::from_secs(4));
        assert_eq!(
            Tries::new(Some(&short), &request).again_after(&silent()),
            None,
            "the next try would be too old"
        );
    }

    #[test]
    fn a_refusal_after_a_try_that_may_have_worked_says_so() {
        let policy = RetryPolicy::fixed(Duration::from_millis(5));
        let request = parts(Method::DELETE, None, None);
        let mut tries = Tries::new(Some(&policy), &request);
        let first = tries.mark(refused(404, "not_found"));
        assert!(!first.problem().unwrap().repeated);
        tries.again_after(&silent()).unwrap();
        let second = tries.mark(refused(404, "not_found"));
        assert!(second.problem().unwrap().repeated);
    }
}
