# SPDX-License-Identifier: Apache-2.0
"""Mistakes of an engine that were silent once and spoiled what others find."""

import numpy as np
import pytest

import kvfolio as kv
from conftest import run_step

SPEC = [kv.GroupSpec(head_dim=8, num_blocks=16)]


def shared_by_two(cache):
    """A prompt of 40 tokens that was served, and one that shares 30 of them, opened."""
    sequence, _ = cache.open(range(40))
    with cache.step() as step:
        step.append(sequence, range(40))
        plan = step.plan()
        step.run_copies()
        rows = np.repeat(np.arange(40, dtype=np.float32), 8).reshape(40, 1, 8)
        kv.append(cache.storage.view(), rows, rows, plan.groups[0].slot_mapping)
    cache.close(sequence)
    prompt = [*range(30), *range(90, 100)]
    opened = cache.open(prompt)
    assert opened.cached_tokens == 30
    return opened.sequence, prompt


@pytest.mark.parametrize("end", ["commit", "finish"])
def test_copies_that_did_not_run_are_refused_and_counted(end):
    cache = kv.Manager(kv.Storage(SPEC))
    sequence, prompt = shared_by_two(cache)
    step = cache.step()
    step.append(sequence, prompt[30:])
    assert len(step.plan().groups[0].copy_src) == 1
    with pytest.raises(kv.FailedPrecondition, match="has 1 copy that has not run"):
        getattr(step, end)()
    assert step.is_open  # and takes what makes it right
    step.run_copies()
    step.finish()
    assert cache.info(sequence).length == 40


def test_a_step_that_cannot_be_finished_is_dropped_by_its_block():
    cache = kv.Manager(kv.Storage(SPEC))
    sequence, prompt = shared_by_two(cache)
    with pytest.raises(kv.FailedPrecondition, match="1 copy"):
        with cache.step() as step:
            step.append(sequence, prompt[30:])
    assert not step.is_open and cache.info(sequence).length == 30
    cache.close(sequence)
    # The next one finds what was there, and each row of it is right.
    sequence, cached = cache.open(prompt)
    assert cached == 30
    slots = np.asarray(cache.slot_mapping(sequence, 0, 30))
    rows = cache.storage.view().k[0, slots // 16, 0, slots % 16]
    assert (rows == np.arange(30, dtype=np.float32)[:, None]).all()
    cache.check_invariants()


def test_an_engine_that_copies_itself_is_not_asked():
    cache = kv.Manager(kv.Storage(SPEC), copies_by_host=True)
    sequence, prompt = shared_by_two(cache)
    with cache.step() as step:
        step.append(sequence, prompt[30:])
        group = step.plan().groups[0]
        cache.storage.copy_blocks(0, group.copy_src, group.copy_dst)
    assert cache.info(sequence).length == 40


def test_a_sequence_that_the_plan_lacks_is_not_committed(manager):
    early, late = manager.open([])[0], manager.open([])[0]
    step = manager.step()
    step.append(early, range(3))
    step.plan()
    step.append(late, range(5))
    with pytest.raises(kv.FailedPrecondition, match="1 of the 2 sequences"):
        step.commit()
    assert step.is_open
    assert step.plan().num_tokens == 8
    step.finish()
    with pytest.raises(kv.FailedPrecondition, match="plan"):
        with manager.step() as step:
            step.append(early, [1])
            step.plan()
            step.append(late, [1])
    assert [manager.info(s).length for s in (early, late)] == [3, 5]
    manager.check_invariants()


@pytest.mark.parametrize("end", ["commit", "finish"])
def test_a_plan_with_a_sequence_that_left_since_is_not_committed(manager, end):
    stays, leaves = manager.open([])[0], manager.open([])[0]
    step = manager.step()
    step.append(stays, range(3))
    step.append(leaves, range(5))
    step.plan()
    step.undo(leaves)
    with pytest.raises(kv.FailedPrecondition, match="1 sequence that was taken out since"):
        getattr(step, end)()
    assert step.is_open
    assert step.plan().num_tokens == 3
    step.finish()
    with pytest.raises(kv.FailedPrecondition, match="taken out since"):
        with manager.step() as step:
            step.append(stays, [1])
            step.append(leaves, [1])
            step.plan()
            manager.preempt(leaves)
    assert not step.is_open
    assert manager.info(stays).length == 3
    manager.check_invariants()


def test_the_whole_prompt_behind_a_hit_is_refused():
    m = kv.Manager(SPEC)
    sequence, _ = m.open(range(40))
    run_step(m, (sequence, range(40)))
    m.close(sequence)
    sequence, cached = m.open(range(40))
    assert cached == 39
    with m.step() as step:
        with pytest.raises(kv.InvalidArgument, match="the 39 that it has of its prompt of 40"):
            step.append(sequence, range(40))
        step.append(sequence, range(cached, 40))
    assert m.info(sequence).length == 40


def test_the_rest_of_a_prompt_that_repeats_itself_is_taken_with_its_drafts():
    m = kv.Manager(SPEC)
    prompt = [7] * 4
    sequence, _ = m.open(prompt)
    run_step(m, (sequence, prompt))
    m.close(sequence)
    sequence, cached = m.open(prompt)
    assert cached == 3
    with m.step() as step:
        step.append(sequence, prompt, draft=3)  # the rest and three drafts
    m.accept(sequence, 1)
    assert m.info(sequence).length == 5


def test_no_manager_takes_an_id_of_another():
    a, b = kv.Manager(SPEC), kv.Manager(SPEC)
    of_a, of_b = a.open([1])[0], b.open([1])[0]
    assert of_a != of_b
    with pytest.raises(kv.NotFound, match="another manager"):
        b.close(of_a)
    assert b.info(of_b).length == 0
    # Who wants the ids of every process to be alike says which.
    told = [kv.Manager(SPEC, id_tag=0).open([1])[0] for _ in range(2)]
    assert told[0] == told[1]
    for wrong in (-1, 2**16):
        with pytest.raises(kv.InvalidArgument, match="id_tag"):
            kv.Manager(SPEC, id_tag=wrong)
    with pytest.raises(TypeError, match="id_tag"):
        kv.Manager(SPEC, id_tag="1")


def test_a_tag_of_a_manager_that_lives_is_given_to_no_other():
    """There are 2**15 - 1 of them, and a process makes more managers than that in a week."""
    first, told = kv.Manager(SPEC), kv.Manager(SPEC, id_tag=77)
    kept = {int(m.open([1])[0]): m for m in (first, told)}
    small = [kv.GroupSpec(head_dim=8, num_blocks=1)]
    tags = [int(kv.Manager(small, max_sequences=1, max_pins=1, max_sequence_tokens=16, prefix_cache=False)
                .open([1])[0]) >> 48 for _ in range(2**15 + 1)]
    assert min(tags) >= 1 and max(tags) < 2**15
    assert {sequence >> 48 for sequence in kept}.isdisjoint(tags)
    # In turn: the id of a manager that is gone means nothing for as long as can be.
    assert len(set(tags[:32000])) == 32000
    for sequence, m in kept.items():
        assert m.info(sequence).length == 0
