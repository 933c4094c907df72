//! A file that is written at the end, and made at the beginning: what it cannot be is said at once.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A file that is open. One that is new goes again if nothing is written.
pub struct Output {
    path: PathBuf,
    file: File,
    is_unused: bool,
}

impl Output {
    /// # Errors
    /// In words: it cannot be written.
    pub fn new(path: &Path) -> Result<Self, String> {
        let is_new = !path.exists();
        // What is there stays until there is something new.
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path);
        let file = opened.map_err(|error| in_words(path, &error))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            is_unused: is_new,
        })
    }

    /// # Errors
    /// In words: it could not be written whole.
    pub fn write(mut self, bytes: &[u8]) -> Result<(), String> {
        self.is_unused = false;
        // A terminal or a pipe has no length.
        let is_regular = self.file.metadata().is_ok_and(|file| file.is_file());
        let emptied = if is_regular {
            self.file.set_len(0)
        } else {
            Ok(())
        };
        let written = emptied.and_then(|()| self.file.write_all(bytes));
        written.map_err(|error| in_words(&self.path, &error))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_unused {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn in_words(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {}", path.display(), crate::run::reason(error))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::private::Folder;

    #[test]
    fn a_file_stays_as_it_was_until_there_is_something_new() {
        let folder = Folder::new().unwrap();
        let path = folder.join("page");
        drop(Output::new(&path).unwrap());
        assert!(!path.exists());
        fs::write(&path, "what was there").unwrap();
        drop(Output::new(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"what was there");
        Output::new(&path).unwrap().write(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        let why = Output::new(Path::new("/nonexistent/x")).err();
        let expected = "/nonexistent/x: No such file or directory";
        assert_eq!(why.as_deref(), Some(expected));
    }
}
