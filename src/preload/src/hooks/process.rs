//! Processes: forks, new images, ends, and what a program does to itself.

use crate::api;
use crate::boundary::{NO_FD, tell};
use libc::{
    FILE, c_char, c_int, c_ulong, c_void, gid_t, pid_t, posix_spawn_file_actions_t,
    posix_spawnattr_t, size_t, uid_t,
};
use sluice_stats::Reason;

hooks! {
    unsafe fn fork() -> pid_t => on_fork {
        let pid = forward!(fork());
        forked(pid)
    }

    unsafe fn execve(
        path: *const c_char,
        argv: *const *const c_char,
        envp: *const *const c_char,
    ) -> c_int => on_execve {
        replaced_by(|| forward!(execve(path, argv, envp)))
    }
    unsafe fn execv(path: *const c_char, argv: *const *const c_char) -> c_int => on_execv {
        replaced_by(|| forward!(execv(path, argv)))
    }
    unsafe fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int => on_execvp {
        replaced_by(|| forward!(execvp(file, argv)))
    }
    unsafe fn execvpe(
        file: *const c_char,
        argv: *const *const c_char,
        envp: *const *const c_char,
    ) -> c_int => on_execvpe {
        replaced_by(|| forward!(execvpe(file, argv, envp)))
    }
    unsafe fn fexecve(
        fd: c_int,
        argv: *const *const c_char,
        envp: *const *const c_char,
    ) -> c_int => on_fexecve {
        replaced_by(|| forward!(fexecve(fd, argv, envp)))
    }

    unsafe fn posix_spawn_file_actions_adddup2(
        actions: *mut posix_spawn_file_actions_t,
        fd: c_int,
        new: c_int,
    ) -> c_int => on_adddup2 {
        if api::lookup(fd).is_some() {
            tell(fd, || api::handing_over(fd));
        }
        forward!(posix_spawn_file_actions_adddup2(actions, fd, new))
    }
    unsafe fn system(command: *const c_char) -> c_int => on_system {
        tell(NO_FD, api::before_spawn);
        forward!(system(command))
    }
    unsafe fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE => on_popen {
        tell(NO_FD, api::before_spawn);
        forward!(popen(command, mode))
    }
    unsafe fn daemon(keep_directory: c_int, keep_stdio: c_int) -> c_int => on_daemon {
        tell(NO_FD, api::before_daemon);
        forward!(daemon(keep_directory, keep_stdio))
    }

    // Variadic in C; all five are integers, passed as here.
    unsafe fn prctl(
        option: c_int,
        a2: c_ulong,
        a3: c_ulong,
        a4: c_ulong,
        a5: c_ulong,
    ) -> c_int => on_prctl {
        if option == libc::PR_SET_SECCOMP {
            tell(NO_FD, api::before_filter);
            tell(NO_FD, || api::sandboxed(Reason::Sandboxed));
        } else if option == libc::PR_SET_NO_NEW_PRIVS {
            tell(NO_FD, api::forgoes_privileges);
        } else if gives_up_rights(option, a2) {
            tell(NO_FD, || api::changes_itself(Reason::Sandboxed));
        }
        forward!(prctl(option, a2, a3, a4, a5))
    }
    unsafe fn unshare(flags: c_int) -> c_int => on_unshare {
        tell(NO_FD, || api::changes_itself(Reason::Sandboxed));
        forward!(unshare(flags))
    }
    unsafe fn setns(fd: c_int, kind: c_int) -> c_int => on_setns {
        tell(NO_FD, || api::changes_itself(Reason::Sandboxed));
        forward!(setns(fd, kind))
    }
    // The C library has every thread change its ids, ours too.
    unsafe fn setuid(user: uid_t) -> c_int => on_setuid {
        tell(NO_FD, api::changes_ids);
        forward!(setuid(user))
    }
    unsafe fn setgid(group: gid_t) -> c_int => on_setgid {
        tell(NO_FD, api::changes_ids);
        forward!(setgid(group))
    }
    unsafe fn seteuid(user: uid_t) -> c_int => on_seteuid {
        tell(NO_FD, api::changes_ids);
        forward!(seteuid(user))
    }
    unsafe fn setegid(group: gid_t) -> c_int => on_setegid {
        tell(NO_FD, api::changes_ids);
        forward!(setegid(group))
    }
    unsafe fn setreuid(real: uid_t, effective: uid_t) -> c_int => on_setreuid {
        tell(NO_FD, api::changes_ids);
        forward!(setreuid(real, effective))
    }
    unsafe fn setregid(real: gid_t, effective: gid_t) -> c_int => on_setregid {
        tell(NO_FD, api::changes_ids);
        forward!(setregid(real, effective))
    }
    unsafe fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int => on_setresuid {
        tell(NO_FD, api::changes_ids);
        forward!(setresuid(real, effective, saved))
    }
    unsafe fn setresgid(real: gid_t, effective: gid_t, saved: gid_t) -> c_int => on_setresgid {
        tell(NO_FD, api::changes_ids);
        forward!(setresgid(real, effective, saved))
    }
    unsafe fn setgroups(count: size_t, groups: *const gid_t) -> c_int => on_setgroups {
        tell(NO_FD, api::changes_ids);
        forward!(setgroups(count, groups))
    }
    unsafe fn initgroups(user: *const c_char, group: gid_t) -> c_int => on_initgroups {
        tell(NO_FD, api::changes_ids);
        forward!(initgroups(user, group))
    }
    // These two change the calling thread alone; an id that is none only asks.
    unsafe fn setfsuid(user: uid_t) -> c_int => on_setfsuid {
        if user != uid_t::MAX {
            tell(NO_FD, || api::changes_itself(Reason::Sandboxed));
        }
        forward!(setfsuid(user))
    }
    unsafe fn setfsgid(group: gid_t) -> c_int => on_setfsgid {
        if group != gid_t::MAX {
            tell(NO_FD, || api::changes_itself(Reason::Sandboxed));
        }
        forward!(setfsgid(group))
    }
    // A thread of ours would keep the capabilities that the program gives up.
    unsafe fn capset(header: *mut c_void, data: *const c_void) -> c_int => on_capset {
        tell(NO_FD, || api::changes_itself(Reason::Sandboxed));
        forward!(capset(header, data))
    }
}

