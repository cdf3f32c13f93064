//! Our requests in flight.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use countwheel::Timer;
use countwheel_patterns::{RequestError, RequestId, Requests, Response};

use super::Calls;

#[derive(Clone)]
pub(crate) struct Ours(Requests<u64>);

pub(crate) struct Answer(Response<u64>);

impl Future for Answer {
    type Output = Option<u64>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<u64>> {
        Pin::new(&mut self.0).poll(cx).map(|answer| match answer {
            Ok(value) => Some(value),
            Err(RequestError::TimedOut { .. }) => None,
            Err(error) => panic!("nobody has ended it otherwise: {error}"),
        })
    }
}

impl Calls for Ours {
    type Id = RequestId;
    type Answer = Answer;
    type Entered = ();

    fn start() -> anyhow::Result<Self> {
        Ok(Self(Requests::new(Timer::new())))
    }

    fn enter(&self) {}

    #[inline]
    fn register(&self, limit: Duration) -> (RequestId, Answer) {
        let response = self.0.register(limit);
        let response = response.expect("nobody stops them, and there is no bound");
        (response.id(), Answer(response))
    }

    #[inline]
    fn complete(&self, id: RequestId, value: u64) -> bool {
        self.0.complete(id, value).is_ok()
    }

    fn in_flight(&self) -> u64 {
        self.0.in_flight()
    }
}
