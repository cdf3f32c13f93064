//! The addresses of names: the system's resolver, and the guard. The connection goes to one of the
//! checked addresses.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use dns_lookup::{AddrInfoHints, LookupErrorKind, SockType};
use hyper_util::client::legacy::connect::dns::Name;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tower_service::Service;

use crate::guard::Targets;

/// A name has no address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum NotResolved {
    /// The target's name leads nowhere.
    #[error("name not resolved")]
    Nowhere,
    /// No name server answers, whatever the name: that says nothing of the target.
    #[error("no name server answers")]
    NoResolver,
}

/// Why one look-up found nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NotFound {
    /// The name servers say so.
    Nowhere,
    /// The name servers said nothing, or that they cannot tell.
    Unanswered,
}

/// A name that no name server knows (RFC 6761): those that answer say so.
const NOBODY: &str = "resolver-check.invalid";

/// A look-up that takes longer is slow.
const SLOW: Duration = Duration::from_secs(1);
/// So many slow names are remembered.
const KNOWN_MAX: usize = 4_096;

type Addresses = Result<Vec<SocketAddr>, NotResolved>;

/// Looks each name up once at a time, whoever waits for it. The system cannot be told to give up, so
/// a name server that is silent holds a thread long after the attempts have ended: one for each of
/// its names, and not one for each attempt.
///
/// A name that takes long has a thread for as long. So that those of one queue do not hold up the names
/// of all others, a look-up that is not at its end after a second goes on among the **slow** ones, of which
/// there are half as many as threads, and its place is free; a name that was slow begins among them.
#[derive(Clone, Debug)]
pub(crate) struct Resolver {
    /// `None` if whatever is found may be connected to.
    targets: Option<Targets>,
    /// The port to which a connection is made to what is found.
    port: u16,
    threads: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    /// The names whose last look-up was slow.
    known: Arc<Mutex<HashSet<Name>>>,
    has_slow: bool,
    /// The names that are looked up, each with what will come of it.
    waiting: Arc<Mutex<HashMap<Name, watch::Receiver<Option<Addresses>>>>>,
    look_up: fn(&str) -> Result<Vec<SocketAddr>, NotFound>,
    /// When a look-up is slow.
    after: Duration,
    /// The last look-up that came to its end had no answer of any name server.
    is_silent: Arc<AtomicBool>,
}

type BoxError = Box<dyn Error + Send + Sync>;

impl Resolver {
    /// Looks up so many names at a time.
    pub(crate) fn new(lookups: usize) -> Self {
        Self::with(Targets::public(), lookups, of_system)
    }

    /// Whether no name server answered the look-up that came to its end last.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
    }

    fn with(
        targets: Targets,
        lookups: usize,
        look_up: fn(&str) -> Result<Vec<SocketAddr>, NotFound>,
    ) -> Self {
        // One thread is for both kinds, and a slow name then holds up the others.
        let slow = lookups / 2;
        Self {
            targets: Some(targets),
            port: 80,
            threads: Arc::new(Semaphore::new(lookups - slow)),
            slow: Arc::new(Semaphore::new(slow)),
            known: Arc::default(),
            has_slow: slow > 0,
            waiting: Arc::default(),
            look_up,
            after: SLOW,
            is_silent: Arc::default(),
        }
    }

    /// The same for connections to that port, where these targets may be connected to.
    pub(crate) fn towards(&self, port: u16, targets: &Targets) -> Self {
        Self {
            targets: Some(targets.clone()),
            port,
            ..self.clone()
        }
    }

    /// The same for connections to that port of the operator's proxy, wherever that is.
    pub(crate) fn anywhere(&self, port: u16) -> Self {
        Self {
            targets: None,
            port,
            ..self.clone()
        }
    }

    async fn addresses(self, name: Name) -> Addresses {
        let mut found = {
            let mut waiting = self.waiting.lock();
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
        found.map_or(Err(NotResolved::Nowhere), |found| {
            found.clone().unwrap_or(Err(NotResolved::Nowhere))
        })
    }

    fn is_known(&self, name: &Name) -> bool {
        // Without any for them, slow names are like all others.
        self.known.lock().contains(name)
    }

    /// Notes how a look-up went.
    fn learn(&self, name: Name, is_slow: bool) {
        let mut known = self.known.lock();
        if !is_slow {
            known.remove(&name);
        } else if self.has_slow && known.len() < KNOWN_MAX {
            known.insert(name);
        }
    }

    async fn find(self, name: Name, send: watch::Sender<Option<Addresses>>) {
        let found = self.on_a_thread(name.clone()).await;
        let is_silent = matches!(found, Err(NotResolved::NoResolver));
        self.is_silent.store(is_silent, Ordering::Relaxed);
        let mut waiting = self.waiting.lock();
        waiting.remove(&name);
        send.send_replace(Some(found));
    }

    async fn on_a_thread(&self, name: Name) -> Addresses {
        let mut permit = if self.is_known(&name) {
            self.slow.acquire().await
        } else {
            self.threads.acquire().await
        };
        let (look_up, looked_up) = (self.look_up, name.clone());
        let looked_up = tokio::task::spawn_blocking(move || answer(look_up, looked_up.as_str()));
        tokio::pin!(looked_up);
        let ended = tokio::time::timeout(self.after, looked_up.as_mut()).await;
        self.learn(name, ended.is_err());
        let looked_up = if let Ok(looked_up) = ended {
            looked_up
        } else {
            tokio::select! {
                biased;
                looked_up = looked_up.as_mut() => looked_up,
                slow = self.slow.acquire() => {
                    permit = slow;
                    looked_up.await
                }
            }
        };
        drop(permit);
        looked_up.unwrap_or(Err(NotResolved::Nowhere))
    }
}

