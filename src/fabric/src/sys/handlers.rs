//! The program's signal handlers: counted as they run, so that a wait that begins on the processor
//! ends for them as one in the kernel does (signal(7)).
//!
//! In a handler's place the kernel is given a *thunk*: a few instructions that count on this thread
//! that a handler runs, and jump to it with the registers and the stack that the kernel has made.
//! So a handler sees what it would have seen, and the kernel keeps its flags and its mask. There is
//! one thunk for each handler that the program has ever given, and one more for each that it has
//! given with and without SA_RESTART: which handler a thunk stands for never changes, and no signal
//! finds a thunk half made. Handlers beyond [`THUNKS`] are given to the kernel as they are, and end
//! no wait on the processor.
//!
//! A sleep ([`call`]) compares the counts with those at the entry of the program's call and then
//! enters the kernel. A thunk that has interrupted it in between sets it back to the comparison.
//! (Restartable sequences, rseq(2), do the same.) So no handler is missed.

use super::Errno;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use libc::c_int;
use syscalls::Sysno;

/// So many handlers are counted. A program has about ten; one that makes handlers as it goes (an
/// interpreter) may have more.
#[cfg(target_arch = "x86_64")]
const THUNKS: usize = 256;
/// From one thunk to the next, in bytes.
#[cfg(target_arch = "x86_64")]
const STRIDE: usize = 16;
/// In the table: given with SA_RESTART. No address of a program has this bit.
#[cfg(target_arch = "x86_64")]
const RESTARTS: usize = 1 << 63;

// `sluice_ran`, of each thread: how many handlers have run, how many of them restart nothing, two
// words of 32 bits; for each of the last four the stack pointer at which it was entered, and what
// it returns to. The model is "initial exec": no function is called for it, so it serves in a
// signal handler.
//
// `sluice_handlers`: for each thunk its handler and `RESTARTS`; 0: none yet. Written once.
//
// A thunk is entered as a handler: number in rdi, siginfo in rsi, ucontext in rdx. The kernel
// passes all three whatever the flags (x64_setup_rt_frame), and the ucontext lies right above the
// return address. A program that has found a thunk past the hooks may call it as a function, with
// less. In a ucontext rip is at 168.
//
// What `sluice_call` compares lies in the red zone, which a signal leaves alone. Registers would
// not do: when the kernel restarts the call, rcx and r11 are gone.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .tbss.sluice_ran, \"awT\", @nobits",
    ".p2align 3",
    ".globl sluice_ran",
    ".hidden sluice_ran",
    ".type sluice_ran, @tls_object",
    ".size sluice_ran, 72",
    "sluice_ran: .zero 72",
    ".popsection",
    ".pushsection .bss.sluice_handlers, \"aw\", @nobits",
    ".p2align 6",
    ".globl sluice_handlers",
    ".hidden sluice_handlers",
    ".type sluice_handlers, @object",
    ".size sluice_handlers, 8 * {thunks}",
    "sluice_handlers: .zero 8 * {thunks}",
    ".popsection",
    ".pushsection .text.sluice_thunks, \"ax\", @progbits",
    ".p2align 4",
    ".globl sluice_thunks",
    ".hidden sluice_thunks",
    ".type sluice_thunks, @function",
    ".cfi_startproc",
    "sluice_thunks:",
    ".set .Lsluice_at, 0",
    ".rept {thunks}",
    "lea rax, [rip + sluice_handlers + .Lsluice_at]",
    "jmp .Lsluice_runs",
    ".p2align 4",
    ".set .Lsluice_at, .Lsluice_at + 8",
    ".endr",
    ".Lsluice_runs:",
    "mov rcx, qword ptr [rip + sluice_ran@GOTTPOFF]",
    "inc dword ptr fs:[rcx]",
    "mov r9d, dword ptr fs:[rcx]",
    "and r9d, 3",
    "shl r9d, 4",
    "add r9, rcx",
    "mov r10, qword ptr [rsp]",
    "mov qword ptr fs:[r9 + 8], rsp",
    "mov qword ptr fs:[r9 + 16], r10",
    "mov r8, qword ptr [rax]",
    "btr r8, 63",
    "jc 2f",
    "inc dword ptr fs:[rcx + 4]",
    "2:",
    "lea r9, [rsp + 8]",
    "cmp r9, rdx",
    "jne 3f",
    "mov r9, qword ptr [rdx + 168]",
    "lea r10, [rip + .Lsluice_compare]",
    "cmp r9, r10",
    "jb 3f",
    "lea r11, [rip + .Lsluice_called]",
    "cmp r9, r11",
    "jae 3f",
    "mov qword ptr [rdx + 168], r10",
    "3:",
    "xor eax, eax",
    "jmp r8",
    ".cfi_endproc",
    ".size sluice_thunks, . - sluice_thunks",
    ".p2align 4",
    ".globl sluice_call",
    ".hidden sluice_call",
    ".type sluice_call, @function",
    ".cfi_startproc",
    "sluice_call:",
    "mov qword ptr [rsp - 8], rdx",
    "mov qword ptr [rsp - 16], rcx",
    "mov rax, rdi",
    "mov rdi, qword ptr [rsi]",
    "mov rdx, qword ptr [rsi + 16]",
    "mov r10, qword ptr [rsi + 24]",
    "mov r8, qword ptr [rsi + 32]",
    "mov r9, qword ptr [rsi + 40]",
    "mov rsi, qword ptr [rsi + 8]",
    ".Lsluice_compare:",
    "mov rcx, qword ptr [rip + sluice_ran@GOTTPOFF]",
    "mov rcx, qword ptr fs:[rcx]",
    "xor rcx, qword ptr [rsp - 8]",
    "test rcx, qword ptr [rsp - 16]",
    "jnz 2f",
    "syscall",
    ".Lsluice_called:",
    "ret",
    "2:",
    "mov rax, -{not_made}",
    "ret",
    ".cfi_endproc",
    ".size sluice_call, . - sluice_call",
    ".popsection",
    thunks = const THUNKS,
    not_made = const NOT_MADE,
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    static sluice_handlers: [AtomicUsize; THUNKS];
    fn sluice_thunks();
    fn sluice_call(nr: usize, args: *const [usize; 6], since: u64, which: u64) -> usize;
}

