# SPDX-License-Identifier: Apache-2.0
"""The control plane: sequences, steps, plans, room."""

import pathlib
import pickle
import random
import re

import numpy as np
import pytest

import kvfolio as kv
from conftest import run_step, state_of, tokens


def test_a_hit_is_found_to_the_token(manager):
    first, cached = manager.open(range(10))
    assert cached == 0
    run_step(manager, (first, range(10)))
    manager.close(first)
    opened = manager.open([*range(9), 77])
    assert opened.cached_tokens == 9 and manager.probe(range(10)) == 9
    assert manager.counters.tokens_reused == 9


def test_a_twin_hears_how_far_the_first_one_will_reach(manager):
    first, cached = manager.open(range(10), announce=True)
    assert cached == 0
    assert manager.soon(range(10)) == kv.Soon(8, first)
    assert manager.soon([*range(6), 77]) == kv.Soon(6, first)
    assert manager.admit_prompt(range(10)).soon == kv.Soon(8, first)
    twin = manager.open(range(10))
    assert twin == (twin.sequence, 0) and twin.soon == kv.Soon(8, first) and "soon=Soon" in repr(twin)
    assert pickle.loads(pickle.dumps(twin)).soon == twin.soon
    manager.close(twin.sequence)
    assert manager.soon(range(10), look_up=False) is None
    run_step(manager, (first, range(10)))
    assert manager.soon(range(10)) is None
    assert manager.probe(range(10)) == 8
    with pytest.raises(kv.InvalidArgument, match="max_announced_tokens is -1"):
        kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=16)], max_announced_tokens=-1)


def test_a_tenants_prompt_is_not_found_by_another(manager):
    a = kv.RootKey(tenant_salt=b"a")
    sequence, _ = manager.open(range(8), root=a)
    run_step(manager, (sequence, range(8)))
    manager.close(sequence)
    assert manager.probe([*range(8), 1], root=a) == 8
    assert manager.probe([*range(8), 1]) == 0
    assert manager.probe([*range(8), 1], root=kv.RootKey(tenant_salt="b")) == 0
    assert manager.forget(root=a).blocks == 2
    assert manager.probe([*range(8), 1], root=a) == 0


def test_media_must_be_equal(manager):
    media = [kv.MediaSpan(1, 3, b"y" * 32)]
    sequence, _ = manager.open(range(8), media=media)
    run_step(manager, (sequence, range(8)))
    manager.close(sequence)
    assert manager.probe([*range(8), 1], media=media) == 8
    assert manager.probe([*range(8), 1], media=[kv.MediaSpan(1, 3, b"x" * 32)]) == 1
    with pytest.raises(kv.InvalidArgument, match="31 bytes, wanted: 32"):
        manager.open(range(8), media=[kv.MediaSpan(1, 3, bytes(31))])
    with pytest.raises(kv.InvalidArgument, match="media span 0 has a content_id of zeros"):
        manager.open(range(8), media=[kv.MediaSpan(1, 3, bytes(32))])


def test_an_exception_drops_the_step(manager):
    sequence, _ = manager.open(range(9))
    before = state_of(manager)
    with pytest.raises(ZeroDivisionError):
        with manager.step() as step:
            step.append(sequence, range(9))
            assert manager.usage().held == 3
            raise ZeroDivisionError
    after = state_of(manager)
    assert after[2:] == before[2:] and manager.info(sequence).length == 0
    assert not step.is_open
    manager.check_invariants()


def test_an_abandoned_step_is_dropped(manager):
    sequence, _ = manager.open(range(4))
    manager.step().append(sequence, range(4))
    assert manager.info(sequence).length == 0 and manager.usage().held == 0


def test_a_committed_step_stays_in_flight_after_an_exception():
    m = kv.Manager([kv.GroupSpec(num_blocks=4, head_dim=8)], order="unordered")
    sequence, _ = m.open([1])
    with pytest.raises(KeyError):
        with m.step() as step:
            step.append(sequence, [1])
            step.commit()
            raise KeyError
    assert m.info(sequence).length == 1
    assert m.fail(step.ticket) == [kv.EndedSequence(sequence, None)]
    with pytest.raises(kv.Aborted):
        m.info(sequence)


