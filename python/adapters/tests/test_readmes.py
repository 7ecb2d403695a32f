# SPDX-License-Identifier: Apache-2.0
"""The lines of configuration in the READMEs are taken as they stand, and each option they name is one."""

import json
import pathlib
import re

import pytest
import test_lmcache
import test_sglang
import test_vllm
from kvfolio_lmcache import Client
from kvfolio_sglang import KvfolioStorage
from kvfolio_vllm import KvfolioTier

ADAPTERS = pathlib.Path(__file__).parents[1]


def readme(name):
    return (ADAPTERS / name / "README.md").read_text(encoding="utf-8")


def line_of(name):
    """The JSON of the line, whether it stands alone or in quotes of a shell."""
    text = readme(name)
    found = re.search(r"```json\n(.*?)```", text, re.S) or re.search(r"```sh\n[^`]*?'(\{.*?\})'\n```", text, re.S)
    return json.loads(found[1])


def opened(name, options):
    """What the host makes of the line, with a folder of ours."""
    if name == "kvfolio_vllm":
        tier = dict(options["secondary_tiers"][0])
        assert (tier.pop("type"), tier.pop("module_path")) == ("KvfolioTier", "kvfolio_vllm")
        return tier, lambda given: KvfolioTier(test_vllm.spec(), memoryview(test_vllm.rows(2)), "KvfolioTier", **given)
    if name == "kvfolio_lmcache":
        assert (options["type"], options["module_path"], options["class_name"]) == ("native_plugin", name, "Client")
        return options["adapter_params"], lambda given: Client(**given)
    assert (options["module_path"], options["class_name"]) == (name, "KvfolioStorage") and options["interface_v1"]
    return options, lambda given: KvfolioStorage(test_sglang.config(given), {})


NAMES = ["kvfolio_vllm", "kvfolio_lmcache", "kvfolio_sglang"]


@pytest.mark.parametrize("name", NAMES)
def test_the_line_of_a_readme_is_taken(name, tmp_path):
    options, make = opened(name, line_of(name))
    made = make({**options, "directory": str(tmp_path / "kv")})
    (made.shutdown if hasattr(made, "shutdown") else made.close)()
    assert (tmp_path / "kv").is_dir()


@pytest.mark.parametrize("name", NAMES)
def test_each_option_that_a_readme_names_is_known(name, tmp_path):
    table = re.findall(r"^\| (`.*?) \|", readme(name), re.M)
    servers = re.search(r"^\| `servers` \|(.*)$", readme(name), re.M)[1]
    names = re.findall(r"`(\w+)`", " ".join(table)) + re.findall(r"`(\w+)`", servers)
    assert {"directory", "bytes", "weights" if name != "kvfolio_lmcache" else "models", "password_file"} <= set(names)
    source = "".join((ADAPTERS / folder / folder / "__init__.py").read_text() for folder in (name, "kvfolio_adapters"))
    for option in set(names) - {"adapter_params"}:
        # vLLM's factory takes this one itself.
        assert option == "backpressure" or re.search(rf'"{option}"|\b{option}: ', source), option


@pytest.mark.parametrize("name", NAMES)
def test_secrets_come_from_files(name, tmp_path):
    """Hosts write their options into logs."""
    options, make = opened(name, line_of(name))
    given = {**options, "directory": str(tmp_path / "kv")}
    (tmp_path / "key").write_text("00ff" * 16 + "\n")
    made = make({**given, "record_key_file": str(tmp_path / "key")})
    (made.shutdown if hasattr(made, "shutdown") else made.close)()
    (tmp_path / "key").write_text("no digits")
    with pytest.raises(ValueError, match="record_key_file' names a file without 64 hexadecimal digits"):
        make({**given, "record_key_file": str(tmp_path / "key")})
    for field in ("record_key_file", "password_file"):  # such as one of a volume that is not mounted
        (tmp_path / "key").write_text("\n" + "00ff" * 16)
        servers = {"servers": "127.0.0.1:1"} if field == "password_file" else {}
        with pytest.raises(ValueError, match=f"'{field}' names .*key, whose first line is empty"):
            make({**given, **servers, field: str(tmp_path / "key")})
    with pytest.raises(ValueError, match="'password' is not known"):
        make({**given, "password": "x"})


def test_a_key_that_seals_is_needed_to_read(tmp_path):
    (tmp_path / "key").write_text("00ff" * 16)
    options = {"directory": str(tmp_path / "kv"), "bytes": 64 << 20}
    with test_lmcache.Server({**options, "record_key_file": str(tmp_path / "key")}) as server:
        assert server.set([test_lmcache.key(1)], test_lmcache.chunks(1, 1))[0]
    with test_lmcache.Server(options) as server:
        assert server.get([test_lmcache.key(1)], test_lmcache.chunks(1))[2] == [False]
