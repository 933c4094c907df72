//! What the property tests of this crate share.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use core::fmt::{Debug, Display};
use proptest::strategy::Strategy;
use proptest::test_runner::{
    Config as Cases, FileFailurePersistence, TestCaseError, TestError, TestRunner,
};
use std::cell::Cell;

/// Quick by default; `PROPTEST_CASES` makes it as long as one likes.
pub fn cases(quick: u32) -> Cases {
    let asked = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    Cases {
        cases: asked.unwrap_or(quick),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Cases::default()
    }
}

/// What all cases together have seen; none of them may fail.
pub fn seen_by_all<S, T, F>(
    quick: u32,
    strategy: S,
    play: impl Fn(&S::Value) -> Result<T, F>,
    add: impl Fn(&mut T, T),
) -> T
where
    S: Strategy,
    T: Copy + Default,
    F: Display,
{
    let totals = Cell::new(T::default());
    TestRunner::new(Cases {
        failure_persistence: None,
        ..cases(quick)
    })
    .run(&strategy, |case| {
        let seen = play(&case).map_err(|fault| TestCaseError::fail(fault.to_string()))?;
        let mut sum = totals.get();
        add(&mut sum, seen);
        totals.set(sum);
        Ok(())
    })
    .unwrap();
    totals.get()
}

/// A path that next to no case takes is not tested.
#[track_caller]
pub fn are_walked<T: Debug>(paths: &[(&str, u64)], sum: T) {
    for (what, count) in paths {
        assert!(*count >= 20, "only {count} {what}: {sum:?}");
    }
}

/// With something wrong on purpose a case must fail: with what, in the last one tried.
#[track_caller]
pub fn fault_of<S, F>(
    mut runner: TestRunner,
    strategy: S,
    play: impl Fn(&S::Value) -> Result<(), F>,
) -> Option<F>
where
    S: Strategy,
    F: Display,
{
    let found = Cell::new(None);
    let result = runner.run(&strategy, |case| {
        play(&case).map_err(|fault| {
            let said = TestCaseError::fail(fault.to_string());
            found.set(Some(fault));
            said
        })
    });
    matches!(result, Err(TestError::Fail(..)))
        .then(|| found.take())
        .flatten()
}