def test_a_step_speaks_for_itself_only(manager):
    old = manager.step()
    old.drop()
    new = manager.step()
    sequence, _ = manager.open([1])
    with pytest.raises(kv.FailedPrecondition, match=f"ticket {old.ticket} is not open; open is "
                                                    f"ticket {new.ticket}"):
        old.append(sequence, [1])
    with pytest.raises(kv.FailedPrecondition):
        manager.step()
    with pytest.raises(kv.FailedPrecondition):
        old.finish()
    new.append(sequence, [1])
    new.finish()


def test_append_each_says_how_far_it_came(manager):
    sequences = [manager.open([])[0] for _ in range(20)]
    with manager.step() as step:
        with pytest.raises(kv.OutOfBlocks) as caught:
            step.append_each(np.array(sequences, np.uint64), np.arange(20, dtype=np.int32))
        error = caught.value
        assert error.num_done == 16
        assert (error.group, error.needed, error.free, error.evictable) == (0, 1, 0, 0)
        assert error.pinned == 16 and error.retiring == 0 and error.sequences == 20
        plan = step.plan()
    assert plan.sequences.tolist() == sequences[:16]
    assert [manager.info(s).length for s in sequences] == [1] * 16 + [0] * 4


def test_late_names_make_text_findable():
    m = kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=16, block_size=4)], order="unordered")
    a, _ = m.open([1, 2], late_names=True)
    run_step(m, (a, [1, 2]))
    for _ in range(3):
        with m.step() as step:
            step.append_unnamed(a, 1)
    assert m.info(a).num_unnamed == 3
    m.set_tokens(a, tokens(3, 4, 5))
    with m.step() as step:
        step.append_unnamed_each([a])
    m.set_tokens_each([a], [6])
    m.close(a)
    assert m.probe([1, 2, 3, 4, 5, 6, 9]) == 6


def test_forks_share_and_copy_on_write(manager):
    parent, _ = manager.open(range(6))
    run_step(manager, (parent, range(6)))
    child = manager.fork(parent, caller_id=7)
    assert manager.find(7) == child
    with manager.step() as step:
        step.append_each([parent, child], [10, 11])
        plan = step.plan()
    group = plan.groups[0]
    assert len(group.copy_src) == 1 == len(group.copy_dst)
    assert manager.block_table(parent)[0] == manager.block_table(child)[0]
    assert manager.block_table(parent)[1] != manager.block_table(child)[1]


def test_draft_tokens_are_accepted_in_part(manager):
    a, _ = manager.open([])
    with manager.step() as step:
        step.append(a, [1, 2, 3, 4], draft=3)
    assert manager.info(a).accepted_length == 1
    manager.accept(a, 2)
    assert manager.info(a).length == 3
    manager.truncate(a, 1)
    manager.clear(a)
    assert manager.info(a).length == 0


def test_trim_keeps_sinks_and_window(manager):
    a, _ = manager.open([])
    run_step(manager, (a, range(20)))
    assert manager.trim(a, num_sinks=2, window=5) == 13
    info = manager.info(a)
    assert (info.trim_sinks, info.trim_first_kept) == (2, 15)
    plan = run_step(manager, (a, [1]))
    assert plan.trim_sinks.tolist() == [2] and plan.trim_first_kept.tolist() == [15]


def test_room_is_predicted_and_kept(manager):
    a, _ = manager.open([])
    manager.admit(a, 64)
    with pytest.raises(kv.OutOfBlocks) as caught:
        manager.admit(a, 65)
    assert caught.value.needed == 17 and caught.value.free == 16
    manager.reserve(a, 32)
    assert manager.usage().reserved == 8
    b, _ = manager.open([])
    with pytest.raises(kv.OutOfBlocks):
        manager.admit_each([a, b], [32, 33])
    manager.admit_each([a, b], [32, 32])
    assert manager.admit_prompt(range(30)) == kv.Admission(0, (8,))
    manager.reserve(a, 0)
    assert manager.utilization == 0 and not manager.needs_eviction


def test_pins_hold_and_eviction_takes(manager):
    a, _ = manager.open(range(8))
    run_step(manager, (a, range(8)))
    manager.close(a)
    pin, held = manager.pin(range(4))
    assert held == 4
    assert len(manager.evict(0, 99)) == 1
    manager.unpin(pin)
    with pytest.raises(kv.NotFound):
        manager.unpin(pin)
    assert manager.evict(0, 99).tolist() == [0]
    b, _ = manager.open(range(8))
    run_step(manager, (b, range(8)))
    assert manager.reset().blocks == 2
    manager.close(b)
    assert manager.probe([*range(8), 1]) == 0


