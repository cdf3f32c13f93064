//! See `countwheel_durable::store::fuzz`.
#![no_main]

use countwheel_durable::store::fuzz::Target;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    Target::Table.run(input);
});
