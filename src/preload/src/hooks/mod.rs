//! The exported C symbols, one file per family.

mod conn;
mod epoll;
mod fd;
mod file;
mod io;
mod memory;
mod msg;
mod poll;
mod process;
mod raw;
mod signal;
mod trampoline;
mod uring;

/// Looks up every real function, so that later no hook does it, in a fork's window or elsewhere.
pub fn resolve() {
    crate::real::resolve();
    conn::resolve();
    epoll::resolve();
    epoll::resolve_late();
    fd::resolve();
    fd::resolve_late();
    file::resolve();
    file::resolve_late();
    io::resolve();
    io::resolve_late();
    memory::resolve_late();
    msg::resolve();
    poll::resolve();
    process::resolve();
    process::resolve_late();
    signal::resolve();
    trampoline::resolve();
}
