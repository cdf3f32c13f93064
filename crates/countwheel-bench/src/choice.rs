//! Names on the command line that mean one of two kinds.

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// What is under virtual time, or what is on the real clock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice<A, B> {
    Virtual(A),
    Threaded(B),
}

impl<A: ValueEnum + Send + Sync + 'static, B: ValueEnum + Send + Sync + 'static> Choice<A, B> {
    /// Reads either.
    pub(crate) fn parser() -> impl TypedValueParser<Value = Self> {
        PossibleValuesParser::new(Self::names()).try_map(|name| {
            let first = A::from_str(&name, false).map(Self::Virtual);
            first.or_else(|_| B::from_str(&name, false).map(Self::Threaded))
        })
    }

    fn names() -> Vec<PossibleValue> {
        let first = A::value_variants().iter();
        let first = first.filter_map(ValueEnum::to_possible_value);
        let second = B::value_variants().iter();
        let second = second.filter_map(ValueEnum::to_possible_value);
        first
            .chain(second)
            .filter(|name| !name.is_hide_set())
            .collect()
    }
}

/// Both kinds apart; all of both if nothing was chosen.
pub(crate) fn apart<A: Copy, B: Copy>(
    chosen: &[Choice<A, B>],
    all: (&[A], &[B]),
) -> (Vec<A>, Vec<B>) {
    if chosen.is_empty() {
        return (all.0.to_vec(), all.1.to_vec());
    }
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for &choice in chosen {
        match choice {
            Choice::Virtual(one) => first.push(one),
            Choice::Threaded(one) => second.push(one),
        }
    }
    (first, second)
}
