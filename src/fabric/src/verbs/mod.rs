//! Links between hosts: verbs of an RDMA device, connections by RDMA CM.
//!
//! * [`api`]: the functions of rdma-core, looked up late.
//! * `ffi`: what its headers say.
//! * [`device`]: a device, its limits, domains and registered memory.
//! * [`queue`]: completion queues and queue pairs.
//! * [`sigpipe`]: a signal that posting may raise.
//! * [`cm`]: dialling and answering, never waiting.
//! * `fake`: a device in memory, for tests.

pub mod api;
pub mod cm;
pub mod device;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
pub(crate) mod ffi;
pub mod queue;
pub mod sigpipe;
