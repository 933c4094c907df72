//! Looks at many processes, none of which can hold the tool up.
//!
//! A target decides how long it takes to read its memory: a page may come late, or never
//! (userfaultfd, a file system in user space), and nothing but SIGKILL ends such a wait, on some
//! file systems not even that. So it is children of the tool that read, one target after the other,
//! and send what they found through a pipe. On a board in shared memory each says which target it
//! is at, and since when. One that is at it for [`PATIENCE`] is killed, and the target left out;
//! one that takes a while gets company, so that several such targets cost the time of one. A child
//! that cannot be killed is left to itself: it holds no descriptor of the tool's, init collects it
//! when it is free, and its target is not asked again before.

use crate::counters::wire::{self, Answer};
use crate::counters::{self, Failure, Found, Limits};
use crate::process;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::{Duration, Instant};

/// How long a target may take.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// After this time the reader itself begins nothing new, and sends what it has.
const ENOUGH: Duration = Duration::from_millis(500);

/// A reader that is at a target for this time gets company.
const SLOW: Duration = Duration::from_millis(50);

/// Readers at work at once, slow ones aside, and with them. One is enough for a few targets.
const AT_WORK: usize = 2;
const READERS: usize = 32;
const FEW: usize = 16;

/// Longest wait for a reader's end after it was killed.
const GRACE: Duration = Duration::from_millis(20);

/// A target that has not answered is asked again after this time, then after twice as long, and so
/// on.
const FIRST_REST: Duration = Duration::from_secs(10);
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// What is asked of each target.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// Only of those with this name.
    pub name: Option<&'a str>,
    /// Of those without Sluice, or whose mappings are out of sight, nothing is wanted.
    pub is_idle: bool,
    /// Connections of each that are wanted whole.
    pub listed: usize,
}

/// Remembers from look to look.
#[derive(Default)]
pub struct Looker {
    found: HashMap<i32, Found>,
    silent: HashMap<i32, Silent>,
    /// Children that could not be killed, and their targets.
    stuck: Vec<(libc::pid_t, i32)>,
}

/// A target that has not answered.
struct Silent {
    /// What tells it from a later process of this number.
    started: Option<u64>,
    rest: Duration,
    until: Instant,
}

impl Looker {
    /// Asks all of `pids`, and hands over each answer that there is as it comes.
    pub fn look(&mut self, pids: &[i32], question: Question, mut each: impl FnMut(i32, Answer)) {
        let is_running = |child: &libc::pid_t| !has_ended(*child);
        self.stuck.retain(|(child, _)| is_running(child));
        self.silent.retain(|pid, _| pids.contains(pid));
        let mut asked = Vec::new();
        for &pid in pids {
            if self.is_resting(pid) {
                each(pid, Err(Failure::Silent));
            } else {
                asked.push(pid);
            }
        }
        let known = std::mem::take(&mut self.found);
        let mut round = match Round::new(&asked, question, &known) {
            Ok(round) => round,
            Err(error) => {
                let error = error.raw_os_error().unwrap_or(libc::EAGAIN);
                let failed = || Failure::Unread(io::Error::from_raw_os_error(error));
                asked.iter().for_each(|&pid| each(pid, Err(failed())));
                return;
            }
        };
        while let Some((pid, answer)) = round.next() {
            match &answer {
                Ok(counters) => {
                    self.found.insert(pid, counters.found.clone());
                    self.silent.remove(&pid);
                }
                Err(Failure::Silent) => self.rests(pid),
                Err(_) => {
                    self.silent.remove(&pid);
                }
            }
            each(pid, answer);
        }
        self.stuck.append(&mut round.stuck);
    }

    fn is_resting(&self, pid: i32) -> bool {
        let has_reader = self.stuck.iter().any(|&(_, target)| target == pid);
        let is_now = |silent: &Silent| {
            (Instant::now() < silent.until || has_reader) && silent.started == process::started(pid)
        };
        self.silent.get(&pid).is_some_and(is_now)
    }

