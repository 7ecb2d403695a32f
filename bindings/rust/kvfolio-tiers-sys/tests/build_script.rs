// SPDX-License-Identifier: Apache-2.0
//
// Where build.rs looks for the library, and what it says of a directory that cannot be linked with.
// kvfolio-cuda-sys has the same test of its own build.rs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// "libkvfolio_tiers", or that of the crate whose test this is.
fn library() -> String {
    format!("lib{}", env!("CARGO_PKG_NAME").trim_end_matches("-sys").replace('-', "_"))
}

/// build.rs as a program in this folder, which is told of no directory.
fn compile(folder: &Path) -> Command {
    std::fs::create_dir_all(folder).unwrap();
    let program = folder.join("build_script");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let compiled = Command::new(rustc)
        .args(["--edition=2021", concat!(env!("CARGO_MANIFEST_DIR"), "/build.rs"), "-o"])
        .arg(&program)
        .status()
        .unwrap();
    assert!(compiled.success());
    let mut command = Command::new(program);
    command.env_remove("KVFOLIO_LIB_DIR");
    command
}

/// What build.rs says with these files in the directory that it is told of: by KVFOLIO_LIB_DIR, or as
/// the libdir of pkg-config.
fn run(name: &str, files: &[&str], by_pkg_config: bool) -> Output {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    for file in files {
        std::fs::write(folder.join(file), "").unwrap();
    }
    let mut command = compile(&folder);
    command.env("PKG_CONFIG", "/no/pkg-config");
    if by_pkg_config {
        // A program that says the directory.
        let script = folder.join("pkg-config");
        std::fs::write(&script, format!("#!/bin/sh\necho {}\n", folder.display())).unwrap();
        Command::new("chmod").arg("+x").arg(&script).status().unwrap();
        command.env("PKG_CONFIG", script);
    } else {
        command.env("KVFOLIO_LIB_DIR", &folder);
    }
    command.output().unwrap()
}

#[test]
fn error_is_not_empty_where_pkg_config_says_nothing() {
    for (name, ended) in [("false", "exit status: 1"), ("true", "exit status: 0")] {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let pkg_config = format!("/bin/{name}");
        let output = compile(&folder).env("PKG_CONFIG", &pkg_config).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        let said = format!("said: nothing ({pkg_config} ended with {ended}) and names no libdir");
        assert!(text.contains("KVFOLIO_LIB_DIR") && text.contains(&said), "{text}");
    }
}

#[test]
fn static_library_alone_is_refused_before_the_link() {
    for (name, by_pkg_config) in [("static", false), ("static_pkg_config", true)] {
        let library = library();
        let files = [&format!("{library}.a"), "libkvfolio.a"];
        let output = run(name, &files, by_pkg_config);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        for part in
            [format!("{library}.a only"), format!("{library}.so"), "BUILD_SHARED_LIBS=ON".into()]
        {
            assert!(text.contains(&part), "{text}");
        }
        assert!(output.stdout.windows(14).all(|line| line != b"rustc-link-lib"), "{output:?}");
    }
}

#[test]
fn directory_of_the_shared_library_is_linked_with() {
    for (name, by_pkg_config) in [("shared", false), ("shared_pkg_config", true)] {
        let library = library();
        let files = [&*format!("{library}.so"), &format!("{library}.a")];
        let output = run(name, &files, by_pkg_config);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(&format!("cargo:rustc-link-lib=dylib={}", &library[3..])), "{text}");
    }
}
