//! What only these tests need: a timer on somebody's runtime, and what was logged.

use std::env;
use std::fmt;
use std::pin::Pin;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use countwheel::{Clock, Instant, ManualClock, Timer, TimerBuilder};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A timer driven by a future, as on somebody's runtime, that sleeps on a clock moved by hand.
pub(crate) struct Hosted {
    pub(crate) timer: Timer,
    pub(crate) clock: ManualClock,
    host: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    roused: Arc<Flag>,
    naps: Arc<Mutex<Naps>>,
}

#[derive(Default)]
struct Naps {
    until: Option<Instant>,
    spans: Vec<Duration>,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct Nap {
    clock: Arc<dyn Clock>,
    until: Instant,
    naps: Arc<Mutex<Naps>>,
}

impl Future for Nap {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        let over = self.clock.now() >= self.until;
        self.naps.lock().unwrap().until = (!over).then_some(self.until);
        if over { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Nap {
    fn drop(&mut self) {
        self.naps.lock().unwrap().until = None;
    }
}

impl Hosted {
    pub(crate) fn new(builder: TimerBuilder) -> Self {
        let clock = ManualClock::new();
        Self::with(builder.clock(clock.clone()), clock)
    }

    /// The builder has a clock already, which agrees with this one on when a sleep is over.
    pub(crate) fn with(builder: TimerBuilder, clock: ManualClock) -> Self {
        let naps = Arc::<Mutex<Naps>>::default();
        let shared = Arc::clone(&naps);
        let sleeper: Arc<dyn Clock> = Arc::new(clock.clone());
        let (timer, host) = builder.build_hosted(move |span| {
            shared.lock().unwrap().spans.push(span);
            let until = sleeper.now() + span;
            let (clock, naps) = (Arc::clone(&sleeper), Arc::clone(&shared));
            Nap { clock, until, naps }
        });
        let roused = Arc::<Flag>::default();
        roused.0.store(true, Ordering::SeqCst);
        Self {
            timer,
            clock,
            host: Some(Box::pin(host)),
            roused,
            naps,
        }
    }

    /// Polls the host for as long as somebody wakes it. False once it has ended.
    pub(crate) fn settle(&mut self) -> bool {
        while self.roused.0.swap(false, Ordering::SeqCst) {
            self.poll();
        }
        self.host.is_some()
    }

    pub(crate) fn poll(&mut self) {
        let waker = Waker::from(Arc::clone(&self.roused));
        if let Some(host) = &mut self.host
            && host
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_ready()
        {
            self.host = None;
        }
    }

    /// Lets `span` pass. The host wakes whenever a sleep of its is over.
    pub(crate) fn advance(&mut self, span: Duration) {
        let target = self.clock.now() + span;
        self.settle();
        while let Some(until) = self.asleep_until().filter(|&until| until <= target) {
            self.clock.advance(until.saturating_since(self.clock.now()));
            self.poll();
            self.settle();
        }
        self.clock
            .advance(target.saturating_since(self.clock.now()));
    }

    /// Until when the host sleeps; `None` is for ever.
    pub(crate) fn asleep_until(&self) -> Option<Instant> {
        self.naps.lock().unwrap().until
    }

    /// How long it slept each time.
    pub(crate) fn naps(&self) -> Vec<Duration> {
        self.naps.lock().unwrap().spans.clone()
    }

    pub(crate) fn drop_host(&mut self) {
        self.host = None;
    }
}

/// One warning or error that was logged.
#[derive(Clone, Debug)]
pub(crate) struct Logged {
    pub(crate) level: Level,
    /// All fields, the message first among them, as `name=value`.
    pub(crate) text: String,
}

/// What the whole process has logged since the first call of [`log`].
pub(crate) struct Log(Mutex<Vec<Logged>>);

/// Records warnings and errors from now on.
pub(crate) fn log() -> &'static Log {
    static LOG: OnceLock<&'static Log> = OnceLock::new();
    LOG.get_or_init(|| {
        let log: &'static Log = Box::leak(Box::new(Log(Mutex::default())));
        tracing::subscriber::set_global_default(Recorder(log)).unwrap();
        log
    })
}

impl Log {
    /// Those that contain all of these words.
    pub(crate) fn with(&self, words: &[&str]) -> Vec<Logged> {
        let logged = self.0.lock().unwrap();
        let matching = logged
            .iter()
            .filter(|one| words.iter().all(|word| one.text.contains(word)));
        matching.cloned().collect()
    }
}

struct Recorder(&'static Log);

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        let logged = Logged {
            level: *event.metadata().level(),
            text: fields.0,
        };
        self.0.0.lock().unwrap().push(logged);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        use std::fmt::Write;
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

/// For what a process does once: runs the test again, in a process of its own. True there.
pub(crate) fn is_alone_in_its_process(test: &str) -> bool {
    const ALONE: &str = "COUNTWHEEL_TEST_ALONE";
    if env::var_os(ALONE).is_some() {
        return true;
    }
    let alone = Command::new(env::current_exe().unwrap())
        .args(["--exact", test])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&alone.stdout);
    assert!(
        alone.status.success() && said.contains("1 passed"),
        "{said}"
    );
    false
}
