# SPDX-License-Identifier: Apache-2.0
"""kvfolio.cuda.DevicePlan over a driver that is none (tests/python_cuda): its arrays are those of the plan at addresses
that stay, a plan that it missed is noticed, and attend() takes its tables. Not on a device."""

import gc

import numpy as np
import pytest

import kvfolio as kv
from cuda_twin import cuda, fresh, twin  # noqa: F401
from fake_dlpack import Fake, bits, consume

GROUP = kv.GroupSpec(num_layers=1, num_kv_heads=2, head_dim=16, block_size=4, num_blocks=64)
STRIDE, ROWS, TOKENS = 12, 4, 32
NEEDED = dict(block_tables=True, changed_entries=True)


def make(manager, **options):
    return cuda.DevicePlan(**{"max_sequences": ROWS, "max_tokens": TOKENS, "num_rows": manager.num_rows,
                              "groups": [(GROUP.block_size, STRIDE)], **options})


def numbers(tensor):
    return bits(tensor).view(np.int32)


def begin(manager, counts, sequences=None):
    """An open step with so many tokens of each sequence."""
    sequences = sequences or [manager.open([])[0] for _ in counts]
    step = manager.step()
    for one, count in zip(sequences, counts):
        step.append(one, list(range(count)))
    return sequences, step