/// Looks a name up. If there is no answer, a name that nobody has tells whether it is the name that is at fault, or
/// that no name server answers.
fn answer(look_up: fn(&str) -> Result<Vec<SocketAddr>, NotFound>, name: &str) -> Addresses {
    match look_up(name) {
        Ok(addresses) if addresses.is_empty() => Err(NotResolved::Nowhere),
        Ok(addresses) => Ok(addresses),
        Err(NotFound::Nowhere) => Err(NotResolved::Nowhere),
        Err(NotFound::Unanswered) => Err(match look_up(NOBODY) {
            Err(NotFound::Unanswered) => NotResolved::NoResolver,
            Ok(_) | Err(NotFound::Nowhere) => NotResolved::Nowhere,
        }),
    }
}

/// The system's resolver.
fn of_system(name: &str) -> Result<Vec<SocketAddr>, NotFound> {
    let hints = AddrInfoHints {
        socktype: SockType::Stream.into(),
        ..AddrInfoHints::default()
    };
    let found = dns_lookup::getaddrinfo(Some(name), None, Some(hints));
    let found = found.map_err(|error| match error.kind() {
        LookupErrorKind::Again
        | LookupErrorKind::Fail
        | LookupErrorKind::Memory
        | LookupErrorKind::System => NotFound::Unanswered,
        _ => NotFound::Nowhere,
    })?;
    Ok(found.flatten().map(|found| found.sockaddr).collect())
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
            let (targets, port) = (resolver.targets.clone(), resolver.port);
            let addresses = resolver.addresses(name.clone()).await?;
            // One that is refused spoils them all: which is used is left to chance.
            if let Some(targets) = targets {
                for address in &addresses {
                    targets.check_address(name.as_str(), port, address.ip())?;
                }
            }
            Ok(addresses.into_iter())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const LOOKUPS_MAX: usize = 64;

    static SILENT: Mutex<()> = Mutex::new(());
    static SLOW_NAMES: Mutex<()> = Mutex::new(());
    static ASKED: AtomicUsize = AtomicUsize::new(0);

    fn look_up(name: &str) -> Result<Vec<SocketAddr>, NotFound> {
        match name {
            "silent.example" => {
                ASKED.fetch_add(1, Ordering::SeqCst);
                drop(SILENT.lock());
                Ok(vec![SocketAddr::from(([192, 0, 2, 1], 0))])
            }
            name if name.starts_with("slow-") => {
                drop(SLOW_NAMES.lock());
                Err(NotFound::Nowhere)
            }
            "nowhere.example" | NOBODY => Err(NotFound::Nowhere),
            "broken.example" => Err(NotFound::Unanswered),
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
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let mut resolver = Resolver::with(Targets::any(), LOOKUPS_MAX, look_up);
        let mut ask = |name: &str| runtime.spawn(resolver.call(name.parse().unwrap()));
        let silence = SILENT.lock();
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
        assert!(resolver.waiting.lock().is_empty());
        assert_eq!(ASKED.load(Ordering::SeqCst), 1);
    }

    /// As many slow names of one queue as there were threads, and no name of another was looked up.
    #[test]
    fn slow_names_hold_up_the_others_once_and_not_for_long() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let mut resolver = Resolver::with(Targets::any(), 8, look_up);
        resolver.after = Duration::from_millis(20);
        let mut ask = |name: String| runtime.spawn(resolver.call(name.parse().unwrap()));
        let silence = SLOW_NAMES.lock();
        let slow: Vec<_> = (0..8).map(|n| ask(format!("slow-{n}.example"))).collect();
        // The first four have begun, and are slow by now; so are the next four, but they keep their places.
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(100)).await });
        drop(silence);
        for one in slow {
            assert!(runtime.block_on(one).unwrap().is_err());
        }
        // Now they are known, and as many as there may be begin among themselves.
        let silence = SLOW_NAMES.lock();
        let slow: Vec<_> = (0..8).map(|n| ask(format!("slow-{n}.example"))).collect();
        let other = ask("other.example".to_owned());
        let found: Vec<_> = runtime.block_on(other).unwrap().unwrap().collect();
        assert_eq!(found, [SocketAddr::from(([127, 0, 0, 1], 0))]);
        drop(silence);
        for one in slow {
            assert!(runtime.block_on(one).unwrap().is_err());
        }
    }

    /// A name whose own servers are silent is at fault itself: the others are found.
    #[test]
    fn that_no_name_server_answers_is_told_from_a_name_that_leads_nowhere() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let none = |_: &str| Err(NotFound::Unanswered);
        for (look_up, name, expected) in [
            (
                look_up as fn(&str) -> _,
                "broken.example",
                NotResolved::Nowhere,
            ),
            (look_up, "nowhere.example", NotResolved::Nowhere),
            (none, "other.example", NotResolved::NoResolver),
        ] {
            let mut resolver = Resolver::with(Targets::any(), LOOKUPS_MAX, look_up);
            let answer = runtime.block_on(async { resolver.call(name.parse().unwrap()).await });
            let error = answer.map(drop).expect_err(name);
            assert_eq!(
                error.downcast_ref::<NotResolved>(),
                Some(&expected),
                "{name}"
            );
            let is_silent = expected == NotResolved::NoResolver;
            assert_eq!(resolver.is_silent(), is_silent, "{name}");
        }
    }

    fn allowed(text: &str) -> Targets {
        Targets::public().with_allowed(vec![text.parse().unwrap()])
    }

    #[test]
    fn a_name_is_allowed_at_the_port_that_was_named() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        for (text, port, is_open) in [
            ("other.example:81", 81, true),
            ("other.example:81", 80, false),
            ("127.0.0.0/8:81", 81, true),
            ("*.example", 80, true),
        ] {
            let resolver = Resolver::with(Targets::public(), LOOKUPS_MAX, look_up);
            let mut resolver = resolver.towards(port, &allowed(text));
            let answer =
                runtime.block_on(async { resolver.call("other.example".parse().unwrap()).await });
            assert_eq!(answer.is_ok(), is_open, "{text} {port}");
        }
    }

    #[test]
    fn a_name_without_an_address_is_not_resolved_and_one_refused_address_is_enough() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        for (targets, name, refusal) in [
            (Targets::any(), "empty.example", "name not resolved"),
            (Targets::any(), "metadata.example", "metadata"),
            (Targets::public(), "other.example", "not public"),
            (allowed("other.example:81"), "other.example", "not public"),
        ] {
            let mut resolver = Resolver::with(targets, LOOKUPS_MAX, look_up);
            let answer = runtime.block_on(async { resolver.call(name.parse().unwrap()).await });
            let error = answer.map(drop).expect_err(name).to_string();
            assert!(error.contains(refusal), "{name}: {error}");
        }
    }
}
