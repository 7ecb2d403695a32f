# SPDX-License-Identifier: Apache-2.0
"""The documents say what the code does, as far as a script can tell.

A fenced block behind the line `<!-- output: NAME -->` is what the program NAME prints, one behind
`<!-- source: FILE -->` the lines of FILE between its marks "readme: begin" and "readme: end", and one
behind `<!-- lines of: FILE -->` is made of lines that stand in FILE. Without arguments the test runs
under ctest, which names the programs in the environment.
"""

import json
import os
import pathlib
import re
import subprocess
import textwrap

import pytest

ROOT = pathlib.Path(os.environ.get("KVFOLIO_SOURCE_DIR",
                                   pathlib.Path(__file__).resolve().parents[2]))
PAGES = sorted({ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md",
                *ROOT.glob("docs/**/*.md"), *ROOT.glob("models/*/README.md"),
                *ROOT.glob("python/adapters/*/README.md")})
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
MARKED = re.compile(r"<!-- (output|source|shown|lines of): (\S+) -->\s*\n```\w*\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"(?<!!)\[[^\]\[]*\]\(([^)\s]+)\)")
# `src/prefix/match.cc`, `scripts/demo`: a path of this repository, in backticks.
PATH = re.compile(r"`((?:src|include|docs|scripts|examples|bindings|tools|tests|bench|cmake|models|\.ci)/"
                  r"[\w./-]+)`")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def page_id(path):
    return str(path.relative_to(ROOT))


def prose(text):
    """The text without fenced blocks."""
    return FENCE.sub("", text)


def anchors(text):
    """Names of the headings, as GitHub makes them."""
    names = set()
    for heading in re.findall(r"^#+ +(.*)$", prose(text), re.M):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = 0
        while (name if not count else f"{name}-{count}") in names:
            count += 1
        names.add(name if not count else f"{name}-{count}")
    return names


def marked_blocks():
    for page in PAGES:
        for kind, name, body in MARKED.findall(page.read_text()):
            yield pytest.param(page, kind, name, body, id=f"{page_id(page)}:{kind}:{name}")


def expected(kind, name):
    if kind == "output":
        program = os.environ.get("KVFOLIO_DOCS_" + name.upper())
        if not program:
            pytest.skip(f"the program {name} was not built")
        ran = subprocess.run([program], capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout
    if kind == "shown":
        name, part = name.split("#")
        text = (ROOT / name).read_text()
        begin = text.index("\n", text.index(f"// shown: {part.replace('-', ' ')}\n")) + 1
        end = text.rindex("\n", 0, text.index("// shown end", begin)) + 1
        return textwrap.dedent(text[begin:end]).expandtabs(4)  # Go's tabs
    text = (ROOT / name).read_text()
    begin = text.index("\n", text.index("readme: begin")) + 1
    end = text.rindex("\n", 0, text.index("readme: end")) + 1
    return textwrap.dedent(text[begin:end])


@pytest.mark.parametrize(("page", "kind", "name", "body"), marked_blocks())
def test_block_is_what_it_says(page, kind, name, body):
    if kind != "lines of":
        assert body == expected(kind, name)
        return
    known = [line.strip() for line in (ROOT / name).read_text().splitlines()]
    for line in body.splitlines():
        assert line.strip() in known, f"{page_id(page)} shows a line that is not in {name}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page):
    text = page.read_text()
    for target in LINK.findall(prose(text)):
        if re.match(r"[a-z]+:", target):
            continue  # another site's
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), f"{target} names nothing"
        assert ROOT in there.parents or there == ROOT, f"{target} leaves the repository"
        if anchor:
            assert anchor in anchors(there.read_text()), f"{target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_paths_exist(page):
    for name in PATH.findall(page.read_text()):
        source = ROOT / name
        # A program is named without its ending.
        assert source.exists() or source.with_name(source.name + ".cc").exists(), name


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_is_ascii_without_tabs_or_trailing_blanks(page):
    text = page.read_text()
    assert text.isascii() and "\t" not in text
    assert not re.search(r" +$", text, re.M)
    assert text.endswith("\n") and not text.endswith("\n\n")


def test_contents_of_the_design_are_its_headings():
    text = (ROOT / "docs" / "design.md").read_text()
    contents = re.findall(r"^(\d+)\. \[(.*)\]\(#.*\)$", text, re.M)
    headings = re.findall(r"^## (?:(\d+)\. )?(.*)$", prose(text), re.M)
    assert contents == headings


def test_the_readme_is_short_and_begins_with_code():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 200
    assert lines.index("```python") < 40


