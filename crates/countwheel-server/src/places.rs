//! The places that callers' connections have. When all are taken, the connection that has idled for
//! longest makes room for one that comes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::http::header;
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::sync::Notify;

use crate::leftover::{self, Lingers};

/// The places of one listener.
#[derive(Debug)]
pub(crate) struct Places {
    state: Mutex<State>,
    /// A place may be free, or a connection idles.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    most: usize,
    taken: usize,
    /// Grows with each look at the state, so that the lowest has idled for longest.
    next: u64,
    idle: BTreeMap<u64, Arc<Notify>>,
}

/// A place that a connection has, until this goes.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    told: Arc<Notify>,
    /// Under which number it idles.
    idles: Mutex<Option<u64>>,
}

impl Places {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                most,
                taken: 0,
                next: 0,
                idle: BTreeMap::new(),
            }),
            changed: Notify::new(),
        })
    }

    /// From now on there are so many. Those that are too many go as they idle.
    pub(crate) fn set_most(&self, most: usize) {
        let mut state = lock(&self.state);
        state.most = most;
        let too_many = state.taken.saturating_sub(most);
        for _ in 0..too_many {
            if let Some((_, idle)) = state.idle.pop_first() {
                idle.notify_one();
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Waits for a place, and has the connection give one up that has idled for longest.
    pub(crate) async fn take(self: &Arc<Self>) -> Arc<Place> {
        // One that was told is on its way out.
        let mut has_told = false;
        loop {
            {
                let mut state = lock(&self.state);
                if state.taken < state.most {
                    state.taken += 1;
                    break;
                }
                if !has_told && let Some((_, idle)) = state.idle.pop_first() {
                    idle.notify_one();
                    has_told = true;
                }
            }
            self.changed.notified().await;
        }
        let place = Arc::new(Place {
            places: Arc::clone(self),
            told: Arc::default(),
            idles: Mutex::default(),
        });
        place.idles();
        place
    }
}

impl Place {
    /// Waits until the connection is to make room.
    pub(crate) async fn told(&self) {
        self.told.notified().await;
    }

    /// Whether no request is being answered.
    pub(crate) fn is_idle(&self) -> bool {
        lock(&self.idles).is_some()
    }

    fn idles(&self) {
        let mut state = lock(&self.places.state);
        let number = state.next;
        state.next += 1;
        state.idle.insert(number, Arc::clone(&self.told));
        *lock(&self.idles) = Some(number);
        drop(state);
        self.places.changed.notify_one();
    }

    fn works(&self) {
        let mut state = lock(&self.places.state);
        if let Some(number) = lock(&self.idles).take() {
            state.idle.remove(&number);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.works();
        lock(&self.places.state).taken -= 1;
        self.places.changed.notify_one();
    }
}

/// The router, for one connection.
#[derive(Clone)]
pub(crate) struct Answering {
    pub(crate) router: TowerToHyperService<Router>,
    pub(crate) place: Arc<Place>,
    pub(crate) lingers: Lingers,
}

impl Service<Request<Incoming>> for Answering {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.place.works();
        let waits = request.headers().contains_key(header::EXPECT);
        let (request, leftover) = leftover::watched(request.map(Body::new));
        let (answer, place) = (self.router.call(request), Arc::clone(&self.place));
        let lingers = self.lingers.clone();
        Box::pin(async move {
            let mut answer = answer.await?;
            leftover.read(waits, &mut answer, &lingers).await;
            place.idles();
            Ok(answer)
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the future is ready now.
    async fn is_ready(future: impl Future) -> bool {
        tokio::select! {
            biased;
            _ = future => true,
            () = tokio::task::yield_now() => false,
        }
    }

    #[tokio::test]
    async fn who_has_idled_for_longest_makes_room() {
        let places = Places::new(2);
        let first = places.take().await;
        let second = places.take().await;
        first.works();
        first.idles();
        assert!(!is_ready(places.take()).await);
        assert!(is_ready(second.told()).await);
        assert!(!is_ready(first.told()).await);
        drop(second);
        assert!(is_ready(places.take()).await);
    }

    #[tokio::test]
    async fn who_works_is_left_alone() {
        let places = Places::new(1);
        let only = places.take().await;
        only.works();
        assert!(!is_ready(places.take()).await);
        assert!(!is_ready(only.told()).await && !only.is_idle());
    }

    #[tokio::test]
    async fn fewer_places_are_taken_back_from_those_that_idle() {
        let places = Places::new(3);
        let held = [places.take().await, places.take().await];
        places.set_most(1);
        assert!(is_ready(held[0].told()).await);
        assert!(!is_ready(held[1].told()).await);
    }
}
