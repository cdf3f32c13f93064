//! The layers together, and with Tower's own.

use std::time::Duration;

use countwheel::Timer;
use countwheel_tower::{
    Cut, Deadline, GiveUp, RetryError, RetryLayer, RetryPolicy, TimeoutError, TimeoutLayer,
    WithDeadline,
};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt};

use super::{Does, Request, SECOND, Told, call};

/// All attempts together, the attempts, each attempt.
fn stack(
    timer: &Timer,
    told: &Told,
) -> impl Service<
    Request,
    Response = u32,
    Error = TimeoutError<RetryError<TimeoutError<&'static str>>>,
    Future: Send,
> {
    let policy = RetryPolicy::fixed(SECOND).max_retries(9);
    ServiceBuilder::new()
        .layer(TimeoutLayer::new(timer.clone(), 10 * SECOND))
        .layer(RetryLayer::new(timer.clone(), policy))
        .layer(TimeoutLayer::new(timer.clone(), 2 * SECOND))
        .service(told.clone())
}

#[tokio::test(start_paused = true)]
async fn each_attempt_has_its_limit_and_all_together_the_outer_one() {
    let timer = Timer::on_tokio().unwrap();
    let told = Told::new(&[Does::Hangs; 4]);
    let mut service = stack(&timer, &told);
    let start = timer.now();
    let error = call(&mut service, 1.into()).await.unwrap_err();
    // Attempts of 2 s at 0, 3, 6 and 9 s, the last with 1 s left.
    let second = |seconds: u64| Deadline::at(start + Duration::from_secs(seconds));
    assert_eq!(told.deadlines(), [2, 5, 8, 10].map(second));
    assert_eq!(timer.now(), second(10).instant());
    // The inner limit of the last attempt is that deadline, and no attempt would follow it.
    let TimeoutError::Inner(RetryError::NoTime { error, attempts }) = error else {
        panic!("{error}");
    };
    assert_eq!(attempts, 4);
    let Some(TimeoutError::Elapsed(elapsed)) = error else {
        panic!("{error:?}")
    };
    assert_eq!(
        (elapsed.cut, elapsed.had),
        (Cut::Deadline(second(10)), SECOND)
    );
}

#[tokio::test(start_paused = true)]
async fn what_the_caller_leaves_is_the_limit_of_the_whole_stack() {
    let timer = Timer::on_tokio().unwrap();
    let told = Told::new(&[Does::Hangs, Does::Hangs]);
    let mut service = stack(&timer, &told);
    let left = Deadline::after(&timer, 4 * SECOND);
    let failed = call(&mut service, WithDeadline::new(1, left)).await;
    let Err(TimeoutError::Inner(RetryError::NoTime { attempts: 2, .. })) = failed else {
        panic!("{failed:?}");
    };
    assert_eq!(timer.now(), left.instant());
}

#[tokio::test(start_paused = true)]
async fn boxed_errors_of_towers_layers_get_through_both() {
    let timer = Timer::on_tokio().unwrap();
    let told = Told::new(&[Does::Fails("down"), Does::Fails("down")]);
    let buffered = ServiceBuilder::new()
        .buffer(4)
        .concurrency_limit(2)
        .map_err(BoxError::from)
        .service(told.clone());
    let policy = RetryPolicy::fixed(SECOND).max_retries(1);
    let service = TimeoutLayer::new(timer.clone(), 10 * SECOND).layer(buffered);
    let service = service.map_err(TimeoutError::into_boxed);
    let service = RetryLayer::new(timer.clone(), policy).layer(service);
    let service = ServiceBuilder::new()
        .map_err(|error: RetryError<BoxError>| {
            assert!(matches!(
                error,
                RetryError::GaveUp {
                    reason: GiveUp::Attempts,
                    ..
                }
            ));
            error.into_boxed()
        })
        .service(service);
    let error: BoxError = service.oneshot(1.into()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "given up after attempt 2: all attempts were made"
    );
    assert_eq!(error.source().unwrap().to_string(), "down");
    assert_eq!(told.calls(), 2);
}

/// A server's stack needs services whose futures are `Send`, and that are cloned.
#[test]
fn the_services_are_what_servers_ask_for() {
    fn is_fit<S: Service<R, Future: Send> + Clone + Send + Sync + 'static, R>(_: &S) {}
    let timer = Timer::new();
    let limited = TimeoutLayer::new(timer.clone(), SECOND).layer(Told::default());
    is_fit::<_, Request>(&limited);
    is_fit::<_, Request>(&RetryLayer::new(timer, RetryPolicy::default()).layer(limited));
}

#[cfg(feature = "http")]
#[tokio::test(start_paused = true)]
async fn a_request_of_http_takes_its_deadline_from_a_header_to_the_handler() {
    use countwheel_tower::{CarriesDeadline, grpc_timeout};

    let timer = Timer::on_tokio().unwrap();
    let clock = timer.clone();
    let read_header = move |mut request: http::Request<&'static str>| {
        if let Some(header) = request.headers().get("grpc-timeout") {
            let left = grpc_timeout::read(header.to_str().unwrap(), clock.now()).unwrap();
            request.set_deadline(left);
        }
        request
    };
    let service = ServiceBuilder::new()
        .map_request(read_header)
        .layer(TimeoutLayer::new(timer.clone(), 60 * SECOND))
        .service_fn(async |request: http::Request<&'static str>| {
            Ok::<_, BoxError>(*request.extensions().get::<Deadline>().unwrap())
        });
    let request = http::Request::builder();
    let request = request.header("grpc-timeout", "250m").body("get").unwrap();
    let now = timer.now();
    let deadline = service.clone().oneshot(request).await.unwrap();
    assert_eq!(deadline.remaining(now), SECOND / 4);
    let deadline = service.oneshot(http::Request::new("get")).await.unwrap();
    assert_eq!(deadline.remaining(now), 60 * SECOND);
}
