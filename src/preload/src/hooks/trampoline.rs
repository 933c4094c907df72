//! Symbols that a Rust function cannot define: variadic ones, and those that return twice.
//!
//! Each is a few instructions that leave the caller's registers and stack as they were and jump to
//! the real function, or lay the variable arguments out as an array.

use super::{memory, process, raw};
use crate::api;
use crate::boundary::{NO_FD, raw_use, tell};
use crate::errno;
use crate::real::Slot;
use libc::{c_char, c_int, c_long, c_void, pid_t};
use sluice_fabric::sys::Sysno;
use sluice_stats::Reason;
use std::arch::naked_asm;

/// `syscall`, as it takes its arguments on x86-64 and aarch64.
type Syscall = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

static SYSCALL: Slot<Syscall> = Slot::named("syscall\0", None);
static VFORK: Slot<unsafe extern "C" fn() -> pid_t> = Slot::named("vfork\0", None);
/// Of this and the next only the address is used: they are variadic.
static DPRINTF: Slot<unsafe extern "C" fn()> = Slot::named("dprintf\0", None);
static DPRINTF_CHK: Slot<unsafe extern "C" fn()> = Slot::named("__dprintf_chk\0", None);

/// Looks up the real functions of the trampolines.
pub fn resolve() {
    let _ = (
        SYSCALL.address(),
        VFORK.address(),
        DPRINTF.address(),
        DPRINTF_CHK.address(),
    );
}

/// The real `syscall`; until the library is loaded, one of our own. Allocators begin with such
/// calls (jemalloc opens a file of /proc), under a lock that their `calloc` wants, and before glibc
/// 2.34 the first look-up of a thread allocates.
pub fn real_syscall() -> Syscall {
    SYSCALL.known().unwrap_or(early_syscall)
}

/// # Safety
/// As `syscall`; not for calls that return twice, but as `fork` does.
unsafe extern "C" fn early_syscall(
    number: c_long,
    a1: usize,
    a2: usize,
    a3: usize,
    a4: usize,
    a5: usize,
    a6: usize,
) -> c_long {
    match Sysno::new(number as usize) {
        // SAFETY: the caller's call.
        Some(call) => unsafe { memory::of_kernel(call, [a1, a2, a3, a4, a5, a6]) as c_long },
        None => errno::missing(),
    }
}

/// As [`real_syscall`], for calls that return twice.
pub fn real_syscall_for_child() -> *const c_void {
    SYSCALL.address()
}

/// Before `vfork`; returns where to jump. The child comes back into the caller's frame, on the
/// caller's stack, so no frame of ours may lie between.
extern "C" fn before_vfork() -> *const c_void {
    tell(NO_FD, api::before_spawn);
    VFORK.address()
}

/// Before `dprintf(fd, ...)`; returns where to jump.
extern "C" fn before_dprintf(fd: c_int) -> *const c_void {
    raw_use(fd, Reason::Dprintf);
    DPRINTF.address()
}

/// Before `__dprintf_chk(fd, ...)`; returns where to jump.
extern "C" fn before_dprintf_chk(fd: c_int) -> *const c_void {
    raw_use(fd, Reason::Dprintf);
    DPRINTF_CHK.address()
}

/// Jumps to the address that `$before` returns, with no argument registers kept: for `vfork`.
macro_rules! jump {
    ($name:ident, $before:path) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() -> pid_t {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "sub rsp, 8",
                "call {before}",
                "add rsp, 8",
                "jmp rax",
                before = sym $before,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "stp x29, x30, [sp, #-16]!",
                "bl {before}",
                "mov x16, x0",
                "ldp x29, x30, [sp], #16",
                "br x16",
                before = sym $before,
            );
        }
    };
}

/// Jumps to the address that `$before` returns for the first arguments, with every argument
/// register and the stack as the caller left them.
macro_rules! jump_with_arguments {
    ($name:ident, $before:path) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            // rax tells a variadic function how many vector registers are in use. 56 bytes of
            // integers and 128 of vectors keep the stack aligned after the return address.
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "sub rsp, 184",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "mov [rsp + 48], rax",
                "movups [rsp + 56], xmm0",
                "movups [rsp + 72], xmm1",
                "movups [rsp + 88], xmm2",
                "movups [rsp + 104], xmm3",
                "movups [rsp + 120], xmm4",
                "movups [rsp + 136], xmm5",
                "movups [rsp + 152], xmm6",
                "movups [rsp + 168], xmm7",
                "call {before}",
                "mov r11, rax",
                "movups xmm0, [rsp + 56]",
                "movups xmm1, [rsp + 72]",
                "movups xmm2, [rsp + 88]",
                "movups xmm3, [rsp + 104]",
                "movups xmm4, [rsp + 120]",
                "movups xmm5, [rsp + 136]",
                "movups xmm6, [rsp + 152]",
                "movups xmm7, [rsp + 168]",
                "mov rdi, [rsp]",
                "mov rsi, [rsp + 8]",
                "mov rdx, [rsp + 16]",
                "mov rcx, [rsp + 24]",
                "mov r8, [rsp + 32]",
                "mov r9, [rsp + 40]",
                "mov rax, [rsp + 48]",
                "add rsp, 184",
                "jmp r11",
                before = sym $before,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "stp x29, x30, [sp, #-208]!",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "stp q0, q1, [sp, #80]",
                "stp q2, q3, [sp, #112]",
                "stp q4, q5, [sp, #144]",
                "stp q6, q7, [sp, #176]",
                "bl {before}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldp q0, q1, [sp, #80]",
                "ldp q2, q3, [sp, #112]",
                "ldp q4, q5, [sp, #144]",
                "ldp q6, q7, [sp, #176]",
                "ldp x29, x30, [sp], #208",
                "br x16",
                before = sym $before,
            );
        }
    };
}

/// As [`jump_with_arguments`] for integers alone, which is cheaper: `syscall` is called often.
macro_rules! jump_with_integers {
    ($name:ident, $before:path) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() -> c_long {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "sub rsp, 8",
                "call {before}",
                "add rsp, 8",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp rax",
                before = sym $before,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "bl {before}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldp x29, x30, [sp], #80",
                "br x16",
                before = sym $before,
            );
        }
    };
}

/// Calls `$array(path, argv)` with the variable arguments as an array, built in place: the argument
/// registers are stored right below the arguments that are on the stack. Takes no memory from
/// elsewhere, so it serves in a signal handler and in a `vfork` child.
macro_rules! collect {
    ($name:ident, $array:path) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char) -> c_int {
            // The return address is in the way, between the two: it moves below, and is back in
            // its place at the end, where a shadow stack expects it.
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {array}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
                array = sym $array,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "str x1, [sp, #24]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "add x1, sp, #24",
                "bl {array}",
                "ldp x29, x30, [sp], #80",
                "ret",
                array = sym $array,
            );
        }
    };
}

jump!(vfork, before_vfork);
jump!(__vfork, before_vfork);
jump_with_arguments!(dprintf, before_dprintf);
jump_with_arguments!(__dprintf_chk, before_dprintf_chk);
jump_with_integers!(syscall, raw::target);
collect!(execl, process::execl_array);
collect!(execlp, process::execlp_array);
collect!(execle, process::execle_array);
