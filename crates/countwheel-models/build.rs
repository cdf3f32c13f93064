//! Makes the copies of the product's sources in which mistakes are planted.

fn main() {
    countwheel_mutations::build("mutations/wheels.md", "../countwheel-core/src", "wheels");
    let timer = "../countwheel/src/concurrent";
    countwheel_mutations::build("mutations/timer.md", timer, "timer");
    let patterns = "../countwheel-patterns/src/concurrent";
    countwheel_mutations::build("mutations/patterns.md", patterns, "patterns");
}
