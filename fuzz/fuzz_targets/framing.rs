//! See `countwheel_server::fuzz`.
#![no_main]

use countwheel_server::fuzz::Target;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    Target::Framing.run(input);
});
