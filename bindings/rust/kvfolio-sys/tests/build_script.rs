// SPDX-License-Identifier: Apache-2.0
//
// Where build.rs looks for the library, and what it says when there is none.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

fn run(variables: &[(&str, &str)]) -> Output {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    static NUM_RUNS: AtomicUsize = AtomicUsize::new(0); // tests run at the same time
    let run = NUM_RUNS.fetch_add(1, Ordering::Relaxed);
    let program = folder.join(format!("build_script_{run}"));
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let compiled = Command::new(rustc)
        .args(["--edition=2021", concat!(env!("CARGO_MANIFEST_DIR"), "/build.rs"), "-o"])
        .arg(&program)
        .status()
        .unwrap();
    assert!(compiled.success());
    let nowhere = ["KVFOLIO_LIB_DIR", "PKG_CONFIG_PATH", "PKG_CONFIG"];
    let mut command = Command::new(program);
    for name in nowhere {
        command.env_remove(name);
    }
    command.env("PKG_CONFIG_LIBDIR", &folder).envs(variables.iter().copied()).output().unwrap()
}

#[test]
fn error_is_not_empty_where_pkg_config_says_nothing() {
    for (program, ended) in [("/bin/false", "exit status: 1"), ("/bin/true", "exit status: 0")] {
        let output = run(&[("PKG_CONFIG", program)]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        let said = format!("said: nothing ({program} ended with {ended}) and names no libdir");
        assert!(text.contains("KVFOLIO_LIB_DIR") && text.contains(&said), "{text}");
    }
}

#[test]
fn error_names_both_ways() {
    let output = run(&[("KVFOLIO_LIB_DIR", "/nonexistent"), ("PKG_CONFIG", "/no/pkg-config")]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in ["KVFOLIO_LIB_DIR", "is /nonexistent, which has no", "/no/pkg-config", "kvfolio.pc"]
    {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn variable_names_the_directory() {
    // A directory that has a file of this name.
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(folder.join("libkvfolio.so"), "").unwrap();
    let output = run(&[("KVFOLIO_LIB_DIR", folder.to_str().unwrap())]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let line = format!("cargo:rustc-link-search=native={}\n", folder.display());
    assert!(text.contains(&line) && text.contains("cargo:rustc-link-lib=dylib=kvfolio"), "{text}");
}
