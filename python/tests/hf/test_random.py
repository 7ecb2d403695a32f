# SPDX-License-Identifier: Apache-2.0
"""Random calls against a model of the cache: one tensor of tokens per row, copied at every call.

Keys are a function of (row history, position, layer), so a wrong block shows as a wrong number.
"""

from __future__ import annotations

import copy
import os
import random

import models
import pytest
import torch
import transformers

from kvfolio import hf

SINCE_5 = not transformers.__version__.startswith("4.")
OPERATIONS = int(os.environ.get("KVFOLIO_HF_OPERATIONS", "10000"))
HEADS, DIM, LIMIT = 1, 4, 60


class Model:
    """What the cache should hold: keys [rows, tokens] as numbers."""

    def __init__(self, keys: torch.Tensor, last: int = 0) -> None:
        self.keys, self.last = keys, last


def _states(numbers: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    keys = (numbers * 8 + layer)[:, None, :, None].expand(-1, HEADS, -1, DIM).contiguous()
    return keys, -keys


def _update(cache, model: Model, rng: random.Random, factor: int) -> None:
    count = rng.choice([1, 1, 1, 2, 3, 7, 11])
    rows = max(1, len(model.keys)) * factor
    fresh = torch.tensor([[float(rng.randrange(1 << 16)) for _ in range(count)] for _ in range(rows)])
    for layer in range(len(cache.layers)):
        cache.update(*_states(fresh, layer), layer)
    old = model.keys.repeat_interleave(factor, dim=0) if len(model.keys) else fresh[:, :0]
    model.keys, model.last = torch.cat([old, fresh], dim=1), count


def _check(cache, model: Model) -> None:
    length = model.keys.shape[1]
    assert cache.get_seq_length() == length
    for layer, own in enumerate(cache.layers):
        if length == 0:
            assert own.keys is None
            continue
        keys, values = _states(model.keys, layer)
        window = getattr(own, "sliding_window", None)
        have = own.keys.shape[2]
        assert have == (length if window is None else min(length, window - 1))
        assert torch.equal(own.keys, keys[:, :, length - have :])
        assert torch.equal(own.values, values[:, :, length - have :])


def _operation(cache, model: Model, rng: random.Random) -> None:
    rows, length = model.keys.shape
    kind = rng.choice(["update", "update", "crop", "reorder", "repeat", "select", "reset"])
    if rows == 0 or kind == "update" or (kind == "reset" and rng.random() < 0.9):
        if length < LIMIT:
            _update(cache, model, rng, 2 if rows and rows <= 2 and rng.random() < 0.1 else 1)
            return
        kind = "reset"
    if kind == "crop":
        windowed = any(cache.is_sliding)
        drop = rng.randint(0, model.last if windowed else length)
        if SINCE_5 or drop:
            cache.crop(-drop)
        model.keys, model.last = model.keys[:, : length - drop], 0
    elif kind == "repeat":
        times = rng.choice([1, 2]) if rows <= 3 else 1
        cache.batch_repeat_interleave(times)
        model.keys, model.last = model.keys.repeat_interleave(times, dim=0), 0
    elif kind in ("reorder", "select"):
        size = rows if kind == "reorder" else rng.randint(1, rows)
        chosen = torch.tensor([rng.randrange(rows) for _ in range(size)])
        call = cache.reorder_cache if kind == "reorder" else cache.batch_select_indices
        call(chosen)
        model.keys, model.last = model.keys[chosen], 0
    elif kind == "reset":
        cache.reset()
        model.keys, model.last = torch.empty(0, 0), 0


@pytest.mark.parametrize("plane", ["auto", "torch"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_random_calls_leak_no_block(family, plane):
    seed = int(os.environ.get("KVFOLIO_SEED", "1"))
    print(f"KVFOLIO_SEED={seed}")
    rng = random.Random(seed)
    config = models.shared(family).config
    pool = hf.Pool(config, blocks=400, block_size=4, dtype="f32", data_plane=plane)
    caches = [(hf.PagedCache(config, pool, namespace="random"), Model(torch.empty(0, 0)))]
    for number in range(OPERATIONS if plane == "auto" else OPERATIONS // 4):
        index = rng.randrange(len(caches))
        cache, model = caches[index]
        if rng.random() < 0.05 and len(caches) < 5:
            caches.append((copy.deepcopy(cache), Model(model.keys.clone(), 0)))
            model.last = 0
        elif rng.random() < 0.05 and len(caches) > 1:
            cache.close()
            caches.pop(index)
        else:
            _operation(cache, model, rng)
            if number % 20 == 0:
                _check(cache, model)
        if number % 200 == 0:
            pool.manager.check_invariants()
    for cache, model in caches:
        _check(cache, model)
        cache.close()
    assert pool.num_held == 0 and pool.manager.num_sequences == 0
    pool.manager.check_invariants()
