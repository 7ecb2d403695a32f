# SPDX-License-Identifier: Apache-2.0
"""What the adapters stand on is what was recorded, and they answer every call of it."""

import ast
import importlib
import inspect
import pathlib

import pytest

import hosts
import record

ADAPTERS = pathlib.Path(__file__).parents[1]
BASES = {
    "vllm": ("vllm.v1.kv_offload.tiering.base", "SecondaryTierManager", "kvfolio_vllm", "KvfolioTier"),
    "sglang": ("sglang.srt.mem_cache.hicache_storage", "HiCacheStorage", "kvfolio_sglang", "KvfolioStorage"),
}


@pytest.mark.parametrize("package", record.WANTED)
def test_the_released_package_is_the_recorded_one(package):
    if not hosts.released(package):
        pytest.skip(f"needs the released {package}: scripts/adapters")
    assert record.record(package) == hosts.record(package)


@pytest.mark.parametrize("package", BASES)
def test_each_call_of_the_base_is_taken(package):
    module, base, ours, name = BASES[package]
    shape = hosts.record(package)["classes"][module][base]["methods"]
    cls = getattr(importlib.import_module(ours), name)
    assert not inspect.isabstract(cls)
    for method, about in shape.items():
        if method == "__init__":
            continue
        mine = getattr(cls, method)
        assert not about["abstract"] or method in vars(cls), method
        names = [text.partition("=")[0] for text in about["parameters"][1:] if not text.startswith("*")]
        signature = inspect.signature(mine)
        bound = (None,) if not inspect.ismethod(mine) else ()
        signature.bind(*bound, *names)  # all of them by place
        signature.bind(*bound, **dict.fromkeys(names))  # and by name
        needed = [text for text in about["parameters"][1:] if "=" not in text and not text.startswith("*")]
        signature.bind(*bound, *needed)


@pytest.mark.parametrize("folder", sorted(ADAPTERS.glob("kvfolio_*")), ids=lambda folder: folder.name)
def test_each_package_names_the_version_of_the_tiers_and_has_a_readme(folder):
    import kvfolio
    text = (folder / "pyproject.toml").read_text()
    assert f'name = "{folder.name.replace("_", "-")}"' in text and f'version = "{kvfolio.__version__}"' in text
    assert f'"kvfolio-tiers=={kvfolio.__version__}"' in text
    source = ast.parse((folder / folder.name / "__init__.py").read_text())
    versions = [each.value.value for each in source.body if isinstance(each, ast.Assign)
                and each.targets[0].id == "__version__"]
    assert versions == [kvfolio.__version__]
    assert (folder / "README.md").exists()