def test_victims_are_chosen_and_preempted(manager):
    a, b = (manager.open([], priority=p, caller_id=p)[0] for p in (5, 3))
    run_step(manager, (a, range(30)), (b, range(30, 60)))
    assert manager.select_victim() == a
    assert manager.select_victim("lowest_priority") == b
    manager.set_priority(b, 9)
    assert manager.select_victim("lowest_priority") == a
    assert manager.needs_eviction
    assert manager.preempt_to(0.5) == [kv.EndedSequence(a, 5)]
    manager.preempt(b)
    assert manager.num_sequences == 0 and manager.select_victim() is None


def test_adopted_blocks_are_shared(manager):
    a, _ = manager.open([])
    run_step(manager, (a, range(6)))
    b, _ = manager.open([])
    manager.adopt(b, [manager.block_table(a)], 6)
    assert manager.info(b).length == 6
    assert manager.slot_mapping(b, 2, 6).tolist() == manager.slot_mapping(a, 2, 6).tolist()


def test_the_changed_entries_keep_a_table():
    m = kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=300, block_size=2)], max_sequences=8,
                   max_sequence_tokens=64)
    table = np.full((m.num_rows, m.widest()), -1, np.int32)
    rng = random.Random(5)
    sequences = []
    for _ in range(200):
        if sequences and rng.random() < 0.2:
            m.close(sequences.pop(rng.randrange(len(sequences))))
        if len(sequences) < 8 and rng.random() < 0.5:
            sequences.append(m.open([], max_tokens=64)[0])
        with m.step() as step:
            for sequence in sequences:
                if m.info(sequence).length < 60:
                    step.append_unnamed(sequence, rng.randrange(1, 4))
            plan = step.plan(changed_entries=True, flashinfer=True, positions=True)
        group = plan.groups[0]
        table[group.changed_rows, group.changed_columns] = group.changed_blocks
        at = 0
        for i, row in enumerate(plan.rows):
            blocks = -(-plan.kv_lens[i] // 2)
            assert table[row, :blocks].tolist() == group.block_table[i, :blocks].tolist()
            begin, end = group.kv_indptr[i:i + 2]
            assert group.kv_indices[begin:end].tolist() == table[row, :blocks].tolist()
            for _ in range(plan.query_start[i], plan.query_start[i + 1]):
                position = plan.positions[at]
                assert group.slot_mapping[at] == table[row, position // 2] * 2 + position % 2
                at += 1
        assert at == plan.num_tokens
    m.check_invariants()


def test_steps_in_flight_complete_in_any_order():
    m = kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=64)], order="unordered",
                   max_steps_in_flight=64)
    steps = []
    for i in range(64):
        sequence, _ = m.open([i])
        step = m.step()
        step.append(sequence, [i])
        step.commit()
        steps.append(step)
    with pytest.raises(kv.FailedPrecondition):
        m.step()
    random.Random(1).shuffle(steps)
    for step in steps[:32]:
        step.complete()
    for step in steps[32:]:
        m.complete(step.ticket)
    with pytest.raises(kv.FailedPrecondition):
        steps[0].complete()
    m.check_invariants()


def test_open_unnamed_does_both_or_neither(manager):
    with manager.step():
        sequence = manager.open_unnamed(5, caller_id=1)
        with pytest.raises(kv.OutOfBlocks):
            manager.open_unnamed(100, caller_id=2)
    assert manager.info(sequence).length == 5 and manager.num_sequences == 1


def test_preempted_in_a_step_leaves_it(manager):
    a, _ = manager.open([])
    with manager.step() as step:
        step.append(a, [1])
        step.undo(a)
        step.append(a, [2, 3])
        manager.preempt(a)
        assert step.plan().num_tokens == 0


def test_full_tables_are_named():
    m = kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=4)], max_sequences=1)
    sequence, _ = m.open([], max_tokens=3)
    with pytest.raises(kv.ResourceExhausted):
        m.open([])
    with m.step() as step, pytest.raises(kv.ResourceExhausted, match="3"):
        step.append(sequence, [1, 2, 3, 4])


