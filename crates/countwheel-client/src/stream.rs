//! A stream of what a function of a state brings, one step after the other.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

/// One step: the state that follows, and what it brought; nothing at the end.
pub(crate) type Step<S, T> = Pin<Box<dyn Future<Output = (S, Option<T>)> + Send>>;

pub(crate) struct Steps<S, T> {
    state: Option<S>,
    running: Option<Step<S, T>>,
    step: fn(S) -> Step<S, T>,
}

impl<S, T> Steps<S, T> {
    pub(crate) fn new(state: S, step: fn(S) -> Step<S, T>) -> Self {
        Self {
            state: Some(state),
            running: None,
            step,
        }
    }
}

impl<S: Unpin, T> Stream for Steps<S, T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(state) = self.state.take() {
            self.running = Some((self.step)(state));
        }
        let Some(running) = &mut self.running else {
            return Poll::Ready(None);
        };
        let (state, item) = ready!(running.as_mut().poll(context));
        self.running = None;
        self.state = item.is_some().then_some(state);
        Poll::Ready(item)
    }
}
