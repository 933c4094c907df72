//! What Sluice knows of the process that it runs in, and of what the program gives it.
//!
//! * [`config`], [`subnet`], [`address`]: the settings; networks and addresses of sockets.
//! * [`process`], [`credentials`], [`seccomp`], [`rights`]: which process this is; what it and
//!   its peers may do.
//! * [`fd_table`], [`own_fds`]: what each descriptor is; the library's own.
//! * [`caller`], [`iov`]: what the program's pointers lead to.
//! * [`thread`], [`spin`]: what glibc and the kernel tell of the calling thread; waiting on its
//!   processor.
//! * [`control_thread`]: the library's own thread.
//! * [`trace`], [`fault`], [`copies`]: the file of messages; faults for tests; a second library.
//!
//! Nothing here knows of sockets, sets or links to peers: `docs/architecture.md` has the layers.

pub mod address;
pub mod caller;
pub mod config;
pub mod control_thread;
pub mod copies;
pub mod credentials;
pub mod fault;
pub mod fd_table;
pub mod in_handler;
pub mod iov;
pub mod own_fds;
pub mod process;
pub mod rights;
pub mod seccomp;
pub mod spin;
pub mod subnet;
pub mod thread;
pub mod trace;