@pytest.mark.parametrize("copy", [True, False])
def test_arrays_are_those_of_the_plan_at_addresses_that_stay(copy):
    manager = kv.Manager([GROUP], max_sequences=8)
    device_plan = make(manager, positions=True)
    stream, addresses, sequences = twin.stream(0), set(), None
    for counts in ((5, 9), (1, 1), (1, 6)):
        sequences, step = begin(manager, counts, sequences)
        with step:
            plan = step.plan(**NEEDED, positions=True, table_stride=[STRIDE], copy=copy)
            device_plan.upload(plan, stream=stream)
            device_plan.verify(plan, stream=stream)
            twin.finish()
            group, n = device_plan.group(), len(counts)
            addresses.add((device_plan.kv_lens.data_ptr, group.table.data_ptr, group.slot_mapping.data_ptr))
            kv_lens = numbers(device_plan.kv_lens)
            assert kv_lens[:n].tolist() == np.array(plan.kv_lens).tolist() and not kv_lens[n:].any()
            assert numbers(device_plan.query_start)[: n + 1].tolist() == np.array(plan.query_start).tolist()
            slots = numbers(group.slot_mapping)
            assert slots[: sum(counts)].tolist() == np.array(plan.groups[0].slot_mapping).tolist()
            assert (slots[sum(counts):] == -1).all() and slots.shape == (TOKENS,)
            table = np.array(plan.groups[0].block_table)
            assert np.array_equal(numbers(group.batch_table)[:n], table)
            rows = np.array(plan.rows)
            for i, length in enumerate(np.array(plan.kv_lens)):
                blocks = -(-int(length) // GROUP.block_size)
                assert numbers(group.table)[rows[i]][:blocks].tolist() == table[i][:blocks].tolist()
            assert numbers(device_plan.counts).tolist() == [n, sum(counts)]
            assert numbers(device_plan.positions)[: sum(counts)].tolist() == np.array(plan.positions).tolist()
    assert len(addresses) == 1
    assert device_plan.last_upload["whole_rows"] == 0 and device_plan.last_upload["bytes"] > 0
    assert group.slot_mapping_64 is None and group.kv_indptr is None and device_plan.num_groups == 1
    assert device_plan.device_bytes > 0 and device_plan.pinned_bytes > 0


def test_a_plan_that_was_missed_is_noticed():
    manager = kv.Manager([GROUP], max_sequences=8)
    device_plan = make(manager)
    for uploaded in (True, False):
        sequences, step = begin(manager, [5], None if uploaded else sequences)
        with step:
            plan = step.plan(**NEEDED)
            assert not device_plan.needs_block_tables(plan)
            if uploaded:
                device_plan.upload(plan)
    _, step = begin(manager, [5], sequences)
    with step:
        plan = step.plan(block_tables=False, changed_entries=True)
        assert device_plan.needs_block_tables(plan)
        with pytest.raises(kv.FailedPrecondition, match="block tables"):
            device_plan.upload(plan)
        plan = step.plan(**NEEDED)
        device_plan.upload(plan)
        assert device_plan.last_upload["whole_rows"] == 1
        device_plan.verify(plan)
        device_plan.resend()
        device_plan.upload(plan)
        assert device_plan.last_upload["whole_rows"] == 1


def test_verify_says_the_first_difference():
    manager = kv.Manager([GROUP], max_sequences=8)
    device_plan = make(manager)
    _, step = begin(manager, [5, 2])
    with step:
        plan = step.plan(**NEEDED)
        device_plan.upload(plan)
        twin.finish()
        held = consume(device_plan.group(0).table, stream=-1)
        held.array()[int(plan.rows[0]), 1] += 1
        held.release()
        with pytest.raises(kv.Error, match="the device has .*the plan"):
            device_plan.verify(plan)


def test_what_does_not_fit_is_refused_and_starts_nothing():
    manager = kv.Manager([GROUP], max_sequences=8)
    device_plan = make(manager)
    for wrong, text in (({"max_sequences": 0}, "max_sequences"), ({"pad": 3}, "pad"), ({"groups": []}, "groups"),
                        ({"steps_in_flight": 65}, "steps_in_flight")):
        with pytest.raises(kv.InvalidArgument, match=text):
            make(manager, **wrong)
    with pytest.raises(TypeError, match="groups: .*wanted: a sequence of pairs"):
        make(manager, groups=[4])
    with pytest.raises(TypeError, match="plan: object object, wanted: a kvfolio.Plan"):
        device_plan.upload(object())
    with pytest.raises(TypeError, match="plan: .*Manager object, wanted: a kvfolio.Plan"):
        device_plan.upload(manager)
    with pytest.raises(kv.InvalidArgument, match="group is 1"):
        device_plan.group(1)
    _, step = begin(manager, [1] * 5)
    with step:
        plan = step.plan(**NEEDED, copy=False)
        twin.take_log()
        with pytest.raises(kv.InvalidArgument, match="5.*4"):
            device_plan.upload(plan)
        assert "launch" not in {call for call, _ in twin.take_log()}
    with pytest.raises(kv.FailedPrecondition, match="has ended or was planned again"):
        device_plan.upload(plan)


@pytest.mark.parametrize("uploaded", [True, False])
def test_an_upload_on_a_captured_stream_is_refused_and_spoils_nothing(uploaded):
    manager = kv.Manager([GROUP], max_sequences=8)
    device_plan, stream = make(manager), twin.stream(0)
    _, step = begin(manager, [3, 2])
    with step:
        plan = step.plan(**NEEDED)
        if uploaded:
            device_plan.upload(plan, stream=twin.stream(0))
            twin.finish()
        cuda.Device(0).synchronize()
        twin.take_log()
        twin.capture(stream)
        try:
            for call in (device_plan.upload, device_plan.verify):
                with pytest.raises(kv.FailedPrecondition, match="being captured: a plan is sent in front of a graph"):
                    call(plan, stream=stream)
            assert not twin.take_log()
        finally:
            captured = twin.end_capture(stream)
        assert captured and cuda.Device(0).num_kept == 0
        for _ in range(2):
            device_plan.upload(plan, stream=stream)
            twin.finish()
        device_plan.verify(plan, stream=stream)
    consume(device_plan.kv_lens, stream=twin.stream(0)).release()


def test_uploads_in_flight_are_bounded():
    manager = kv.Manager([GROUP], max_sequences=8)
    device_plan = make(manager, steps_in_flight=1)
    _, step = begin(manager, [3])
    with step:
        plan = step.plan(**NEEDED)
        device_plan.upload(plan)
        twin.hold(True)
        with pytest.raises(kv.ResourceExhausted):
            device_plan.upload(plan)
        twin.hold(False)
        device_plan.wait()
        device_plan.upload(plan)
        device_plan.verify(plan)


def test_attend_takes_the_tables_of_a_plan_and_an_array_keeps_it():
    storage, rng = cuda.Storage([GROUP]), np.random.default_rng(2)
    manager, host = kv.Manager(storage), kv.Storage([GROUP])
    device_plan = make(manager)
    _, step = begin(manager, [9, 4])
    q, k, v = (rng.standard_normal((13, 2, 16)).astype(np.float32) for _ in range(3))
    out = Fake(twin, np.zeros_like(q))
    stream = twin.stream(0)
    with step:
        plan = step.plan(**NEEDED)
        step.run_copies()
        device_plan.upload(plan, stream=stream)
        slots = Fake(twin, np.array(plan.groups[0].slot_mapping))
        cuda.append(storage.view(), Fake(twin, k), Fake(twin, v), slots, stream=stream)
        batch = cuda.Batch(plan.query_start, plan.kv_lens, device_plan.group().batch_table)
        cuda.attend(Fake(twin, q), storage.view(), batch, out=out, stream=stream)
        twin.finish()
        kv.append(host.view(), k, v, plan.groups[0].slot_mapping)
        wanted = kv.attend(q, host.view(), plan.groups[0], target="reference")
        assert np.abs(out.array - wanted).max() < 1e-5
    table = device_plan.group().batch_table
    cuda.Device(0).synchronize()
    gc.collect()
    before = twin.device_bytes()
    del device_plan, batch
    gc.collect()
    cuda.Device(0).synchronize()
    assert twin.device_bytes() == before
    numbers(table)
    del table
    gc.collect()
    assert twin.device_bytes() < before


def test_an_exported_array_waits_for_the_upload():
    manager = kv.Manager([GROUP], max_sequences=8)
    device_plan = make(manager)
    _, step = begin(manager, [3])
    mine, other = twin.stream(0), twin.stream(0)
    with step:
        device_plan.upload(step.plan(**NEEDED), stream=mine)
        twin.take_log()
        consume(device_plan.kv_lens, stream=other).release()
        assert twin.take_log() == [("wait", other)]
        consume(device_plan.kv_lens, stream=mine).release()
        assert twin.take_log() == [("wait", mine)], "which is free, and a handle may come again"


def test_each_call_of_the_driver_may_fail():
    manager = kv.Manager([GROUP], max_sequences=8)
    device_plan = make(manager)
    _, step = begin(manager, [3])
    with step:
        plan, failures = step.plan(**NEEDED), 0
        for number in range(1, 40):
            cuda.Device(0).synchronize()
            device_plan.wait()
            twin.fail_at(number, 999)
            try:
                device_plan.upload(plan)
            except (kv.Unavailable, kv.ResourceExhausted):  # the latter: a piece that cannot be asked
                failures += 1
            finally:
                twin.fail_at(0, 2)
        assert failures > 3
        device_plan.verify(plan)
