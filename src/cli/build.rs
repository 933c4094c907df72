//! Tells the tool of which commit it is, where it is built in the project's own repository.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // An unpacked archive may lie in the repository of another project.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (Ok(root), Some(top)) = (
        root.canonicalize(),
        git(&root, &["rev-parse", "--show-toplevel"]),
    ) else {
        return;
    };
    if Path::new(&top) != root {
        return;
    }
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&root, &["rev-parse", "--git-path", file]).map(|path| root.join(path));
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    // Not SLUICE_*: cargo sets it for tests, too, and the library would take it for a setting.
    if let Some(commit) = git(&root, &["rev-parse", "--short=9", "HEAD"]) {
        println!("cargo::rustc-env=BUILT_FROM={commit}");
    }
}

/// What git prints, if it is there and has something to say.
fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .current_dir(folder)
        .args(arguments)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
