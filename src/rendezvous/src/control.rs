//! The control thread: does what must happen while the program makes no call.
//!
//! It is started at the first meeting with a peer, by pthread_create, with every signal blocked but
//! glibc's own 32 and 33. It sleeps in one epoll set, all its sends are non-blocking, and it holds
//! a stream's lock only for short sections (`lock.rs`).

mod links;

use super::message::{self, Kind, Message, Next, Received};
use crate::hosts;
use core::sync::atomic::Ordering;
use sluice_fabric::layout::STREAMS;
use sluice_fabric::lock::{self, Guarded};
use sluice_fabric::shm::{self, Link};
use sluice_fabric::sys;
use sluice_runtime::{control_thread, own_fds};
use sluice_sockets::socket::Socket;
use sluice_sockets::{descriptors, inherited, tell, trim, wake, work};
use sluice_stats::Reason;

pub(super) use links::READING;
#[cfg(test)]
pub(super) use links::lost;
use links::on_link;
pub use links::{bell_at, drop_bell, link_is_up, read_links, want_bell};

/// The thread's loop, as long as `set` is its own.
pub fn serve(set: i32) {
    super::hand_over_to_control();
    let mut timeout = None;
    let mut trims = trim::Trims::default();
    while control_thread::is_current(set) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let wait = timeout.map(sys::timespec);
        // SAFETY: `events` has room for 64 events and lives until the call returns.
        let got = unsafe {
            sys::epoll_wait(
                set,
                events.as_mut_ptr(),
                64,
                wait.as_ref(),
                core::ptr::null(),
            )
        };
        if !control_thread::is_current(set) {
            break;
        }
        // Libraries of devices may open descriptors in any call, so the whole turn is declared.
        // Code for links within the host declares the short sections in which it does.
        let _turn = sluice_transport::links::are_driven().then(own_fds::Turn::begin);
        for event in events.iter().take(got.unwrap_or(0)) {
            handle(event.events, event.u64);
        }
        super::progress();
        super::closer::reap();
        inherited::answer_calls();
        descriptors::make_ends();
        let jobs_left = work::do_jobs();
        let meetings_left = super::time_left();
        let trims_left = trims.progress();
        let hosts_left = hosts::progress();
        timeout = [jobs_left, meetings_left, trims_left, hosts_left]
            .into_iter()
            .flatten()
            .min();
    }
}

fn address<T>(data: u64) -> Option<&'static T> {
    // SAFETY: events have addresses of links and sockets only, whose memory is never freed.
    unsafe { ((data & !control_thread::KINDS) as *const T).as_ref() }
}

fn handle(events: u32, data: u64) {
    match data & control_thread::KINDS {
        control_thread::LINK => {
            if let Some(link) = address::<Link>(data) {
                if events & libc::EPOLLOUT as u32 != 0 {
                    tell::tell_rest(link);
                }
                on_link(link);
            }
        }
        control_thread::SOCK => {
            if let Some(sock) = address::<Socket>(data) {
                work::on_tcp(sock, events);
            }
        }
        control_thread::REMOTE => hosts::on_event(data & !control_thread::KINDS),
        // A wake-up, or news of a meeting: jobs and meetings are looked at in every turn anyway.
        _ => {}
    }
}

/// For the fuzzer: the thread's work without a thread, at moments that the fuzzer chooses.
#[cfg(feature = "fuzzing")]
pub mod by_hand {
    use super::*;

    /// Makes the library believe that the thread runs.
    pub fn begin() -> Result<(), Reason> {
        control_thread::seem_to_run().map(drop)
    }

    /// One turn of the thread's loop.
    pub fn turn() {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let (set, at_once) = (control_thread::seem_to_run(), sys::timespec(0));
        let none = core::ptr::null();
        // SAFETY: `events` has room for 64 events and lives until the call returns.
        let got = unsafe {
            sys::epoll_wait(
                set.unwrap_or(-1),
                events.as_mut_ptr(),
                64,
                Some(&at_once),
                none,
            )
        };
        let _turn = own_fds::Turn::begin();
        for event in events.iter().take(got.unwrap_or(0)) {
            handle(event.events, event.u64);
        }
        super::super::progress();
        super::super::closer::reap();
        work::do_jobs();
    }

    /// The peer has asked for a look at the cursors of a stream.
    pub fn look(link: &'static Link, index: u32) {
        work::look(link, index);
    }

    /// The peer's process is gone.
    pub fn lose(link: &'static Link) {
        links::lost(link);
    }
}