    fn rests(&mut self, pid: i32) {
        let before = self.silent.get(&pid).map(|silent| silent.rest);
        let rest = before.map_or(FIRST_REST, |rest| LONGEST_REST.min(2 * rest));
        let silent = Silent {
            started: process::started(pid),
            rest,
            until: Instant::now() + rest,
        };
        self.silent.insert(pid, silent);
    }
}

/// Collects a child if it has ended.
fn has_ended(child: libc::pid_t) -> bool {
    // SAFETY: a child of this process, which nobody else waits for; its status is not wanted.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WNOHANG) != 0 }
}

/// Collects a child that is about to end.
fn collect(child: libc::pid_t) {
    // SAFETY: as above.
    while unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) } == -1
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

/// What all readers write and the tool reads.
struct Board {
    /// The next target that nobody has taken.
    next: AtomicUsize,
    places: [Place; READERS],
}

/// Where one reader is.
struct Place {
    /// 1 + the number of its target; 0: at none. Release when it is begun, after `since_ns`;
    /// Acquire when it is looked at.
    target: AtomicUsize,
    since_ns: AtomicU64,
}

/// A [`Board`] that children share with the tool.
struct Shared(NonNull<Board>);

impl Shared {
    fn new() -> io::Result<Self> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: new memory at an address of the kernel's choice touches none that is in use.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Board>(),
                rights,
                kind,
                -1,
                0,
            )
        };
        match NonNull::new(at.cast()) {
            Some(board) if at != libc::MAP_FAILED => Ok(Self(board)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn board(&self) -> &Board {
        // SAFETY: mapped while `self` lives, page-aligned and long enough; zeros are a valid board,
        // and it holds atomics alone.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: what `new` has mapped, and no reference outlives `self`. A child has its own
        // mapping of it.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<Board>()) };
    }
}

/// A child that reads.
struct Reader {
    pid: libc::pid_t,
    /// On the board.
    place: usize,
    pipe: File,
    /// What came through it, and is no whole message yet.
    came: Vec<u8>,
}

/// One look at some targets.
struct Round<'a> {
    targets: &'a [i32],
    question: Question<'a>,
    known: &'a HashMap<i32, Found>,
    shared: Shared,
    readers: Vec<Reader>,
    /// Targets, by number, whose reader was killed just as it came to them.
    again: Vec<usize>,
    answers: Vec<(usize, Answer)>,
    stuck: Vec<(libc::pid_t, i32)>,
}

impl<'a> Round<'a> {
    fn new(
        targets: &'a [i32],
        question: Question<'a>,
        known: &'a HashMap<i32, Found>,
    ) -> io::Result<Self> {
        Ok(Self {
            targets,
            question,
            known,
            shared: Shared::new()?,
            readers: Vec::new(),
            again: Vec::new(),
            answers: Vec::new(),
            stuck: Vec::new(),
        })
    }

    /// The next answer, in no order; `None`: all targets were looked at.
    fn next(&mut self) -> Option<(i32, Answer)> {
        loop {
            while let Some((number, answer)) = self.answers.pop() {
                if let Some(&pid) = self.targets.get(number) {
                    return Some((pid, answer));
                }
            }
            self.start();
            if self.readers.is_empty() {
                // Targets without a reader have got their answer in `start`.
                if self.answers.is_empty() {
                    return None;
                }
                continue;
            }
            self.wait();
            self.end_those_that_hang();
        }
    }

    fn board(&self) -> &Board {
        self.shared.board()
    }

    fn has_more(&self) -> bool {
        !self.again.is_empty() || self.board().next.load(Relaxed) < self.targets.len()
    }

    /// Starts readers as long as there is something to do for them.
    fn start(&mut self) {
        let wanted = if self.targets.len() > FEW { AT_WORK } else { 1 };
        while self.has_more() && self.readers.len() < READERS {
            let at_work = self.readers.iter();
            let at_work = at_work.filter(|reader| self.time_left(reader, SLOW).is_some());
            if at_work.count() >= wanted {
                return;
            }
            let first = self.again.pop();
            match self.fork(first) {
                Ok(reader) => self.readers.push(reader),
                Err(error) => {
                    self.again.extend(first);
                    if self.readers.is_empty() {
                        self.give_up(&error);
                    }
                    return;
                }
            }
        }
    }

