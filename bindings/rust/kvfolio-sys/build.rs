// SPDX-License-Identifier: Apache-2.0
//
// Finds libkvfolio: KVFOLIO_LIB_DIR, else pkg-config.

use std::env;
use std::path::Path;
use std::process::Command;

/// The directory, and what it has: a shared library, or only a static one.
fn library_in(directory: String) -> Result<(String, &'static str), String> {
    let has = |name| Path::new(&directory).join(name).exists();
    if has("libkvfolio.so") {
        Ok((directory, "dylib"))
    } else if has("libkvfolio.a") {
        Ok((directory, "static"))
    } else {
        Err(format!("is {directory}, which has no libkvfolio.so"))
    }
}

fn from_environment() -> Result<(String, &'static str), String> {
    library_in(env::var("KVFOLIO_LIB_DIR").map_err(|_| "is not set".to_string())?)
}

fn from_pkg_config() -> Result<(String, &'static str), String> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_string());
    let output = Command::new(&program)
        .args(["--print-errors", "--variable=libdir", "kvfolio"]) // without it some say nothing
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
    let (libdir, said) = (text(&output.stdout), text(&output.stderr));
    if output.status.success() && !libdir.is_empty() {
        library_in(libdir).map_err(|why| format!("its libdir {why}"))
    } else if !said.is_empty() {
        Err(said)
    } else {
        Err(format!("nothing ({program} ended with {}) and names no libdir", output.status))
    }
}

fn main() {
    println!("cargo:rerun-if-env-changed=KVFOLIO_LIB_DIR");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    let directory = from_environment().or_else(|variable| {
        from_pkg_config().map_err(|pkg_config| {
            format!(
                "libkvfolio was not found in two ways.\n  \
                 KVFOLIO_LIB_DIR (the directory of libkvfolio.so) {variable}.\n  \
                 pkg-config (PKG_CONFIG_PATH names the directory of kvfolio.pc) said: {pkg_config}"
            )
        })
    });
    match directory {
        Ok((directory, kind)) => {
            println!("cargo:rustc-link-search=native={directory}");
            println!("cargo:rustc-link-lib={kind}=kvfolio");
            if kind == "static" {
                println!("cargo:rustc-link-lib=stdc++"); // as kvfolio.pc says
            }
            println!("cargo:libdir={directory}");
        }
        Err(text) => {
            eprintln!("{text}");
            std::process::exit(1);
        }
    }
}
