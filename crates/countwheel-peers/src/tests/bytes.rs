//! What is written comes back, is written as it always was, and anything else is refused.

use std::collections::BTreeMap;
use std::time::Duration;

use countwheel_cluster::NodeId;
use countwheel_durable::store::{QueueCounts, Shard};
use countwheel_durable::{
    BatchError, Counted, Due, Note, Precondition, QueueName, Receipt, Request, Response,
    RetryPolicy, Revision, Set, SetOptions, SettingError, SettingName, SettingPrecondition,
    SettingsVersion, TimerError, TimerId, TimerName, Timestamp, Was,
};
use countwheel_time::Random;

use super::samples;
use crate::frame::{self, Encoded, FRAME_MAX, FrameError, Writing};
use crate::hello::{HELLO_BYTES, Hello, SPOKEN, Standing, Versions};
use crate::wire::{
    AskCounts, AskHead, REQUESTS_MAX, WireAnswer, WireBody, WireCounted, WireRequest,
};

fn head(id: u64, what: &Encoded) -> AskHead {
    AskHead {
        id,
        shard: 63,
        map: 300,
        left_ms: 15_000,
        hops: 1,
        is_batch: what.is_batch,
        requests: what.requests,
    }
}

fn frame_of(asked: &[(Vec<Request>, bool)]) -> Vec<u8> {
    let mut frame = Writing::asks();
    for (id, (requests, is_batch)) in (1..).zip(asked) {
        let what = Encoded::of(requests, *is_batch).unwrap();
        frame.ask(&head(id, &what), what.bytes());
    }
    frame.finish()
}

fn frame_of_answers(random: &mut Random) -> Vec<u8> {
    let mut frame = Writing::answers();
    for id in 0..random.below(9) {
        let answer = samples::answer(random);
        let body = WireBody::of(&answer);
        frame.answer(&frame::answer(&WireAnswer { id, map: 3, body }));
    }
    frame.finish()
}

fn draw_asked(random: &mut Random) -> Vec<(Vec<Request>, bool)> {
    let asks = 0..random.below(9);
    let asked = asks.map(|_| match random.below(3) {
        0 => {
            let requests = 0..random.below(9);
            (requests.map(|_| samples::request(random)).collect(), true)
        }
        _ => (vec![samples::request(random)], false),
    });
    asked.collect()
}

#[test]
fn what_is_asked_comes_over_as_it_is() {
    let random = &mut Random::new(1);
    for _ in 0..3_000 {
        let asked = draw_asked(random);
        let read = frame::read_asks(frame_of(&asked)).unwrap();
        assert_eq!(read.len(), asked.len());
        for (ask, (requests, is_batch)) in read.iter().zip(&asked) {
            let wire = ask.what.wire().unwrap().into_iter();
            let found: Vec<_> = wire.map(|one| one.request().unwrap()).collect();
            assert_eq!((&found, ask.what.is_batch), (requests, *is_batch));
        }
    }
}

#[test]
fn what_is_answered_comes_over_as_it_is() {
    let random = &mut Random::new(2);
    for _ in 0..3_000 {
        let answer = samples::answer(random);
        let body = WireBody::of(&answer);
        let bytes = frame::answer(&WireAnswer {
            id: 7,
            map: 3,
            body,
        });
        let mut frame = Writing::answers();
        frame.answer(&bytes);
        let frame = frame.finish();
        let read = frame::read_answers(&frame).unwrap().remove(0);
        assert_eq!((read.id, read.map), (7, 3));
        let read = read.body.answer().expect("it is no refusal of the shard");
        assert_eq!(format!("{read:?}"), format!("{answer:?}"));
    }
}

