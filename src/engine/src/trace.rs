//! `SLUICE_TRACE=PATH`: every message of this process's connections, in the file PATH.PID.

use crate::config::{self, Level};
use crate::process;
use crate::sockets::internal::Low;
use sluice_fabric::sys;
use sluice_stats::TraceFile;
use std::ffi::CString;

/// Where the program executes another one the process keeps its number: then PATH.PID.2, and so on to here.
const FILES_MAX: u32 = 16;

/// From here on messages are kept, if that is asked for. When the library is loaded, and in the child of a fork, which gets a file of its
/// own.
pub fn begin() {
    if config::config().trace.is_some() {
        sluice_stats::trace_by(open);
    }
}

/// Makes the file, and says so if that cannot be.
fn open() -> Option<&'static TraceFile> {
    let made = process::may_use_system_calls()
        .map_err(|_| libc::EPERM)
        .and_then(|()| make());
    match made {
        Ok(file) => Some(file),
        Err(errno) => {
            config::log(
                Level::Error,
                format_args!(
                    "no trace is kept of process {}: errno {errno}",
                    process::pid()
                ),
            );
            None
        }
    }
}

fn make() -> Result<&'static TraceFile, sys::Errno> {
    let path = config::config().trace.as_deref().ok_or(libc::ENOENT)?;
    let (path, pid) = (path.to_str().map_err(|_| libc::EINVAL)?, process::pid());
    let _low = Low::begin();
    let mut made = Err(libc::EEXIST);
    for number in 1..=FILES_MAX {
        let name = match number {
            1 => format!("{path}.{pid}"),
            _ => format!("{path}.{pid}.{number}"),
        };
        made = sys::create(&CString::new(name).map_err(|_| libc::EINVAL)?);
        if !matches!(made, Err(libc::EEXIST)) {
            break;
        }
    }
    let file = made?;
    let len = size_of::<TraceFile>();
    sys::ftruncate(file.raw(), len as u64)?;
    let at = sys::map_shared(file.raw(), len)?.cast::<TraceFile>();
    // SAFETY: mapped with this length, at a page, and never unmapped. Zeros are valid, and all of it is atomic: who else may
    // write to the file can make no more than wrong numbers. (One who makes it shorter ends this process, which is his anyway.)
    let file: &'static TraceFile = unsafe { &*at };
    file.begin(pid, config::program());
    Ok(file)
}
