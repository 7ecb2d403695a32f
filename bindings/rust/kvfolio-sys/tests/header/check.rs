// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the -sys crates include: the declarations are those of the header, as far as the
// C compiler can tell. It compiles a program that includes the header, declares every function again
// with Rust's types, and asserts Rust's layouts and constants. The file that includes this one has
// DECLARATIONS (the text), BELOW (that of the crate below it), HEADER (its path under include) and
// OF_C (words that only C uses).

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

/// Writes an assertion for the size of each struct, and the offset and size of each field.
macro_rules! layouts {
    ($($name:ident: $($field:ident)*;)*) => {
        fn layout_assertions() -> String {
            fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize { std::mem::size_of::<F>() }
            let mut out = String::new();
            $(
                let size = std::mem::size_of::<$name>();
                let base = std::mem::MaybeUninit::<$name>::uninit();
                let base = base.as_ptr();
                let mut end = 0;
                writeln!(out, "_Static_assert(sizeof({0}) == {1}, \"{0}\");",
                         stringify!($name), size).unwrap();
                $(
                    // SAFETY: no value is read, only the address of a field is taken.
                    let at = unsafe { std::ptr::addr_of!((*base).$field) } as usize - base as usize;
                    let bytes = size_of_field(|value: &$name| &value.$field);
                    end = end.max(at + bytes);
                    writeln!(out, "_Static_assert(offsetof({0}, {1}) == {2} && \
                                   sizeof((({0}*)0)->{1}) == {3}, \"{0}.{1}\");",
                             stringify!($name), stringify!($field), at, bytes).unwrap();
                )*
                assert_eq!(end, size, "{} ends in padding", stringify!($name));
            )*
            out
        }
        fn struct_names() -> BTreeSet<&'static str> { [$(stringify!($name)),*].into() }
    };
}
macro_rules! constants {
    ($($name:ident;)*) => {
        fn constant_assertions() -> String {
            let mut out = String::new();
            $(writeln!(out, "_Static_assert({0} == {1}, \"{0}\");", stringify!($name), $name)
                .unwrap();)*
            out
        }
        fn constant_names() -> BTreeSet<&'static str> { [$(stringify!($name)),*].into() }
    };
}
/// `*const i32` becomes `const int32_t*`.
fn c_type(rust: &str) -> String {
    if let Some(pointee) = rust.strip_prefix("*const ") {
        return format!("const {}*", c_type(pointee));
    }
    if let Some(pointee) = rust.strip_prefix("*mut ") {
        // A pointer to a const pointer: const binds to the left.
        return format!("{}*", c_type(pointee));
    }
    match rust {
        "u8" | "i32" | "u32" | "i64" | "u64" => {
            format!("{}int{}_t", if rust.starts_with('u') { "u" } else { "" }, &rust[1..])
        }
        "f32" => "float".into(),
        "f64" => "double".into(),
        "c_void" => "void".into(),
        "c_char" => "char".into(),
        other => other.into(),
    }
}

/// Each `pub fn` of the declarations: its name and its prototype in C.
fn prototypes() -> Vec<(String, String)> {
    let mut out = Vec::new();
    for line in DECLARATIONS.lines() {
        let line = match line.trim().strip_prefix("pub fn ") {
            Some(line) => line.trim_end_matches(';'),
            None => continue,
        };
        let (name, rest) = line.split_once('(').unwrap();
        let (arguments, result) = rest.split_once(')').unwrap();
        let result = result.trim().strip_prefix("-> ").map_or("void".into(), c_type);
        let arguments: Vec<String> = arguments
            .split(", ")
            .filter(|argument| !argument.is_empty())
            .map(|argument| c_type(argument.split_once(": ").unwrap().1))
            .collect();
        let arguments = if arguments.is_empty() { "void".into() } else { arguments.join(", ") };
        out.push((name.to_string(), format!("{result} {name}({arguments});")));
    }
    out
}

fn include_directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../include")
}

/// Words of the header that begin so, outside comments.
fn words(header: &str, prefix: &str) -> BTreeSet<String> {
    header
        .lines()
        .map(|line| line.split("//").next().unwrap())
        .flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .filter(|word| word.starts_with(prefix))
        .map(str::to_string)
        .collect()
}

/// Whether the C compiler takes this text.
fn compiles(text: &str, name: &str) -> Result<(), String> {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&file, text).unwrap();
    let output = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
        .args(["-std=c11", "-Wall", "-Werror", "-fsyntax-only", "-I"])
        .arg(include_directory())
        .arg(&file)
        .output()
        .expect("a C compiler, which rustc needs too");
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn program() -> String {
    let mut text = format!("#include <stddef.h>\n#include \"{HEADER}\"\n");
    for (_, prototype) in prototypes() {
        text += &prototype;
        text.push('\n');
    }
    text + &layout_assertions() + &constant_assertions()
}

#[test]
fn c_compiler_agrees_with_every_declaration() {
    compiles(&program(), "agrees.c").unwrap();
}

#[test]
fn nothing_of_the_header_is_missing() {
    let header = std::fs::read_to_string(include_directory().join(HEADER)).unwrap();
    let functions: BTreeSet<String> = prototypes().into_iter().map(|(name, _)| name).collect();
    for word in words(&header, "kvfolio_") {
        let known = functions.contains(&word)
            || struct_names().contains(word.as_str())
            || DECLARATIONS.contains(&format!("pub struct {word} {{"))
            || DECLARATIONS.contains(&format!("pub type {word} ="))
            || words(BELOW, "kvfolio_").contains(&word);
        assert!(known, "{word} has no declaration");
    }
    for word in words(&header, "KVFOLIO_") {
        let known = constant_names().contains(word.as_str()) || OF_C.contains(&word.as_str());
        assert!(known, "{word} has no declaration");
    }
    assert_eq!(functions.len(), header.matches("\nKVFOLIO_C_API ").count());
}