/// Forms that are younger than the samples, whose bytes stay.
#[test]
fn younger_requests_and_answers_come_over_as_they_are() {
    let receipt = Receipt {
        key: [7; 16],
        fingerprint: [8; 32],
        keep: Duration::from_secs(86_400),
    };
    let set = Request::Set {
        name: TimerName::new("orders", "a").unwrap(),
        due: Due::In(Duration::from_secs(1)),
        policy: RetryPolicy::default(),
        payload: b"body".to_vec(),
        precondition: Precondition::Absent,
        options: SetOptions {
            receipt: Some(Box::new(receipt)),
            ..SetOptions::default()
        },
    };
    let configure = |value: Option<&[u8]>| Request::Configure {
        name: SettingName::new("token/a").unwrap(),
        value: value.map(<[u8]>::to_vec),
        precondition: SettingPrecondition::Settings(SettingsVersion(300)),
    };
    let asked = [(vec![set, configure(Some(b"x")), configure(None)], true)];
    let read = frame::read_asks(frame_of(&asked)).unwrap();
    let wire = read[0].what.wire().unwrap().into_iter();
    let found: Vec<_> = wire.map(|one| one.request().unwrap()).collect();
    assert_eq!(found, asked[0].0);

    let set = Revision(9);
    let replayed = Set {
        id: TimerId { store: 5, set },
        revision: set,
        due: Timestamp::from_micros(1_700_000_000_000_000),
        replaced: None,
        replayed: true,
    };
    let refused = |error| {
        let index = Some(0);
        Err(BatchError { index, error })
    };
    for answer in [
        Ok(vec![Response::Set(replayed)]),
        refused(TimerError::ReceiptMismatch),
        refused(TimerError::ReceiptPending),
        refused(TimerError::Setting(SettingError::SettingsChanged {
            current: SettingsVersion(300),
        })),
    ] {
        let body = WireBody::of(&answer);
        let (id, map) = (7, 3);
        let mut frame = Writing::answers();
        frame.answer(&frame::answer(&WireAnswer { id, map, body }));
        let frame = frame.finish();
        let read = frame::read_answers(&frame).unwrap().remove(0);
        let read = read.body.answer().expect("it is no refusal of the shard");
        assert_eq!(format!("{read:?}"), format!("{answer:?}"));
    }
}

#[test]
fn a_noted_request_comes_over_as_it_is_with_one_note() {
    let note = || Note::new("ada", Duration::from_secs(86_400)).unwrap();
    let random = &mut Random::new(4);
    for _ in 0..300 {
        let request = samples::request(random);
        let asked = [(vec![request.clone().noted(note()), request], true)];
        let read = frame::read_asks(frame_of(&asked)).unwrap();
        let wire = read[0].what.wire().unwrap().into_iter();
        let found: Vec<_> = wire.map(|one| one.request().unwrap()).collect();
        assert_eq!(found, asked[0].0);
    }
    let fire = || Request::Fire {
        name: TimerName::new("orders", "a").unwrap(),
    };
    assert!(WireRequest::of(&fire().noted(note()).noted(note())).is_err());

    // Another node may send anything.
    let fire = fire();
    let inner = frame::requests(&[WireRequest::of(&fire).unwrap()]);
    let noted = |request: &[u8], note: &[u8]| {
        let wire = WireRequest::Noted {
            request: request.into(),
            note,
            keep: Duration::MAX,
        };
        let bytes = frame::requests(&[wire]);
        let read = frame::read_request(&bytes).unwrap().request();
        (bytes, read)
    };
    let (once, read) = noted(&inner, b"ada");
    let read = read.unwrap();
    assert_eq!(read.plain(), &fire);
    let Request::Noted { note, .. } = read else {
        panic!("it is noted")
    };
    assert_eq!(note.keep(), Due::MAX_AHEAD);
    assert!(noted(&once, b"ada").1.is_err(), "a note within a note");
    assert!(noted(&inner[1..], b"ada").1.is_err());
    assert!(noted(&[&inner[..], b"x"].concat(), b"ada").1.is_err());
    assert!(noted(&inner, &[0; Note::MAX_BYTES + 1]).1.is_err());
}

/// Another version of the program reads these bytes.
#[test]
fn a_noted_request_is_written_as_it_was() {
    let fire = Request::Fire {
        name: TimerName::new("orders", "a").unwrap(),
    };
    let note = Note::new("ada", Duration::from_secs(60)).unwrap();
    let noted = fire.noted(note);
    let bytes = frame::requests(&[WireRequest::of(&noted).unwrap()]);
    let expected = b"\x0a\x0a\x03\x06orders\x01a\x03ada\x3c\x00";
    assert_eq!(bytes, expected);
}

#[test]
fn what_no_owner_has_done_is_said_to_be_so() {
    let shard = Shard(3);
    for error in [
        TimerError::NotOwned { shard },
        TimerError::ShardUnavailable { shard },
        TimerError::Closed,
    ] {
        let answer = Err(BatchError { index: None, error });
        assert!(WireBody::of(&answer).answer().is_none());
    }
    assert!(WireBody::Expired.answer().is_none());
}