@pytest.mark.parametrize("call", [
    lambda m, s: m.open([0], publish="some"),
    lambda m, s: m.open([-1]),
    lambda m, s: m.open([0], max_tokens=2**40),
    lambda m, s: m.open([0], priority=-2**80),
    lambda m, s: m.open([0], caller_id=-1),
    lambda m, s: m.open([2**31]),
    lambda m, s: m.open([0], root=kv.RootKey(epoch=-1)),
    lambda m, s: m.open([0], root=kv.RootKey(model=b"x" * 70000)),
    lambda m, s: m.truncate(s, 10**30),
    lambda m, s: m.truncate(s, -1),
    lambda m, s: m.truncate(s, 4),
    lambda m, s: m.trim(s, num_sinks=-1, window=1),
    lambda m, s: m.accept(s, 1),
    lambda m, s: m.reserve(s, -2**70),
    lambda m, s: m.admit(s, 2**63),
    lambda m, s: m.usage(1),
    lambda m, s: m.usage(-2**40),
    lambda m, s: m.block_table(s, 9),
    lambda m, s: m.slot_mapping(s, 0, 4),
    lambda m, s: m.slot_mapping(s, 0, 2**30),
    lambda m, s: m.slot_mapping(s, -1, 2),
    lambda m, s: m.slot_mapping(s, 2, 1),
    lambda m, s: m.evict(0, -1),
    lambda m, s: m.evict(3, 1),
    lambda m, s: m.preempt_to(2.0),
    lambda m, s: m.select_victim("oldest"),
    lambda m, s: m.admit_each([s], [1, 2]),
    lambda m, s: m.admit_prompt([1], -1),
    lambda m, s: m.adopt(s, [[0]], 4),
    lambda m, s: m.set_tokens(s, [1, 2, 3, 4]),
    lambda m, s: kv.Manager([]),
    lambda m, s: kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=2**30)]),
    lambda m, s: kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=2**70)]),
    lambda m, s: kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=4, dtype="f8")]),
    lambda m, s: kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=4, window=-1)]),
    lambda m, s: kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=4)], order="any"),
    lambda m, s: kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=4)], max_sequences=2**31),
    lambda m, s: kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=4)], id_tag=2**16),
])
def test_a_wrong_value_raises_with_it_and_changes_nothing(manager, call):
    sequence, _ = manager.open([1, 2, 3])
    run_step(manager, (sequence, [1, 2, 3]))
    before = state_of(manager)
    with pytest.raises((kv.InvalidArgument, kv.FailedPrecondition)) as caught:
        call(manager, sequence)
    assert len(str(caught.value)) > 10
    assert state_of(manager) == before
    manager.check_invariants()


@pytest.mark.parametrize("call", [
    lambda m: m.open(np.arange(3)),
    lambda m: m.open(np.arange(3, dtype=np.uint32)),
    lambda m: m.open("prompt"),
    lambda m: m.open([1.5]),
    lambda m: m.open([None]),
    lambda m: m.open(None),
    lambda m: m.open([1], caller_id="x"),
    lambda m: m.open([1], root="tenant"),
    lambda m: m.open([1], max_tokens=1.5),
    lambda m: m.close("1"),
    lambda m: m.close(1.0),
    lambda m: m.admit_each(np.arange(1), np.arange(1, dtype=np.int32)),
    lambda m: kv.Manager("spec"),
    lambda m: kv.Manager([{"head_dim": 8}]),
    lambda m: kv.Manager([kv.GroupSpec(head_dim=8.0, num_blocks=4)]),
])
def test_a_wrong_type_is_a_type_error(manager, call):
    before = state_of(manager)
    with pytest.raises(TypeError):
        call(manager)
    assert state_of(manager) == before


@pytest.mark.parametrize("bad", [0, 1, -1, 2**64, 2**200])
def test_a_closed_or_unknown_id_is_not_found(manager, bad):
    closed, _ = manager.open([1])
    manager.close(closed)
    for sequence in (closed, bad):
        for call in (manager.close, manager.info, manager.fork, manager.preempt, manager.clear,
                     manager.block_table):
            with pytest.raises(kv.NotFound):
                call(sequence)
    with manager.step() as step, pytest.raises(kv.NotFound):
        step.append(closed, [1])
    with pytest.raises(kv.NotFound):
        manager.unpin(closed)
    with pytest.raises(kv.NotFound):
        manager.find(3)