/// How many handlers have run on this thread.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn ran() -> u64 {
    let counts: u64;
    // SAFETY: reads this thread's counts, see above.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + sluice_ran@GOTTPOFF]",
            "mov {0}, qword ptr fs:[{0}]",
            out(reg) counts,
            options(nostack, preserves_flags, readonly),
        );
    }
    counts
}

/// How the kernel has entered a handler.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Entered {
    /// Address on the stack of what the handler returns to; 0: none was entered.
    pub at: usize,
    /// That.
    pub returns_to: usize,
}

/// How many handlers have run on this thread, and how the last ones were entered; `None`: none has
/// run.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn last_entered() -> Option<(u64, [Entered; 4])> {
    let at: *const [Entered; 4];
    // SAFETY: the address of this thread's words, see above; the first word at FS is its own
    // address (the ABI of thread-local storage).
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + sluice_ran@GOTTPOFF]",
            "add {0}, qword ptr fs:[0]",
            "add {0}, 8",
            out(reg) at,
            options(nostack, pure, readonly),
        );
    }
    let ran = ran();
    // SAFETY: this thread's, which no other writes; a handler that runs now only adds an entry.
    (ran != 0).then(|| (ran, unsafe { at.read_volatile() }))
}

/// None is counted there.
#[cfg(not(target_arch = "x86_64"))]
#[must_use]
pub fn last_entered() -> Option<(u64, [Entered; 4])> {
    None
}

/// None is counted there.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn ran() -> u64 {
    0
}

/// The handlers that had run on this thread at some moment, as when a call of the program's began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Ran(u64);

/// In [`Ran`]: those that restart nothing.
const FINAL: u64 = !0 << 32;

impl Ran {
    /// By now.
    #[inline(always)]
    #[must_use]
    pub fn now() -> Self {
        Self(ran())
    }

    /// A wait that ends for each handler that has run since.
    #[must_use]
    pub const fn any(self) -> Ends {
        Ends {
            since: self.0,
            which: !0,
        }
    }

