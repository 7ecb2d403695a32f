# SPDX-License-Identifier: Apache-2.0
"""Plans as copies and as views, and arrays that are lent."""

import gc

import numpy as np
import pytest

import kvfolio as kv
from conftest import run_step, tokens

STEP_ARRAYS = ["rows", "query_start", "positions", "kv_lens", "trim_sinks", "trim_first_kept"]
GROUP_ARRAYS = ["slot_mapping", "block_table", "kv_indptr", "kv_indices", "kv_last_page_len",
                "copy_src", "copy_dst", "shared_prefixes", "changed_rows", "changed_columns",
                "changed_blocks"]


def full_plan(step, copy):
    return step.plan(changed_entries=True, flashinfer=True, shared_prefixes=True, positions=True,
                     copy=copy)


def fork_in_step(manager):
    a, _ = manager.open([])
    run_step(manager, (a, range(6)))
    b = manager.fork(a)
    step = manager.step()
    step.append_each([a, b], [1, 2])
    return step


def test_copies_equal_views_and_stay(manager):
    step = fork_in_step(manager)
    views = full_plan(step, copy=False)
    seen = {name: np.asarray(getattr(views, name)) for name in STEP_ARRAYS}
    seen |= {name: np.asarray(getattr(views.groups[0], name)) for name in GROUP_ARRAYS}
    copies = full_plan(step, copy=True)
    step.finish()
    for _ in range(3):  # the buffers of the step are used again
        a, _ = manager.open([])
        run_step(manager, (a, range(3)))
        manager.close(a)
    for name, before in seen.items():
        array = getattr(copies, name) if name in STEP_ARRAYS else getattr(copies.groups[0], name)
        assert array.dtype == np.int32 and array.flags.writeable
        assert array.shape == before.shape and (array == before).all(), name
    assert copies.groups[0].shared_prefixes.tolist() == [[0, 2, 1]]
    assert len(copies.groups[0].copy_src) == 1
    assert copies.groups[0].slot_mapping is copies.groups[0].slot_mapping


@pytest.mark.parametrize("end", ["finish", "drop", "fail", "complete", "plan again"])
def test_a_view_raises_after_its_step(manager, end):
    step = fork_in_step(manager)
    plan = full_plan(step, copy=False)
    group = plan.groups[0]
    slots = group.slot_mapping
    kept = np.asarray(slots)
    dlpack = np.from_dlpack(slots)
    assert len(slots) == 2 and slots.shape == (2,) and slots[0] == kept[0]
    if end == "complete":
        step.commit()
        assert np.asarray(slots).tolist() == kept.tolist()  # in flight: still valid
        step.complete()
    elif end == "plan again":
        step.plan()
    else:
        if end == "fail":
            step.commit()
        getattr(step, end)()
    for access in (lambda: np.asarray(slots), lambda: slots[0], lambda: np.from_dlpack(slots),
                   lambda: plan.kv_lens, lambda: group.block_table, slots.__dlpack_device__):
        with pytest.raises(kv.FailedPrecondition, match="ended or was planned again"):
            access()
    assert kept.tolist() == dlpack.tolist()


def test_only_copy_false_hands_out_the_buffers(manager):
    step = fork_in_step(manager)
    slots = step.plan(copy=False).groups[0].slot_mapping
    a = np.from_dlpack(slots)
    a[:] = 99
    assert (np.asarray(slots) != 99).all()
    if tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1):
        shown = np.from_dlpack(slots, copy=False)
        assert not shown.flags.writeable and shown.tolist() == np.asarray(slots).tolist()
    with pytest.raises(kv.InvalidArgument):
        np.asarray(slots, copy=False)
    assert np.asarray(slots, np.int64).dtype == np.int64
    step.drop()


def test_arrays_outlive_plan_step_and_manager():
    m = kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=4)])
    sequence, _ = m.open([])
    with m.step() as step:
        step.append(sequence, range(20))
        plan = step.plan()
        view = step.plan(copy=False).groups[0].slot_mapping
        slots = plan.groups[0].slot_mapping
    del m, step, plan
    gc.collect()
    assert slots.tolist() == list(range(20))
    with pytest.raises(kv.FailedPrecondition):
        np.asarray(view)


