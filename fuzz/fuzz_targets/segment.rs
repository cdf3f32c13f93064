//! See `countwheel_disk::fuzz`.
#![no_main]

use countwheel_disk::fuzz::Target;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    Target::Segment.run(input);
});
