#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sluice_coverage::arena::run(bytes));
