//! The sentences.

use super::Delivery::{Done, Fails, Hangs};
use super::Do::{
    Await, Drain, DrainAll, Fire, Get, List, MoveBy, MoveIf, MoveTo, Release, Remove, RemoveIf,
    RemovePending, Resume, ResumeAll, Revive, Set, SetIf, SetNew,
};
use super::Mode::{Fire as Firing, Hold, Remove as Removing};
use super::Revision::{Last, Wrong};
use super::{Say, Sentence};

fn new() -> Say {
    Say::Set(None)
}

fn instead_of(state: &str) -> Say {
    Say::Set(Some(state.to_owned()))
}

fn was(state: &str) -> Say {
    Say::Was(state.to_owned())
}

fn is(state: &str, hours: i64) -> Say {
    Say::Is(state.to_owned(), hours)
}

fn no(code: &str) -> Say {
    Say::No(code.to_owned())
}

fn keys(keys: &[&str]) -> Say {
    Say::Keys(keys.iter().map(|key| (*key).to_owned()).collect())
}

fn left(left: [u64; 3]) -> Say {
    Say::Drained(vec![], left)
}

fn took(keys: &[&str], left: [u64; 3]) -> Say {
    Say::Drained(keys.iter().map(|key| (*key).to_owned()).collect(), left)
}

fn resumed(mode: &str) -> Say {
    Say::Resumed(Some(mode.to_owned()))
}

use Say::{Done as Happened, Moved};

macro_rules! sentences {
    ($($says:literal: [$(($what:expr, $say:expr)),+ $(,)?],)+) => {
        pub(crate) const SENTENCES: &[Sentence] = &[$(
            Sentence { says: $says, steps: || vec![$(($what, $say)),+] },
        )+];
    };
}

