//! What the fuzzer found worth keeping, handed to the readers of the service once more.
//!
//! `COUNTWHEEL_WRITE_SEEDS=1` writes what it begins with to the corpus.

use std::fs;
use std::path::{Path, PathBuf};

use countwheel_server::fuzz::{Seen, Target};

fn corpus(target: Target) -> PathBuf {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    fuzz.join(target.name())
}

#[test]
fn what_the_fuzzer_kept_is_read_or_refused() {
    for target in Target::ALL {
        let (mut right, mut refused) = (0, 0);
        for entry in fs::read_dir(corpus(target)).unwrap() {
            let path = entry.unwrap().path();
            let input = fs::read(&path).unwrap();
            // Its name, if it panics.
            println!("{}", path.display());
            match target.run(&input) {
                Seen::Right => right += 1,
                Seen::Refused => refused += 1,
            }
        }
        assert!(right > 0 && refused > 0, "{target:?}: {right}, {refused}");
    }
}

/// A fuzzer that is stopped at the door finds nothing behind it.
#[test]
fn what_is_sent_in_due_form_is_read() {
    for target in Target::ALL {
        for (number, seed) in target.seeds().into_iter().enumerate() {
            let text = String::from_utf8_lossy(&seed);
            assert_eq!(target.run(&seed), Seen::Right, "{target:?} {number} {text}");
            if std::env::var_os("COUNTWHEEL_WRITE_SEEDS").is_some() {
                fs::create_dir_all(corpus(target)).unwrap();
                fs::write(corpus(target).join(format!("seed-{number}")), seed).unwrap();
            }
        }
    }
}