    /// A wait that ends for those alone that restart nothing.
    #[must_use]
    pub const fn unless_restarted(self) -> Ends {
        Ends {
            since: self.0,
            which: FINAL,
        }
    }

    /// The same moment, for a call that the handlers which restart calls have begun anew.
    #[must_use]
    pub fn restarted(self) -> Self {
        Self(self.0 & FINAL | ran() & !FINAL)
    }
}

/// Which handlers end a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    since: u64,
    which: u64,
}

impl Ends {
    /// None.
    pub const NEVER: Self = Self { since: 0, which: 0 };

    /// Do all?
    #[must_use]
    pub const fn are_any(self) -> bool {
        self.which == !0
    }

    /// Has one of them run?
    #[inline]
    #[must_use]
    pub fn have_run(self) -> bool {
        (ran() ^ self.since) & self.which != 0
    }
}

/// What [`call`] says of a call that it has not made. The kernel has this number for itself
/// (ERESTARTSYS).
pub(super) const NOT_MADE: Errno = 512;

/// Any system call, unless one of these handlers has run, or runs before the call is made: then
/// [`NOT_MADE`].
///
/// # Errors
/// The kernel's.
///
/// # Safety
/// As the call.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn call(nr: Sysno, args: [usize; 6], ends: Ends) -> Result<usize, Errno> {
    // SAFETY: passed on.
    super::result(unsafe { sluice_call(nr as usize, &raw const args, ends.since, ends.which) })
}

/// As on x86-64, but for the moment between the look and the call.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn call(nr: Sysno, args: [usize; 6], ends: Ends) -> Result<usize, Errno> {
    if ends.have_run() {
        return Err(NOT_MADE);
    }
    // SAFETY: passed on.
    unsafe { super::call(nr, args) }
}

/// What a thread does to itself. These end no wait, and crash reporters look at their
/// handlers.
const CRASHES: [c_int; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
];

/// Are handlers of this signal counted? The C library keeps 32 and 33 for itself.
#[must_use]
pub fn are_counted(signal: c_int) -> bool {
    (1..=64).contains(&signal) && !CRASHES.contains(&signal) && !matches!(signal, 32 | 33)
}

/// What the kernel is to be given in place of a handler of the program's. Async-signal-safe.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn given(signal: c_int, handler: usize, restarts: bool) -> usize {
    let handler = own(handler);
    // Small numbers are no functions: SIG_DFL, SIG_IGN, SIG_HOLD. Large ones are SIG_ERR, or the
    // kernel's.
    if !are_counted(signal) || !(4096..1 << 47).contains(&handler) {
        return handler;
    }
    let entry = handler | if restarts { RESTARTS } else { 0 };
    // SAFETY: defined above.
    for (i, cell) in unsafe { &sluice_handlers }.iter().enumerate() {
        let found = match cell.load(Ordering::Relaxed) {
            // The kernel's call comes after it, and a signal after that.
            0 => match cell.compare_exchange(0, entry, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => entry,
                Err(other) => other,
            },
            other => other,
        };
        if found == entry {
            return sluice_thunks as *const () as usize + i * STRIDE;
        }
    }
    handler
}

/// There handlers are given as they are.
#[cfg(not(target_arch = "x86_64"))]
#[must_use]
pub fn given(_: c_int, handler: usize, _: bool) -> usize {
    handler
}

/// The program's handler, where the kernel has told of what was [`given`] to it. Async-signal-safe.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn own(handler: usize) -> usize {
    let index = handler.wrapping_sub(sluice_thunks as *const () as usize) / STRIDE;
    // SAFETY: defined above.
    let cell = unsafe { &sluice_handlers }.get(index);
    cell.map_or(handler, |cell| cell.load(Ordering::Relaxed) & !RESTARTS)
}

/// As [`given`].
#[cfg(not(target_arch = "x86_64"))]
#[must_use]
pub fn own(handler: usize) -> usize {
    handler
}

/// Signals, as bits, whose handlers `signal` is not to give SA_RESTART, since `siginterrupt` said
/// so.
static INTERRUPTS: AtomicU64 = AtomicU64::new(0);

