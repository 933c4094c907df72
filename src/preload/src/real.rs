//! The real functions: those of the next library in the search order, normally glibc.
//!
//! Most hooks are redhook's, which keeps the address of the function behind a `Once`. [`Slot`] is
//! for the others: names that an old glibc lacks, names with several versions, functions that do
//! not return and trampolines. All are resolved when the library is loaded, so that no `Once` is
//! running in another thread at a fork, and, until then, at first use.

use libc::{c_char, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The address of a real function of type `F`. Needs no lock: whoever resolves it finds the same.
pub struct Slot<F> {
    /// Name, NUL-terminated.
    name: &'static str,
    /// Version to prefer, NUL-terminated. Old glibcs give the *oldest* version to a plain look-up.
    version: Option<&'static str>,
    /// Null until looked up, then the function or [`MISSING`]. Written by any thread, always with
    /// the same value; it publishes no data, so relaxed order is enough.
    address: AtomicPtr<c_void>,
    function: PhantomData<F>,
}

/// In [`Slot::address`]: looked up in vain.
const MISSING: *mut c_void = std::ptr::without_provenance_mut(1);

impl<F: Copy> Slot<F> {
    /// A slot for the function `name`; both texts end in NUL. `F` must be its type.
    pub const fn new(name: &'static str, version: Option<&'static str>) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        Slot {
            name,
            version,
            address: AtomicPtr::new(std::ptr::null_mut()),
            function: PhantomData,
        }
    }

    /// The function, or `None` where the C library has none of this name.
    #[inline]
    pub fn function(&self) -> Option<F> {
        let address = self.address();
        if address == MISSING {
            return None;
        }
        // SAFETY: `F` is a function pointer type, of a pointer's size (asserted in `new`), and
        // `new`'s caller vouches that it is the type of the function of this name.
        Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
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

    #[cold]
    fn resolve(&self) -> *mut c_void {
        let name = self.name.as_ptr().cast::<c_char>();
        let mut address = std::ptr::null_mut();
        if let Some(version) = self.version {
            // SAFETY: both texts are NUL-terminated (`new`).
            address = unsafe { libc::dlvsym(libc::RTLD_NEXT, name, version.as_ptr().cast()) };
        }
        if address.is_null() {
            // SAFETY: the name is NUL-terminated (`new`).
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, name) };
        }
        if address.is_null() {
            address = MISSING;
        }
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

static TEST_CANCEL: Slot<unsafe extern "C" fn()> = Slot::new("pthread_testcancel\0", None);

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

/// Calls redhook's real function. Only for use in a hook.
macro_rules! forward {
    ($name:ident($($arg:expr),*)) => {{
        let real = ::redhook::real!($name);
        // SAFETY: `real` is the C library's function of this name, declared with its C type, and
        // the arguments are what the hook's caller passed for it: that caller vouches for them.
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
macro_rules! hooks {
    ($(unsafe fn $name:ident($($v:ident: $t:ty),*) -> $r:ty => $hook:ident $body:block)*) => {
        $(::redhook::hook! { unsafe fn $name($($v : $t),*) -> $r => $hook $body })*

        /// Looks up the real functions of this module's hooks.
        pub fn resolve() {
            $(let _ = ::redhook::real!($name);)*
        }
    };
}

/// Declares hooks in the same shape for functions that redhook cannot serve; see [`Slot`]. A
/// version after the name is the one wanted of several.
macro_rules! late_hooks {
    ($(unsafe fn $name:ident $(@ $version:literal)? ($($v:ident: $t:ty),*) -> $r:ty => $hook:ident $body:block)*) => {
        #[allow(non_upper_case_globals, unused_imports)]
        mod late_slots {
            use super::*;
            $(pub static $name: $crate::real::Slot<unsafe extern "C" fn($($t),*) -> $r> =
                $crate::real::Slot::new(
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

            unsafe fn $hook($($v: $t),*) -> $r $body
        )*

        /// Looks up the real functions of this module's late hooks.
        pub fn resolve_late() {
            $(let _ = late_slots::$name.address();)*
        }
    };
}

/// Declares further names of hooks: symbols that glibc exports for the same function.
macro_rules! aliases {
    ($(unsafe fn $name:ident($($v:ident: $t:ty),*) -> $r:ty = $hook:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($v: $t),*) -> $r {
                // SAFETY: another name of the same function, with the same contract.
                unsafe { $hook($($v),*) }
            }
        )*
    };
}