late_hooks! {
    // No handler of pthread_atfork runs for this one.
    unsafe fn _Fork() -> pid_t => on_bare_fork {
        forked_bare(|| late!(_Fork()))
    }

    unsafe fn execveat(
        dir: c_int,
        path: *const c_char,
        argv: *const *const c_char,
        envp: *const *const c_char,
        flags: c_int,
    ) -> c_int => on_execveat {
        replaced_by(|| late!(execveat(dir, path, argv, envp, flags)))
    }

    // The older version runs a file of unknown format by the shell. Never before 2.15 here.
    unsafe fn posix_spawn @ "GLIBC_2.15" (
        pid: *mut pid_t,
        path: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        argv: *const *mut c_char,
        envp: *const *mut c_char,
    ) -> c_int => on_posix_spawn {
        tell(NO_FD, api::before_spawn);
        late!(posix_spawn(pid, path, actions, attributes, argv, envp))
    }
    unsafe fn posix_spawnp @ "GLIBC_2.15" (
        pid: *mut pid_t,
        file: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        argv: *const *mut c_char,
        envp: *const *mut c_char,
    ) -> c_int => on_posix_spawnp {
        tell(NO_FD, api::before_spawn);
        late!(posix_spawnp(pid, file, actions, attributes, argv, envp))
    }

    // redhook cannot declare a function that does not return.
    unsafe fn _exit(status: c_int) -> ! => on_exit {
        ended_by(late_slots::_exit.function(), status)
    }
    unsafe fn _Exit(status: c_int) -> ! => on_c99_exit {
        ended_by(late_slots::_Exit.function(), status)
    }
    // Before the program's at_quick_exit handlers, which then find their sockets on TCP. The older
    // version also runs destructors of thread-locals.
    unsafe fn quick_exit @ "GLIBC_2.24" (status: c_int) -> ! => on_quick_exit {
        ended_by(late_slots::quick_exit.function(), status)
    }
}

/// Does `prctl` with this option take rights from the calling thread alone, which no other could
/// give up as well?
pub fn gives_up_rights(option: c_int, how: c_ulong) -> bool {
    match option {
        libc::PR_CAPBSET_DROP | libc::PR_SET_SECUREBITS => true,
        libc::PR_CAP_AMBIENT => how != libc::PR_CAP_AMBIENT_IS_SET as c_ulong,
        _ => false,
    }
}

/// A call that forks returned `pid`.
fn forked(pid: pid_t) -> pid_t {
    if pid < 0 {
        tell(NO_FD, api::fork_failed);
    }
    pid
}

/// Runs a call that forks and calls no handlers of pthread_atfork.
pub fn forked_bare(fork: impl FnOnce() -> pid_t) -> pid_t {
    tell(NO_FD, api::before_bare_fork);
    let pid = fork();
    tell(NO_FD, || api::after_bare_fork(pid));
    pid
}

/// Runs a call that ends the process.
fn ended_by(real: Option<unsafe extern "C" fn(c_int) -> !>, status: c_int) -> ! {
    tell(NO_FD, api::exiting);
    if let Some(real) = real {
        // SAFETY: the three functions take any status.
        unsafe { real(status) }
    }
    loop {
        // SAFETY: raise takes any number. No C library lacks the three, so this is never reached.
        unsafe { libc::raise(libc::SIGKILL) };
    }
}

/// Runs a call that returns only if it fails.
pub fn replaced_by<R>(exec: impl FnOnce() -> R) -> R {
    tell(NO_FD, api::before_exec);
    let ret = exec();
    tell(NO_FD, api::exec_failed);
    ret
}

/// `execl`, with the arguments that its trampoline has laid out as an array.
///
/// # Safety
/// The arguments are those of a C caller of `execv`.
pub unsafe extern "C" fn execl_array(path: *const c_char, argv: *const *const c_char) -> c_int {
    // SAFETY: the caller's promise is execv's contract.
    unsafe { on_execv(path, argv) }
}

/// `execlp`, as [`execl_array`].
///
/// # Safety
/// The arguments are those of a C caller of `execvp`.
pub unsafe extern "C" fn execlp_array(file: *const c_char, argv: *const *const c_char) -> c_int {
    // SAFETY: the caller's promise is execvp's contract.
    unsafe { on_execvp(file, argv) }
}

/// `execle`, as [`execl_array`]: after the null that ends the arguments comes the environment.
///
/// # Safety
/// `argv` ends in a null pointer, and a pointer to an environment follows it.
pub unsafe extern "C" fn execle_array(path: *const c_char, argv: *const *const c_char) -> c_int {
    let mut end = argv;
    // SAFETY: execle's contract: a null pointer ends the arguments.
    while !unsafe { end.read() }.is_null() {
        // SAFETY: not yet at the null pointer.
        end = unsafe { end.add(1) };
    }
    // SAFETY: execle's contract: the environment follows the null pointer.
    let envp = unsafe { end.add(1).cast::<*const *const c_char>().read() };
    // SAFETY: execve's contract is execle's, kept by the C caller.
    unsafe { on_execve(path, argv, envp) }
}