def test_random_calls_leave_every_invariant():
    """Against a plain model of lengths: what raises changes nothing, what returns is exact."""
    seed = 20261124
    print("seed", seed)
    rng = random.Random(seed)
    m = kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=40, block_size=4),
                    kv.GroupSpec(head_dim=8, num_blocks=30, block_size=4, window=8)],
                   max_sequences=12, order="unordered", max_steps_in_flight=4)
    lengths, flying = {}, []
    for _ in range(3000):
        verb = rng.choice(["open", "fork", "step", "step", "step", "truncate", "close", "complete"])
        try:
            if verb == "open":
                prompt = [rng.randrange(3) for _ in range(rng.randrange(30))]
                sequence, cached = m.open(prompt)
                lengths[sequence] = cached
            elif verb == "fork" and lengths:
                parent = rng.choice(list(lengths))
                lengths[m.fork(parent)] = lengths[parent]
            elif verb == "step":
                step = m.step()
                added = {}
                for sequence in lengths:
                    count = rng.randrange(1, 4)
                    try:
                        step.append(sequence, [rng.randrange(3) for _ in range(count)])
                        added[sequence] = count
                    except (kv.OutOfBlocks, kv.FailedPrecondition):
                        pass
                    except kv.InvalidArgument as refused:  # by chance the prompt that it was opened with
                        assert "append only those behind them" in str(refused)
                if rng.random() < 0.2:
                    step.drop()
                else:
                    step.commit()
                    flying.append(step)
                    for sequence, count in added.items():
                        lengths[sequence] += count
            elif verb == "truncate" and lengths:
                sequence = rng.choice(list(lengths))
                target = rng.randrange(lengths[sequence] + 1)
                m.truncate(sequence, target)
                lengths[sequence] = target
            elif verb == "close" and lengths:
                sequence = rng.choice(list(lengths))
                m.close(sequence)
                del lengths[sequence]
            elif verb == "complete" and flying:
                flying.pop(rng.randrange(len(flying))).complete()
        except (kv.ResourceExhausted, kv.FailedPrecondition, kv.OutOfBlocks):
            pass
        for sequence, length in lengths.items():
            assert m.info(sequence).length == length
    for step in flying:
        step.complete()
    for sequence in lengths:
        m.close(sequence)
    m.check_invariants()
    assert m.usage().held == 0 and m.usage(1).held == 0


