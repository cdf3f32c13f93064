//! Visits every state that can be reached, the nearest first.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// What happened, and to whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step(pub(crate) &'static str, pub(crate) u8);

/// A model in one state.
pub(crate) trait State: Hash + Sized {
    /// What it is to keep to.
    type Rules;

    /// Everything that may happen next.
    fn next(&self, rules: &Self::Rules, out: &mut Vec<(Step, Self)>);

    /// What should never be.
    fn wrong(&self) -> Option<&'static str>;
}

/// What a search came to.
pub(crate) struct Found {
    pub(crate) states: usize,
    pub(crate) wrong: Option<Wrong>,
}

/// The shortest way to something that should never be.
pub(crate) struct Wrong {
    pub(crate) what: &'static str,
    pub(crate) way: Vec<Step>,
}

/// A state is known by 64 bits of its hash: of `n` states, some two are taken for one with a probability
/// of about n² / 2^65.
fn print(world: &impl State) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

pub(crate) fn search<S: State>(first: S, rules: &S::Rules) -> Found {
    let mut known = HashSet::from([print(&first)]);
    // How each state was reached: from which, and by what.
    let mut ways: Vec<(usize, Step)> = vec![(0, Step("", 0))];
    let mut front = VecDeque::from([(0, first)]);
    let mut next = Vec::new();
    while let Some((from, world)) = front.pop_front() {
        world.next(rules, &mut next);
        for (step, world) in next.drain(..) {
            if !known.insert(print(&world)) {
                continue;
            }
            ways.push((from, step));
            let at = ways.len() - 1;
            if let Some(what) = world.wrong() {
                let way = way(&ways, at);
                return Found {
                    states: known.len(),
                    wrong: Some(Wrong { what, way }),
                };
            }
            front.push_back((at, world));
        }
    }
    Found {
        states: known.len(),
        wrong: None,
    }
}

fn way(ways: &[(usize, Step)], mut at: usize) -> Vec<Step> {
    let mut way = Vec::new();
    while at > 0 {
        let (from, step) = ways[at];
        way.push(step);
        at = from;
    }
    way.reverse();
    way
}
