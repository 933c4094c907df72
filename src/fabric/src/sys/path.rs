//! Paths that are written without an allocation.

use core::ffi::CStr;
use core::fmt;
use libc::c_int;
use std::io::Write;

/// A path of at most 47 bytes: those under /proc are shorter.
#[derive(Debug)]
pub struct ShortPath([u8; 48]);

impl ShortPath {
    /// The text; what does not fit is cut off.
    #[must_use]
    pub fn new(text: fmt::Arguments<'_>) -> Self {
        let mut bytes = [0u8; 48];
        // The last byte stays NUL.
        if let Some(mut room) = bytes.get_mut(..47) {
            let _ = room.write_fmt(text);
        }
        Self(bytes)
    }

    /// The name of a descriptor of this process under /proc/self/fd.
    #[must_use]
    pub fn of_fd(fd: c_int) -> Self {
        Self::new(format_args!("/proc/self/fd/{fd}"))
    }

    /// As a C string.
    #[must_use]
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_ends_where_its_room_does() {
        assert_eq!(
            ShortPath::of_fd(i32::MIN).as_c_str(),
            c"/proc/self/fd/-2147483648"
        );
        let long = ShortPath::new(format_args!("{:060}", 7));
        assert_eq!(long.as_c_str().to_bytes(), [b'0'; 47]);
    }
}
