//! How a request carries its deadline.

use countwheel_patterns::Deadline;

/// A request that knows when its answer has to be there. The layers read the deadline and shorten it.
///
/// With the cargo feature `http`, `http::Request` carries a [`Deadline`] among its extensions, where an
/// extractor or the inner service finds it. A request type of others is wrapped: [`WithDeadline`].
///
/// ```
/// use countwheel::Instant;
/// use countwheel_tower::{CarriesDeadline, Deadline};
///
/// #[derive(Clone)]
/// struct Query {
///     text: &'static str,
///     deadline: Deadline,
/// }
///
/// impl CarriesDeadline for Query {
///     fn deadline(&self) -> Deadline {
///         self.deadline
///     }
///
///     fn set_deadline(&mut self, deadline: Deadline) {
///         self.deadline = deadline;
///     }
/// }
///
/// let mut query = Query { text: "select 1", deadline: Deadline::NEVER };
/// query.set_deadline(Deadline::at(Instant::from_nanos(5)));
/// assert_eq!(query.deadline().instant(), Instant::from_nanos(5));
/// assert_eq!(query.text, "select 1");
/// ```
pub trait CarriesDeadline {
    /// When the answer has to be there: [`Deadline::NEVER`] if nobody has set a limit.
    fn deadline(&self) -> Deadline;

    /// Replaces the deadline. A layer sets one that is no later than the one before.
    fn set_deadline(&mut self, deadline: Deadline);
}

/// A request of any type with a deadline beside it.
///
/// ```
/// use countwheel_tower::{CarriesDeadline, Deadline, WithDeadline};
///
/// let request = WithDeadline::from("no limit");
/// assert_eq!(request.deadline(), Deadline::NEVER);
/// assert_eq!(request, WithDeadline::new("no limit", Deadline::NEVER));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WithDeadline<R> {
    /// The request.
    pub request: R,
    /// When its answer has to be there.
    pub deadline: Deadline,
}

impl<R> WithDeadline<R> {
    /// A request whose answer has to be there at `deadline`.
    pub const fn new(request: R, deadline: Deadline) -> Self {
        Self { request, deadline }
    }
}

impl<R> From<R> for WithDeadline<R> {
    /// Without a limit.
    fn from(request: R) -> Self {
        Self::new(request, Deadline::NEVER)
    }
}

impl<R> CarriesDeadline for WithDeadline<R> {
    fn deadline(&self) -> Deadline {
        self.deadline
    }

    fn set_deadline(&mut self, deadline: Deadline) {
        self.deadline = deadline;
    }
}

/// The deadline is the extension of type [`Deadline`]; without one there is no limit.
///
/// ```
/// use countwheel::Instant;
/// use countwheel_tower::{CarriesDeadline, Deadline};
///
/// let mut request = http::Request::new("body");
/// assert_eq!(request.deadline(), Deadline::NEVER);
/// let soon = Deadline::at(Instant::from_nanos(5));
/// request.set_deadline(soon);
/// assert_eq!(request.extensions().get(), Some(&soon));
/// ```
#[cfg(feature = "http")]
impl<B> CarriesDeadline for http::Request<B> {
    fn deadline(&self) -> Deadline {
        let carried = self.extensions().get();
        carried.copied().unwrap_or(Deadline::NEVER)
    }

    fn set_deadline(&mut self, deadline: Deadline) {
        self.extensions_mut().insert(deadline);
    }
}
