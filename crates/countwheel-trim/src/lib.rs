//! Gives free memory of the C library back to the system.
//!
//! By itself the GNU C library gives back only the free memory at the end of its heap. After a flood
//! of connections nearly all memory is free, but a few small pieces live on near the end: 43
//! to 65 MB stayed, of which 170 KiB were in use. Only a call of `malloc_trim(3)` gives back whole
//! free pages between the pieces as well.
//!
//! This is the one place of the project with `unsafe`: no crate offers the call without it.

/// Gives back what is free. Takes the heap's locks while it looks through it, milliseconds for each
/// 100 MB, so it is for when a lot has become free. Says whether anything was given back.
///
/// Elsewhere than with the GNU C library it does nothing.
///
/// ```
/// let many: Vec<Vec<u8>> = (0..10_000).map(|_| vec![1; 1_000]).collect();
/// drop(many);
/// countwheel_trim::give_back();
/// ```
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn give_back() -> bool {
    #[expect(unsafe_code, reason = "the call has no other form")]
    // SAFETY: it is given no pointer, touches only memory that is not in use, and may be called by
    // any thread at any time.
    let given = unsafe { libc::malloc_trim(0) };
    given == 1
}

/// Nothing is known of this system's heap.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_back() -> bool {
    false
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    /// Memory of this process that is its own, in KiB.
    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("a status");
        let line = status.lines().find(|line| line.starts_with("RssAnon:"));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number
            .and_then(|number| number.parse().ok())
            .expect("a number")
    }

    /// Small pieces among freed ones keep the library from giving back what is free.
    #[test]
    fn what_is_free_between_pieces_goes_back() {
        let mut many: Vec<Vec<u8>> = (0..60_000).map(|_| vec![1; 1_000]).collect();
        let kept: Vec<Vec<u8>> = many.iter().step_by(1_000).cloned().collect();
        let last = many.pop();
        let peak = resident();
        drop(many);
        let freed = resident();
        super::give_back();
        let after = resident();
        assert!(after + 40_000 < peak, "{peak}, {freed}, {after} KiB");
        assert!(
            after + 30_000 < freed,
            "it went back by itself: {freed}, {after} KiB"
        );
        assert_eq!((kept.len(), last.map(|last| last.len())), (60, Some(1_000)));
    }
}
