//! What a request may name: everything, or what is in the namespace of its token.
//!
//! A queue and an endpoint of a namespace have its name in front of theirs, as in `tenant-7/orders`. What is in another
//! namespace than that of the token is not there, and neither is what is in a namespace that nobody has made.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{Method, Request, Uri};
use countwheel_durable::{Namespace, QueueName};

use super::App;
use super::access::{self, Identity};
use super::json::Field;
use super::problem::{Code, Problem};
use super::request::{invalid_endpoint, text_segment};
use crate::resources::Resources;
use crate::resources::endpoint::EndpointName;
use crate::resources::namespace::{namespace_in, prefix_of};

/// What a request may name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// Everything.
    Whole,
    /// What is in this namespace.
    Of(Namespace),
}

impl Reach {
    /// That of a request.
    pub(crate) fn of(request: &Request<Body>) -> Self {
        Self::of_identity(request.extensions().get())
    }

    pub(crate) fn of_identity(identity: Option<&Identity>) -> Self {
        match identity.and_then(Identity::namespace) {
            Some(namespace) => Self::Of(namespace.clone()),
            None => Self::Whole,
        }
    }

    /// The namespace, if it is one.
    pub(crate) fn namespace(&self) -> Option<&Namespace> {
        match self {
            Self::Whole => None,
            Self::Of(own) => Some(own),
        }
    }

    /// Whether what is in this namespace may be named.
    pub(crate) fn has(&self, namespace: &str) -> bool {
        match self {
            Self::Whole => true,
            Self::Of(own) => own.as_str() == namespace,
        }
    }

    /// The queue that a field names.
    ///
    /// # Errors
    /// [`Code::InvalidQueue`] for what is no name, [`Code::NotFound`] for one in a namespace of others.
    pub(super) fn queue(&self, field: &Field<'_>) -> Result<QueueName, Problem> {
        let queue = QueueName::from_text(field.text()?);
        let queue = queue.map_err(|error| Problem::from(error).at(field.pointer()))?;
        match self.has(queue.namespace()) {
            true => Ok(queue),
            false => Err(no_such_namespace().at(field.pointer())),
        }
    }

    /// The endpoint that a field names.
    ///
    /// # Errors
    /// [`Code::InvalidEndpoint`] for what is no name, [`Code::NotFound`] for one in a namespace of others.
    pub(super) fn endpoint(&self, field: &Field<'_>) -> Result<EndpointName, Problem> {
        let name = EndpointName::new(&field.text()?);
        let name = name.map_err(|_| invalid_endpoint().at(field.pointer()))?;
        match self.has(name.namespace()) {
            true => Ok(name),
            false => Err(no_such_namespace().at(field.pointer())),
        }
    }

    /// Whether the namespace is there, for this request.
    ///
    /// # Errors
    /// [`Code::NotFound`], alike for one that is not there and for that of others.
    pub(super) async fn find(&self, app: &App, namespace: &str) -> Result<(), Problem> {
        let is_there = self.has(namespace) && is_there(app, namespace).await?;
        is_there.then_some(()).ok_or_else(no_such_namespace)
    }

    /// The beginning that names have which begin with `wanted` and may be named.
    pub(super) fn narrowed(&self, wanted: Option<String>) -> Option<String> {
        let Self::Of(namespace) = self else {
            return wanted;
        };
        let own = prefix_of(namespace.as_str());
        let wanted = wanted.unwrap_or_default();
        Some(if wanted.starts_with(&own) {
            wanted
        } else if own.starts_with(&wanted) {
            own
        } else {
            // No name begins with it: what stands behind the first slash has none.
            format!("{own}/")
        })
    }
}

impl<S: Sync> FromRequestParts<S> for Reach {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of_identity(parts.extensions.get()))
    }
}

/// Whether there is such a namespace; `default` always is. Another node may have put it a moment ago.
async fn is_there(app: &App, namespace: &str) -> Result<bool, Problem> {
    if namespace == Namespace::DEFAULT_NAME {
        return Ok(true);
    }
    Ok(app.resources().await?.namespace(namespace).is_some()
        || app.look().await?.namespace(namespace).is_some())
}

