//! A folder of the tool's own, for a file that its own processes under the library write.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// This user's alone, under a name that nobody could know and take before. It goes with its value.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> io::Result<Self> {
        let template = std::env::temp_dir().join("sluice-XXXXXX");
        let template = CString::new(template.as_os_str().as_bytes())?;
        let name = template.into_raw();
        // SAFETY: a C string of our own, which the call may write to, but not lengthen.
        let made = unsafe { !libc::mkdtemp(name).is_null() };
        let error = io::Error::last_os_error();
        // SAFETY: what `into_raw` gave, and as long.
        let name = unsafe { CString::from_raw(name) };
        if made {
            Ok(Self(OsString::from_vec(name.into_bytes()).into()))
        } else {
            Err(error)
        }
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_folder_is_its_users_alone_and_goes() {
        let folder = Folder::new().unwrap();
        let path = folder.join("");
        assert_eq!(
            path.metadata().unwrap().permissions().mode() & 0o7777,
            0o700
        );
        std::fs::write(folder.join("file"), "").unwrap();
        drop(folder);
        assert!(!path.exists());
    }
}