def test_inputs_are_never_converted(manager):
    sequence, _ = manager.open(tokens(1, 2, 3))
    for wrong in (np.arange(3), np.arange(3, dtype=np.uint32), np.arange(3.0)):
        with pytest.raises(TypeError, match="wanted: a 1-D int32 array or a list of ints"):
            manager.open(wrong)
    with pytest.raises(kv.InvalidArgument, match="stride 2"):
        manager.open(np.arange(6, dtype=np.int32)[::2])
    with pytest.raises(kv.InvalidArgument, match=r"shape \(1, 3\)"):
        manager.open(np.arange(3, dtype=np.int32)[None])
    read_only = tokens(1, 2, 3)
    read_only.flags.writeable = False
    assert manager.probe(read_only) == 0
    with manager.step() as step:
        with pytest.raises(TypeError, match="uint64"):
            step.append_each(np.array([sequence]), tokens(1))
        step.append_each(np.array([sequence], np.uint64), tokens(1))


class Foreign:
    """Anything with __dlpack__."""

    def __init__(self, array, device=None):
        self._array, self._device = array, device

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def lend(shape=(8, 2, 4, 16), dtype=np.float32):
    return np.zeros(shape, dtype), np.zeros(shape, dtype)


def test_anything_with_dlpack_is_taken(manager):
    assert manager.open(Foreign(tokens(1, 2))).cached_tokens == 0
    k, v = lend()
    view = kv.View.borrow(Foreign(k), Foreign(v))
    rows = np.ones((1, 2, 16), np.float32)
    kv.append(view, Foreign(rows), Foreign(rows), Foreign(tokens(5)))
    assert k[1, :, 1].sum() == 32


def test_a_view_shows_lent_memory_and_keeps_it():
    k, v = lend()
    view = kv.View.borrow(k, v)
    assert (view.num_blocks, view.num_kv_heads, view.block_size, view.head_dim) == (8, 2, 4, 16)
    assert view.num_layers == 1 and view.head_dim_v == 16 and view.dtype == "f32"
    k[3, 1, 2, 5] = 7
    assert view.k[0, 3, 1, 2, 5] == 7
    view.v[0, 0, 0, 0, 0] = 3
    assert v[0, 0, 0, 0] == 3
    del k, v
    gc.collect()
    shown = view.k
    del view
    gc.collect()
    assert shown[0, 3, 1, 2, 5] == 7


def test_axes_in_any_order_and_all_layers():
    # [num_blocks, 2, block_size, num_layers, heads, dim], as an engine might have it.
    memory = np.zeros((8, 2, 4, 3, 2, 16), np.float32)
    k = memory[:, 0].transpose(2, 0, 3, 1, 4)
    v = memory[:, 1].transpose(2, 0, 3, 1, 4)
    view = kv.View.borrow(k, v)
    assert view.num_layers == 3
    rows = np.arange(2 * 2 * 16, dtype=np.float32).reshape(2, 2, 16)
    kv.append(view, rows, -rows, [6, 13], layer=2)
    assert (memory[1, 0, 2, 2] == rows[0]).all() and (memory[3, 1, 1, 2] == -rows[1]).all()
    assert np.abs(memory).sum() == 2 * rows.sum()


def test_storage_of_lent_layers_copies_for_its_manager():
    spec = [kv.GroupSpec(num_layers=2, num_kv_heads=2, head_dim=16, num_blocks=8, block_size=4)]
    layers = [lend(), lend()]
    storage = kv.Storage.borrow(spec, [layers])
    assert not storage.owns_memory and storage.memory_bytes == 0
    m = kv.Manager(storage)
    a, _ = m.open([])
    with m.step() as step:
        step.append(a, range(6))
        rows = np.random.default_rng(0).standard_normal((6, 2, 16)).astype(np.float32)
        for layer in range(2):
            kv.append(storage.view(layer=layer), rows, rows, step.plan().groups[0].slot_mapping)
    b = m.fork(a)
    with m.step() as step:
        step.append_each([a, b], [1, 2])
        plan = step.plan()
        step.run_copies()
    source, target = plan.groups[0].copy_src[0], plan.groups[0].copy_dst[0]
    for k, v in layers:
        assert (k[target, :, :2] == k[source, :, :2]).all() and k[source, :, :2].any()
    with pytest.raises(kv.FailedPrecondition, match="another manager"):
        kv.Manager(storage)
    del m
    gc.collect()
    assert storage.view(layer=1).k is not None and storage.groups == spec


