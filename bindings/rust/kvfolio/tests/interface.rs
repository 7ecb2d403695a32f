// SPDX-License-Identifier: Apache-2.0
//
// Claims about the interface that its sources can be asked for.

use std::collections::BTreeSet;

/// A public function: its name, how it takes self, and what it calls in C.
#[derive(Debug)]
struct Function {
    name: String,
    receiver: String,
    calls: BTreeSet<String>,
}

/// Name and text of each source, those of the module `tiers` under their own names with "tiers/".
fn sources() -> Vec<(String, String)> {
    let mut out = Vec::new();
    for folder in ["", "tiers/"] {
        let path = format!("{}/src/{folder}", env!("CARGO_MANIFEST_DIR"));
        for entry in std::fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let name = format!("{folder}{}", path.file_stem().unwrap().to_string_lossy());
                out.push((name, std::fs::read_to_string(path).unwrap()));
            }
        }
    }
    out
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// The public functions of a source, in order.
fn functions(source: &str) -> Vec<Function> {
    let code: String =
        source.lines().filter(|l| !l.trim().starts_with("//")).map(|l| format!("{l}\n")).collect();
    let mut out = Vec::new();
    for part in code.split("pub fn ").skip(1).chain(code.split("pub unsafe fn ").skip(1)) {
        let name: String = part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let arguments = part.split('(').nth(1).unwrap().split([',', ')']).next().unwrap().trim();
        // To the end of the function: the next item at its depth begins with one of these.
        let end = part.find("\n    }\n").unwrap_or(part.len());
        let calls = words(&part[..end]).filter(|w| w.starts_with("kvfolio_"));
        let calls = calls.map(str::to_string).collect();
        out.push(Function { name, receiver: arguments.to_string(), calls });
    }
    out
}

/// The lines of all examples in the documentation, and how many examples there are.
fn examples() -> (BTreeSet<String>, usize) {
    let (mut out, mut count) = (BTreeSet::new(), 0);
    for (_, source) in sources() {
        let mut inside = false;
        for line in source.lines().map(str::trim) {
            let text = match line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) {
                Some(text) => text.trim(),
                None => continue,
            };
            if text.starts_with("```") {
                inside = !inside;
                count += usize::from(inside);
            } else if inside {
                out.extend(words(text).map(str::to_string));
            }
        }
    }
    (out, count)
}

#[test]
fn every_type_and_every_call_is_in_an_example() {
    let (shown, count) = examples();
    assert!((20..=60).contains(&count), "{count} examples");
    // What calls return: examples have it without naming its type.
    let hidden = [
        "Admission",
        "ArenaStats",
        "Begun",
        "BlockState",
        "Counters",
        "DiskStats",
        "Element",
        "Ended",
        "Findable",
        "Forgotten",
        "GroupLayout",
        "GroupPlan",
        "GroupUsage",
        "Hold",
        "Left",
        "Load",
        "LoadBlocks",
        "LoadEnd",
        "Loadable",
        "Manager",
        "MemoryUse",
        "OffloadCounters",
        "OffloadOpened",
        "OffloadTierCounters",
        "Opened",
        "Order",
        "Pin",
        "Pinned",
        "Plan",
        "PlanArrays",
        "Prefix",
        "Publish",
        "Ready",
        "RedisCounters",
        "Refused",
        "RestoreStats",
        "Restored",
        "RestoredSequence",
        "SaveStats",
        "Sequence",
        "SequenceInfo",
        "SharedPrefix",
        "Shortage",
        "Step",
        "Stopped",
        "StorageMut",
        "Ticket",
        "View",
        "ViewMut",
    ];
    let mut missing = Vec::new();
    for (_, source) in sources() {
        for function in functions(&source) {
            if !shown.contains(&function.name) {
                missing.push(function.name);
            }
        }
        for kind in ["pub struct ", "pub enum ", "pub unsafe trait "] {
            for part in source.split(kind).skip(1) {
                let name = words(part).next().unwrap();
                if !shown.contains(name) && !hidden.contains(&name) && !name.is_empty() {
                    missing.push(name.to_string());
                }
            }
        }
    }
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn shared_calls_are_the_const_calls_of_c() {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvfolio-sys/src/declarations.rs");
    let header = std::fs::read_to_string(header).unwrap();
    let takes = |call: &str, pointer: &str| {
        header.contains(&format!("pub fn {call}(manager: {pointer} kvfolio_manager"))
    };
    let mut seen = 0;
    for (name, source) in sources() {
        if !["manager", "op_log", "steps", "room", "questions", "transfers"]
            .contains(&name.as_str())
        {
            continue;
        }
        for function in functions(&source) {
            for call in &function.calls {
                let is_const = takes(call, "*const");
                if !is_const && !takes(call, "*mut") {
                    continue;
                }
                seen += 1;
                assert_eq!(function.receiver == "&self", is_const, "{function:?} calls {call}");
            }
        }
    }
    assert!(seen >= 65, "{seen}");
}

#[test]
fn every_function_of_c_is_called() {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvfolio-sys/src/declarations.rs");
    let header = std::fs::read_to_string(header).unwrap();
    let used: BTreeSet<String> = sources()
        .iter()
        .flat_map(|(_, source)| words(source).map(str::to_string).collect::<Vec<_>>())
        .collect();
    let declared = header.lines().filter_map(|line| line.trim().strip_prefix("pub fn "));
    let missing: BTreeSet<&str> =
        declared.map(|line| words(line).next().unwrap()).filter(|n| !used.contains(*n)).collect();
    assert_eq!(missing, BTreeSet::new());
}

/// The fields of each struct of C that carries its size: the name of the struct, and the fields.
fn structs_of_c(declarations: &str) -> Vec<(&str, Vec<&str>)> {
    let mut out = Vec::new();
    for part in declarations.split("\npub struct ").skip(1) {
        let body = part.split("\n}").next().unwrap();
        let fields = body.lines().filter_map(|line| line.trim().strip_prefix("pub "));
        let fields: Vec<&str> = fields.map(|field| words(field).next().unwrap()).collect();
        if fields.first() == Some(&"struct_size") {
            out.push((words(part).next().unwrap(), fields));
        }
    }
    out
}

#[test]
fn every_field_of_c_is_in_the_crate() {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvfolio-sys/src/declarations.rs");
    let header = std::fs::read_to_string(header).unwrap();
    let structs = structs_of_c(&header);
    assert!(structs.len() >= 20, "{structs:?}");
    // Those files that name the struct must name its fields, outside comments.
    for (name, fields) in structs {
        let mut used = BTreeSet::new();
        for (_, source) in sources() {
            let code: Vec<&str> =
                source.lines().filter(|line| !line.trim().starts_with("//")).collect();
            if code.iter().any(|line| words(line).any(|word| word == name)) {
                used.extend(code.iter().flat_map(|line| words(line)).map(str::to_string));
            }
        }
        for field in fields {
            let is_known = ["struct_size", "reserved"].contains(&field) || used.contains(field);
            assert!(is_known, "{name}.{field} is not in the crate");
        }
    }
}
