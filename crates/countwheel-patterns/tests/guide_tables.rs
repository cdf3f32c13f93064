//! Each row of a table of the guide that names a call of ours has a test that makes it.
//!
//! A call is a public function or constant that stands in such a row, in code; in a table that
//! compares, in the column that says what is here. [`PROOFS`] names the tests of each row. The tests that
//! no other file has are below.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

#[path = "../../countwheel/tests/support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use countwheel::{
    By, Clock, Driver, Health, Instant, Interval, KeyedTimer, Layout, ManualClock, ManualHost,
    MissedTicks, Move, Overload, PeriodError, Resolution, ScheduleError, SetError, Stop,
    SystemClock, Timeout, TimeoutError, Timer,
};
use countwheel_patterns::{
    Attempt, DUBBO_TIMEOUT, DelayQueue, ExpiringMap, Failure, KeyedDelayQueue, Periodic,
    RequestError, Requests, Retry, RetryPolicy, StopSignal, Supervised, Ttl,
};

use support::{Count, Desk, HOUR, Journal, MS, Presence, SECOND, block_on};

/// By page: the rows, named by their first cells, and the tests that make their calls.
#[rustfmt::skip]
const PROOFS: &[(&str, &[(&str, &str)])] = &[
    ("capacity", &[
        ("cheap, and may come early", "exp::what_the_executor_has_no_room_for_may_be_handed_back guide_tables::a_task_that_came_back_may_be_run_at_once"),
        ("[`Retry`], [`KeyedRetry`]", "retry::a_store_has_a_limit_unless_it_is_told_unbounded retry::a_retry_is_never_lost_for_want_of_room"),
        ("[`Retry::dubbo_failback`]", "retry::a_store_has_a_limit_unless_it_is_told_unbounded retry::a_retry_is_never_lost_for_want_of_room"),
        ("[`DelayQueue`], [`KeyedDelayQueue`]", "delay_queue::a_queue_has_a_limit_unless_it_is_told_unbounded delay_queue::a_full_queue_refuses_until_there_is_room"),
        ("[`DelayedOperations`]", "delayed_operations::operations_have_a_limit_unless_they_are_told_unbounded"),
        ("[`Batcher`]", "batcher::a_function_that_panics_is_counted_and_gets_the_next_batch"),
        ("[`Pool`]", "cfg::what_makes_no_sense_is_a_typed_error"),
        ("a timer; a keyed timer", "guide_tables::what_the_constructors_of_others_take_the_builder_takes"),
        ("[`ExpiringMap`]", "expiring::a_bound_is_exact"),
        ("[`Requests`], [`Heartbeats`], [`IdleWatch`], [`Leases`][guide::leases]", "requests::as_many_requests_are_in_flight_as_may_be"),
    ]),
    ("channels_and_async", &[
        ("the future of [`Interval::tick`]", "futures::a_tick_that_nobody_waits_for_any_more_is_not_lost"),
    ]),
    ("deadlines", &[
        ("a thread", "guide_tables::a_thread_waits_for_an_answer_as_long_as_it_likes"),
        ("neither", "requests_ends::a_handler_runs_on_the_executor_and_once"),
        ("`complete(id, value)`", "requests::an_answer_ends_the_request_and_then_time_is_of_no_consequence"),
        ("`fail(id, error)`", "requests::a_promise_is_kept_broken_or_too_late"),
        ("the deadline, without a `mark_sent` before it", "requests::a_time_out_tells_whether_the_request_was_sent"),
        ("the deadline, after `mark_sent`", "requests::a_time_out_tells_whether_the_request_was_sent"),
        ("`cancel(id)`", "guide_tables::each_end_of_a_request_has_its_counter"),
        ("the table or the timer stops, or the table is dropped", "guide_tables::each_end_of_a_request_has_its_counter"),
        ("`complete` or `fail` when it has ended", "requests::a_late_answer_comes_back_with_how_late_it_is"),
        ("Dubbo `DefaultFuture.newFuture(channel, request, timeout, executor)`", "guide_tables::who_comes_from_dubbo_finds_every_call_of_a_future"),
        ("`DefaultFuture.sent(channel, request)`", "requests::a_time_out_tells_whether_the_request_was_sent"),
        ("`DefaultFuture.received(channel, response)`", "requests::a_late_answer_comes_back_with_how_late_it_is"),
        ("`future.cancel()`", "guide_tables::who_comes_from_dubbo_finds_every_call_of_a_future"),
        ("`DefaultFuture.closeChannel(channel, timeout)`", "requests_ends::a_closing_channel_leaves_its_requests_the_grace_and_no_more"),
        ("`DefaultFuture.destroy()`", "requests_ends::however_it_stops_every_caller_is_told guide_tables::who_comes_from_dubbo_finds_every_call_of_a_future"),
        ("`DEFAULT_TIMEOUT`, 1 s for a timeout of 0", "guide_tables::who_comes_from_dubbo_finds_every_call_of_a_future"),
        ("Kafka (raft) `ExpirationService.failAfter(ms)`", "requests::a_promise_is_kept_broken_or_too_late"),
        ("go: `context.WithTimeout(parent, d)`", "deadline::a_request_and_a_future_keep_to_the_deadline_they_are_given"),
        ("gRPC: the `grpc-timeout` header", "deadline::a_header_has_whole_milliseconds_rounded_down"),
        ("tokio: `timeout(d, receiver)` on a oneshot, and a map of senders", "requests::an_answer_ends_the_request_and_then_time_is_of_no_consequence"),
    ]),
    ("delay_queues", &[
        ("a thread of your own", "guide_tables::a_queue_is_taken_from_in_each_way"),
        ("a thread that has other things to do", "delay_queue::a_thread_waits_no_longer_than_it_wants_to"),
        ("async code", "delay_queue::one_item_wakes_one_waiter_the_first_one_first"),
        ("a loop that polls", "guide_tables::a_queue_is_taken_from_in_each_way"),
        ("who writes in batches", "delay_queue::items_come_when_due_and_in_order"),
        ("[`push`][`KeyedDelayQueue::push`]", "delay_queue::a_newer_item_takes_the_place_of_an_older"),
        ("[`push_sooner`][`KeyedDelayQueue::push_sooner`]", "delay_queue::a_newer_item_takes_the_place_of_an_older"),
        ("[`merge`][`KeyedDelayQueue::merge`], [`merge_at`][`KeyedDelayQueue::merge_at`]", "delay_queue::what_has_failed_goes_back_unless_there_is_a_newer_one"),
        ("Java: `new DelayQueue<>()` with items that have `getDelay` and `compareTo`", "delay_queue::items_come_when_due_and_in_order"),
        ("Java: `take()`, `poll(t)`, `poll()`, `drainTo(c, n)`", "guide_tables::a_queue_is_taken_from_in_each_way"),
        ("Java: `remove(item)`, O(n)", "delay_queue::a_full_queue_refuses_until_there_is_room"),
        ("SOFARegistry: `DelayItem<T>` in a `DelayQueue`, wall clock in milliseconds", "delay_queue::items_come_when_due_and_in_order"),
        ("SOFARegistry: change notices gathered per key for 1,000 ms", "delay_queue::a_newer_item_takes_the_place_of_an_older"),
        ("SOFARegistry: the push buffer, whose workers look each 200 ms, full at 10,000", "guide_tables::a_bounded_queue_gathers_what_is_new_of_each_key"),
        ("Eureka: the batcher's \"newer replaces older by id\"", "guide_tables::a_bounded_queue_gathers_what_is_new_of_each_key"),
        ("Eureka: a batch of 250, or what has come within 500 ms", "batcher::a_batch_goes_when_it_is_full_or_its_oldest_has_waited batcher::the_longest_delay_is_never_and_none_is_at_once"),
        ("Eureka: a failed batch goes back to the front unless a newer task is there", "delay_queue::what_has_failed_goes_back_unless_there_is_a_newer_one"),
        ("Netty: a timer task that adds to a queue which an event loop polls", "guide_tables::a_queue_is_taken_from_in_each_way"),
    ]),
    ("delayed_operations", &[
        ("[`try_complete`][`DelayedOperation::try_complete`]", "delayed_operations::it_is_tried_listed_tried_again_and_only_then_given_to_the_timer delayed_operations::a_panic_is_counted_and_disturbs_nobody"),
        ("[`on_complete`][`DelayedOperation::on_complete`]", "delayed_operations::when_time_is_up_it_is_completed_and_then_expired delayed_operations::a_panic_is_counted_and_disturbs_nobody"),
        ("[`on_expire`][`DelayedOperation::on_expire`]", "delayed_operations::when_time_is_up_it_is_completed_and_then_expired delayed_operations::a_panic_is_counted_and_disturbs_nobody"),
        ("expired", "delayed_operations::a_stop_gives_back_or_everything_expires"),
        ("cancelled", "delayed_operations::what_is_cancelled_neither_completes_nor_expires"),
        ("returned", "delayed_operations::a_stop_gives_back_or_everything_expires"),
        ("Kafka: `tryComplete` that calls `forceComplete()`", "delayed_operations::it_is_tried_listed_tried_again_and_only_then_given_to_the_timer delayed_operations::a_panic_is_counted_and_disturbs_nobody"),
        ("Kafka: `onComplete`, `onExpiration`", "delayed_operations::when_time_is_up_it_is_completed_and_then_expired delayed_operations::a_panic_is_counted_and_disturbs_nobody"),
        ("Kafka: `purgatory.tryCompleteElseWatch(op, keys)`, the timeout in the operation", "delayed_operations::it_is_tried_listed_tried_again_and_only_then_given_to_the_timer"),
        ("Kafka: `checkAndComplete(key)`", "delayed_operations::a_check_tries_all_under_the_key_and_no_other"),
        ("Kafka: `cancelForKey(key)`", "delayed_operations::what_is_cancelled_neither_completes_nor_expires"),
        ("Kafka: `watched()`, `numDelayed()`", "delayed_operations::when_time_is_up_it_is_completed_and_then_expired"),
        ("Kafka Raft: `expirationService.failAfter(ms)`", "futures::a_future_that_is_in_time_ends_the_limit"),
        ("Netty: a `Promise`, and a scheduled task that fails it", "delayed_operations::when_time_is_up_it_is_completed_and_then_expired delayed_operations::a_panic_is_counted_and_disturbs_nobody"),
    ]),
    ("executors", &[
        ("`.inline()`", "cfg::tasks_run_where_they_are_told_to"),
        ("`TokioExecutor::blocking`", "guide_tables::a_runtime_runs_what_blocks_and_what_does_not"),
        ("`TokioExecutor::tasks`", "guide_tables::a_runtime_runs_what_blocks_and_what_does_not"),
    ]),
    ("expiring_maps", &[
        ("a fixed time after the insert", "expiring::an_entry_leaves_when_its_time_has_come_and_nobody_comes_by"),
        ("a time without use: `get`, `get_with`, `update` and `touch` renew it", "guide_tables::each_use_of_an_entry_renews_its_idle_time"),
        ("both, whichever comes first", "expiring::a_use_renews_the_idle_time_and_not_the_age"),
        ("for ever", "expiring::the_ends_of_a_span_are_no_special_case"),
        ("`NewCache(expire)`", "expiring::jitter_spreads_what_was_inserted_together"),
        ("`Set(key, value)`", "expiring::an_entry_leaves_when_its_time_has_come_and_nobody_comes_by"),
        ("`SetWithExpire(key, value, expire)`", "expiring::keys_of_one_hash_expire_apart"),
        ("`Get(key)`", "expiring::an_entry_leaves_when_its_time_has_come_and_nobody_comes_by"),
        ("`Take(key, fetch)`", "expiring::an_error_is_shared_and_not_kept"),
        ("`Del(key)`", "expiring::what_is_removed_or_replaced_is_freed_at_once"),
        ("`WithLimit(n)`, an LRU", "expiring::a_bound_is_exact"),
        ("`WithName`, the log of each minute", "expiring::the_counters_say_what_was_done"),
        ("no `Close`: goroutines for ever", "expiring::the_end_of_a_map_leaves_nothing"),
    ]),
    ("first_steps", &[
        ("cancel the task", "guide_tables::a_handle_takes_back_moves_and_tells"),
        ("move the task sooner or later", "guide_tables::a_handle_takes_back_moves_and_tells"),
        ("ask how long is left", "guide_tables::a_handle_takes_back_moves_and_tells"),
        ("ask for the deadline", "guide_tables::a_handle_takes_back_moves_and_tells"),
        ("ask for the state", "guide_tables::a_handle_takes_back_moves_and_tells"),
        ("tie the task to a scope", "guide_tables::a_handle_takes_back_moves_and_tells"),
    ]),
    ("hosting", &[
        ("a thread of the timer's own", "lif::a_timer_that_is_gone_leaves_no_thread"),
        ("tokio's runtime, by its clock", "tokio::a_runtime_that_ends_closes_its_timers"),
        ("a future on a runtime", "hosts::a_host_and_the_wait_for_its_end_may_be_one_task"),
        ("your hands", "tst::time_moved_by_hand_stops_at_every_deadline_on_the_way guide_tables::what_the_constructors_of_others_take_the_builder_takes"),
    ]),
    ("idle", &[
        ("one action unless another event comes first", "clk::a_heartbeat_that_moves_its_timeout_costs_the_host_one_wake_up_a_period"),
        ("Netty `new IdleStateHandler(60, 30, 0)`", "idle::each_kind_has_its_limit_and_its_activity"),
        ("`userEventTriggered(ctx, IdleStateEvent)`", "idle::a_real_timer_tells_of_silence"),
        ("`observeOutput`", "idle::each_kind_has_its_limit_and_its_activity"),
        ("Dubbo `heartbeat=60000`", "heartbeat::a_peer_takes_what_is_said"),
        ("`heartbeat.timeout`", "heartbeat::timeouts_of_less_than_two_heartbeats_are_refused"),
        ("`ReconnectTimerTask` on the wheel's thread", "heartbeat::a_peer_that_panics_is_looked_after_as_before"),
        ("`CloseTimerTask`", "heartbeat::a_server_closes_who_has_not_been_read_from_or_written_to"),
        ("`reset(url)`", "heartbeat::other_times_take_effect_at_once"),
        ("tokio: a `sleep` per connection, and `reset` per message", "idle::a_million_touches_move_nothing_and_wake_nobody"),
    ]),
    ("keyed", &[
        ("`set`, `set_at`", "guide_tables::a_key_that_is_there_and_one_that_is_not"),
        ("`set_sooner`, `set_later`", "guide_tables::a_key_that_is_there_and_one_that_is_not"),
        ("`set_if_absent`", "guide_tables::a_key_that_is_there_and_one_that_is_not"),
        ("`move_to`, `move_by`", "guide_tables::a_key_that_is_there_and_one_that_is_not"),
        ("`move_sooner`, `move_later`", "guide_tables::a_key_that_is_there_and_one_that_is_not"),
        ("`update`", "guide_tables::a_key_that_is_there_and_one_that_is_not"),
        ("`remove`", "guide_tables::a_key_that_is_there_and_one_that_is_not"),
        ("to act once a key has been quiet for a while", "guide_tables::what_one_wants_of_a_key_and_what_to_call_for_it"),
        ("the latest of many updates, but no later than a while after the first", "guide_tables::what_one_wants_of_a_key_and_what_to_call_for_it"),
        ("to extend a lease, with messages that may overtake each other", "guide_tables::what_one_wants_of_a_key_and_what_to_call_for_it"),
        ("to be sure that a ban or a penalty is never shortened", "guide_tables::what_one_wants_of_a_key_and_what_to_call_for_it"),
        ("one holder at a time", "guide_tables::what_one_wants_of_a_key_and_what_to_call_for_it"),
        ("to gather rows and write them together", "guide_tables::what_one_wants_of_a_key_and_what_to_call_for_it"),
    ]),
    ("leases", &[
        ("this process was suspended, and could receive nothing", "lease::a_stall_counts_against_nobody lease::with_all_limits_and_stalls_the_promises_hold"),
        ("a renewal is late by a moment", "lease::the_second_look_saves_who_is_only_late"),
        ("the network breaks, and all instances are silent", "lease::at_most_a_share_is_evicted_in_a_period lease::with_all_limits_and_stalls_the_promises_hold"),
        ("the same, for hours", "lease::a_registry_preserves_itself lease::with_all_limits_and_stalls_the_promises_hold"),
        ("the registry has just started, and knows no instance", "lease::a_registry_that_has_just_started_evicts_nobody"),
        ("Eureka `lease.renew()`, expiry at twice the duration", "lease::a_lease_lasts_for_its_duration_once"),
        ("`EvictionTask.getCompensationTimeMs()`", "lease::a_stall_counts_against_nobody lease::with_all_limits_and_stalls_the_promises_hold"),
        ("`renewalPercentThreshold` 0.85, eviction limit", "lease::at_most_a_share_is_evicted_in_a_period lease::a_stall_counts_against_nobody"),
        ("`enableSelfPreservation`", "lease::a_registry_preserves_itself lease::with_all_limits_and_stalls_the_promises_hold"),
        ("`evictionIntervalTimerInMs` 60 s", "lease::those_who_are_gathered_go_by_chance"),
        ("SOFARegistry `DatumLeaseManager`, 900 s", "lease::a_registry_that_has_just_started_evicts_nobody"),
        ("\"work as server for 30 s before evicting\"", "lease::a_registry_that_has_just_started_evicts_nobody"),
    ]),
    ("migrating", &[
        ("time in tests", "tokio::a_timer_with_nothing_pending_moves_no_paused_clock"),
        ("`new HashedWheelTimer()`", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("`new HashedWheelTimer(threadFactory, tickDuration, unit, ticksPerWheel, leakDetection, maxPendingTimeouts, taskExecutor)`", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("`start()`", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("`newTimeout(task, delay, unit)`", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("`stop()` → `Set<Timeout>`", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("`pendingTimeouts()`", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("`isStop()` (Dubbo)", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("`Timeout.cancel()`", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("`Timeout.isExpired()`, `isCancelled()`", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("`TimerTask.cancelled(timeout)` (Netty)", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("cancel and `newTimeout` again", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("`threadFactory`", "guide_tables::what_the_constructors_of_others_take_the_builder_takes"),
        ("`tickDuration`, `unit`", "guide_tables::what_the_constructors_of_others_take_the_builder_takes"),
        ("`ticksPerWheel`", "guide_tables::what_the_constructors_of_others_take_the_builder_takes"),
        ("`maxPendingTimeouts`", "guide_tables::what_the_constructors_of_others_take_the_builder_takes"),
        ("`taskExecutor`", "guide_tables::what_the_constructors_of_others_take_the_builder_takes"),
        ("a stop that takes long", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("deadlines beyond 292 years", "add::the_longest_delays_stay_pending_and_can_be_cancelled"),
        ("`NewTimingWheel(interval, numSlots, execute)`", "guide_tables::who_comes_from_go_zero_finds_every_call"),
        ("`SetTimer(key, value, delay)`", "guide_tables::who_comes_from_go_zero_finds_every_call"),
        ("`MoveTimer(key, delay)`", "guide_tables::who_comes_from_go_zero_finds_every_call"),
        ("`RemoveTimer(key)`", "guide_tables::who_comes_from_go_zero_finds_every_call"),
        ("`Drain(fn)`", "guide_tables::who_comes_from_go_zero_finds_every_call"),
        ("`Stop()`", "guide_tables::who_comes_from_go_zero_finds_every_call"),
        ("`new SystemTimer(name, tickMs, wheelSize, startMs)`", "guide_tables::what_the_constructors_of_others_take_the_builder_takes"),
        ("`add(timerTask)` with `delayMs` in the task", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("the same task added again", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("`TimerTask.cancel()`", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("`TimerTask.isCancelled()`", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("`size()`", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("`advanceClock(timeoutMs)` and the thread that calls it", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("`close()`, formerly `shutdown()`", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("a timer by key in the coordinator: `schedule`, `scheduleIfAbsent`, `cancel`, `cancelAll`", "guide_tables::who_comes_from_go_zero_finds_every_call"),
        ("`isCancelled()`", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("`new TimedSupervisorTask(name, scheduler, executor, timeout, unit, expBackOffBound, task)`", "guide_tables::who_comes_from_eureka_or_sofa_is_supervised"),
        ("`scheduler.schedule(supervisor, first, unit)`", "guide_tables::who_comes_from_eureka_or_sofa_is_supervised"),
        ("`new AsyncHashedWheelTimer(threadFactory, tick, unit, ticksPerWheel, threads, room, asyncFactory, callback)`", "timer::a_task_may_stop_its_timer_and_wait_until_all_has_run"),
        ("`AsyncHashedWheelTimer.newTimeout(task, delay, unit)`", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("`RecycleAsyncHashedWheelTimer.newTimeout(task, first, recycle, unit, condition)`", "guide_tables::who_comes_from_java_has_both_rhythms"),
        ("`delayQueue.put(new DelayItem(value, delay))`, `delayQueue.take()`", "guide_tables::a_queue_is_taken_from_in_each_way"),
        ("`tokio::time::sleep(d)`, `sleep_until(i)`", "guide_tables::who_comes_from_tokio_waits_as_before"),
        ("`Sleep::reset(i)`, `deadline`, `is_elapsed`", "guide_tables::who_comes_from_tokio_waits_as_before"),
        ("`timeout(d, future)`, `timeout_at`", "guide_tables::who_comes_from_tokio_waits_as_before"),
        ("`interval(p)`, `interval_at(start, p)`", "guide_tables::who_comes_from_tokio_waits_as_before"),
        ("`Interval::tick().await` → `Instant`", "guide_tables::who_comes_from_tokio_waits_as_before"),
        ("`set_missed_tick_behavior(MissedTickBehavior::{Burst, Delay, Skip})`", "guide_tables::who_comes_from_tokio_waits_as_before"),
        ("`spawn(async { sleep(d).await; f() })`", "guide_tables::who_comes_from_netty_or_kafka_finds_every_call"),
        ("`DelayQueue::insert_at(value, i)`, `insert(value, d)`", "guide_tables::a_driver_and_a_keyed_timer_do_what_a_queue_of_delays_does"),
        ("`DelayQueue::reset_at(&key, i)`, `reset`", "guide_tables::a_driver_and_a_keyed_timer_do_what_a_queue_of_delays_does"),
        ("`DelayQueue::remove(&key)`", "guide_tables::a_driver_and_a_keyed_timer_do_what_a_queue_of_delays_does"),
        ("`DelayQueue::poll_expired`", "guide_tables::a_driver_and_a_keyed_timer_do_what_a_queue_of_delays_does"),
        ("`time::pause()`, `time::advance(d)`", "tst::time_moved_by_hand_stops_at_every_deadline_on_the_way"),
        ("a limit on sleeps", "futures::a_full_timer_takes_no_sleep_until_there_is_room"),
    ]),
    ("observing", &[
        ("how many are pending?", "obs::what_is_pending_is_counted_exactly"),
        ("how did all tasks end?", "obs::every_way_in_which_a_task_ends_has_its_counter"),
        ("which task is slow?", "obs::a_slow_task_is_counted_named_and_warned_of"),
        ("what runs now, and since when?", "obs::a_timer_shows_what_is_pending_what_runs_and_since_when"),
        ("how full are the wheels?", "guide_tables::what_is_asked_of_a_timer_it_answers"),
        ("is it alive, is it behind?", "guide_tables::what_is_asked_of_a_timer_it_answers"),
        ("`pending`", "obs::what_is_pending_is_counted_exactly"),
        ("`waiting`", "cap::what_waits_for_an_executor_keeps_its_place"),
        ("`refused`", "obs::every_way_in_which_a_task_ends_has_its_counter"),
    ]),
    ("periodic", &[
        ("Java `scheduleAtFixedRate(task, first, period)`", "guide_tables::who_comes_from_java_has_both_rhythms"),
        ("Java `scheduleWithFixedDelay(task, first, delay)`", "guide_tables::who_comes_from_java_has_both_rhythms"),
        ("`ScheduledFuture.cancel(false)`", "periodic::cancel_ends_the_chain_and_frees_what_the_function_owns"),
        ("SOFARegistry `RecycleAsyncHashedWheelTimer`", "periodic::it_ends_by_itself_when_it_says_so_or_has_run_often_enough"),
        ("Go `time.NewTicker(d)` and a goroutine", "periodic::cancel_ends_the_chain_and_frees_what_the_function_owns"),
        ("Kafka `scheduler.schedule(name, f, delay, period)`", "periodic::the_first_run_comes_after_its_own_delay"),
    ]),
    ("promises", &[
        ("`schedule`", "guide_tables::what_is_asked_of_a_timer_it_answers"),
        ("`cancel`", "guide_tables::what_is_asked_of_a_timer_it_answers"),
        ("`reschedule`", "guide_tables::what_is_asked_of_a_timer_it_answers"),
        ("`pending`, `stats`", "guide_tables::what_is_asked_of_a_timer_it_answers"),
        ("`snapshot`, `health`", "guide_tables::what_is_asked_of_a_timer_it_answers"),
    ]),
    ("retry", &[
        ("the value, and to wait for it", "retry::a_loop_gives_up_for_the_reasons_there_are"),
        ("only to know when to try next, in a loop of your own", "retry_policy::next_is_the_sum_of_what_the_parts_say"),
        ("[`RetryPolicy::dubbo_failback`]", "retry_policy::presets_have_the_numbers_of_the_originals"),
        ("[`RetryPolicy::dubbo_registry`]", "retry_policy::presets_have_the_numbers_of_the_originals"),
        ("[`RetryPolicy::go_zero_cleaner`]", "retry_policy::presets_have_the_numbers_of_the_originals"),
        ("[`RetryPolicy::eureka`]", "retry_policy::presets_have_the_numbers_of_the_originals"),
        ("[`RetryPolicy::wechat`]", "retry_policy::presets_have_the_numbers_of_the_originals"),
        ("`submit`", "retry::attempts_are_one_and_the_retries"),
        ("`submit_failed`", "retry::the_cleaner_gives_up_after_its_list"),
        ("`submit_if_absent`, `submit_failed_if_absent`", "retry_keyed::a_second_failure_changes_nothing"),
        ("`update`", "retry_keyed::a_stream_of_updates_neither_postpones_nor_hurries retry_keyed::a_newer_operation_cancels_the_older"),
        ("`cancel`", "retry_keyed::a_cancelled_attempt_fences_as_well"),
        ("Dubbo: `cluster=\"failback\" retries=\"3\" failbacktasks=\"100\"`", "retry::the_cleaner_gives_up_after_its_list retry::a_store_has_a_limit_unless_it_is_told_unbounded"),
        ("Dubbo: `retries=\"0\"`", "retry::no_retries_are_no_retries"),
        ("Dubbo: `addFailedRegistered(url)`, `removeFailedRegistered(url)`", "retry_keyed::a_second_failure_changes_nothing retry_keyed::a_cancelled_attempt_fences_as_well"),
        ("Dubbo: `register(url)`, then `unregister(url)`", "retry_keyed::a_newer_operation_cancels_the_older"),
        ("Dubbo: `retry.period=5000`, `retry.times=-1`", "retry_keyed::a_registration_is_retried_each_period_for_ever retry::no_retries_are_no_retries"),
        ("Dubbo: `recover()`", "retry_keyed::recovery_submits_all_again"),
        ("SOFARegistry: first + increment × (n − 1) before retry n, m retries", "retry_policy::linear_schedules_are_those_of_sofa_registry"),
        ("SOFARegistry: push buffer, newer replaces and keeps the deadline", "retry_keyed::a_stream_of_updates_neither_postpones_nor_hurries"),
        ("Eureka: batcher, newer replaces older, permanent errors dropped", "retry_keyed::a_newer_operation_cancels_the_older"),
        ("Eureka: `TimedSupervisorTask`'s growing delay", "retry_policy::presets_have_the_numbers_of_the_originals"),
        ("go-zero: `AddCleanTask`", "retry::the_cleaner_gives_up_after_its_list guide_tables::a_store_with_one_handler_takes_what_has_failed"),
        ("Kafka: coordinator timer, 500 ms, for ever, rejected or overridden", "retry_keyed::the_first_attempt_may_wait_and_what_is_overtaken_meanwhile_is_never_tried"),
        ("Netty: `timer.newTimeout` again in the task", "retry::attempts_are_one_and_the_retries"),
        ("Finagle: `RetryBudget(10.seconds, 10, 0.2)`", "retry::a_budget_bounds_the_retries_of_many retry_policy::a_budget_allows_a_share_and_a_floor"),
    ]),
    ("stopping", &[
        ("`close(..).wait()`", "lif::each_way_to_stop_does_with_what_is_pending_as_it_says"),
        ("`close(..).wait_for(patience)`", "lif::a_stop_with_patience_says_what_still_runs"),
        ("`close(..).await`", "lif::who_may_not_block_awaits_the_end lif::each_way_to_stop_does_with_what_is_pending_as_it_says"),
        ("a [`KeyedTimer`]", "saved::keys_and_items_keep_their_deadlines_and_never_stays_never"),
        ("a [`DelayQueue`]", "saved::keys_and_items_keep_their_deadlines_and_never_stays_never"),
        ("a [`Retry`], a [`KeyedRetry`]", "saved::a_retry_goes_on_after_a_restart_with_its_attempts_its_age_and_its_chance"),
    ]),
    ("supervised", &[
        ("cannot begin", "supervised::a_run_is_rejected_while_one_that_was_given_up_goes_on"),
        ("returns an error, or panics", "supervised::a_failure_leaves_the_delay_as_it_is_or_does_what_was_chosen"),
        ("a loop with a pause", "worker::it_steps_and_waits_and_steps"),
        ("a step only when there is something to do", "worker::wake_ups_coalesce_and_none_is_lost"),
        ("many triggers in a short while to be one step", "worker::triggers_within_the_delay_are_one_step"),
        ("a limit on how often it steps", "worker::an_update_on_demand_is_limited_and_moves_the_periodic_one"),
        ("a few at once, and then a limit", "worker::a_burst_lets_some_steps_through_at_once_and_no_more_in_the_long_run"),
        ("what has gathered to be flushed at the end", "worker::the_last_step_is_taken_whatever_it_waits_for"),
        ("`new TimedSupervisorTask(name, scheduler, executor, timeout, unit, bound, task)`", "guide_tables::who_comes_from_eureka_or_sofa_is_supervised"),
        ("heartbeat and registry fetch of Eureka", "guide_tables::who_comes_from_eureka_or_sofa_is_supervised"),
        ("SOFA session: renew 3 s × 10, connect meta 5 s × 3", "guide_tables::who_comes_from_eureka_or_sofa_is_supervised"),
        ("SOFA session: fetch data 1 min × 10, clean 3 min × 5", "guide_tables::who_comes_from_eureka_or_sofa_is_supervised"),
        ("`cancel()`, which leaves the chain going", "supervised::cancel_ends_the_chain"),
        ("`InstanceInfoReplicator.onDemandUpdate()`, false when limited", "worker::an_update_on_demand_is_limited_and_moves_the_periodic_one"),
        ("`LoopRunnable`: suspend, resume, close", "worker::no_step_begins_in_a_suspension worker::close_ends_it_and_tells_the_step_that_goes_on"),
        ("`WakeUpLoopRunnable`: a bell of capacity one", "worker::wake_ups_coalesce_and_none_is_lost"),
        ("`NewDelayExecutor(fn, delay).Trigger()`", "worker::triggers_within_the_delay_are_one_step"),
        ("`PeriodicalExecutor`: flush by size or interval", "worker::a_batch_is_flushed_by_size_by_time_after_a_panic_and_at_the_end"),
        ("`Flush`, `Wait`", "worker::close_ends_it_and_tells_the_step_that_goes_on"),
        ("Kafka `ShutdownableThread.doWork()` in a loop", "worker::close_ends_it_and_tells_the_step_that_goes_on"),
    ]),
    ("testing", &[
        ("[`advance(span)`][`ManualHost::advance`]", "tst::time_moved_by_hand_stops_at_every_deadline_on_the_way"),
        ("[`run_due()`][`ManualHost::run_due`]", "tst::the_timer_of_a_test_fires_when_the_real_one_does"),
        ("[`clock().advance(span)`][`ManualClock::advance`]", "clk::the_wall_clock_may_be_set_without_any_effect guide_tables::what_is_asked_of_a_timer_it_answers"),
        ("[`next_wake()`][`ManualHost::next_wake`]", "tst::time_moved_by_hand_stops_at_every_deadline_on_the_way"),
    ]),
    ("tuning", &[
        ("[`resolution`]", "guide_tables::what_the_constructors_of_others_take_the_builder_takes"),
        ("[`layout`]", "guide_tables::what_the_constructors_of_others_take_the_builder_takes"),
        ("[`executor`][`TimerBuilder::executor`]", "guide_tables::what_the_constructors_of_others_take_the_builder_takes"),
        ("[`overload`][`TimerBuilder::overload`]", "guide_tables::what_the_constructors_of_others_take_the_builder_takes"),
        ("[`max_pending`]", "guide_tables::what_the_constructors_of_others_take_the_builder_takes"),
        ("[`shards`]", "guide_tables::what_the_constructors_of_others_take_the_builder_takes"),
        ("[`clock`]", "guide_tables::what_the_constructors_of_others_take_the_builder_takes"),
        ("[`slow_task_budget`]", "guide_tables::what_the_constructors_of_others_take_the_builder_takes"),
    ]),
    ("words", &[
        ("`tickDuration`, 100 ms by default", "guide_tables::what_the_constructors_of_others_take_the_builder_takes"),
        ("`ticksPerWheel`, 512 by default, a power of two", "cfg::a_ring_has_as_many_slots_as_asked_for_rounded_up_to_a_power_of_two"),
        ("`wheel`, `mask`, `HashedWheelBucket`", "obs::a_timer_shows_what_is_pending_what_runs_and_since_when"),
        ("`WORKER_STATE_INIT`, `_STARTED`, `_SHUTDOWN`", "lif::a_timer_is_new_then_runs_then_has_stopped_and_never_goes_back"),
        ("`waitForNextTick`", "tst::time_moved_by_hand_stops_at_every_deadline_on_the_way"),
        ("the queue `timeouts`", "add::a_new_task_is_on_its_wheel_at_once"),
        ("`expireTimeouts`", "exp::a_tick_may_be_taken_out_in_parts"),
        ("`Timeout.cancel`", "can::of_all_who_want_a_task_exactly_one_gets_it"),
        ("`ST_INIT`, `ST_CANCELLED`, `ST_EXPIRED`", "can::a_handle_says_without_ambiguity_what_became_of_its_task"),
        ("`maxPendingTimeouts`, −1 by default: no limit", "cap::what_waits_for_an_executor_keeps_its_place"),
        ("`pendingTimeouts`", "obs::what_is_pending_is_counted_exactly"),
        ("`taskExecutor`, `ImmediateExecutor` by default (Netty)", "cfg::tasks_run_where_they_are_told_to"),
        ("`unprocessedTimeouts`, which `stop` returns", "lif::a_stop_gives_back_what_did_not_run_and_was_not_cancelled_each_once"),
        ("`isStop` (Dubbo)", "lif::a_task_that_repeats_itself_sees_the_stop"),
        ("`FailbackClusterInvoker`", "retry::failures_of_async_operations_are_retried"),
        ("`retries`, 3 by default, 0 for none", "retry::no_retries_are_no_retries"),
        ("`failbacktasks`, 100 by default", "retry::a_retry_is_never_lost_for_want_of_room retry::a_store_has_a_limit_unless_it_is_told_unbounded"),
        ("the last invoker, which a retry avoids", "retry_keyed::the_first_attempt_may_wait_and_what_is_overtaken_meanwhile_is_never_tried"),
        ("`destroy`, which drops what waits", "retry::a_stop_gives_back_what_waits_and_another_store_goes_on"),
        ("`FailbackRegistry`", "retry_keyed::a_registration_is_retried_each_period_for_ever"),
        ("`retry.times`, −1 by default: for ever", "retry_policy::limits_end_a_schedule"),
        ("`addFailedRegistered`", "retry_keyed::a_second_failure_changes_nothing"),
        ("`removeFailedRegistered`, `AbstractRetryTask.cancel`", "retry_keyed::a_cancelled_attempt_fences_as_well"),
        ("`FailbackRegistry.recover`", "retry_keyed::recovery_submits_all_again"),
        ("`HeartbeatTimerTask`, 60 s, looks every 20 s", "heartbeat::timeouts_of_less_than_two_heartbeats_are_refused heartbeat::a_peer_takes_what_is_said"),
        ("`ReconnectTimerTask`, 180 s, looks every 60 s", "heartbeat::any_interleaving_is_as_a_plain_model_says"),
        ("`CloseTimerTask`, 180 s", "heartbeat::a_server_closes_who_has_not_been_read_from_or_written_to"),
        ("`KEY_READ_TIMESTAMP`, `KEY_WRITE_TIMESTAMP`, wall clock", "heartbeat::the_wall_clock_may_do_what_it_likes heartbeat::a_heartbeat_is_sent_when_nothing_was_read_or_nothing_written"),
        ("`DEFAULT_TIMEOUT`, 1,000 ms, also for 0", "guide_tables::who_comes_from_dubbo_finds_every_call_of_a_future"),
        ("`sent`, `CLIENT_TIMEOUT`, `SERVER_TIMEOUT`", "requests::a_time_out_tells_whether_the_request_was_sent"),
        ("`closeChannel(channel, timeout)`", "requests_ends::a_closing_channel_leaves_its_requests_the_grace_and_no_more"),
        ("`DefaultFuture.destroy`", "requests_ends::however_it_stops_every_caller_is_told"),
        ("Netty's full `taskExecutor`: the task is lost", "exp::a_receiver_of_refused_tasks_that_panics_is_logged_and_harms_nobody"),
        ("`TimingWheel.interval`", "guide_tables::what_the_constructors_of_others_take_the_builder_takes"),
        ("`SetTimer`", "keyed::every_delay_is_allowed_and_zero_fires_at_once"),
        ("`MoveTimer`", "keyed::a_move_is_right_at_every_position_of_the_hand"),
        ("`RemoveTimer`", "keyed::values_and_tasks_are_freed_at_once"),
        ("`Drain`, 8 calls at a time", "keyed::a_drained_key_can_be_set_again_and_fires"),
        ("`TimingWheel.execute`", "keyed::keyed_timers_share_a_timer"),
        ("`Stop`", "keyed::a_stop_gives_everything_back_and_does_no_harm_twice"),
        ("`AddCleanTask`, `nextDelay`: 1 s, 5 s, 1 min, 5 min, 1 h", "retry::the_cleaner_gives_up_after_its_list"),
        ("`cleanWorkers`, 5", "retry::attempts_in_flight_are_bounded_and_start_in_the_order_in_which_they_came_due"),
        ("`Cache`, 1 s × 300, ± 5 %", "expiring::jitter_spreads_what_was_inserted_together"),
        ("`DelayExecutor`", "worker::triggers_within_the_delay_are_one_step"),
        ("`advanceClock`", "tst::time_moved_by_hand_stops_at_every_deadline_on_the_way"),
        ("`TimerTask.cancel`, `TimerTask.isCancelled`", "can::a_handle_says_without_ambiguity_what_became_of_its_task"),
        ("`tryCompleteElseWatch`", "delayed_operations::it_is_tried_listed_tried_again_and_only_then_given_to_the_timer"),
        ("`checkAndComplete`", "delayed_operations::a_check_tries_all_under_the_key_and_no_other"),
        ("`timeoutMillis`: timeout, period and first delay in one", "supervised::the_knobs_are_separate_and_the_bounds_hold guide_tables::who_comes_from_eureka_or_sofa_is_supervised"),
        ("`TimedSupervisorTask.delay`", "supervised::the_delay_doubles_at_each_timeout_up_to_the_maximum_and_is_reset_by_a_success"),
        ("`maxDelay`, `timeoutMillis` × `expBackOffBound`", "supervised::the_knobs_are_separate_and_the_bounds_hold"),
        ("`expBackOffBound`, 10 in Eureka's client", "supervised::the_knobs_are_separate_and_the_bounds_hold"),
        ("hand-off pools: 1 to n threads, `SynchronousQueue`", "supervised::as_many_runs_go_on_as_were_asked_for"),
        ("`TimedSupervisorTask.cancel`, which goes on", "supervised::cancel_ends_the_chain"),
        ("Eureka: heartbeat and cacheRefresh, 30 s × 10", "supervised::the_delay_doubles_at_each_timeout_up_to_the_maximum_and_is_reset_by_a_success"),
        ("SOFARegistry: `FetchDataLocal`, 3 s × 10 after 30 s, 1 to 3 threads", "supervised::the_delay_doubles_at_each_timeout_up_to_the_maximum_and_is_reset_by_a_success guide_tables::who_comes_from_eureka_or_sofa_is_supervised"),
        ("its `asyncExecutor`", "cfg::timers_may_share_an_executor"),
        ("`TaskFailedCallback.executionRejected`", "exp::what_the_executor_has_no_room_for_may_be_handed_back"),
        ("`RecycleAsyncHashedWheelTimer`, `recycleDelay`", "periodic::a_fixed_rate_counts_from_deadline_to_deadline_and_a_fixed_delay_from_the_end"),
        ("retries: first + increment × (n − 1) before retry n", "retry_policy::linear_schedules_are_those_of_sofa_registry"),
        ("of a publication: 3 s and 8 s; of a push: 0.5, 1 and 1.5 s", "retry_policy::linear_schedules_are_those_of_sofa_registry"),
        ("`DatumLeaseManager`, 900 s, nobody evicted for 30 s", "lease::a_registry_that_has_just_started_evicts_nobody"),
        ("`DelayItem` in a `DelayQueue`, wall clock", "delay_queue::items_come_when_due_and_in_order"),
        ("`notifyAcceptorsCache`: one notice a key for 1,000 ms", "delay_queue::a_newer_item_takes_the_place_of_an_older"),
        ("`CHANGE_DATA_MAP_FOR_MERGE`, changes merged for 500 ms", "delay_queue::threads_merge_and_lose_nothing"),
        ("`changeDataCheck`: a thread that takes for ever", "delay_queue::a_closed_queue_lets_the_rest_come_due_and_then_ends"),
        ("`PushTaskBuffer`: looks every 200 ms", "delay_queue::a_full_queue_refuses_until_there_is_room"),
        ("`LoopRunnable`: suspend, resume, close", "worker::close_ends_it_and_tells_the_step_that_goes_on"),
        ("`WakeUpLoopRunnable`: a bell of capacity one", "worker::wake_ups_coalesce_and_none_is_lost"),
        ("`stopScheduler`, which leaves `expireCheckExecutor` behind", "lif::a_timer_that_is_gone_leaves_no_thread"),
        ("`reprocess`: back to the front, unless a newer task is there", "delay_queue::what_has_failed_goes_back_unless_there_is_a_newer_one"),
        ("`InstanceInfoReplicator`, a burst of 2", "worker::a_burst_lets_some_steps_through_at_once_and_no_more_in_the_long_run"),
        ("`Lease`, 90 s, in truth 180 s", "lease::a_registry_preserves_itself lease::with_all_limits_and_stalls_the_promises_hold"),
        ("`EvictionTask`, 60 s, 15 % a run", "lease::a_stall_counts_against_nobody"),
        ("`getCompensationTimeMs`, for a run that is late", "lease::a_stall_counts_against_nobody lease::with_all_limits_and_stalls_the_promises_hold"),
        ("`enableSelfPreservation`", "lease::a_registry_preserves_itself lease::with_all_limits_and_stalls_the_promises_hold"),
    ]),
];

/// So many rows were read once: a table that is not understood is not passed over.
const ROWS_MIN: usize = 324;

/// The heads of the columns that say what is here, beside one that says what is elsewhere.
const OURS: [&str; 3] = ["here", "ours", "builder"];

/// What a row promises to be callable.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    page: String,
    /// Its first cell.
    name: String,
    calls: BTreeSet<String>,
}

fn manifest() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All files of a kind in a folder and those below it, with their names without the ending.
fn files(folder: &Path, ending: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path, ending));
        } else if path.extension().is_some_and(|found| found == ending) {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            all.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
    all.sort();
    all
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The name at the beginning of a text.
fn name_of(text: &str) -> &str {
    &text[..text.find(|c| !is_word(c)).unwrap_or(text.len())]
}

/// What the sources offer: functions and constants, those of traits as well.
fn public_names(sources: &[(String, String)]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (_, source) in sources {
        let mut in_trait = false;
        for line in source.lines() {
            in_trait = line.starts_with("pub trait ") || in_trait && line != "}";
            let line = line.trim_start();
            let Some(item) = line.strip_prefix("pub ").or(in_trait.then_some(line)) else {
                continue;
            };
            let item = item.strip_prefix("async ").unwrap_or(item);
            let constant = item.strip_prefix("const ").unwrap_or(item);
            let function = constant.strip_prefix("fn ");
            let found = function.or((constant.len() < item.len()).then_some(constant));
            names.extend(found.map(|found| name_of(found).to_owned()));
        }
    }
    names
}

/// The pieces of code in a cell. Where links lead is none.
fn code(cell: &str) -> Vec<String> {
    let mut pieces = cell.split('`');
    let mut code = Vec::new();
    let mut before = pieces.next().unwrap_or_default();
    while let (Some(piece), after) = (pieces.next(), pieces.next()) {
        // The label behind a text: `[text][label]`.
        if !before.ends_with("][") {
            code.push(piece.to_owned());
        }
        before = after.unwrap_or_default();
    }
    code
}

/// The calls in a piece of code: names before a parenthesis, and the last name of a path that is
/// all there is. Constants may stand anywhere.
fn calls(code: &str, public: &BTreeSet<String>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let is_path = code.chars().all(|c| is_word(c) || c == ':');
    let last = code.rsplit("::").next().unwrap_or(code);
    found.extend(is_path.then_some(last));
    let starts = code
        .char_indices()
        .filter(|&(at, c)| is_word(c) && !code[..at].ends_with(is_word));
    for (at, _) in starts {
        let name = name_of(&code[at..]);
        let is_called = code[at + name.len()..].starts_with('(');
        let is_constant = code[..at].ends_with("::") && name == name.to_uppercase();
        found.extend((is_called || is_constant).then_some(name));
    }
    let public = found.into_iter().filter(|&name| public.contains(name));
    public.map(str::to_owned).collect()
}

/// The cells of a row. A bar may be escaped.
fn cells(line: &str) -> Vec<String> {
    let line = line.replace("\\|", "\u{0}");
    let cells = line.trim().trim_matches('|').split('|');
    cells
        .map(|cell| cell.trim().replace('\u{0}', "\\|"))
        .collect()
}

/// The rows of a page that name calls.
fn rows(page: &str, text: &str, public: &BTreeSet<String>) -> Vec<Row> {
    let (mut rows, mut in_code, mut head) = (Vec::new(), false, None);
    for line in text.lines() {
        in_code ^= line.starts_with("```");
        if in_code || !line.starts_with('|') {
            head = None;
            continue;
        }
        let cells = cells(line);
        let Some(head) = &head else {
            head = cells.last().cloned();
            continue;
        };
        let compares = OURS.contains(&head.as_str());
        let from = if compares { cells.len() - 1 } else { 0 };
        let code = cells[from..].iter().flat_map(|cell| code(cell));
        let calls: BTreeSet<_> = code.flat_map(|code| calls(&code, public)).collect();
        if !calls.is_empty() {
            rows.push(Row {
                page: page.to_owned(),
                name: cells[0].clone(),
                calls,
            });
        }
    }
    rows
}

/// The tests of a file, by name, with what they do.
fn tests(source: &str) -> BTreeMap<String, String> {
    let mut tests = BTreeMap::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[test]" {
            continue;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        let head = lines.find(|line| line.trim_start().starts_with("fn "));
        let name = name_of(head.unwrap().trim_start().trim_start_matches("fn "));
        let end = format!("{indent}}}");
        let body: Vec<_> = lines.by_ref().take_while(|&line| line != end).collect();
        tests.insert(name.to_owned(), body.join("\n"));
    }
    tests
}

/// Whether some code makes a call. What is in line comments is none.
fn makes(body: &str, call: &str) -> bool {
    body.lines().any(|line| {
        let line = line.split("//").next().unwrap_or_default();
        line.match_indices(call).any(|(at, _)| {
            let (before, after) = (&line[..at], &line[at + call.len()..]);
            let is_whole = !before.ends_with(is_word) && !after.starts_with(is_word);
            let is_path = before.ends_with('.') || before.ends_with("::");
            is_whole && (is_path || after.starts_with('(') || call == call.to_uppercase())
        })
    })
}

/// What is wrong with the proofs of the rows.
fn objections(
    rows: &[Row],
    proofs: &[(&str, &[(&str, &str)])],
    tests: &BTreeMap<String, String>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut left = BTreeMap::new();
    for (page, proofs) in proofs {
        left.extend(proofs.iter().map(|&(row, proof)| ((*page, row), proof)));
    }
    for Row { page, name, calls } in rows {
        let Some(proof) = left.remove(&(page.as_str(), name.as_str())) else {
            wrong.push(format!("{page}: nobody calls {calls:?} for \"{name}\""));
            continue;
        };
        let names = proof.split_whitespace();
        let unknown = names.clone().filter(|&name| !tests.contains_key(name));
        wrong.extend(unknown.map(|test| format!("{page}: {test} is no test")));
        let bodies: Vec<_> = names.filter_map(|name| tests.get(name)).collect();
        for call in calls {
            if !bodies.iter().any(|body| makes(body, call)) {
                wrong.push(format!(
                    "{page}: {proof} does not call {call} for \"{name}\""
                ));
            }
        }
    }
    let gone = left.keys();
    wrong.extend(gone.map(|(page, row)| format!("{page}: no row \"{row}\" names a call")));
    wrong
}

/// All tests of this crate by their files and names.
fn all_tests() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut sources = files(&manifest().join("tests"), "rs");
    sources.extend(files(&manifest().join("../countwheel/tests"), "rs"));
    for (file, source) in sources {
        let tests = tests(&source).into_iter();
        all.extend(tests.map(|(name, body)| (format!("{file}::{name}"), body)));
    }
    all
}

// The tables named calls that no test made.
#[test]
fn each_row_that_names_a_call_has_a_test_that_makes_it() {
    let mut sources = files(&manifest().join("src"), "rs");
    for below in ["../countwheel/src", "../countwheel-time/src"] {
        sources.extend(files(&manifest().join(below), "rs"));
    }
    let public = public_names(&sources);
    let pages = files(&manifest().join("guide"), "md");
    let rows: Vec<_> = pages
        .iter()
        .flat_map(|(page, text)| rows(page, text, &public))
        .collect();
    let wrong = objections(&rows, PROOFS, &all_tests());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(rows.len() >= ROWS_MIN, "{} rows are read", rows.len());
}

#[test]
fn a_row_without_a_test_that_makes_its_calls_is_found() {
    let source = "impl A {\n    pub fn stop(&self) {}\n    pub const fn new() {}\n    \
                  pub const NEVER: u8 = 0;\n    fn hidden() {}\n}\n\
                  pub trait B {\n    fn tried();\n}\n";
    let public = public_names(&[("a".into(), source.into())]);
    assert!(public.iter().eq(["NEVER", "new", "stop", "tried"]));
    let page = "| you | here |\n|---|---|\n\
                | `stop()` | nothing |\n| end | [`A::stop`], or `hidden` |\n\
                | made | [text][`A::stop`], `b.new(A::NEVER)` |\n\n\
                ```\n| no | `stop()` |\n```\n\n\
                | call | does |\n|---|---|\n| `tried` | what it `may(stop)` |\n";
    let rows = rows("page", page, &public);
    let named: Vec<_> = rows
        .iter()
        .map(|row| (row.name.as_str(), &row.calls))
        .collect();
    let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let expected: [(_, BTreeSet<String>); 3] = [
        ("end", set(&["stop"])),
        ("made", set(&["NEVER", "new"])),
        ("`tried`", set(&["tried"])),
    ];
    assert_eq!(
        named,
        expected.each_ref().map(|(name, calls)| (*name, calls))
    );

    let source =
        "#[test]\nfn all() {\n    a.stop(); // b.tried()\n    let a = A::new(A::NEVER);\n}\n";
    let tests = tests(source).into_iter();
    let tests = tests
        .map(|(name, body)| (format!("f::{name}"), body))
        .collect();
    let with = |proofs: &[(&str, &str)]| objections(&rows, &[("page", proofs)], &tests);
    let two = [("end", "f::all"), ("made", "f::all")];
    assert_eq!(
        with(&two),
        ["page: nobody calls {\"tried\"} for \"`tried`\""]
    );
    assert_eq!(
        with(&[two[0], two[1], ("`tried`", "f::all")]),
        ["page: f::all does not call tried for \"`tried`\""]
    );
    assert_eq!(
        with(&[
            two[0],
            ("made", "f::none"),
            ("`tried`", "f::all"),
            ("gone", "f::all")
        ])
        .len(),
        5,
        "no such test, which makes neither call; the one as above; and no such row"
    );
}

// ---- the calls that no other test makes ---------------------------------------------------

const MINUTE: Duration = Duration::from_secs(60);

fn in_(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

#[test]
fn a_handle_takes_back_moves_and_tells() {
    let mut host = ManualHost::new();
    let timer = host.timer().clone();
    let timeout = timer.schedule(5 * SECOND, || ()).unwrap();
    assert_eq!(timeout.deadline(), in_(5));
    assert_eq!(timeout.remaining(), 5 * SECOND);
    let what = |timeout: &Timeout| {
        [
            timeout.is_pending(),
            timeout.is_expired(),
            timeout.is_cancelled(),
            timeout.is_returned(),
        ]
    };
    assert_eq!(what(&timeout), [true, false, false, false]);
    assert!(timeout.reschedule(9 * SECOND) && timeout.reschedule_at(in_(3)));
    assert_eq!(host.advance(3 * SECOND), 1);
    assert_eq!(what(&timeout), [false, true, false, false]);
    assert_eq!(timeout.remaining(), Duration::ZERO);
    assert!(!timeout.reschedule(SECOND) && !timeout.reschedule_at(in_(9)));
    assert!(!timeout.cancel());

    let task = Presence::default();
    let held = task.clone();
    let timeout = timer.schedule(SECOND, move || drop(held)).unwrap();
    assert!(timeout.cancel() && task.is_over());
    assert!(!timeout.cancel(), "true for one call");
    assert_eq!(what(&timeout), [false, false, true, false]);
    drop(timer.schedule(SECOND, || ()).unwrap().cancel_on_drop());
    assert_eq!(timer.pending(), 0, "the guard has gone");

    let timeout = timer.schedule(SECOND, || ()).unwrap();
    assert_eq!(timer.stop().unfired.len(), 1);
    assert_eq!(what(&timeout), [false, false, false, true]);
}

#[test]
fn a_task_that_came_back_may_be_run_at_once() {
    let timer = Timer::builder()
        .max_pending(0)
        .manual(ManualClock::new())
        .timer()
        .clone();
    let ran = Journal::new();
    let refused = timer.schedule(SECOND, ran.writes("now")).unwrap_err();
    refused.into_task().run();
    assert_eq!(ran.take(), ["now"]);
}

fn keyed(host: &ManualHost) -> (KeyedTimer<&'static str, u32>, Journal<(u32, u64)>) {
    let (journal, timer) = (Journal::new(), host.timer().clone());
    let writer = journal.clone();
    let handler = move |_, value| writer.write((value, timer.now().as_nanos() / 1_000_000_000));
    (KeyedTimer::new(host.timer().clone(), handler), journal)
}

#[test]
fn a_key_that_is_there_and_one_that_is_not() {
    let mut host = ManualHost::new();
    let (timer, fired) = keyed(&host);
    let second = SECOND;
    // Absent.
    assert_eq!(timer.move_to(&"key", second), Move::Absent);
    assert_eq!(timer.move_to(&"key", in_(1)), Move::Absent);
    assert_eq!(timer.move_by(&"key", second), Move::Absent);
    assert_eq!(timer.move_sooner(&"key", second), Move::Absent);
    assert_eq!(timer.move_later(&"key", second), Move::Absent);
    assert_eq!(timer.update(&"key", |value| *value += 1), None);
    assert_eq!(timer.remove(&"key"), None);
    // Set, and there.
    assert_eq!(timer.set("key", 1, 9 * second).unwrap(), None);
    assert_eq!(timer.set_at("key", 2, in_(8)).unwrap(), Some(1));
    assert_eq!(timer.deadline(&"key"), Some(in_(8)));
    assert_eq!(timer.set_sooner("key", 3, 9 * second).unwrap(), Some(2));
    assert_eq!(timer.deadline(&"key"), Some(in_(8)), "the sooner of both");
    assert_eq!(timer.set_later("key", 4, 9 * second).unwrap(), Some(3));
    assert_eq!(timer.deadline(&"key"), Some(in_(9)), "the later of both");
    let refused = timer.set_if_absent("key", 5, second);
    assert!(matches!(refused, Err(SetError::Present("key", 5))));
    assert_eq!(timer.move_to(&"key", 7 * second), Move::Moved);
    assert_eq!(timer.move_to(&"key", in_(6)), Move::Moved);
    assert_eq!(timer.move_by(&"key", By::Later(3 * second)), Move::Moved);
    assert_eq!(
        timer.deadline(&"key"),
        Some(in_(9)),
        "from the deadline, not from now"
    );
    assert_eq!(timer.move_by(&"key", By::Sooner(3 * second)), Move::Moved);
    assert_eq!(timer.move_sooner(&"key", 7 * second), Move::Kept);
    assert_eq!(timer.move_later(&"key", 5 * second), Move::Kept);
    assert_eq!(timer.move_sooner(&"key", 4 * second), Move::Moved);
    assert_eq!(timer.move_later(&"key", 5 * second), Move::Moved);
    assert_eq!(timer.update(&"key", |value| *value += 10), Some(()));
    assert_eq!(timer.deadline(&"key"), Some(in_(5)), "the deadline stays");
    host.advance(5 * second);
    assert_eq!(fired.take(), [(14, 5)]);
    // Each sets what is not there.
    timer.set_sooner("sooner", 1, second).unwrap();
    timer.set_later("later", 2, second).unwrap();
    timer.set_if_absent("absent", 3, second).unwrap();
    timer.set_at("removed", 4, in_(6)).unwrap();
    assert_eq!(timer.remove(&"removed"), Some(4));
    host.advance(second);
    assert_eq!(fired.take(), [(1, 6), (2, 6), (3, 6)]);
}

#[test]
fn what_one_wants_of_a_key_and_what_to_call_for_it() {
    let mut host = ManualHost::new();
    let (timer, fired) = keyed(&host);
    // Quiet for a while; no later than a while after the first.
    for value in 0..5 {
        timer.set("quiet", value, 2 * SECOND).unwrap();
        timer.set_sooner("steady", 10 + value, 2 * SECOND).unwrap();
        host.advance(SECOND);
    }
    assert_eq!(fired.take(), [(11, 2), (13, 4)]);
    host.advance(SECOND);
    assert_eq!(fired.take(), [(4, 6), (14, 6)]);
    // Messages that overtake each other; a penalty that is not shortened.
    timer.set("lease", 1, 9 * SECOND).unwrap();
    assert_eq!(timer.move_later(&"lease", 5 * SECOND), Move::Kept);
    timer.set_later("ban", 2, 9 * SECOND).unwrap();
    timer.set_later("ban", 3, SECOND).unwrap();
    host.advance(9 * SECOND);
    assert_eq!(fired.take(), [(1, 15), (3, 15)]);
    // One holder; rows that are gathered.
    timer.set_if_absent("lock", 1, SECOND).unwrap();
    assert!(timer.set_if_absent("lock", 2, SECOND).is_err());
    for row in [3, 4] {
        if timer.update(&"rows", |sum| *sum += row).is_none() {
            timer.set("rows", row, SECOND).unwrap();
        }
    }
    host.advance(SECOND);
    assert_eq!(fired.take(), [(1, 16), (7, 16)]);
}

#[test]
fn what_the_constructors_of_others_take_the_builder_takes() {
    let resolution = Resolution::new(10 * MS).unwrap();
    let mut host = Timer::builder()
        .thread_name("mine")
        .resolution(resolution)
        .layout(Layout::hashed(512).unwrap())
        .max_pending(2)
        .executor(Desk::with_room(1))
        .inline()
        .overload(Overload::RunInline)
        .slow_task_budget(SECOND)
        .shards(NonZero::<usize>::MIN)
        .manual(ManualClock::new());
    let timer = host.timer().clone();
    let ran = Journal::new();
    timer.schedule(MS, ran.writes(1)).unwrap();
    timer.schedule(15 * MS, ran.writes(2)).unwrap();
    let full = timer.schedule(MS, || ()).unwrap_err();
    assert!(matches!(full, ScheduleError::Full(_)));
    host.advance(9 * MS);
    assert_eq!(ran.take(), [0; 0], "ticks of ten milliseconds");
    host.advance(MS);
    assert_eq!(ran.take(), [1], "inline, whatever the executor is");
    let clock = host.clock().clone();
    timer
        .schedule(MS, move || clock.advance(2 * SECOND))
        .unwrap();
    host.advance(SECOND);
    assert_eq!(timer.stats().slow, 1);
    assert_eq!(timer.snapshot().shards.len(), 1);

    // With a thread, and with an executor that has no room.
    let (sender, ran_on) = mpsc::channel();
    let name = move || {
        let name = thread::current().name().map(str::to_owned);
        sender.send(name).unwrap();
    };
    let timer = Timer::builder()
        .thread_name("mine")
        .clock(SystemClock::new())
        .executor(Desk::with_room(0))
        .overload(Overload::RunInline)
        .build();
    timer.schedule(Duration::ZERO, name).unwrap();
    assert_eq!(ran_on.recv().unwrap().as_deref(), Some("mine"));
}

#[test]
fn who_comes_from_netty_or_kafka_finds_every_call() {
    let timer = Timer::new();
    timer.start().unwrap();
    let timeout = timer.schedule(HOUR, || ()).unwrap();
    assert!(timeout.cancel() && timeout.is_cancelled() && !timeout.is_expired());
    assert!(timer.close(Stop::Drop).wait_for(MINUTE).is_complete());

    let mut host = Timer::builder().manual(ManualClock::new());
    let timer = host.timer().clone();
    let ran = Journal::new();
    let first = timer.schedule(SECOND, ran.writes(1)).unwrap();
    timer.schedule_at(in_(3), ran.writes(2)).unwrap();
    let third = timer.schedule(SECOND, ran.writes(3)).unwrap();
    assert_eq!(timer.pending(), 3);
    assert!(third.reschedule(2 * SECOND), "cancelled and added again");
    assert_eq!(host.advance(2 * SECOND), 2);
    assert_eq!(ran.take(), [1, 3]);
    assert!(first.is_expired() && !first.is_cancelled());
    assert!(!first.cancel() && !first.is_cancelled(), "it came too late");
    assert!(!timer.is_stopped());
    let unfired = timer.stop().unfired;
    assert!(timer.is_stopped());
    assert_eq!(unfired.len(), 1);
    let refused = timer.schedule(SECOND, || ()).unwrap_err();
    assert!(matches!(refused, ScheduleError::Closed(_)));
    assert!(timer.close(Stop::HandBack).wait().unfired.is_empty());
}

#[test]
fn who_comes_from_go_zero_finds_every_call() {
    let resolution = Resolution::new(SECOND).unwrap(); // the interval
    let mut host = Timer::builder()
        .resolution(resolution)
        .manual(ManualClock::new());
    let fired = Journal::new();
    let writer = fired.clone();
    let handler = move |key, value| writer.write((key, value));
    let timer = KeyedTimer::new(host.timer().clone(), handler);
    assert_eq!(timer.set("a", 1, SECOND).unwrap(), None);
    assert_eq!(timer.set("a", 2, 2 * SECOND).unwrap(), Some(1));
    timer.set("b", 3, SECOND).unwrap();
    assert_eq!(timer.move_to(&"b", 3 * SECOND), Move::Moved);
    timer.set("c", 4, SECOND).unwrap();
    assert_eq!(timer.remove(&"c"), Some(4));
    assert!(timer.set_if_absent("a", 5, SECOND).is_err());
    host.advance(2 * SECOND);
    assert_eq!(fired.take(), [("a", 2)]);
    timer.set("d", 6, 9 * SECOND).unwrap();
    let drained: Vec<_> = timer.drain().into_iter().map(|entry| entry.key).collect();
    assert_eq!(drained, ["b", "d"], "in order of deadlines");
    timer.set("e", 7, SECOND).unwrap();
    assert_eq!(timer.stop().len(), 1);
    assert_eq!(timer.stop().len(), 0, "any number of times");
    let closed = timer.set("f", 8, SECOND);
    assert!(matches!(closed, Err(SetError::Closed("f", 8))));
}

#[test]
fn who_comes_from_tokio_waits_as_before() {
    let mut host = ManualHost::new();
    let timer = host.timer().clone();
    let count = Count::new();
    let (mut sleep, mut until) = (timer.sleep(SECOND), timer.sleep_until(in_(1)));
    assert!(count.poll(&mut sleep).is_pending() && count.poll(&mut until).is_pending());
    assert_eq!((sleep.deadline(), sleep.is_elapsed()), (in_(1), false));
    sleep.reset(in_(2));
    assert!(count.poll(&mut sleep).is_pending());
    host.advance(SECOND);
    assert!(count.poll(&mut until).is_ready() && until.is_elapsed());
    assert!(count.poll(&mut sleep).is_pending(), "it was put off");
    host.advance(SECOND);
    assert!(count.poll(&mut sleep).is_ready());

    let mut late = timer.timeout(SECOND, std::future::pending::<()>());
    let mut late_at = timer.timeout_at(in_(3), std::future::pending::<()>());
    let mut in_time = timer.timeout(SECOND, std::future::ready(7));
    assert!(matches!(count.poll(&mut in_time), Poll::Ready(Ok(7))));
    assert!(count.poll(&mut late).is_pending() && count.poll(&mut late_at).is_pending());
    host.advance(SECOND);
    for late in [&mut late, &mut late_at] {
        let elapsed = count.poll(late);
        assert!(matches!(elapsed, Poll::Ready(Err(TimeoutError::Elapsed))));
    }

    let mut interval = timer.interval(SECOND).unwrap();
    let tick = |interval: &mut Interval| match count.poll(&mut Box::pin(interval.tick())) {
        Poll::Ready(tick) => Some(tick.unwrap()),
        Poll::Pending => None,
    };
    assert_eq!(tick(&mut interval), Some(in_(3)));
    assert_eq!((interval.period(), interval.deadline()), (SECOND, in_(4)));
    let mut later = timer.interval_at(in_(5), SECOND).unwrap();
    later = later.missed_ticks(MissedTicks::Skip);
    assert_eq!(tick(&mut later), None);
    host.clock().advance(4 * SECOND);
    host.run_due();
    assert_eq!(tick(&mut later), Some(in_(5)));
    assert_eq!(later.deadline(), in_(8), "those missed are skipped");
    later.reset();
    assert_eq!(later.deadline(), in_(8));
    later.reset_at(in_(20));
    assert_eq!(later.deadline(), in_(20));
    assert_eq!(
        timer.interval(Duration::ZERO).unwrap_err().to_string(),
        PeriodError.to_string()
    );

    // The same on the timer of the process.
    block_on(async {
        countwheel::sleep(Duration::ZERO).await;
        let in_time = countwheel::timeout(MINUTE, std::future::ready(7)).await;
        assert_eq!(in_time.unwrap(), 7);
        countwheel::interval(MINUTE).unwrap().tick().await.unwrap();
    });
}

#[test]
fn a_driver_and_a_keyed_timer_do_what_a_queue_of_delays_does() {
    let mut driver = Driver::new(Instant::ZERO, Resolution::MILLISECOND, Layout::default());
    let first = driver.schedule(Instant::ZERO, in_(1), "first");
    let second = driver.schedule(Instant::ZERO, in_(1), "second");
    assert!(driver.reschedule(Instant::ZERO, second, in_(2)));
    assert_eq!(
        driver.expire(in_(1)).map(|fired| fired.value),
        Some("first")
    );
    assert_eq!(driver.cancel(first), None, "it has expired");
    assert_eq!(driver.cancel(second), Some("second"));

    let mut host = ManualHost::new();
    let (timer, fired) = keyed(&host);
    timer.set("a", 1, SECOND).unwrap();
    timer.set("b", 2, SECOND).unwrap();
    assert_eq!(timer.move_to(&"a", 2 * SECOND), Move::Moved);
    assert_eq!(timer.remove(&"b"), Some(2));
    host.advance(2 * SECOND);
    assert_eq!(fired.take(), [(1, 2)]);
    assert_eq!(timer.remove(&"a"), None, "it has expired");
}

#[test]
fn what_is_asked_of_a_timer_it_answers() {
    let host = ManualHost::new();
    let timer = host.timer();
    let timeout = timer.schedule(SECOND, || ()).unwrap();
    assert!(timeout.reschedule(2 * SECOND));
    assert_eq!((timer.pending(), timer.stats().added), (1, 1));
    let snapshot = timer.snapshot();
    assert_eq!(
        snapshot
            .shards
            .iter()
            .map(|shard| shard.pending)
            .sum::<u64>(),
        1
    );
    assert_eq!(timer.health(MS), Health::Fine);
    host.clock().advance(3 * SECOND);
    assert_eq!(timer.stats().ran, 0, "a stall runs nothing");
    assert_eq!(timer.health(MS), Health::Behind(SECOND));
    assert!(timeout.cancel());
    assert_eq!(timer.health(MS), Health::Fine);
}

#[test]
fn a_thread_waits_for_an_answer_as_long_as_it_likes() {
    let host = ManualHost::new();
    let requests = Requests::new(host.timer().clone());
    let response = requests.register(HOUR).unwrap();
    let id = response.id();
    let response = response.wait_for(MS).unwrap_err(); // given back
    requests.complete(id, "answer").unwrap();
    assert_eq!(response.wait().unwrap(), "answer");
}

#[test]
fn each_end_of_a_request_has_its_counter() {
    let host = ManualHost::new();
    let requests = Requests::<()>::new(host.timer().clone());
    let response = requests.register(HOUR).unwrap();
    assert!(requests.cancel(response.id()));
    assert!(matches!(response.wait(), Err(RequestError::Cancelled)));
    drop(requests.register(HOUR).unwrap());
    assert_eq!(requests.stats().cancelled, 2, "nobody asks any more");
    let response = requests.register(HOUR).unwrap();
    requests.stop();
    assert!(matches!(response.wait(), Err(RequestError::Stopped)));
    assert_eq!(requests.stats().stopped, 1);
}

#[test]
fn who_comes_from_dubbo_finds_every_call_of_a_future() {
    let mut host = ManualHost::new();
    let requests = Requests::<()>::new(host.timer().clone());
    let channel = requests.channel();
    let [timed, cancelled, dropped, closed] =
        std::array::from_fn(|_| channel.register(DUBBO_TIMEOUT).unwrap());
    assert!(requests.cancel(cancelled.id()));
    assert!(matches!(cancelled.wait(), Err(RequestError::Cancelled)));
    drop(dropped);
    assert!(requests.mark_sent(timed.id()));
    host.advance(999 * MS);
    assert_eq!(requests.stats().in_flight, 2);
    host.advance(MS);
    assert!(matches!(
        timed.wait(),
        Err(RequestError::TimedOut { sent: true, .. })
    ));
    assert!(matches!(
        closed.wait(),
        Err(RequestError::TimedOut { sent: false, .. })
    ));
    let response = channel.register(DUBBO_TIMEOUT).unwrap();
    drop(channel.close(Duration::ZERO));
    assert!(matches!(response.wait(), Err(RequestError::ChannelClosed)));
    let response = requests.register(HOUR).unwrap();
    requests.stop();
    assert!(matches!(response.wait(), Err(RequestError::Stopped)));
}

#[test]
fn a_queue_is_taken_from_in_each_way() {
    let host = ManualHost::new();
    let queue = DelayQueue::new(host.timer().clone());
    for number in 0..5 {
        queue.push(number, SECOND).unwrap();
    }
    assert!(queue.try_take().is_none());
    let wake = queue.next_wake().unwrap();
    assert!(wake <= in_(1), "when to ask again, or sooner");
    assert!(queue.take_due(9).is_empty());
    host.clock().advance(SECOND);
    assert_eq!(queue.take().unwrap().value, 0);
    assert_eq!(queue.take_for(MS).unwrap().value, 1);
    assert_eq!(queue.try_take().unwrap().value, 2);
    let rest: Vec<_> = queue.take_due(9).into_iter().map(|due| due.value).collect();
    assert_eq!(rest, [3, 4]);
    assert_eq!(queue.next_wake(), None);
}

#[test]
fn a_bounded_queue_gathers_what_is_new_of_each_key() {
    let host = ManualHost::new();
    let queue = KeyedDelayQueue::bounded(host.timer().clone(), 2);
    queue.push_sooner("a", 1, SECOND).unwrap();
    queue.push_sooner("b", 2, SECOND).unwrap();
    queue.push_sooner("a", 3, 2 * SECOND).unwrap();
    assert!(queue.push_sooner("c", 4, SECOND).is_err(), "it is full");
    host.clock().advance(SECOND);
    assert_eq!(
        queue.take().unwrap().value,
        ("a", 3),
        "newer, and not put off"
    );
    assert_eq!(queue.take().unwrap().value, ("b", 2));
}

#[test]
fn each_use_of_an_entry_renews_its_idle_time() {
    type Map = ExpiringMap<&'static str, u32>;
    let mut host = ManualHost::new();
    let map = Map::new(host.timer().clone(), Ttl::idle(2 * SECOND));
    let uses: [fn(&Map) -> bool; 4] = [
        |map| map.get(&"key") == Some(1),
        |map| map.get_with(&"key", |value| *value) == Some(1),
        |map| map.update(&"key", |_| ()).is_some(),
        |map| map.touch(&"key"),
    ];
    map.insert("key", 1).unwrap();
    for uses in uses.iter().cycle().take(8) {
        host.advance(SECOND);
        assert!(uses(&map), "used a second ago");
    }
    host.advance(2 * SECOND);
    assert!(!uses.iter().any(|uses| uses(&map)), "nobody came by");
}

#[test]
fn who_comes_from_java_has_both_rhythms() {
    let mut host = ManualHost::new();
    let timer = host.timer().clone();
    let ran = Journal::new();
    let clock = host.clock().clone();
    let runs = |name| {
        let (ran, clock) = (ran.clone(), clock.clone());
        move || {
            ran.write((name, timer_seconds(&clock)));
            clock.advance(SECOND);
        }
    };
    let rate = Periodic::at_fixed_rate(3 * SECOND)
        .first_delay(SECOND)
        .missed_ticks(MissedTicks::Burst)
        .end_on_panic()
        .start(&timer, runs("rate"))
        .unwrap();
    host.advance(8 * SECOND);
    assert_eq!(ran.take(), [("rate", 1), ("rate", 4), ("rate", 7)]);
    assert!(rate.cancel());
    let start = timer_seconds(host.clock());
    let delay = Periodic::with_fixed_delay(3 * SECOND)
        .first_delay(SECOND)
        .end_on_panic()
        .start(&timer, runs("delay"))
        .unwrap();
    host.advance(9 * SECOND);
    let expected = [start + 1, start + 5, start + 9].map(|at| ("delay", at));
    assert_eq!(
        ran.take(),
        expected,
        "from the end of each run, which takes one"
    );
    assert!(delay.cancel());
}

fn timer_seconds(clock: &ManualClock) -> u64 {
    clock.now().as_nanos() / 1_000_000_000
}

#[test]
fn a_store_with_one_handler_takes_what_has_failed() {
    let mut host = ManualHost::new();
    let tried = Journal::new();
    let writer = tried.clone();
    let handler = move |&key: &&'static str, _: &Attempt| {
        writer.write(key);
        Ok::<_, Failure<&str>>(())
    };
    let retry = Retry::new(
        host.timer().clone(),
        RetryPolicy::go_zero_cleaner(),
        handler,
    );
    retry.submit_failed("key", "redis is down").unwrap();
    assert_eq!(tried.take(), [""; 0], "not at once");
    host.advance(SECOND);
    assert_eq!(tried.take(), ["key"]);
}

#[test]
fn who_comes_from_eureka_or_sofa_is_supervised() {
    let mut host = ManualHost::new();
    let ran = Journal::new();
    let runs = |name, clock: &ManualClock| {
        let (ran, clock) = (ran.clone(), clock.clone());
        move |_: StopSignal| {
            ran.write((name, timer_seconds(&clock)));
        }
    };
    let heartbeat = Supervised::eureka(30 * SECOND, 10)
        .name("heartbeat")
        .start(host.timer(), runs("heartbeat", host.clock()))
        .unwrap();
    let fetch = Supervised::eureka(MINUTE, 10)
        .first_delay(30 * SECOND)
        .start(host.timer(), runs("fetch", host.clock()))
        .unwrap();
    host.advance(100 * SECOND);
    let mut all = ran.take();
    all.sort_unstable();
    let expected = [
        ("fetch", 30),
        ("fetch", 90),
        ("heartbeat", 30),
        ("heartbeat", 60),
        ("heartbeat", 90),
    ];
    assert_eq!(all, expected);
    assert!(heartbeat.cancel() && fetch.cancel());
    host.advance(HOUR);
    assert_eq!(ran.take(), [("", 0); 0], "it has ended");
}

#[cfg(feature = "tokio")]
#[test]
fn a_runtime_runs_what_blocks_and_what_does_not() {
    use countwheel::TokioExecutor;

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    for executor in [
        TokioExecutor::blocking(runtime.handle().clone(), NonZero::<usize>::MIN),
        TokioExecutor::tasks(runtime.handle().clone(), NonZero::<usize>::MIN),
    ] {
        let timer = Timer::builder().executor(executor).build();
        let (sender, ran) = mpsc::channel();
        let task = move || sender.send(tokio::runtime::Handle::try_current().is_ok());
        timer.schedule(MS, move || task().unwrap()).unwrap();
        assert!(ran.recv().unwrap(), "on the runtime");
    }
}