def test_layers_lent_one_by_one_have_no_view_of_all_wherever_they_lie():
    spec = [kv.GroupSpec(num_layers=2, num_kv_heads=2, head_dim=16, num_blocks=8, block_size=4)]
    k, v = np.zeros((2, 2, 8, 2, 4, 16), np.float32)
    storage = kv.Storage.borrow(spec, [[(k[0], v[0]), (k[1], v[1])]])  # one stride
    with pytest.raises(kv.Unsupported, match="2 layers were lent apart"):
        storage.view()
    assert storage.view(layer=1).num_layers == 1
    assert kv.Storage.borrow(spec, [(k, v)]).view().num_layers == 2


def test_a_refused_manager_leaves_the_storage():
    storage = kv.Storage([kv.GroupSpec(head_dim=8, num_blocks=4)])
    with pytest.raises(kv.InvalidArgument):
        kv.Manager(storage, max_sequences=0)
    storage.fill(255)
    assert np.isnan(storage.view().k).all()
    m = kv.Manager(storage)
    storage.fill(0)
    assert not m.storage.view().k.any() and m.storage.owns_memory
    assert kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=4)]).storage is None


def test_e4m3_is_shown_and_lent_as_its_bits_and_scales():
    own = kv.Storage([kv.GroupSpec(head_dim=4, num_blocks=2, block_size=4, dtype="e4m3")]).view()
    k = np.array([[[448, -448, 1, 0.5]], [[0, 0, 0, 896]]], np.float32)
    kv.append(own, k, k, [3, 5])
    assert own.k.dtype == np.uint8 and own.dtype == "e4m3"
    assert own.k[0, 0, 0, 3].tolist() == [0x7E, 0xFE, 0x38, 0x30]
    assert (own.k_scale[0, 0, 0, 3], own.v_scale[0, 1, 0, 1]) == (1, 2)
    lent = kv.View.borrow(own.k[0].copy(), own.v[0].copy(), k_scale=own.k_scale[0].copy(),
                          v_scale=own.v_scale[0].copy())
    back = np.zeros((1, 1, 4), np.float32)
    kv.gather(lent, [1, 0], 2, first=1, k=back)
    assert back.tolist() == [[[0, 0, 0, 896]]]
    with pytest.raises(kv.InvalidArgument, match="k.dtype is opaque"):
        kv.append(own, k.astype(np.uint8), k, [0, 1])


def test_opaque_rows_go_in_and_out_as_they_are():
    storage = kv.Storage([kv.GroupSpec(num_kv_heads=2, head_dim=5, head_dim_v=3, num_blocks=2, block_size=4,
                                       dtype="opaque")])
    view = storage.view()
    rng = np.random.default_rng(1)
    k, v = (rng.integers(0, 256, (3, 2, size), np.uint8) for size in (5, 3))
    kv.append(view, k, v, [1, 2, 7])
    assert view.dtype == "opaque" and np.array_equal(view.k[0, 1, :, 3], k[2])
    out_k, out_v = np.zeros((3, 2, 5), np.uint8), np.zeros((3, 2, 3), np.uint8)
    kv.gather(view, [0, 1], 3, first=1, count=2, k=out_k[:2], v=out_v[:2])
    assert np.array_equal(out_k[:2], k[:2]) and np.array_equal(out_v[:2], v[:2])
    lent = kv.View.borrow(view.k[0].copy(), view.v[0].copy())
    assert lent.dtype == "opaque"
    with pytest.raises(kv.InvalidArgument, match="k.dtype is f32, allowed: opaque"):
        kv.append(view, k.astype(np.float32), v, [1, 2, 7])


