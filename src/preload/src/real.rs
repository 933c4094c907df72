//! The real functions: those of the next library in the search order, normally glibc.
//!
//! Most hooks are redhook's, and redhook finds their real functions. It keeps each in a `Once`,
//! whose slow path may unwind, so that every hook would hold a landing pad while its real function
//! blocks; and a `Once` that another thread runs at a fork hangs the child. So it is asked once for
//! each, when the library is loaded, and the answer is kept in a [`Slot`]. Slots also look up what
//! redhook cannot: names that an old glibc lacks, names with several versions, functions that do
//! not return and trampolines. A hook that runs before the library was loaded fills its slot
//! itself.

use libc::{c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The address of a real function of type `F`. Needs no lock: each look finds the same.
pub struct Slot<F> {
    find: Find<F>,
    /// Null until looked up, then the function or [`MISSING`]. Written by any thread, always with
    /// the same value; it publishes no data, so relaxed order is enough.
    address: AtomicPtr<c_void>,
}

/// How a function is found.
enum Find<F> {
    /// By redhook, which ends the program where there is none.
    Redhook(fn() -> F),
    /// By name, and the version wanted of several; both texts end in NUL. Old glibcs give the
    /// *oldest* version to a plain look-up.
    Name(&'static str, Option<&'static str>),
}

/// In [`Slot::address`]: looked up in vain.
const MISSING: *mut c_void = std::ptr::without_provenance_mut(1);

impl<F: Copy> Slot<F> {
    /// A slot for the function that redhook finds.
    pub const fn redhook(find: fn() -> F) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        Slot {
            find: Find::Redhook(find),
            address: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// A slot for the function `name`, if possible of `version`; both texts end in NUL. `F` must be
    /// its type.
    pub const fn named(name: &'static str, version: Option<&'static str>) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        Slot {
            find: Find::Name(name, version),
            address: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The function, or `None` where the C library has none of this name.
    #[inline]
    pub fn function(&self) -> Option<F> {
        let address = self.address();
        // SAFETY: not `MISSING`, so it is what `find` found.
        (address != MISSING).then(|| unsafe { Self::callable(address) })
    }

    /// The function, if it has been looked up, and found.
    #[inline]
    pub fn known(&self) -> Option<F> {
        let address = self.address.load(Ordering::Relaxed);
        // SAFETY: neither unknown nor `MISSING`, so it is what `find` found.
        (!address.is_null() && address != MISSING).then(|| unsafe { Self::callable(address) })
    }

    /// The function of a slot made by [`Slot::redhook`]: it is there.
    #[inline]
    pub fn present(&self) -> F {
        // SAFETY: redhook ends the program rather than find nothing, so this is what it found.
        unsafe { Self::callable(self.address()) }
    }

    /// The function of a slot made by [`Slot::redhook`], once [`crate::hooks::resolve`] has run.
    ///
    /// # Safety
    /// It has, and the caller has seen that (`api::plain` says so).
    #[inline(always)]
    pub unsafe fn loaded(&self) -> F {
        // SAFETY: filled by `resolve`, with what redhook found.
        unsafe { Self::callable(self.address.load(Ordering::Relaxed)) }
    }

    /// Where the function is, for a trampoline that jumps to it.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            self.resolve()
        } else {
            address
        }
    }

    /// # Safety
    /// `address` is that of a function of type `F`.
    #[inline]
    unsafe fn callable(address: *mut c_void) -> F {
        // SAFETY: `F` is a function pointer type, of a pointer's size (asserted in both
        // constructors), and the caller vouches for the function's type.
        unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) }
    }

    /// `extern "C"` and never inlined, so that hooks need no landing pad for it (see
    /// [`crate::boundary::contained`]).
    #[cold]
    #[inline(never)]
    #[allow(improper_ctypes_definitions, reason = "the ABI stands for `nounwind`")]
    extern "C" fn resolve(&self) -> *mut c_void {
        let mut address = match self.find {
            Find::Redhook(find) => {
                let function = find();
                // SAFETY: `F` is a function pointer type, of a pointer's size.
                unsafe { std::mem::transmute_copy::<F, *mut c_void>(&function) }
            }
            Find::Name(name, version) => look_up(name, version),
        };
        if address.is_null() {
            address = MISSING;
        }
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// The next library's `name`, if possible of `version`; both texts end in NUL.
fn look_up(name: &'static str, version: Option<&'static str>) -> *mut c_void {
    let name = name.as_ptr().cast::<c_char>();
    if let Some(version) = version {
        // SAFETY: both texts end in NUL: all are written by the macros below or next to `named`.
        let address = unsafe { libc::dlvsym(libc::RTLD_NEXT, name, version.as_ptr().cast()) };
        if !address.is_null() {
            return address;
        }
    }
    // SAFETY: the name ends in NUL, as above.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name) }
}

static TEST_CANCEL: Slot<unsafe extern "C" fn()> = Slot::named("pthread_testcancel\0", None);

/// A cancellation point, where the real function has one at its entry. The engine's calls are none.
/// Looked up, not linked: before glibc 2.34 it lives in a library that not every program loads.
#[inline]
pub fn test_cancel() {
    if let Some(test) = TEST_CANCEL.function() {
        // SAFETY: pthread_testcancel has no conditions. It may unwind this thread's stack, and
        // hooks hold nothing with a destructor when they call it.
        unsafe { test() };
    }
}

/// Resolves this module's own slots.
pub fn resolve() {
    let _ = TEST_CANCEL.address();
}

/// Calls the real function of a [`hooks`] hook. Only for use in a hook.
macro_rules! forward {
    ($name:ident($($arg:expr),*)) => {{
        let real = slots::$name.present();
        // SAFETY: `real` is the C library's function of this name, declared with its C type, and
        // the arguments are what the hook's caller passed for it: that caller vouches for them.
        unsafe { real($($arg),*) }
    }};
}

/// As [`forward`] where the engine has said that the library is loaded. Only for use in a hook.
macro_rules! forward_loaded {
    ($name:ident($($arg:expr),*)) => {{
        // SAFETY: see the macro's text; the engine is told that by `load`, after `resolve`.
        let real = unsafe { slots::$name.loaded() };
        // SAFETY: as in `forward`.
        unsafe { real($($arg),*) }
    }};
}

/// Calls the real function of a [`late_hooks`] hook; without one the call fails with ENOSYS.
macro_rules! late {
    ($name:ident($($arg:expr),*)) => {
        match late_slots::$name.function() {
            // SAFETY: as in `forward`.
            Some(real) => unsafe { real($($arg),*) },
            None => $crate::errno::missing(),
        }
    };
}

/// Declares hooks by redhook, in its syntax. For functions that every supported glibc has (2.17
/// and later; a missing one would abort the program), that take fixed arguments and return.
///
/// The bodies are `extern "C"`: the compiler then knows that nothing unwinds out of them, and drops
/// redhook's catch, which would stop the unwinding of a cancelled thread and end the process.
///
/// `tracked e of fd` before a body: it serves tracked descriptors only, with the entry `e` of `fd`.
/// Others go to the real function by a jump. The body is then a function of its own, so that what
/// it stores on the stack is not stored for them.
macro_rules! hooks {
    ($(
        unsafe fn $name:ident($($v:ident: $t:ty),* $(,)?) -> $r:ty => $hook:ident
        $(, tracked $e:ident of $fd:ident)? $body:block
    )*) => {
        mod exported {
            use super::*;

            $(
                ::redhook::hook! {
                    unsafe fn $name($($v : $t),*) -> $r => $hook {
                        // SAFETY: the body's contract is that of the C function, kept by the
                        // caller.
                        unsafe { super::$hook($($v),*) }
                    }
                }

                impl $name {
                    pub fn find() -> unsafe extern "C" fn($($t),*) -> $r {
                        ::redhook::real!($name)
                    }
                }
            )*
        }

        #[allow(non_upper_case_globals, unused_imports)]
        mod slots {
            use super::*;
            $(pub static $name: $crate::real::Slot<unsafe extern "C" fn($($t),*) -> $r> =
                $crate::real::Slot::redhook(super::exported::$name::find);)*
        }

        $(pub unsafe extern "C" fn $hook($($v: $t),*) -> $r {
            hook_body!($name($($v: $t),*) -> $r [$($e of $fd)?] $body)
        })*

        /// Looks up the real functions of this module's hooks.
        pub fn resolve() {
            $(let _ = slots::$name.address();)*
        }
    };
}

/// The body of a hook of [`hooks`].
macro_rules! hook_body {
    ($name:ident($($v:ident: $t:ty),*) -> $r:ty [] $body:block) => { $body };
    ($name:ident($($v:ident: $t:ty),*) -> $r:ty [$e:ident of $fd:ident] $body:block) => {{
        #[inline(never)]
        #[allow(improper_ctypes_definitions, reason = "the ABI stands for `nounwind`")]
        unsafe extern "C" fn tracked($($v: $t,)* $e: $crate::api::Entry) -> $r $body
        match $crate::api::lookup($fd) {
            // SAFETY: the hook's contract, kept by its caller.
            Some(e) => unsafe { tracked($($v,)* e) },
            None => forward!($name($($v),*)),
        }
    }};
}

/// Declares hooks in the same shape for functions that redhook cannot serve; see [`Slot`]. A
/// version after the name is the one wanted of several.
macro_rules! late_hooks {
    ($(
        unsafe fn $name:ident $(@ $version:literal)? ($($v:ident: $t:ty),* $(,)?) -> $r:ty
        => $hook:ident $body:block
    )*) => {
        #[allow(non_upper_case_globals, unused_imports)]
        mod late_slots {
            use super::*;
            $(pub static $name: $crate::real::Slot<unsafe extern "C" fn($($t),*) -> $r> =
                $crate::real::Slot::named(
                    concat!(stringify!($name), "\0"),
                    [$(Some(concat!($version, "\0")),)? None][0],
                );)*
        }

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($v: $t),*) -> $r {
                // SAFETY: the hook's contract is that of the C function, kept by the C caller.
                unsafe { $hook($($v),*) }
            }

            pub unsafe extern "C" fn $hook($($v: $t),*) -> $r $body
        )*

        /// Looks up the real functions of this module's late hooks.
        pub fn resolve_late() {
            $(let _ = late_slots::$name.address();)*
        }
    };
}

/// Declares further names of hooks: symbols that glibc exports for the same function.
macro_rules! aliases {
    ($(unsafe fn $name:ident($($v:ident: $t:ty),* $(,)?) -> $r:ty = $hook:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($v: $t),*) -> $r {
                // SAFETY: another name of the same function, with the same contract.
                unsafe { $hook($($v),*) }
            }
        )*
    };
}
