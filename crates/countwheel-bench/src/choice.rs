//! Names on the command line, some of which mean one of several kinds.

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// How a name is written on the command line.
pub(crate) trait Word: ValueEnum {
    fn word(&self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }
}

impl<V: ValueEnum> Word for V {}

/// What is under virtual time, what is on the real clock, or what is built on timers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice<A, B, C> {
    Virtual(A),
    Threaded(B),
    Pattern(C),
}

impl<A, B, C> Choice<A, B, C>
where
    A: ValueEnum + Send + Sync + 'static,
    B: ValueEnum + Send + Sync + 'static,
    C: ValueEnum + Send + Sync + 'static,
{
    /// Reads any of them.
    pub(crate) fn parser() -> impl TypedValueParser<Value = Self> {
        PossibleValuesParser::new(Self::names()).try_map(|name| {
            let first = A::from_str(&name, false).map(Self::Virtual);
            first
                .or_else(|_| B::from_str(&name, false).map(Self::Threaded))
                .or_else(|_| C::from_str(&name, false).map(Self::Pattern))
        })
    }

    fn names() -> Vec<PossibleValue> {
        let names = values::<A>().chain(values::<B>()).chain(values::<C>());
        names.filter(|name| !name.is_hide_set()).collect()
    }
}

fn values<V: ValueEnum + 'static>() -> impl Iterator<Item = PossibleValue> {
    let values = V::value_variants().iter();
    values.filter_map(ValueEnum::to_possible_value)
}

/// The kinds apart; all of all if nothing was chosen.
pub(crate) fn apart<A: Copy, B: Copy, C: Copy>(
    chosen: &[Choice<A, B, C>],
    all: (&[A], &[B], &[C]),
) -> (Vec<A>, Vec<B>, Vec<C>) {
    if chosen.is_empty() {
        return (all.0.to_vec(), all.1.to_vec(), all.2.to_vec());
    }
    let (mut first, mut second, mut third) = (Vec::new(), Vec::new(), Vec::new());
    for &choice in chosen {
        match choice {
            Choice::Virtual(one) => first.push(one),
            Choice::Threaded(one) => second.push(one),
            Choice::Pattern(one) => third.push(one),
        }
    }
    (first, second, third)
}
