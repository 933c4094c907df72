//! Which direct transfers this process makes between hosts, by its settings
//! (`docs/decisions/011-direct-between-hosts.md`).

use sluice_runtime::config::{Config, Mode, config};
use sluice_stream as stream;

/// Shorter ones are not tried where it is learnt which pay.
const LEAST: u32 = 64 << 10;

/// Returns whether it is to be [learnt](super::loan_costs) which direct transfers pay.
pub fn is_learnt() -> bool {
    config().direct_learnt
}

/// Least length of a direct transfer in [`Mode::Dynamic`]. `None` unless the user has set one: then
/// no direct transfers are made.
fn said() -> Option<u32> {
    if is_learnt() {
        return Some(LEAST);
    }
    let default = Config::DEFAULT.direct_min;
    config().direct_min.filter(|least| Some(*least) != default)
}

/// The mode of transfers between hosts.
pub fn mode() -> stream::Mode {
    if !sluice_runtime::thread::hears_of_jumps() {
        return stream::Mode::Indirect;
    }
    match config().mode {
        Mode::Direct => stream::Mode::Direct,
        Mode::Dynamic if said().is_some() => stream::Mode::Dynamic,
        Mode::Dynamic | Mode::Indirect => stream::Mode::Indirect,
    }
}

/// True if this process makes direct transfers between hosts.
pub fn is_on() -> bool {
    mode() != stream::Mode::Indirect
}

/// Least length of a buffer that is advertised or offered for a direct transfer.
pub fn least() -> u32 {
    match config().mode {
        Mode::Direct => 1,
        Mode::Dynamic => said().unwrap_or(u32::MAX),
        Mode::Indirect => u32::MAX,
    }
}