SPEC = kv.GroupSpec(num_kv_heads=2, head_dim=16, num_blocks=8, block_size=4)


@pytest.mark.parametrize(("error", "text", "make"), [
    (kv.InvalidArgument, r"shape \(8, 2, 4\)", lambda k, v: kv.View.borrow(k[..., 0], v[..., 0])),
    (kv.InvalidArgument, "v: float32 array of shape", lambda k, v: kv.View.borrow(k, v[:4])),
    (kv.InvalidArgument, "v: float32 array of shape", lambda k, v: kv.View.borrow(k, v[:, :1])),
    (kv.InvalidArgument, "lie 2 apart", lambda k, v: kv.View.borrow(k[..., ::2], v[..., ::2])),
    (kv.InvalidArgument, "axis 0 has stride -", lambda k, v: kv.View.borrow(k[::-1], v)),
    (kv.InvalidArgument, "overlap|stride|nest",
     lambda k, v: kv.View.borrow(np.lib.stride_tricks.as_strided(k, k.shape, (0, *k.strides[1:])),
                                 v)),
    (kv.InvalidArgument, "overlap", lambda k, v: kv.View.borrow(k, k)),
    (TypeError, "elements of f32", lambda k, v: kv.View.borrow(k, v.astype(np.float64))),
    (TypeError, "int64", lambda k, v: kv.View.borrow(k.astype(np.int64), v)),
    (TypeError, "NoneType", lambda k, v: kv.View.borrow(None, v)),
    (TypeError, "no array", lambda k, v: kv.View.borrow([1.0], v)),
    (kv.InvalidArgument, "k_scale", lambda k, v: kv.View.borrow(k.astype(np.int8),
                                                                v.astype(np.int8))),
    (kv.InvalidArgument, "dtype is e4m3", lambda k, v: kv.Storage([kv.GroupSpec(
        head_dim=16, num_blocks=8, dtype="e4m3", format="granule")])),
    (kv.InvalidArgument, "granule", lambda k, v: kv.View.borrow(k[0], v[0], format="granule")),
    (kv.InvalidArgument, "format is 'hdn'", lambda k, v: kv.View.borrow(k, v, format="hdn")),
    (kv.InvalidArgument, "1 layers are lent, the spec has 2",
     lambda k, v: kv.Storage.borrow([kv.GroupSpec(num_layers=2, head_dim=16, num_blocks=8)],
                                    [[(k, v)]])),
    (kv.InvalidArgument, "arrays of 2 groups", lambda k, v: kv.Storage.borrow([SPEC],
                                                                             [[(k, v)], []])),
    (kv.InvalidArgument, r"wanted: shape \(8, 2, 4, 16\)",
     lambda k, v: kv.Storage.borrow([SPEC], [[(k[:, :, :, :8], v)]])),
    (kv.InvalidArgument, "not 3", lambda k, v: kv.Storage.borrow([SPEC], [[(k, v, k)]])),
    (kv.OutOfMemory, "bytes", lambda k, v: kv.Storage([kv.GroupSpec(
        num_layers=65536, num_kv_heads=64, head_dim=128, num_blocks=2**20)])),
])
def test_memory_that_does_not_fit_is_refused(error, text, make):
    k, v = lend()
    with pytest.raises(error, match=text):
        make(k, v)


def test_read_only_arrays_are_not_written():
    k, v = lend()
    k.flags.writeable = False
    with pytest.raises(TypeError, match="read-only"):
        kv.View.borrow(k, v)


def test_integers_of_another_type_are_refused_with_what_makes_the_right_ones():
    manager = kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=4)])
    cure = r"int64 array of shape \(4,\), .*astype\(np.int32\) or torch's to\(torch.int32\)"
    with pytest.raises(TypeError, match=cure):
        manager.open(np.arange(4))
    with manager.step() as step, pytest.raises(TypeError, match=r"sequences: int64 .*astype\(np.uint64\)"):
        step.append_each(np.arange(1), [1])
    with pytest.raises(TypeError, match=r"float64 array .* \(no array is converted\)$"):
        manager.open(np.arange(4.0))
