//! For the fuzzer: settings from random bytes.

use super::line::Line;
use super::{Config, file};

/// The settings of a program of this name, from a configuration file and an environment, and the
/// line that its user is told. `is_secure`: it has more rights than its caller.
#[must_use]
pub fn understood(
    text: &[u8],
    program: &[u8],
    variables: &[(&[u8], &[u8])],
    (with_fault, is_secure): (bool, bool),
) -> (Config, Vec<u8>) {
    let mut complaint = Line::new();
    let mut read = file::Read::new(&mut complaint);
    read.take(b"/etc/sluice.conf", text, program);
    read.variables(variables.iter().copied(), (with_fault, is_secure));
    (read.config, complaint.finished().to_vec())
}