#[test]
fn a_policy_that_no_record_keeps_is_refused_before_it_is_sent() {
    let request = Request::Set {
        name: TimerName::new("orders", "a").unwrap(),
        due: Due::In(Duration::ZERO),
        policy: RetryPolicy::wechat().cap(Duration::from_secs(1)),
        payload: Vec::new(),
        precondition: Precondition::None,
        options: SetOptions::default(),
    };
    let fire = Request::Fire {
        name: TimerName::new("orders", "a").unwrap(),
    };
    let refused = Encoded::of(&[fire, request], true);
    assert!(matches!(refused, Err((1, TimerError::Policy(_)))));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whoever changes one of these has changed the protocol: nodes of two versions talk to each other.
#[test]
fn bytes_are_those_of_version_1() {
    let name = || TimerName::from_text("tenant-7/orders", "42").unwrap();
    let set = Request::Set {
        name: name(),
        due: Due::In(Duration::from_millis(1_500)),
        policy: RetryPolicy::fixed(Duration::from_secs(3))
            .max_attempts(5)
            .unwrap(),
        payload: b"close it".to_vec(),
        precondition: Precondition::Absent,
        options: SetOptions::default(),
    };
    let remove = Request::Remove {
        name: name(),
        precondition: Precondition::None,
        only_pending: true,
    };
    let asked = [
        (vec![set], false),
        (vec![remove, Request::Fire { name: name() }], true),
    ];
    assert_eq!(hex(&frame_of(&asked)), GOLDEN_ASKS);

    let mut frame = Writing::answers();
    let due = Timestamp::from_micros(1_700_000_000_000_000);
    for (id, answer) in [
        (1, Ok(vec![Response::Removed(Was::Pending { due })])),
        (
            2,
            Err(BatchError {
                index: Some(4),
                error: TimerError::NotFound,
            }),
        ),
    ] {
        let body = WireBody::of(&answer);
        frame.answer(&frame::answer(&WireAnswer { id, map: 300, body }));
    }
    assert_eq!(hex(&frame.finish()), GOLDEN_ANSWERS);

    // Which number each error has: one in the middle would move those behind it.
    let mut written = Vec::new();
    for answer in samples::errors() {
        let answer = Err(BatchError {
            index: None,
            error: answer,
        });
        let body = WireBody::of(&answer);
        written.push(
            frame::answer(&WireAnswer {
                id: 0,
                map: 0,
                body,
            })[4],
        );
    }
    assert_eq!(hex(&written), GOLDEN_ERRORS);

    let hello = Hello {
        standing: Standing::Cluster,
        versions: Versions { from: 1, to: 2 },
        cluster: 0x0102_0304_0506_0708,
        from: NodeId(0xa0),
        to: NodeId(u128::MAX - 1),
    };
    assert_eq!(hex(&hello.write()), GOLDEN_HELLO);
    assert_eq!(Hello::read(&hello.write()).unwrap(), hello);
}

/// The same of what asks for counts, and of counts.
#[test]
fn counts_are_written_as_version_1_writes_them() {
    let asked = AskCounts {
        id: 300,
        shards: vec![0, 63, 1_023],
    };
    let frame = frame::ask_counts(&asked);
    assert_eq!(hex(&frame), GOLDEN_ASK_COUNTS);
    assert_eq!(frame::read_ask_counts(&frame).unwrap(), Some(asked));
    let counted = draw_counts();
    let frame = frame::counts(300, &counted);
    assert_eq!(hex(&frame), GOLDEN_COUNTS);
    let read = frame::read_counts(&frame)
        .unwrap()
        .expect("it is of counts");
    let shards = read.shards.iter().filter_map(WireCounted::counted);
    assert_eq!((read.id, shards.collect()), (300, counted));
    for other in [&[][..], &[1], &[2], frame::GOODBYE] {
        assert_eq!(frame::read_ask_counts(other).unwrap(), None);
        assert_eq!(frame::read_counts(other).unwrap(), None);
    }
}

/// The same of words, which are since version 2.
#[test]
fn words_are_written_as_version_2_writes_them() {
    let word = frame::word(300, b"hi");
    assert_eq!(hex(&word), "06ac02026869");
    assert_eq!(frame::read_word(&word).unwrap(), Some((300, &b"hi"[..])));
    let answers = [(Some(&b"ho"[..]), "07ac020102686f"), (None, "07ac0200")];
    for (answer, golden) in answers {
        let frame = frame::answer_word(300, answer);
        assert_eq!(hex(&frame), golden);
        assert_eq!(
            frame::read_answer_word(&frame).unwrap(),
            Some((300, answer))
        );
    }
    for other in [&[][..], &[1], &[2], frame::GOODBYE, &[4], &[5]] {
        assert_eq!(frame::read_word(other).unwrap(), None);
        assert_eq!(frame::read_answer_word(other).unwrap(), None);
    }
    assert!(frame::read_word(&[6, 1, 9, 0]).is_err());
    assert!(frame::read_answer_word(&[7, 1, 0, 0]).is_err());
}

fn draw_counts() -> BTreeMap<Shard, Counted> {
    let queue = |queue, by_state| {
        let queue = QueueName::from_text(queue).unwrap();
        QueueCounts { queue, by_state }
    };
    let queues = vec![
        queue("orders", [1, 0, 300, 0]),
        queue("t-7/q", [0, 2, 0, 5]),
    ];
    let (none, exact) = (Vec::new(), true);
    let all = [
        (Shard(0), Counted { queues, exact }),
        (
            Shard(1_023),
            Counted {
                queues: none,
                exact: false,
            },
        ),
    ];
    all.into()
}

#[test]
fn counts_that_a_frame_has_no_room_for_are_left_out() {
    let many = |count: usize| {
        let names = (0..count).map(|at| format!("{at:0>100}"));
        let queues = names.map(|name| QueueCounts {
            queue: QueueName::from_text(name).unwrap(),
            by_state: [1; 4],
        });
        Counted {
            queues: queues.collect(),
            exact: true,
        }
    };
    let counted: BTreeMap<_, _> = [
        (Shard(0), many(50_000)),
        (Shard(1), many(50_000)),
        (Shard(2), many(1)),
    ]
    .into();
    let frame = frame::counts(1, &counted);
    assert!(frame.len() <= FRAME_MAX, "{}", frame.len());
    let read = frame::read_counts(&frame)
        .unwrap()
        .expect("it is of counts");
    let shards: Vec<_> = read.shards.iter().map(|shard| shard.shard).collect();
    assert_eq!(shards, [0, 2]);
}

const GOLDEN_ASK_COUNTS: &str = "04ac0203003fff07";
const GOLDEN_COUNTS: &str = "05ac0202000102066f72646572730100ac020005742d372f7100020005ff070000";
const GOLDEN_ASKS: &str = "01013fac029875010001000f74656e616e742d372f6f7264657273023432010180cab5ee01020300000001050008636c6f7365206974010000023fac029875010102020f74656e616e742d372f6f72646572730234320001030f74656e616e742d372f6f7264657273023432";
const GOLDEN_ANSWERS: &str = "0201ac020001028080f9c0c1c4820302ac0201010400";
const GOLDEN_ERRORS: &str =
    "000102030405050505060708090a0b0c0d0e101112131415161718191a1b1c1d1e1f20";
const GOLDEN_HELLO: &str = "4357505202000100020102030405060708000000000000000000000000000000a0fffffffffffffffffffffffffffffffe";

/// The same of every form that there is, as one number: FNV-1a over what is drawn.
#[test]
fn all_bytes_are_those_of_version_1() {
    let random = &mut Random::new(4);
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for _ in 0..2_000 {
        for byte in frame_of(&draw_asked(random)) {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        for byte in frame_of_answers(random) {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    assert_eq!(sum, GOLDEN_SUM, "{sum:#x}");
}

const GOLDEN_SUM: u64 = 0xad16ec5818a304f5;

/// Bytes of no program and bytes that were damaged: an error or something else, and never more than the
/// limits say.
#[test]
fn any_bytes_are_read_or_refused() {
    let random = &mut Random::new(3);
    for round in 0..20_000 {
        let mut bytes = match round % 6 {
            4 => match round % 12 {
                4 => frame::word(random.draw(), b"some words"),
                _ => frame::answer_word(random.draw(), Some(b"some words")),
            },
            0 => (0..random.below(200))
                .map(|_| samples::byte(random))
                .collect(),
            1 => frame_of(&draw_asked(random)),
            2 => frame::counts(random.draw(), &draw_counts()),
            3 => frame::ask_counts(&AskCounts {
                id: random.draw(),
                shards: vec![7; 30],
            }),
            _ => frame_of_answers(random),
        };
        for _ in 0..random.below(4) {
            let place = usize::try_from(random.below(bytes.len() as u64)).unwrap();
            match random.below(3) {
                0 => bytes.truncate(place),
                1 if place < bytes.len() => bytes[place] = samples::byte(random),
                _ => bytes.insert(place, 0xff),
            }
        }
        if let Ok(answers) = frame::read_answers(&bytes) {
            for answer in answers {
                drop(answer.body.answer());
            }
        }
        if let Ok(Some(counts)) = frame::read_counts(&bytes) {
            for shard in counts.shards {
                drop(shard.counted());
            }
        }
        drop(frame::read_ask_counts(&bytes));
        drop(frame::read_word(&bytes));
        drop(frame::read_answer_word(&bytes));
        drop(Hello::read(&bytes));
        if let Ok(asks) = frame::read_asks(bytes) {
            for ask in asks {
                let wire = ask.what.wire().expect("it was looked through");
                assert_eq!(wire.len(), ask.what.requests as usize);
                wire.into_iter().for_each(|one| drop(one.request()));
            }
        }
    }
}

/// A body of 16 MiB, with the rest of its timer.
#[test]
fn the_longest_request_of_a_timer_has_room_in_a_frame_beside_others() {
    let set = Request::Set {
        name: TimerName::new("orders", "a").unwrap(),
        due: Due::In(Duration::from_secs(1)),
        policy: RetryPolicy::default(),
        payload: vec![7; 17 << 20],
        precondition: Precondition::None,
        options: SetOptions::default(),
    };
    let asked = [(vec![set], false)];
    let frame = frame_of(&asked);
    assert!(frame.len() + (1 << 20) < FRAME_MAX, "{}", frame.len());
    let read = frame::read_asks(frame).unwrap();
    let wire = read[0].what.wire().unwrap().remove(0);
    assert_eq!(wire.request().unwrap(), asked[0].0[0]);
}

#[test]
fn a_frame_of_few_bytes_does_not_stand_for_more_than_it_may() {
    let nothing = Encoded::of(&[], true).unwrap();
    let mut frame = Writing::asks();
    for _ in 0..=REQUESTS_MAX {
        frame.ask(&head(1, &nothing), &[]);
    }
    let frame = frame.finish();
    assert!(frame.len() < FRAME_MAX);
    let refused = frame::read_asks(frame);
    assert!(matches!(refused, Err(FrameError::Malformed { .. })));

    // A list of more items than there are bytes for.
    let claims = [2, 7, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f];
    let refused = frame::read_answers(&claims);
    assert!(matches!(refused, Err(FrameError::Malformed { .. })));
    // One with bytes for them: removed, dead, and that again and again.
    let mut removed = vec![2, 7, 0, 0, 0xff, 0xff, 0xff, 0x03];
    removed.resize(8 + 8_388_607, 4);
    let refused = frame::read_answers(&removed);
    assert!(matches!(refused, Err(FrameError::Malformed { .. })));
}

pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}

#[test]
fn a_frame_has_at_most_its_limit() {
    the_length_of_a_frame_is_not_believed();
}

pub(super) fn the_length_of_a_frame_is_not_believed() {
    let read = |bytes: &[u8], limit| block_on(frame::read(&mut &*bytes, limit));
    let mut fits = vec![0, 0, 0, 5];
    fits.extend(b"fives");
    assert_eq!(read(&fits, 5).unwrap(), b"fives");
    assert!(matches!(
        read(&fits, 4),
        Err(FrameError::TooLong { bytes: 5 })
    ));
    assert!(matches!(read(&fits[..8], 5), Err(FrameError::Ended(_))));
    assert!(matches!(
        read(&[0xff; 4], FRAME_MAX),
        Err(FrameError::TooLong { .. })
    ));
}

#[test]
fn a_frame_that_is_written_is_read() {
    let mut written = Vec::new();
    block_on(frame::write(&mut written, &[7; 200_000])).unwrap();
    let read = block_on(frame::read(&mut &*written, FRAME_MAX));
    assert_eq!(read.unwrap(), [7; 200_000]);
}

#[test]
fn who_does_not_belong_here_is_told_why() {
    a_stranger_is_not_welcome();
}

pub(super) fn a_stranger_is_not_welcome() {
    let (me, other) = (NodeId(1), NodeId(2));
    let hello = Hello {
        standing: Standing::Welcome,
        versions: SPOKEN,
        cluster: 7,
        from: other,
        to: me,
    };
    assert_eq!(hello.judged_by(7, me), Standing::Welcome);
    assert_eq!(hello.judged_by(8, me), Standing::Cluster);
    assert_eq!(hello.judged_by(7, NodeId(3)), Standing::Node);
    let later = Hello {
        versions: Versions { from: 3, to: 4 },
        ..hello
    };
    assert_eq!(later.judged_by(7, me), Standing::Version);
    assert!(Hello::read(&hello.write()[..HELLO_BYTES - 1]).is_err());
}

#[test]
fn two_versions_speak_the_latest_that_both_know() {
    let versions = |from, to| Versions { from, to };
    assert_eq!(versions(1, 2).common(versions(2, 3)), Some(2));
    assert_eq!(versions(1, 3).common(versions(1, 2)), Some(2));
    assert_eq!(versions(1, 1).common(versions(2, 3)), None);
    assert_eq!(versions(3, 4).common(versions(1, 2)), None);
}
