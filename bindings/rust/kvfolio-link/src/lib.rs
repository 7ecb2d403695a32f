// SPDX-License-Identifier: Apache-2.0
//! For build scripts: links a library of kvfolio from the directory that `KVFOLIO_LIB_DIR` names, else from the one
//! that pkg-config says. `kvfolio-sys`, `kvfolio-tiers-sys` and `kvfolio-cuda-sys` are linked so.

use std::env;
use std::path::Path;
use std::process::Command;

/// What a library needs where there is only the static one.
pub enum Static {
    /// These libraries, as its pkg-config file says.
    Needs(&'static [&'static str]),
    /// All that it was built with on the command line of the linker, which cargo does not know.
    Unknown,
}

/// Prints what cargo is to do, or says why there is no library and ends the build script.
/// `name`: as in `lib<name>.so`.
pub fn link(name: &str, if_static: Static) {
    for variable in ["KVFOLIO_LIB_DIR", "PKG_CONFIG", "PKG_CONFIG_PATH"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    match lines(name, &if_static, |variable| env::var(variable).ok()) {
        Ok(lines) => lines.iter().for_each(|line| println!("{line}")),
        Err(text) => {
            eprintln!("{text}");
            std::process::exit(1);
        }
    }
}

type Lines = Result<Vec<String>, String>;

fn lines(name: &str, if_static: &Static, variable: impl Fn(&str) -> Option<String>) -> Lines {
    let from_variable = variable("KVFOLIO_LIB_DIR")
        .ok_or_else(|| "is not set".to_string())
        .and_then(|directory| lines_of(name, if_static, &directory));
    from_variable.or_else(|library_dir| {
        from_pkg_config(name, if_static, variable("PKG_CONFIG")).map_err(|pkg_config| {
            format!(
                "lib{name} was not found in two ways.\n  \
                 KVFOLIO_LIB_DIR (the directory of lib{name}.so) {library_dir}.\n  \
                 pkg-config (PKG_CONFIG_PATH names the directory of {name}.pc) said: {pkg_config}"
            )
        })
    })
}

fn from_pkg_config(name: &str, if_static: &Static, program: Option<String>) -> Lines {
    let program = program.unwrap_or_else(|| "pkg-config".to_string());
    let output = Command::new(&program)
        .args(["--print-errors", "--variable=libdir", name]) // without it some say nothing
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
    let (libdir, said) = (text(&output.stdout), text(&output.stderr));
    if output.status.success() && !libdir.is_empty() {
        lines_of(name, if_static, &libdir).map_err(|why| format!("its libdir {why}"))
    } else if !said.is_empty() {
        Err(said)
    } else {
        Err(format!("nothing ({program} ended with {}) and names no libdir", output.status))
    }
}

/// The lines for cargo, if the directory has the library.
fn lines_of(name: &str, if_static: &Static, directory: &str) -> Lines {
    let has = |file: String| Path::new(directory).join(file).exists();
    let mut lines = vec![
        format!("cargo:rustc-link-search=native={directory}"),
        format!("cargo:libdir={directory}"),
    ];
    if has(format!("lib{name}.so")) {
        lines.push(format!("cargo:rustc-link-lib=dylib={name}"));
        return Ok(lines);
    }
    if !has(format!("lib{name}.a")) {
        return Err(format!("is {directory}, which has no lib{name}.so"));
    }
    match if_static {
        Static::Needs(others) => {
            lines.push(format!("cargo:rustc-link-lib=static={name}"));
            lines.extend(others.iter().map(|other| format!("cargo:rustc-link-lib={other}")));
            Ok(lines)
        }
        Static::Unknown => Err(format!(
            "is {directory}, which has lib{name}.a only; this crate needs lib{name}.so, of a build with \
             BUILD_SHARED_LIBS=ON"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    fn with(set: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<String> {
        move |name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
    }

    /// A new directory that has files of these names.
    fn directory(test: &str, files: &[&str]) -> PathBuf {
        let directory = env::temp_dir().join(format!("kvfolio-link-{}-{test}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        for file in files {
            fs::write(directory.join(file), "").unwrap();
        }
        directory
    }

    #[test]
    fn error_is_not_empty_where_pkg_config_says_nothing() {
        for (set, program, ended) in [
            (with(&[("PKG_CONFIG", "/bin/false")]), "/bin/false", "exit status: 1"),
            (with(&[("PKG_CONFIG", "/bin/true")]), "/bin/true", "exit status: 0"),
        ] {
            let text = lines("kvfolio", &Static::Unknown, set).unwrap_err();
            let said = format!("said: nothing ({program} ended with {ended}) and names no libdir");
            assert!(text.contains("KVFOLIO_LIB_DIR") && text.contains(&said), "{text}");
        }
    }

    #[test]
    fn error_names_both_ways() {
        let set = with(&[("KVFOLIO_LIB_DIR", "/nonexistent"), ("PKG_CONFIG", "/no/pkg-config")]);
        let text = lines("kvfolio_tiers", &Static::Unknown, set).unwrap_err();
        for part in [
            "KVFOLIO_LIB_DIR",
            "is /nonexistent, which has no libkvfolio_tiers.so",
            "/no/pkg-config",
            "kvfolio_tiers.pc",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn shared_library_comes_before_a_static_one() {
        let directory = directory("both", &["libkvfolio.so", "libkvfolio.a"]);
        let path = directory.to_str().unwrap();
        let found = lines_of("kvfolio", &Static::Needs(&["stdc++"]), path).unwrap();
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(
            found,
            [
                format!("cargo:rustc-link-search=native={path}"),
                format!("cargo:libdir={path}"),
                "cargo:rustc-link-lib=dylib=kvfolio".to_string()
            ]
        );
    }

    #[test]
    fn static_library_brings_what_it_needs_or_is_refused() {
        let directory = directory("static", &["libkvfolio.a"]);
        let path = directory.to_str().unwrap();
        let found = lines_of("kvfolio", &Static::Needs(&["stdc++"]), path).unwrap();
        let refused = lines_of("kvfolio", &Static::Unknown, path).unwrap_err();
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(
            found[2..],
            ["cargo:rustc-link-lib=static=kvfolio", "cargo:rustc-link-lib=stdc++"]
        );
        assert!(refused.contains("libkvfolio.a only; this crate needs libkvfolio.so"), "{refused}");
    }
}
