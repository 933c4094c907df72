//! The time, exact or cheap.

/// CLOCK_MONOTONIC in nanoseconds. The vDSO's, through libc: it is not a hooked symbol.
#[must_use]
pub fn now_ns() -> u64 {
    let mut t = timespec(0);
    // SAFETY: `t` is a valid timespec; clock_gettime is async-signal-safe and leaves errno alone on
    // success.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    (t.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(t.tv_nsec as u64)
}

/// Time that a thread of this process was on a processor, in ns; 0 means this thread. 0 if there is
/// none such. A system call.
#[must_use]
pub fn thread_cpu_ns(tid: libc::pid_t) -> u64 {
    /// Of one thread, by the scheduler (`CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED` in the kernel).
    const KIND: libc::clockid_t = 4 | 2;
    let mut t = timespec(0);
    // SAFETY: as in `now_ns`.
    unsafe { libc::clock_gettime(!tid << 3 | KIND, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// CLOCK_REALTIME in seconds, as file systems note times: to a few milliseconds.
#[must_use]
pub fn seconds() -> i64 {
    let mut t = timespec(0);
    // SAFETY: as in `now_ns`.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut t) };
    t.tv_sec
}

/// So many nanoseconds, as system calls take them.
#[inline]
#[must_use]
pub const fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}

/// A time in ns that costs no system call even where there is no vDSO. It begins anywhere, runs at
/// the true rate to a factor of three, and may differ between processors: good for whether
/// something was long ago, by the wrapping difference.
#[inline]
#[must_use]
pub fn rough_ns() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // From 1 to 6 ticks per ns.
        // SAFETY: every x86-64 has it.
        unsafe { core::arch::x86_64::_rdtsc() / 3 }
    }
    #[cfg(target_arch = "aarch64")]
    {
        let (ticks, per_second): (u64, u64);
        // SAFETY: both registers may be read by a program (Linux grants it).
        unsafe {
            core::arch::asm!(
                "mrs {}, cntvct_el0", "mrs {}, cntfrq_el0", out(reg) ticks, out(reg) per_second,
                options(nomem, nostack, preserves_flags),
            );
        }
        (u128::from(ticks) * 1_000_000_000 / u128::from(per_second.max(1))) as u64
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    now_ns()
}
