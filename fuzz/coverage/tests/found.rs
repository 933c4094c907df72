//! What a fuzzer has found, by its symptom: the smallest input of each, which is kept in the corpus
//! under this name.

macro_rules! found {
    ($($target:ident: $($symptom:ident)+;)+) => {
        $($(
            #[test]
            fn $symptom() {
                sluice_coverage::$target::run(include_bytes!(concat!(
                    "../corpus/", stringify!($target), "/", stringify!($symptom)
                )));
            }
        )+)+
    };
}

found! {
    pump: a_ring_longer_than_any_is_taken_for_a_bug_of_this_end;
    tables: a_version_of_control_characters_reaches_the_terminal
        the_rings_of_two_connections_overflow_their_sum;
}