    /// Nobody can be started that would read what is left.
    fn give_up(&mut self, why: &io::Error) {
        let next = self.board().next.swap(self.targets.len(), Relaxed);
        let left = self.again.drain(..).chain(next..self.targets.len());
        let why = why.raw_os_error().unwrap_or(libc::EAGAIN);
        let failed = |number| {
            let why = io::Error::from_raw_os_error(why);
            (number, Err(Failure::Unread(why)))
        };
        self.answers.extend(left.map(failed));
    }

    /// The rest of the time that the reader may be at its target; `None`: it has passed.
    fn time_left(&self, reader: &Reader, limit: Duration) -> Option<Duration> {
        let Some(place) = self.board().places.get(reader.place) else {
            return Some(limit);
        };
        if place.target.load(Acquire) == 0 {
            return Some(limit);
        }
        let since = Duration::from_nanos(place.since_ns.load(Relaxed));
        let now = Duration::from_nanos(sluice_stats::monotonic_ns());
        limit
            .checked_sub(now.saturating_sub(since))
            .filter(|left| !left.is_zero())
    }

    /// Waits until something has come, or one of the readers is at its target for too long.
    fn wait(&mut self) {
        let waits_for_company = self.has_more() && self.readers.len() < READERS;
        let due = |reader: &Reader| {
            let slow = self.time_left(reader, SLOW).filter(|_| waits_for_company);
            slow.or_else(|| self.time_left(reader, PATIENCE))
                .unwrap_or_default()
        };
        let due = self.readers.iter().map(due).min().unwrap_or_default();
        // Not before it is due: poll counts whole milliseconds.
        let ms = due.as_millis() as libc::c_int + 1;
        let mut polled: Vec<_> = self
            .readers
            .iter()
            .map(|reader| libc::pollfd {
                fd: reader.pipe.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        // SAFETY: as many as there are, in memory of our own. What comes of it is asked of each
        // pipe.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, ms) };
        for (number, polled) in polled.iter().enumerate().rev() {
            if polled.revents != 0 && self.take(number) {
                let reader = self.readers.swap_remove(number);
                self.ends(reader);
            }
        }
    }

    /// Takes what a reader has sent; true: it has closed its end.
    fn take(&mut self, number: usize) -> bool {
        let Some(reader) = self.readers.get_mut(number) else {
            return false;
        };
        let mut bytes = [0; 64 << 10];
        let is_over = loop {
            match reader.pipe.read(&mut bytes) {
                Ok(0) => break true,
                Ok(len) => reader.came.extend(bytes.get(..len).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error.kind() != io::ErrorKind::WouldBlock,
            }
        };
        while let Some(answer) = wire::take(&mut reader.came) {
            self.answers.push(answer);
        }
        is_over
    }

    /// A reader has closed its pipe: it is done, or has come to harm.
    fn ends(&mut self, reader: Reader) {
        let target = self.board().places.get(reader.place);
        let target = target.map_or(0, |place| place.target.load(Acquire));
        if let Some(number) = target.checked_sub(1) {
            self.answers.push((number, Err(Failure::Broken)));
        }
        // Its descriptors are closed last, so nothing keeps it.
        collect(reader.pid);
    }

    fn end_those_that_hang(&mut self) {
        for number in (0..self.readers.len()).rev() {
            let hangs = |reader| self.time_left(reader, PATIENCE).is_none();
            if self.readers.get(number).is_some_and(hangs) {
                self.kill(number);
            }
        }
    }

    fn kill(&mut self, number: usize) {
        let target = |round: &Self| {
            let place = round.readers.get(number)?.place;
            let target = &round.board().places.get(place)?.target;
            target.load(Acquire).checked_sub(1)
        };
        let late = target(self);
        let Some(pid) = self.readers.get(number).map(|reader| reader.pid) else {
            return;
        };
        // SAFETY: a child that is not waited for yet, so the number is still its own.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        let until = Instant::now() + GRACE;
        let mut has_ended = has_ended(pid);
        while !has_ended && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            has_ended = self::has_ended(pid);
        }
        // What it had sent counts.
        self.take(number);
        // It may just have come to another target, which is not to suffer for this one.
        let last = target(self);
        self.readers.swap_remove(number);
        let is_answered = |number: &usize| self.answers.iter().any(|(n, _)| n == number);
        match last.filter(|number| !is_answered(number)) {
            Some(number) if last == late => self.answers.push((number, Err(Failure::Silent))),
            Some(number) => self.again.push(number),
            None => {}
        }
        let late = late.and_then(|number| self.targets.get(number));
        if let (false, Some(&target)) = (has_ended, late) {
            self.stuck.push((pid, target));
        }
    }

    /// Starts a reader, which begins with target `first`, if one is named.
    fn fork(&self, first: Option<usize>) -> io::Result<Reader> {
        let is_free = |place: &usize| self.readers.iter().all(|reader| reader.place != *place);
        let Some(place) = (0..READERS).find(is_free) else {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        };
        if let Some(place) = self.board().places.get(place) {
            place.target.store(0, Relaxed);
        }
        let mut ends = [0; 2];
        // SAFETY: writes two descriptors to memory of our own.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made them, for us alone.
        let [ours, theirs] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        // SAFETY: our end alone does not wait; a number and flags.
        unsafe { libc::fcntl(ours.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        let parent = std::process::id();
        // SAFETY: the tool has one thread, so the child may do all that it may.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => self.be_reader(parent, place, first, File::from(theirs)),
            pid => Ok(Reader {
                pid,
                place,
                pipe: File::from(ours),
                came: Vec::new(),
            }),
        }
    }

    /// What the child does.
    fn be_reader(&self, parent: u32, place: usize, first: Option<usize>, mut pipe: File) -> ! {
        prepare(parent, &pipe);
        if let Some(place) = self.board().places.get(place) {
            let own = || Some(self.board().next.fetch_add(1, Relaxed));
            let mut number = first.or_else(own);
            while let Some((now, &pid)) = number.and_then(|n| Some((n, self.targets.get(n)?))) {
                place.since_ns.store(sluice_stats::monotonic_ns(), Relaxed);
                place.target.store(now + 1, Release);
                if let Some(answer) = self.answer(pid)
                    && pipe.write_all(&wire::message(now, &answer)).is_err()
                {
                    break;
                }
                number = own();
            }
            place.target.store(0, Release);
        }
        // SAFETY: ends this process at once: what the tool has in its buffers is the tool's to
        // write.
        unsafe { libc::_exit(0) }
    }

    /// What there is to say of a target.
    fn answer(&self, pid: i32) -> Option<Answer> {
        let is_named = |name| process::is_named(pid, name);
        if !self.question.name.is_none_or(is_named) {
            return None;
        }
        let limits = Limits {
            listed: self.question.listed,
            until: Instant::now() + ENOUGH,
        };
        let answer = counters::read(pid, self.known.get(&pid), &limits);
        let is_wanted = match &answer {
            // Gone, or none of ours.
            Err(Failure::NoProcess | Failure::NoSluice) => false,
            // Other users' processes hide even whether they have the library.
            Err(Failure::NotAllowed) => process::has_mappings(pid),
            _ => true,
        };
        (is_wanted || !self.question.is_idle).then_some(answer)
    }
}

/// Makes the child one that holds nobody up: no descriptor but the pipe, the signals as they are by
/// default, and an end with the tool's.
fn prepare(parent: u32, pipe: &File) {
    let pipe = pipe.as_raw_fd() as libc::c_uint;
    // SAFETY: numbers alone. The descriptors belong to values of the tool's, which this process
    // never comes back to; the tool may have ended before the first call, so its number is looked
    // at after it.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() as u32 != parent {
            libc::_exit(0);
        }
        for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
            libc::signal(signal, libc::SIG_DFL);
        }
        // Closes stdout too: a reader of the tool's output must not wait for this process. Also
        // before Linux 5.9.
        for standard in (0..3).filter(|&fd| fd != pipe) {
            libc::close(standard as libc::c_int);
        }
        if let Some(last) = pipe.checked_sub(1) {
            libc::syscall(libc::SYS_close_range, 0, last, 0);
        }
        libc::syscall(libc::SYS_close_range, pipe + 1, libc::c_uint::MAX, 0);
    }
}
