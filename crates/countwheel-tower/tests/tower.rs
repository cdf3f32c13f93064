//! The layers around services that are told when to answer, by a clock that is moved by hand, and by tokio's.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "tower/tower_retry.rs"]
mod tower_retry;
#[path = "tower/tower_stack.rs"]
mod tower_stack;
#[path = "tower/tower_timeout.rs"]
mod tower_timeout;

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use countwheel::Instant;
use countwheel_tower::{Deadline, WithDeadline};
use tower::Service;

const SECOND: Duration = Duration::from_secs(1);

type Request = WithDeadline<u32>;

fn at(seconds: f64) -> Deadline {
    Deadline::at(Instant::ZERO + Duration::from_secs_f64(seconds))
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// The output of a future that is ready.
fn now_or_never<F: Future + Unpin>(mut future: F) -> F::Output {
    match poll(&mut future) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it is not ready"),
    }
}

/// What a service does with a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Does {
    Answers(u32),
    Fails(&'static str),
    Hangs,
}

/// A service that does what it is told, one thing for each call, and keeps what it got. It insists on what Tower
/// demands: the instance that is called was ready before. Clones share all but that.
#[derive(Default)]
struct Told {
    shared: Arc<Mutex<Shared>>,
    is_ready: bool,
}

#[derive(Default)]
struct Shared {
    todo: Vec<Does>,
    got: Vec<Request>,
    /// How many polls find it not ready.
    busy_polls: usize,
    is_broken: bool,
    /// How many calls are in flight.
    in_flight: usize,
}

impl Told {
    fn new(todo: &[Does]) -> Self {
        let told = Self::default();
        told.with(|shared| shared.todo = todo.iter().copied().rev().collect());
        told
    }

    fn with<R>(&self, look: impl FnOnce(&mut Shared) -> R) -> R {
        look(&mut self.shared.lock().unwrap())
    }

    fn deadlines(&self) -> Vec<Deadline> {
        self.with(|shared| shared.got.iter().map(|request| request.deadline).collect())
    }

    fn calls(&self) -> usize {
        self.with(|shared| shared.got.len())
    }

    fn in_flight(&self) -> usize {
        self.with(|shared| shared.in_flight)
    }
}

impl Clone for Told {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            is_ready: false,
        }
    }
}

impl Service<Request> for Told {
    type Response = u32;
    type Error = &'static str;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let poll = self.with(|shared| {
            if shared.is_broken {
                return Poll::Ready(Err("broken"));
            }
            match shared.busy_polls.checked_sub(1) {
                None => Poll::Ready(Ok(())),
                Some(left) => {
                    shared.busy_polls = left;
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        });
        self.is_ready = poll == Poll::Ready(Ok(()));
        poll
    }

    fn call(&mut self, request: Request) -> Answer {
        assert!(self.is_ready, "a service is called when it is ready");
        self.is_ready = false;
        let does = self.with(|shared| {
            shared.got.push(request);
            shared.in_flight += 1;
            shared.todo.pop().expect("no call more than was told")
        });
        Answer {
            does,
            shared: Arc::clone(&self.shared),
        }
    }
}

struct Answer {
    does: Does,
    shared: Arc<Mutex<Shared>>,
}

impl Future for Answer {
    type Output = Result<u32, &'static str>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        match self.does {
            Does::Answers(answer) => Poll::Ready(Ok(answer)),
            Does::Fails(error) => Poll::Ready(Err(error)),
            Does::Hangs => Poll::Pending,
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.shared.lock().unwrap().in_flight -= 1;
    }
}

/// Makes a call of a service that is ready.
fn call<S: Service<Request, Error: std::fmt::Debug>>(
    service: &mut S,
    request: Request,
) -> Pin<Box<S::Future>> {
    let mut cx = Context::from_waker(Waker::noop());
    let ready = service.poll_ready(&mut cx);
    assert!(matches!(ready, Poll::Ready(Ok(()))), "{ready:?}");
    Box::pin(service.call(request))
}
