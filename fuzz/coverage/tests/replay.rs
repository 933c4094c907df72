//! Every input that a fuzzer has kept is taken again, without a fuzzer.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The inputs of a target, by name.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("corpus/{target}: {e}"));
    let mut all: Vec<_> = entries
        .map(|entry| {
            let entry = entry.unwrap();
            (
                entry.file_name().into_string().unwrap(),
                std::fs::read(entry.path()).unwrap(),
            )
        })
        .collect();
    all.sort();
    all
}

/// One target at a time: inputs count descriptors, and are a whole process's doing.
static ALONE: Mutex<()> = Mutex::new(());

fn replay(target: &str) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, run) = sluice_coverage::TARGETS
        .iter()
        .find(|(name, _)| *name == target)
        .unwrap();
    let inputs = corpus(target);
    assert!(!inputs.is_empty(), "no inputs are kept");
    for (name, bytes) in inputs {
        // Seen where one fails.
        println!("{target}/{name}");
        run(&bytes);
    }
}

macro_rules! replayed {
    ($($target:ident)+) => {
        $(
            #[test]
            fn $target() {
                replay(stringify!($target));
            }
        )+

        #[test]
        fn every_target_is_replayed() {
            let replayed = [$(stringify!($target)),+];
            let all: Vec<_> = sluice_coverage::TARGETS.iter().map(|(name, _)| *name).collect();
            assert_eq!(all, replayed);
        }
    };
}

replayed!(arena configuration dial messages pump records tables trace transit);