/// `siginterrupt` has told the C library how `signal` is to install handlers of this signal.
pub fn signal_interrupts(signal: c_int, interrupts: bool) {
    if interrupts {
        INTERRUPTS.fetch_or(1 << (signal - 1), Ordering::Relaxed);
    } else {
        INTERRUPTS.fetch_and(!(1 << (signal - 1)), Ordering::Relaxed);
    }
}

/// Does `signal` install a handler with SA_RESTART?
#[must_use]
pub fn signal_restarts(signal: c_int) -> bool {
    (1..=64).contains(&signal) && INTERRUPTS.load(Ordering::Relaxed) & 1 << (signal - 1) == 0
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use core::ffi::c_void;
    use core::sync::atomic::{AtomicU32, AtomicU64};
    use std::time::{Duration, Instant};

    extern "C" fn one(_: c_int) {}
    /// Does something else than [`one`]: functions that do the same may have one address.
    extern "C" fn other(_: c_int) {
        WORD.fetch_add(0, Ordering::Relaxed);
    }
    static WORD: AtomicU32 = AtomicU32::new(0);

    fn address(f: extern "C" fn(c_int)) -> usize {
        f as *const () as usize
    }

    fn install(signal: c_int, handler: usize, flags: c_int, blocked: Option<c_int>) {
        // SAFETY: zeroes are a valid action; the handlers are this module's.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = given(signal, handler, flags & libc::SA_RESTART != 0);
            action.sa_flags = flags;
            if let Some(blocked) = blocked {
                libc::sigaddset(&raw mut action.sa_mask, blocked);
            }
            libc::sigaction(signal, &raw const action, core::ptr::null_mut());
        }
    }

    fn raise(signal: c_int) {
        // SAFETY: to this thread.
        unsafe { libc::raise(signal) };
    }

    /// Sleeps on a word that nobody changes.
    fn sleep(ms: u64, ends: Ends) -> Errno {
        let time = crate::sys::timespec(ms * 1_000_000);
        // SAFETY: a static.
        let slept = unsafe { crate::sys::futex_wait(WORD.as_ptr(), 0, Some(&time), ends) };
        slept.err().unwrap_or(0)
    }

    #[test]
    fn a_handler_has_one_thunk_for_each_kind_and_is_found_by_it() {
        let (one, other) = (address(one), address(other));
        let thunk = given(libc::SIGUSR1, one, false);
        assert_ne!(thunk, one);
        assert_eq!(thunk, given(libc::SIGTERM, one, false));
        assert_ne!(thunk, given(libc::SIGUSR1, one, true));
        assert_ne!(thunk, given(libc::SIGUSR1, other, false));
        assert_eq!(own(thunk), one);
        assert_eq!(own(given(libc::SIGUSR1, one, true)), one);
        // A thunk that the program has found is as good as its handler.
        assert_eq!(
            given(libc::SIGUSR1, thunk, true),
            given(libc::SIGUSR1, one, true)
        );
        assert_eq!(own(one), one);
        for no_function in [libc::SIG_DFL, libc::SIG_IGN, libc::SIG_ERR, 2] {
            assert_eq!(given(libc::SIGUSR1, no_function, false), no_function);
            assert_eq!(own(no_function), no_function);
        }
        for signal in [0, -1, 32, 33, 65, libc::SIGSEGV, libc::SIGABRT] {
            assert_eq!(given(signal, one, false), one);
        }
    }

    #[test]
    fn handlers_are_counted_by_kind() {
        let start = Ran::now();
        install(libc::SIGUSR1, address(one), libc::SA_RESTART, None);
        raise(libc::SIGUSR1);
        assert!(start.any().have_run());
        assert!(!start.unless_restarted().have_run());
        assert!(!start.restarted().any().have_run());
        assert!(!Ends::NEVER.have_run());
        install(libc::SIGUSR1, address(one), 0, None);
        raise(libc::SIGUSR1);
        assert!(start.unless_restarted().have_run());
        assert!(start.restarted().any().have_run());
        assert!(!Ran::now().any().have_run());
        // Other threads have counts of their own.
        let counts = std::thread::spawn(Ran::now).join().unwrap();
        assert_eq!(counts, Ran(0));
    }

    #[test]
    fn a_handler_that_has_run_ends_a_sleep_before_it_begins() {
        install(libc::SIGUSR1, address(one), libc::SA_RESTART, None);
        let start = Ran::now();
        raise(libc::SIGUSR1);
        assert_eq!(sleep(10_000, start.any()), libc::EINTR);
        assert_eq!(sleep(1, start.unless_restarted()), libc::ETIMEDOUT);
        assert_eq!(sleep(1, Ends::NEVER), libc::ETIMEDOUT);
    }

    /// The step of `sluice_call`, from its first instruction on, at which the signal comes.
    static STEP: AtomicU64 = AtomicU64::new(0);
    /// Instructions of it that have been run.
    static STEPPED: AtomicU64 = AtomicU64::new(0);
    const TRAP_FLAG: i64 = 1 << 8;
    const FLAGS: usize = libc::REG_EFL as usize;
    const RIP: usize = libc::REG_RIP as usize;

    /// After each instruction: the signal is sent after as many as `STEP` says, and handled when
    /// this returns.
    extern "C" fn stepped(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: what the kernel gives a handler.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let at = (registers[RIP] as usize).wrapping_sub(sluice_call as *const () as usize);
        let stepped = STEPPED.load(Ordering::Relaxed);
        if at > 64 {
            // After the call there is no step: it takes the next instruction along.
            if stepped != 0 {
                registers[FLAGS] &= !TRAP_FLAG;
            }
            return;
        }
        STEPPED.store(stepped + 1, Ordering::Relaxed);
        if stepped == STEP.load(Ordering::Relaxed) {
            registers[FLAGS] &= !TRAP_FLAG;
            raise(libc::SIGUSR1);
        }
    }

    /// A sleep with a signal after the first `step` instructions.
    fn sleep_with_signal_at(step: u64, ends: Ends) -> Errno {
        let time = crate::sys::timespec(2_000_000);
        let at = &raw const time;
        let args = [WORD.as_ptr() as usize, 0, 0, at as usize, 0, 0];
        STEP.store(step, Ordering::Relaxed);
        STEPPED.store(0, Ordering::Relaxed);
        // SAFETY: sets the trap flag, which the handler takes away.
        unsafe {
            core::arch::asm!("pushfq", "or dword ptr [rsp], 0x100", "popfq");
        }
        // SAFETY: a futex, as in `sleep`.
        match unsafe { call(Sysno::futex, args, ends) } {
            Err(NOT_MADE) => libc::EINTR,
            Err(errno) => errno,
            Ok(_) => 0,
        }
    }

    #[test]
    fn a_handler_at_any_instruction_in_front_of_the_call_ends_it() {
        for flags in [0, libc::SA_RESTART] {
            install(libc::SIGUSR1, address(other), flags, None);
            let action = stepped as *const () as usize;
            install(libc::SIGTRAP, action, libc::SA_SIGINFO, Some(libc::SIGUSR1));
            let mut step = 0;
            loop {
                let start = Ran::now();
                let errno = sleep_with_signal_at(step, start.any());
                if !start.any().have_run() {
                    break;
                }
                assert_eq!(errno, libc::EINTR, "step {step}");
                let errno = sleep_with_signal_at(step, Ran::now().unless_restarted());
                let expected = if flags == 0 {
                    libc::EINTR
                } else {
                    libc::ETIMEDOUT
                };
                assert_eq!(errno, expected, "step {step}, flags {flags}");
                step += 1;
                assert!(step < 64);
            }
            // In front of the call there are fourteen.
            assert!(step >= 14, "{step}");
        }
    }

    #[test]
    fn no_handler_of_a_storm_is_missed() {
        install(libc::SIGUSR1, address(one), libc::SA_RESTART, None);
        // SAFETY: this thread's.
        let me = unsafe { libc::pthread_self() };
        let round = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 1..=2000 {
                    while round.load(Ordering::Relaxed) != i {
                        core::hint::spin_loop();
                    }
                    let start = Instant::now();
                    while start.elapsed() < Duration::from_nanos(u64::from(i * 7919 % 20_000)) {}
                    // SAFETY: it lives.
                    unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                }
            });
            for i in 1..=2000 {
                let start = Ran::now();
                round.store(i, Ordering::Relaxed);
                assert_eq!(sleep(5000, start.any()), libc::EINTR, "round {i}");
            }
        });
    }
}
