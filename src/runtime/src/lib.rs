//! The process that Sluice runs in, and the pointers and descriptors that the program passes.
//!
//! * [`config`], [`subnet`], [`address`]: the settings; networks and addresses of sockets.
//! * [`process`], [`credentials`], [`seccomp`], [`rights`]: identity of this process; what this
//!   process and its peers may do.
//! * [`fd_table`], [`own_fds`]: the table of descriptors; the library's own ones.
//! * [`caller`], [`iov`]: checks of the program's pointers; [`pagemap`]: which pages are there.
//! * [`thread`], [`spin`]: the calling thread, as glibc and the kernel know it; spinning.
//! * [`control_thread`]: the library's own thread.
//! * [`trace`], [`fault`], [`copies`]: the file of messages; faults for tests; a second copy of the
//!   library.
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
pub mod limits;
pub mod own_fds;
pub mod pagemap;
pub mod process;
pub mod rights;
pub mod seccomp;
pub mod spin;
pub mod subnet;
pub mod thread;
pub mod trace;
