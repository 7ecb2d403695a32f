# SPDX-License-Identifier: Apache-2.0
"""An exception between any two calls loses no block, leaves no step open, and changes no token."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import random
import signal
import time
from typing import Any, Callable, Iterator

import models
import pytest
import torch
import transformers
from caches import generate, hits, pool_for

import kvfolio
from kvfolio import hf

ROUNDS = int(os.environ.get("KVFOLIO_HF_INTERRUPTS", "300"))
SINCE_5 = not transformers.__version__.startswith("4.")


class Interrupting:
    """A manager, or a step of it, that raises KeyboardInterrupt before or behind its n-th call."""

    def __init__(self, inner: Any, clock: Clock) -> None:
        self._inner, self._clock = inner, clock

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            self._clock.tick(f"before {name}")
            result = value(*args, **kwargs)
            if isinstance(result, kvfolio.Step):
                result = Interrupting(result, self._clock)
            self._clock.tick(f"behind {name}")  # which loses the result
            return result

        return call


class Clock:
    def __init__(self) -> None:
        self.now = 0
        self.end: int | None = None
        self.where = ""

    def tick(self, where: str) -> None:
        self.now += 1
        if self.end is not None and self.now >= self.end:
            self.end, self.where = None, where
            raise KeyboardInterrupt


def whole(pool: hf.Pool) -> None:
    """Nothing is open, nothing is held."""
    assert pool.num_held == 0
    assert pool.manager.num_sequences == 0 and not pool.tickets
    pool.manager.step().drop()  # refused while another one is open
    pool.manager.check_invariants()


class Flow:
    """All that a cache can do, with what the model itself says beside it."""

    def __init__(self, family: str) -> None:
        self.model = models.shared(family)
        self.ids = models.prompt(20, batch=2)
        self.expected = generate(self.model, self.ids, None, max_new_tokens=3)
        self.beams = generate(self.model, self.ids, None, max_new_tokens=3, num_beams=2)

    def run(self, pool: hf.Pool, kept: list[Any]) -> None:
        cache = hf.PagedCache(self.model, pool, prompt_ids=self.ids)
        kept.append(cache)
        out = generate(self.model, self.ids, cache, max_new_tokens=3)
        assert torch.equal(out, self.expected)
        cache.publish(out)
        twin = copy.deepcopy(cache)
        kept.append(twin)
        twin.crop(-2 if SINCE_5 else twin.get_seq_length() - 2)
        twin.reorder_cache(torch.tensor([1, 1]))
        twin.batch_repeat_interleave(2)
        twin.reset()
        with hf.PagedCache(self.model, pool, prompt_ids=self.ids) as wide:
            kept.append(wide)
            out = generate(self.model, self.ids, wide, max_new_tokens=3, num_beams=2)
            assert torch.equal(out, self.beams)
        cache.close()


def go_on(flow: Flow, kept: list[Any]) -> None:
    """What is still open goes on rightly, or says that it is closed."""
    for cache in kept:
        try:
            ids = cache.token_ids
        except RuntimeError as closed:
            assert "this cache is closed" in str(closed)
            continue
        if ids.shape[0] != 2 or ids.shape[1] == 0 or not torch.equal(ids, flow.expected[:, : ids.shape[1]]):
            continue
        try:
            out = generate(flow.model, flow.expected, cache, max_new_tokens=2)
        except RuntimeError as error:  # a crop reached some layers and not the others
            assert "was called on some layers" in str(error) or "closed" in str(error)
            continue
        assert torch.equal(out, generate(flow.model, flow.expected, None, max_new_tokens=2))


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_an_interrupt_between_any_two_calls_of_the_manager_loses_nothing(family):
    flow = Flow(family)
    clock = Clock()
    pool = pool_for(flow.model, block_size=4)
    pool.manager = Interrupting(pool.manager, clock)
    flow.run(pool, [])
    whole(pool)
    pool.clear_prefixes()
    clock.now = 0
    flow.run(pool, [])
    ticks, places = clock.now, set()
    assert ticks > 100
    step = 1 if family == "llama" else 3
    for end in range(1, ticks + 1, step):
        pool.clear_prefixes()
        clock.now, clock.end = 0, end
        kept: list[Any] = []
        with contextlib.suppress(KeyboardInterrupt):
            flow.run(pool, kept)
        places.add(clock.where)
        if end % 10 == 0:
            go_on(flow, kept)
        clock.end = None
        for cache in kept:
            cache.close()
        del kept
        whole(pool)
    assert {"behind step", "behind commit", "before commit", "behind plan", "behind open", "behind fork",
            "behind complete", "behind set_tokens"} <= places
    assert hits(flow.model, pool, flow.ids[:1]) in (0, 19)


def test_an_interrupt_while_the_pool_tidies_up_is_tidied_up_as_well():
    flow = Flow("llama")
    clock = Clock()
    pool = pool_for(flow.model, block_size=4)
    pool.manager = Interrupting(pool.manager, clock)
    flow.run(pool, [])
    for first, second in itertools.product(range(20, 120, 7), range(1, 12, 3)):
        kept: list[Any] = []
        clock.now, clock.end = 0, first
        with contextlib.suppress(KeyboardInterrupt):
            flow.run(pool, kept)
        kept.clear()
        clock.now, clock.end = 0, second
        with contextlib.suppress(KeyboardInterrupt):
            pool.num_held
        clock.end = None
        whole(pool)


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Ctrl-C after a while, wherever the interpreter is then."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("way", ["generate", "by hand"])
def test_signals_at_random_times_lose_nothing(way):
    seed = int(os.environ.get("KVFOLIO_SEED", "1"))
    print(f"KVFOLIO_SEED={seed}")
    rng = random.Random(seed)
    flow = Flow("llama")
    pool = pool_for(flow.model, block_size=4)
    run = flow.run if way == "generate" else by_hand
    before = signal.signal(signal.SIGALRM, _interrupt)
    interrupted = 0
    try:
        spent = min(_seconds_of(lambda: run(pool, [])) for _ in range(3))
        for number in range(ROUNDS if way == "by hand" else ROUNDS // 10):
            kept: list[Any] = []
            try:
                with alarm(rng.uniform(1e-5, spent)):
                    run(pool, kept)
            except KeyboardInterrupt:
                interrupted += 1
            for cache in kept:
                cache.close()
            del kept
            whole(pool)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted > ROUNDS // 40
    flow.run(pool, [])


def _seconds_of(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def by_hand(pool: hf.Pool, kept: list[Any]) -> None:
    """Without a model, so that most of the time is our own."""
    config = models.shared("llama").config
    ids = models.prompt(20)
    for _ in range(4):
        cache = hf.PagedCache(config, pool, namespace="by hand", prompt_ids=ids)
        kept.append(cache)
        for count in (20 - cache.cached_tokens, 1, 1, 4):
            keys = torch.zeros(1, 2, count, 16)
            for layer in range(4):
                cache.update(keys, keys, layer)
        cache.batch_repeat_interleave(2)
        twin = copy.deepcopy(cache)
        kept.append(twin)
        twin.crop(-2 if SINCE_5 else twin.get_seq_length() - 2)
        twin.reorder_cache(torch.tensor([1, 1]))
        cache.publish(ids.repeat(2, 1))
        twin.close()
        cache.close()
