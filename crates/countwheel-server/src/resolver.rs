//! Where names lead: the system's resolver, and the guard. The connection goes to one of the very
//! addresses that were checked.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::dns::Name;
use tokio::sync::{Semaphore, watch};
use tower_service::Service;

use crate::guard::Targets;

/// The target's name leads nowhere.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("name not resolved")]
pub(crate) struct NotResolved;

type Addresses = Result<Vec<SocketAddr>, NotResolved>;

/// Looks each name up once at a time, whoever waits for it. The system cannot be told to give up, so
/// a name server that is silent holds a thread long after the attempts have ended: one for each of
/// its names, and not one for each attempt.
#[derive(Clone, Debug)]
pub(crate) struct Resolver {
    targets: Targets,
    threads: Arc<Semaphore>,
    /// The names that are looked up, each with what will come of it.
    waiting: Arc<Mutex<HashMap<Name, watch::Receiver<Option<Addresses>>>>>,
    look_up: fn(&str) -> io::Result<Vec<SocketAddr>>,
}

type BoxError = Box<dyn Error + Send + Sync>;

impl Resolver {
    /// Looks up so many names at a time.
    pub(crate) fn new(targets: Targets, lookups: usize) -> Self {
        Self::with(targets, lookups, |name| {
            Ok((name, 0).to_socket_addrs()?.collect())
        })
    }

    fn with(
        targets: Targets,
        lookups: usize,
        look_up: fn(&str) -> io::Result<Vec<SocketAddr>>,
    ) -> Self {
        Self {
            targets,
            threads: Arc::new(Semaphore::new(lookups)),
            waiting: Arc::default(),
            look_up,
        }
    }

    async fn addresses(self, name: Name) -> Addresses {
        let mut found = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            match waiting.entry(name.clone()) {
                Entry::Occupied(begun) => begun.get().clone(),
                Entry::Vacant(place) => {
                    let (send, found) = watch::channel(None);
                    place.insert(found.clone());
                    // Not of the attempt that is the first to ask: that one may end before it.
                    tokio::spawn(self.clone().find(name, send));
                    found
                }
            }
        };
        let found = found.wait_for(Option::is_some).await;
        found.map_or(Err(NotResolved), |found| {
            found.clone().unwrap_or(Err(NotResolved))
        })
    }

    async fn find(self, name: Name, send: watch::Sender<Option<Addresses>>) {
        let found = self.on_a_thread(name.clone()).await;
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.remove(&name);
        send.send_replace(Some(found));
    }

    async fn on_a_thread(&self, name: Name) -> Addresses {
        let permit = self.threads.acquire().await;
        let look_up = self.look_up;
        let looked_up = tokio::task::spawn_blocking(move || look_up(name.as_str())).await;
        drop(permit);
        let addresses = looked_up
            .map_err(|_| NotResolved)?
            .map_err(|_| NotResolved)?;
        if addresses.is_empty() {
            return Err(NotResolved);
        }
        Ok(addresses)
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let resolver = self.clone();
        Box::pin(async move {
            let targets = resolver.targets.clone();
            let addresses = resolver.addresses(name).await?;
            // One that is refused spoils them all: which is used is left to chance.
            for address in &addresses {
                targets.check_address(address.ip())?;
            }
            Ok(addresses.into_iter())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const LOOKUPS_MAX: usize = 64;

    static SILENT: Mutex<()> = Mutex::new(());
    static ASKED: AtomicUsize = AtomicUsize::new(0);

    fn look_up(name: &str) -> io::Result<Vec<SocketAddr>> {
        match name {
            "silent.example" => {
                ASKED.fetch_add(1, Ordering::SeqCst);
                drop(SILENT.lock());
                Ok(vec![SocketAddr::from(([192, 0, 2, 1], 0))])
            }
            "nowhere.example" => Err(io::ErrorKind::NotFound.into()),
            "empty.example" => Ok(Vec::new()),
            "metadata.example" => Ok(vec![
                SocketAddr::from(([192, 0, 2, 1], 0)),
                SocketAddr::from(([169, 254, 169, 254], 0)),
            ]),
            _ => Ok(vec![SocketAddr::from(([127, 0, 0, 1], 0))]),
        }
    }

    #[test]
    fn a_silent_name_holds_up_no_other() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        let mut resolver = Resolver::with(Targets::any(), LOOKUPS_MAX, look_up);
        let mut ask = |name: &str| runtime.spawn(resolver.call(name.parse().unwrap()));
        let silence = SILENT.lock().unwrap();
        let first = ask("silent.example");
        let waiting: Vec<_> = (0..2 * LOOKUPS_MAX)
            .map(|_| ask("silent.example"))
            .collect();
        let (other, nowhere) = (ask("other.example"), ask("nowhere.example"));
        runtime.block_on(async {
            let other: Vec<_> = other.await.unwrap().unwrap().collect();
            assert_eq!(other, [SocketAddr::from(([127, 0, 0, 1], 0))]);
            assert!(nowhere.await.unwrap().is_err());
            // The attempt that asked first ends before there is an answer.
            first.abort();
            assert!(first.await.unwrap_err().is_cancelled());
        });
        drop(silence);
        runtime.block_on(async {
            for one in waiting {
                assert_eq!(one.await.unwrap().unwrap().count(), 1);
            }
        });
        assert!(resolver.waiting.lock().unwrap().is_empty());
        assert_eq!(ASKED.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_name_without_an_address_is_not_resolved_and_one_refused_address_is_enough() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        for (targets, name, refusal) in [
            (Targets::any(), "empty.example", "name not resolved"),
            (Targets::any(), "metadata.example", "metadata"),
            (Targets::public(), "other.example", "not public"),
        ] {
            let mut resolver = Resolver::with(targets, LOOKUPS_MAX, look_up);
            let answer = runtime.block_on(async { resolver.call(name.parse().unwrap()).await });
            let error = answer.map(drop).expect_err(name).to_string();
            assert!(error.contains(refusal), "{name}: {error}");
        }
    }
}
