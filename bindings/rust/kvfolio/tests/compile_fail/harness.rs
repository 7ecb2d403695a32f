// SPDX-License-Identifier: Apache-2.0
//
// What the borrow checker refuses. Each case is a program that compiles, and that rustc refuses with
// the error that its first line names when `--cfg wrong` adds one line.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The builds of the crate that lie beside this test, the newest first. One may have other features.
fn libraries() -> Vec<PathBuf> {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("libkvfolio-") && name.ends_with(".rlib")
    };
    let files = std::fs::read_dir(deps).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = files.filter(is_library).collect();
    found.sort_by_key(|path| std::cmp::Reverse(path.metadata().unwrap().modified().unwrap()));
    found
}

/// Compiles a case with a build of the crate and returns the codes of its errors.
fn errors(library: &Path, case: &Path, arguments: &[&str]) -> Vec<String> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("case{}.rmeta", std::process::id()));
    let output = Command::new(rustc)
        .args(["--edition=2021", "--crate-type=bin", "--emit=metadata", "--color=never"])
        .arg(case)
        .arg("-o")
        .arg(out)
        .arg("--extern")
        .arg(format!("kvfolio={}", library.display()))
        .arg("-L")
        .arg(format!("dependency={}", library.parent().unwrap().display()))
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let codes = text.split("error[").skip(1).map(|rest| rest[..5].to_string()).collect::<Vec<_>>();
    assert_eq!(output.status.success(), codes.is_empty(), "{}: {text}", case.display());
    codes
}

/// The cases are these, and each is refused as it says.
pub fn check(folder: &str, names: &[&str]) {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail").join(folder);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(cases).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = text.split("refuses with ").nth(1).expect("a case names its error");
        let builds = libraries();
        let takes = builds.iter().find(|library| errors(library, &path, &[]).is_empty());
        let library = takes.unwrap_or_else(|| panic!("{} compiles with no build", path.display()));
        assert_eq!(
            errors(library, &path, &["--cfg", "wrong"]),
            [&expected[..5]],
            "{}",
            path.display()
        );
        found.push(path.file_stem().unwrap().to_string_lossy().into_owned());
    }
    found.sort();
    assert_eq!(found, names);
}