sentences! {
    "a set makes a timer that is pending and due then":
        [(Set("a", 2, Done), new()), (Get("a"), is("pending", 2))],
    "a set of a key that is there takes the place of its timer, and says which state that had":
        [(Set("a", 2, Done), new()), (Set("a", 5, Done), instead_of("pending")), (Get("a"), is("pending", 5))],
    "keys are apart: a set of one leaves the others":
        [(Set("a", 2, Done), new()), (Set("b", 3, Done), new()), (Get("a"), is("pending", 2))],
    "a set that asks for a new key is refused where there is a timer, and changes nothing":
        [(SetNew("a", 2), new()), (SetNew("a", 3), no("exists")), (Get("a"), is("pending", 2))],
    "a set that names the timer's revision takes its place":
        [(Set("a", 2, Done), new()), (SetIf("a", 4, Last), instead_of("pending")), (Get("a"), is("pending", 4))],
    "a set that names another revision is refused, and changes nothing":
        [(Set("a", 2, Done), new()), (SetIf("a", 4, Wrong), no("revision_mismatch")), (Get("a"), is("pending", 2))],
    "a move to a later time answers the old and the new deadline":
        [(Set("a", 2, Done), new()), (MoveTo("a", 9), Moved(2, 9)), (Get("a"), is("pending", 9))],
    "a move to a sooner time answers the old and the new deadline":
        [(Set("a", 9, Done), new()), (MoveTo("a", 2), Moved(9, 2)), (Get("a"), is("pending", 2))],
    "a move by a span counts from the deadline and not from now":
        [(Set("a", 4, Done), new()), (MoveBy("a", 3), Moved(4, 7)), (MoveBy("a", -2), Moved(7, 5))],
    "a move by more than is left goes to now, and the timer is delivered":
        [(Set("a", 4, Done), new()), (MoveBy("a", -9), Moved(4, 0)), (Await("a", "done"), Happened)],
    "a move of a key that was never set is refused":
        [(MoveTo("a", 2), no("not_found")), (MoveBy("a", 2), no("not_found"))],
    "a move that names another revision is refused, and changes nothing":
        [(Set("a", 2, Done), new()), (MoveIf("a", 4, Wrong), no("revision_mismatch")), (Get("a"), is("pending", 2))],
    "a move gives the timer a new revision":
        [(Set("a", 2, Done), new()), (MoveIf("a", 4, Last), Moved(2, 4)), (MoveIf("a", 6, Last), Moved(4, 6))],
    "a remove says that the timer was pending, and it is gone":
        [(Set("a", 2, Done), new()), (Remove("a"), was("pending")), (Get("a"), no("not_found"))],
    "a second remove finds nothing":
        [(Set("a", 2, Done), new()), (Remove("a"), was("pending")), (Remove("a"), no("not_found"))],
    "a remove of one key leaves the others":
        [(Set("a", 2, Done), new()), (Set("b", 3, Done), new()), (Remove("a"), was("pending")), (List, keys(&["b"]))],
    "a key that was removed can be set anew":
        [(Set("a", 2, Done), new()), (Remove("a"), was("pending")), (Set("a", 3, Done), new()), (Get("a"), is("pending", 3))],
    "a remove that names another revision is refused, and changes nothing":
        [(Set("a", 2, Done), new()), (RemoveIf("a", Wrong), no("revision_mismatch")), (RemoveIf("a", Last), was("pending"))],
    "a remove during a delivery says so":
        [(Set("a", 2, Hangs), new()), (Fire("a"), Moved(2, 0)), (Await("a", "delivering"), Happened),
         (Remove("a"), was("delivering")), (Get("a"), no("not_found")), (Release, Happened)],
    "a remove of pending timers only is refused during a delivery":
        [(Set("a", 2, Hangs), new()), (Fire("a"), Moved(2, 0)), (Await("a", "delivering"), Happened),
         (RemovePending("a"), no("conflict")), (Release, Happened), (Await("a", "done"), Happened)],
    "a remove of pending timers only takes one that waits":
        [(Set("a", 2, Done), new()), (RemovePending("a"), was("pending"))],
    "a remove of a dead timer says so":
        [(Set("a", 2, Fails), new()), (Fire("a"), Moved(2, 0)), (Await("a", "dead"), Happened),
         (Remove("a"), was("dead")), (Get("a"), no("not_found"))],
    "a remove of a timer that is done is refused: it is gone":
        [(Set("a", 2, Done), new()), (Fire("a"), Moved(2, 0)), (Await("a", "done"), Happened), (Remove("a"), no("gone"))],
    "a move during a delivery is refused":
        [(Set("a", 2, Hangs), new()), (Fire("a"), Moved(2, 0)), (Await("a", "delivering"), Happened),
         (MoveTo("a", 3), no("conflict")), (Release, Happened), (Await("a", "done"), Happened)],
    "a move of a timer that is done is refused: it is gone":
        [(Set("a", 2, Done), new()), (Fire("a"), Moved(2, 0)), (Await("a", "done"), Happened), (MoveTo("a", 3), no("gone"))],
    "a set during a delivery takes the timer's place, and the delivery ends without effect":
        [(Set("a", 2, Hangs), new()), (Fire("a"), Moved(2, 0)), (Await("a", "delivering"), Happened),
         (Set("a", 6, Done), instead_of("delivering")), (Release, Happened), (Get("a"), is("pending", 6))],
    "a set of a key that is done makes a new timer, and says so":
        [(Set("a", 2, Done), new()), (Fire("a"), Moved(2, 0)), (Await("a", "done"), Happened), (Set("a", 3, Done), instead_of("done"))],
    "a set of a dead timer makes a new one, and says so":
        [(Set("a", 2, Fails), new()), (Fire("a"), Moved(2, 0)), (Await("a", "dead"), Happened), (Set("a", 3, Done), instead_of("dead"))],
    "a get of a key that was never set finds nothing":
        [(Get("a"), no("not_found"))],
    "a list is in the order of deadlines":
        [(Set("late", 9, Done), new()), (Set("soon", 1, Done), new()), (Set("between", 5, Done), new()),
         (List, keys(&["soon", "between", "late"]))],
    "a list follows a move":
        [(Set("a", 1, Done), new()), (Set("b", 2, Done), new()), (MoveTo("a", 3), Moved(1, 3)), (List, keys(&["b", "a"]))],
    "a list of a queue without timers is empty":
        [(List, keys(&[]))],
    "a fire makes a pending timer due now":
        [(Set("a", 7, Done), new()), (Fire("a"), Moved(7, 0)), (Await("a", "done"), Happened)],
    "a fire leaves the other timers of the queue":
        [(Set("a", 7, Done), new()), (Set("b", 7, Done), new()), (Fire("a"), Moved(7, 0)), (Await("a", "done"), Happened),
         (Get("b"), is("pending", 7))],
    "a fire of a key that was never set is refused":
        [(Fire("a"), no("not_found"))],
    "a fire during a delivery is refused":
        [(Set("a", 2, Hangs), new()), (Fire("a"), Moved(2, 0)), (Await("a", "delivering"), Happened), (Fire("a"), no("conflict")),
         (Release, Happened), (Await("a", "done"), Happened)],
    "a timer whose attempts are used up is dead":
        [(Set("a", 2, Fails), new()), (Fire("a"), Moved(2, 0)), (Await("a", "dead"), Happened), (MoveTo("a", 3), no("conflict"))],
    "a revive makes a dead timer pending again":
        [(Set("a", 2, Fails), new()), (Fire("a"), Moved(2, 0)), (Await("a", "dead"), Happened), (Revive("a", 5), Moved(0, 5)),
         (Get("a"), is("pending", 5))],
    "a revive of a pending timer is refused":
        [(Set("a", 2, Done), new()), (Revive("a", 5), no("conflict")), (Get("a"), is("pending", 2))],
    "a revive of a timer that is done is refused: it is gone":
        [(Set("a", 2, Done), new()), (Fire("a"), Moved(2, 0)), (Await("a", "done"), Happened), (Revive("a", 5), no("gone"))],
    "a drain that removes answers what it took, and what is left":
        [(Set("a", 2, Done), new()), (Set("b", 3, Done), new()), (Drain(Removing), took(&["a", "b"], [0, 0, 0])), (List, keys(&[]))],
    "a drain that removes takes dead timers and those that are delivered as well":
        [(Set("a", 2, Fails), new()), (Fire("a"), Moved(2, 0)), (Await("a", "dead"), Happened),
         (Set("b", 2, Hangs), new()), (Fire("b"), Moved(2, 0)), (Await("b", "delivering"), Happened),
         (Drain(Removing), took(&["a", "b"], [0, 0, 0])), (Release, Happened), (Get("a"), no("not_found"))],
    "a queue that is drained to remove refuses sets until it is resumed":
        [(Drain(Removing), took(&[], [0, 0, 0])), (Set("a", 2, Done), no("draining")), (Resume, resumed("remove")), (Set("a", 2, Done), new())],
    "a drain that holds answers what is left and lets nothing start":
        [(Set("a", 2, Done), new()), (Drain(Hold), left([1, 0, 0])), (Fire("a"), Moved(2, 0)), (Get("a"), is("pending", 0)),
         (Resume, resumed("hold")), (Await("a", "done"), Happened)],
    "a queue that is drained to hold refuses sets, and takes moves and removes":
        [(Set("a", 2, Done), new()), (Drain(Hold), left([1, 0, 0])), (Set("a", 3, Done), no("draining")), (MoveTo("a", 4), Moved(2, 4)),
         (Remove("a"), was("pending")), (Resume, resumed("hold"))],
    "a drain that fires refuses sets and lets what is due go out":
        [(Set("a", 2, Done), new()), (Set("b", 3, Done), new()), (Drain(Firing), left([2, 0, 0])), (Set("c", 2, Done), no("draining")),
         (Fire("a"), Moved(2, 0)), (Await("a", "done"), Happened), (Drain(Firing), left([1, 0, 0])), (Resume, resumed("fire"))],
    "a second drain takes the place of the first":
        [(Drain(Hold), left([0, 0, 0])), (Drain(Firing), left([0, 0, 0])), (Resume, resumed("fire")), (Resume, Say::Resumed(None))],
    "a drain of all queues drains this one, and its resume ends it":
        [(Set("a", 2, Done), new()), (DrainAll(Firing), Happened), (Set("b", 2, Done), no("draining")),
         (Resume, Say::Resumed(None)), (ResumeAll, resumed("fire")), (Set("b", 2, Done), new())],
}
