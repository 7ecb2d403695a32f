// SPDX-License-Identifier: Apache-2.0
//
// Finds libkvfolio_cuda as kvfolio-sys finds libkvfolio: KVFOLIO_LIB_DIR, else pkg-config.

use std::env;
use std::path::Path;
use std::process::Command;

/// The directory, if it has the shared library. The static one needs all that it was built with on the
/// command line of the linker, which cargo does not know.
fn library_in(directory: String) -> Result<String, String> {
    let has = |name| Path::new(&directory).join(name).exists();
    if has("libkvfolio_cuda.so") {
        Ok(directory)
    } else if has("libkvfolio_cuda.a") {
        Err(format!(
            "is {directory}, which has libkvfolio_cuda.a only; this crate needs libkvfolio_cuda.so, \
             of a build with BUILD_SHARED_LIBS=ON"
        ))
    } else {
        Err(format!("is {directory}, which has no libkvfolio_cuda.so"))
    }
}

fn from_environment() -> Result<String, String> {
    library_in(env::var("KVFOLIO_LIB_DIR").map_err(|_| "is not set".to_string())?)
}

fn from_pkg_config() -> Result<String, String> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_string());
    let output = Command::new(&program)
        .args(["--print-errors", "--variable=libdir", "kvfolio_cuda"]) // without it some say nothing
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
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    let directory = from_environment().or_else(|variable| {
        from_pkg_config().map_err(|pkg_config| {
            format!(
                "libkvfolio_cuda was not found in two ways.\n  \
                 KVFOLIO_LIB_DIR (the directory of libkvfolio_cuda.so) {variable}.\n  \
                 pkg-config (PKG_CONFIG_PATH names the directory of kvfolio_cuda.pc) said: {pkg_config}"
            )
        })
    });
    match directory {
        Ok(directory) => {
            println!("cargo:rustc-link-search=native={directory}");
            println!("cargo:rustc-link-lib=dylib=kvfolio_cuda");
            println!("cargo:libdir={directory}");
        }
        Err(text) => {
            eprintln!("{text}");
            std::process::exit(1);
        }
    }
}
