//! The value of LD_PRELOAD. Programs that cannot load the library start with it all the same:
//! docs/decisions/021-how-the-library-is-preloaded.md.

use crate::{library, process};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// A folder that the path of an executable may be below: so many steps lead to the root.
const DEPTH: usize = 32;

/// Where musl looks for a name without a slash, unless /etc/ld-musl-*.path says otherwise.
const MUSL_FOLDERS: [&str; 3] = ["/lib", "/usr/lib", "/usr/local/lib"];

/// How LD_PRELOAD names the library.
pub fn name(library: &Path, has_library_path: bool) -> OsString {
    let is_musls = library
        .parent()
        .is_some_and(|folder| MUSL_FOLDERS.iter().any(|musls| folder == Path::new(musls)));
    // Both loaders look into the folders of LD_LIBRARY_PATH first.
    if !has_library_path && !is_musls && is_found_by_name(library) {
        return library::NAME.into();
    }
    let mut name = OsString::from(from_origin());
    name.push(library);
    name
}

/// glibc puts the program's folder in place of $ORIGIN, and the steps lead from there to the root.
/// musl knows no such token in LD_PRELOAD: for it there is no such file, which it passes over.
fn from_origin() -> String {
    format!("/$ORIGIN{}", "/..".repeat(DEPTH))
}

/// Asks glibc's loader, by a start of this tool that the loader ends before any code runs.
fn is_found_by_name(library: &Path) -> bool {
    let Ok(tool) = env::current_exe() else {
        return false;
    };
    let mut command = Command::new(tool);
    command
        .env_clear()
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .env("LD_PRELOAD", library::NAME)
        .stdin(Stdio::null());
    let Ok(output) = command.output() else {
        return false;
    };
    let listed = String::from_utf8_lossy(&output.stdout);
    let found = listed.lines().find_map(|line| {
        let (name, path) = line.trim().split_once(" => ")?;
        (name == library::NAME).then(|| path.rsplit_once(" (0x").map(|(path, _)| path))?
    });
    found.is_some_and(|path| fs::canonicalize(path).is_ok_and(|file| file == library))
}

/// `before` with `name` for the library, at its place or else in front, or without the library
/// where there is no name. What had to go is second: other copies of the library, from another
/// installation for example, each of which would take every connection for its own.
pub fn value<'a>(
    library: &Path,
    name: Option<&OsStr>,
    before: &'a OsStr,
) -> (OsString, Vec<&'a [u8]>) {
    let prefix = from_origin();
    let is_library = |entry: &[u8]| {
        // The loader does not look for a name without a slash in the working directory.
        let path = entry.strip_prefix(prefix.as_bytes()).unwrap_or(entry);
        name.is_some_and(|name| name.as_bytes() == entry)
            || path == library.as_os_str().as_bytes()
            || path.contains(&b'/')
                && fs::canonicalize(OsStr::from_bytes(path)).is_ok_and(|file| file == library)
    };
    let (mut own, mut dropped) = (name.map(OsStr::as_bytes), Vec::new());
    let mut all: Vec<&[u8]> = Vec::new();
    let entries = before.as_bytes().split(|byte| matches!(byte, b' ' | b':'));
    for entry in entries.filter(|entry| !entry.is_empty()) {
        if is_library(entry) {
            all.extend(own.take());
        } else if process::is_file_of(entry, library::NAME) {
            dropped.push(entry);
        } else {
            all.push(entry);
        }
    }
    if let Some(name) = own {
        all.insert(0, name);
    }
    (OsString::from_vec(all.join(&b':')), dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_once() {
        let library = Path::new("/opt/libsluice.so");
        let name = name(library, true);
        let named = name.to_string_lossy();
        assert!(named.starts_with("/$ORIGIN/../") && named.ends_with("/../opt/libsluice.so"));
        for (before, all, without, dropped) in [
            ("", "NAME", "", ""),
            ("/a.so b.so", "NAME:/a.so:b.so", "/a.so:b.so", ""),
            ("/a.so:/opt/libsluice.so", "/a.so:NAME", "/a.so", ""),
            ("NAME:/a.so:NAME", "NAME:/a.so", "/a.so", ""),
            (
                "/old/libsluice.so /a.so:libsluice.so.0:/libsluice.so/b.so",
                "NAME:/a.so:/libsluice.so/b.so",
                "/a.so:/libsluice.so/b.so",
                "/old/libsluice.so libsluice.so.0",
            ),
            (
                "/old/libsluice.so:/opt/libsluice.so",
                "NAME",
                "",
                "/old/libsluice.so",
            ),
        ] {
            let before = OsString::from(before.replace("NAME", &named));
            for (name, all) in [(Some(name.as_os_str()), all), (None, without)] {
                let (is_all, is_dropped) = value(library, name, &before);
                assert_eq!(is_all, OsStr::new(&all.replace("NAME", &named)));
                assert_eq!(is_dropped.join(&b' '), dropped.as_bytes());
            }
        }
    }
}