def test_pictures_are_what_their_script_draws():
    ran = subprocess.run([ROOT / "scripts" / "pictures", "--check"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def test_options_of_the_command_exist():
    command = os.environ.get("KVFOLIO")
    if not command or not pathlib.Path(command).exists():
        pytest.skip("the command was not built")
    known = subprocess.run([command, "generate", "--help"], capture_output=True, text=True,
                           timeout=60).stdout
    known = set(OPTION.findall(known))
    pages = [ROOT / "README.md", ROOT / "docs" / "proof.md"]
    shown = "".join(page.read_text() for page in pages).replace("\\\n", " ")
    lines = [line for line in shown.splitlines() if re.match(r"\s*(\$ )?\S*kvfolio generate ", line)]
    assert len(lines) > 1, "both pages show the command"
    for line in lines:
        assert set(OPTION.findall(line)) <= known, line


def test_every_mark_of_the_parity_tests_is_shown():
    sources = [*(ROOT / "tests" / "api").glob("parity_*"),
               ROOT / "bindings" / "rust" / "kvfolio" / "tests" / "coming_from.rs"]
    marks = {f"{path.relative_to(ROOT)}#{mark.replace(' ', '-')}" for path in sources
             for mark in re.findall(r"// shown: (.*)$", path.read_text(), re.M)}
    shown = re.findall(r"<!-- shown: (\S+) -->", (ROOT / "docs" / "coming-from.md").read_text())
    assert sorted(shown) == sorted(marks)


def test_every_mark_of_the_recipes_is_shown():
    source = ROOT / "tests" / "api" / "recipes_test.cc"
    marks = [mark.replace(" ", "-") for mark in re.findall(r"// shown: (.*)$", source.read_text(), re.M)]
    shown = re.findall(r"<!-- shown: tests/api/recipes_test.cc#(\S+) -->",
                       (ROOT / "docs" / "recipes.md").read_text())
    assert sorted(shown) == sorted(marks)


def test_every_mark_of_the_examples_is_shown():
    sources = [*(ROOT / "examples" / "c").glob("*.c"), *(ROOT / "bindings" / "go").rglob("*.go"),
               *(ROOT / "bindings" / "rust" / "kvfolio" / "examples").glob("*.rs")]
    marks = {f"{path.relative_to(ROOT)}#{mark}" for path in sources
             for mark in re.findall(r"// shown: (.*)$", path.read_text(), re.M)}
    pages = [ROOT / "docs" / "languages.md", ROOT / "docs" / "tiers.md"]
    shown = [name for page in pages
             for name in re.findall(r"<!-- shown: (\S+) -->", page.read_text())]
    assert sorted(shown) == sorted(marks)


@pytest.mark.parametrize("name", ["manager", "storage", "offload", "disk_tier"])
def test_the_example_of_a_header_is_compiled(name):
    text = (ROOT / f"include/kvfolio/{name}.h").read_text()
    lines = re.search(r"^//\n((?://   .*\n)+)//\n", text, re.M)[1].splitlines()
    compiled = (ROOT / "tests/package/designated.cc").read_text()
    assert "".join(f"  {line[5:]}\n" for line in lines) in compiled


def test_the_calls_that_an_engine_needs_are_counted_and_stand_in_the_first_section():
    text = (ROOT / "include/kvfolio/manager.h").read_text()
    first = text[text.index("---- start here"):text.index("---- more of sequences")]
    listed = re.search(r"the (\d+) calls that.*?\n  //\n(.*?)  //\n", first, re.S)
    names = re.findall(r"\w+", re.sub(r"//   (  )?((?:\w+, )*\w+,?)(  .*)?", r"\2", listed[2]))
    assert {"append_prompt", "finish"} <= set(names)
    assert len(names) == int(listed[1])
    for name in names:
        assert re.search(rf"^  [\w:<>* ]+ {name}\(", first, re.M), name
    page = (ROOT / "docs" / "languages.md").read_text()
    assert f"whose first section has the {listed[1]}\ncalls that an engine needs" in page


def test_functions_of_the_c_headers_are_counted():
    for page, number, header in [
            ("languages.md", r"library in C99: (\d+) functions", "kvfolio.h"),
            ("cuda.md", r"is for libkvfolio_tiers: (\d+) functions", "kvfolio_cuda.h")]:
        text = (ROOT / "include" / "kvfolio" / header).read_text()
        functions = re.findall(r"^\w*_C_API\s[^;(]*?(\w+)\(", text, re.M)
        assert len(set(functions)) == len(functions)
        said = re.search(number, (ROOT / "docs" / page).read_text())
        assert int(said[1]) == len(functions), header


def test_every_decision_is_listed():
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    decisions = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [name[:4] for name in decisions] == [f"{i + 1:04}" for i in range(len(decisions))]
    for name in decisions:
        assert f"]({name})" in index, f"{name} is not in the list"
        text = (folder / name).read_text()
        for part in ("**Context.**", "**Choice.**", "**Price.**"):
            assert part in text, f"{name} lacks {part}"


def test_demo_counts_are_what_the_command_counts():
    """All that the report of docs/proof.md says but times. Products of another instruction set round in
    another way, so other tokens may come out elsewhere."""
    command = os.environ.get("KVFOLIO")
    if not command or not pathlib.Path(command).exists():
        pytest.skip("the command was not built")
    if os.environ.get("KVFOLIO_SANITIZED"):
        pytest.skip("slow under the sanitizers, and counts are the same")
    page = (ROOT / "docs" / "proof.md").read_text()
    block = next(body for _, _, body in FENCE.findall(page) if "kvfolio generate" in body)
    shown = re.sub(r"\\\n", " ", block).splitlines()
    arguments = shown[0].split()[2:]
    ran = subprocess.run([command, *[a for a in arguments if a != "--verify"], "--json"], cwd=ROOT,
                         capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stderr
    summary = json.loads(ran.stdout.splitlines()[-1])["summary"]
    if (summary["matmul"], summary["kernel"]) != ("avx512", "avx512-bf16"):
        pytest.skip(f"the page's run used avx512-bf16, this machine uses {summary['kernel']}")
    printed = summary["report"].splitlines()
    begin = next(i for i, line in enumerate(shown) if line.startswith("  sequences at once"))
    end = next(i for i, line in enumerate(shown) if line.startswith("verified"))
    for line in shown[begin:end]:
        assert line in printed