/// The same of what is known, for a change that is done only if nothing of that has changed.
///
/// # Errors
/// [`Code::NotFound`] if the namespace was removed.
pub(super) fn demand(known: &Resources, namespace: &str) -> Result<(), Problem> {
    let is_there = namespace == Namespace::DEFAULT_NAME || known.namespace(namespace).is_some();
    is_there.then_some(()).ok_or_else(no_such_namespace)
}

pub(super) fn no_such_namespace() -> Problem {
    Problem::new(Code::NotFound, "there is no such namespace")
}

/// Whether a token of a namespace opens the path at all: what it names is looked at there, or by the handler.
fn is_of_namespaces(method: &Method, path: &str) -> bool {
    let Some(rest) = path.strip_prefix("/v1/") else {
        return false;
    };
    let reads = matches!(*method, Method::GET | Method::HEAD);
    match rest.split('/').next().unwrap_or_default() {
        "queues" => reads || rest != "queues",
        "namespaces" => reads,
        "timers" | "jobs" | "batch" | "events" | "endpoints" | "tokens" | "simulate" | "leases"
        | "leases:ack" | "leases:nack" | "leases:extend" => true,
        _ => false,
    }
}

/// The namespace of the queue or the endpoint that a path names.
pub(crate) fn namespace_of_path(uri: &Uri) -> Option<Arc<str>> {
    let mut segments = uri.path().split('/').skip(1);
    let (Some("v1"), Some("queues" | "endpoints"), Some(_)) =
        (segments.next(), segments.next(), segments.next())
    else {
        return None;
    };
    // What is no text is no name, and in no other namespace.
    let name = text_segment(uri, 3).unwrap_or_default();
    Some(namespace_in(&name).into())
}

/// What a request is about, as far as its path says it.
#[derive(Debug)]
pub(super) struct Aim {
    reach: Reach,
    namespace: Option<Arc<str>>,
}

impl Aim {
    /// That of a request.
    ///
    /// # Errors
    /// [`Code::Forbidden`] if the path is of the whole service, and the token of a namespace.
    pub(super) fn of(request: &Request<Body>) -> Result<Self, Problem> {
        let reach = Reach::of(request);
        let (method, path) = (request.method(), request.uri().path());
        let is_guarded = access::scope_of(method, path).is_some();
        if is_guarded && reach != Reach::Whole && !is_of_namespaces(method, path) {
            let detail = "the token is of a namespace, and this is of the whole service";
            return Err(Problem::new(Code::Forbidden, detail));
        }
        let namespace = namespace_of_path(request.uri());
        Ok(Self { reach, namespace })
    }

    /// Looks whether the namespace is there.
    ///
    /// # Errors
    /// [`Code::NotFound`], alike for one that is not there and for that of others.
    pub(super) async fn check(&self, app: &App) -> Result<(), Problem> {
        let Some(namespace) = &self.namespace else {
            return Ok(());
        };
        if Namespace::new(&**namespace).is_err() && self.reach == Reach::Whole {
            // The handler says what is wrong with it.
            return Ok(());
        }
        self.reach.find(app, namespace).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_narrowed_to_the_namespace() {
        let own = Reach::Of(Namespace::new("t-7").unwrap());
        let narrowed = |wanted: Option<&str>| own.narrowed(wanted.map(str::to_owned)).unwrap();
        assert_eq!(narrowed(None), "t-7/");
        assert_eq!(narrowed(Some("t")), "t-7/");
        assert_eq!(narrowed(Some("t-7/o")), "t-7/o");
        for others in ["t-77", "t-7x/", "t-8/", "orders", "t-7//"] {
            let prefix = narrowed(Some(others));
            assert!(prefix.starts_with("t-7//"), "{others}: {prefix}");
            assert!(QueueName::from_text(format!("{prefix}x")).is_err());
        }
        assert_eq!(Reach::Whole.narrowed(None), None);
    }
}