def test_a_prompt_comes_in_chunks():
    full = kv.GroupSpec(head_dim=8, num_blocks=80)
    window = kv.GroupSpec(head_dim=8, num_blocks=13, window=32, rewind=16)
    manager = kv.Manager([full, window])
    prompt = np.arange(1000, dtype=np.int32)
    with pytest.raises(kv.OutOfBlocks) as short:
        manager.admit_prompt(prompt)
    assert not short.value.never  # a longer hit would do
    with pytest.raises(kv.OutOfBlocks, match="never: the group has 13 blocks") as short:
        manager.admit_prompt(prompt, look_up=False)
    assert short.value.never and (short.value.num_blocks, short.value.kept) == (13, 0)
    assert manager.admit_prompt(prompt, most_per_step=64).blocks == (63, 8)
    sequence = manager.open(prompt, caller_id=71).sequence
    assert manager.admit_in_chunks(sequence, 1000, 64).blocks == (63, 8)
    manager.reserve(sequence, 1000, most_per_step=64)
    counts = []
    while not counts or counts[-1] > 0:
        with manager.step() as step:
            counts.append(step.append_prompt(sequence, prompt, 64))
            plan = step.plan(caller_ids=True, flashinfer=True)
            if counts[-1] > 0:
                assert plan.caller_ids.tolist() == [71] and plan.rewinds.tolist() == [0]
                assert len(plan.table_of(0, 0)) == -(-plan.kv_lens[0] // 16)
                assert plan.groups[0].kv_first_live.tolist() == [0]
    assert counts == [64] * 15 + [40, 0]
    info = manager.info(sequence)
    assert (info.rewinds, info.rewind_from) == (0, 984)
    manager.truncate(sequence, 984)
    assert manager.info(sequence).rewinds == 1
    manager.touch(sequence)
    manager.cancel(sequence)
    with pytest.raises(kv.NotFound):
        manager.cancel(sequence)


def test_append_prompt_refuses_another_prompt(manager):
    sequence, _ = manager.open([])
    with manager.step() as step:
        step.append(sequence, range(6))
    with manager.step() as step:
        with pytest.raises(kv.InvalidArgument, match="at position 5 the prompt has token 99"):
            step.append_prompt(sequence, [0, 1, 2, 3, 4, 99, 6], 8)
        assert step.append_prompt(sequence, range(9), 8) == 3


SHAPES = dict(
    table_stride=[3], padded_sequences=2, padded_tokens=4, int64_slots=True, positions=True,
    flashinfer=True)


def test_fixed_shapes_pad_rows_tokens_and_tables():
    manager = kv.Manager([kv.GroupSpec(head_dim=4, block_size=4, num_blocks=8)], null_block=True)
    assert manager.usage().num_blocks == 7
    sequence = manager.open([]).sequence
    memory = np.zeros(manager.plan_bytes(**SHAPES) // 8, np.int64)
    with manager.step() as step:
        step.append(sequence, [1, 2])
        for given in (None, memory):
            plan = step.plan(memory=given, **SHAPES)
            group = plan.groups[0]
            assert (plan.num_tokens, plan.sequences.tolist()) == (2, [sequence])
            assert plan.query_start.tolist() == [0, 2, 2]
            assert plan.rows.tolist() == [0, -1] and plan.kv_lens.tolist() == [2, 0]
            assert plan.positions.tolist() == [0, 1, 0, 0]
            assert group.slot_mapping_64.dtype == np.int64 and group.slot_mapping.size == 0
            assert group.slot_mapping_64.tolist() == [4, 5, -1, -1]
            assert group.block_table.tolist() == [[1, 0, 0], [0, 0, 0]]
            assert group.kv_indptr.tolist() == [0, 1, 1]
            assert group.kv_last_page_len.tolist() == [2, 1]
            for array in (plan.rows, group.block_table, group.slot_mapping_64):
                assert np.shares_memory(array, memory) == (given is not None)
        kept = plan.rows
        del plan, memory
    assert kept.tolist() == [0, -1]


def test_slots_of_a_plan_without_a_copy_are_64_bits_wide_too(manager):
    sequence = manager.open([]).sequence
    with manager.step() as step:
        step.append(sequence, [1, 2])
        plan = step.plan(int64_slots=True, copy=False)
        assert plan.groups[0].slot_mapping_64.tolist() == [0, 1]


def test_a_step_that_does_not_fit_its_shapes_is_refused_with_both_numbers(manager):
    sequence = manager.open([]).sequence
    strides = [1]
    with manager.step() as step:
        step.append(sequence, list(range(1, 40)))
        with pytest.raises(kv.InvalidArgument, match=r"table_stride\[0\] is 1, the step has"):
            step.plan(table_stride=strides)
        with pytest.raises(kv.InvalidArgument, match="padded_tokens is 3, the step has 39 tokens"):
            step.plan(padded_tokens=3)
        with pytest.raises(kv.InvalidArgument, match="memory has 16 bytes, needed: "):
            step.plan(memory=np.zeros(16, np.uint8))
        with pytest.raises(kv.InvalidArgument, match="memory and copy=False"):
            step.plan(memory=np.zeros(4096, np.uint8), copy=False)
        with pytest.raises(kv.InvalidArgument, match="wanted: one dimension, contiguous"):
            step.plan(memory=np.zeros((64, 64), np.uint8))
    with pytest.raises(kv.InvalidArgument, match="padded_sequences is 0, so the size depends"):
        manager.plan_bytes()


def test_a_shortage_has_every_number_that_the_library_has():
    """But for a budget, which no release uses yet."""
    header = (pathlib.Path(__file__).parents[2] / "include/kvfolio/status.h").read_text()
    shortage = header.partition("struct Shortage {")[2].partition("\n};")[0]
    fields = set(re.findall(r"^  std::int\d+_t (\w+) = 0;", shortage, re.MULTILINE)) - {"budget_bytes"}
    assert {"loads", "holds", "spared"} < fields == set(kv.OutOfBlocks.__annotations__) - {"code", "never"}
    m = kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=1)])
    with m.step() as step, pytest.raises(kv.OutOfBlocks) as short:
        step.append_unnamed(m.open([]).sequence, 100)
    assert all(type(getattr(short.value, name)) is int for name in fields)
    assert short.value.never is True


def test_names_that_come_late_are_told_of_the_option():
    m = kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=4)])
    with pytest.raises(kv.InvalidArgument, match=r"0 are unnamed .*; late_names of open\(\)"):
        m.set_tokens(m.open([]).sequence, [1])
