# SPDX-License-Identifier: Apache-2.0
"""The kernels through Python against float64, and what they refuse."""

import numpy as np
import pytest

import kvfolio as kv
from conftest import run_step, tokens

# Largest difference from float64 over values of about 1, of docs/kernels.md.
CACHES = [("f64", "hnd", 1e-6), ("f32", "hnd", 1e-5), ("f32", "nhd", 1e-5), ("f16", "hnd", 1e-5),
          ("bf16", "granule", 3e-2), ("int8", "hnd", 5e-2), ("int8", "granule", 5e-2),
          ("e4m3", "hnd", 1e-5), ("e4m3", "nhd", 1e-5)]


def reference(q, k, v, scale, causal=True, window=0, sinks=0, chunk=0, soft_cap=0.0, slopes=0.0,
              logits=-np.inf):
    """softmax(scale q k^T) v in float64, and the natural logarithm of its denominator."""
    q, k, v = (each.astype(np.float64) for each in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = scale * np.einsum("qhd,khd->hqk", q, k)
    position = np.arange(len(q))[:, None] + len(k) - len(q)
    key = np.arange(len(k))[None]
    visible = key <= position if causal else np.ones_like(position - key, bool)
    if window:
        visible &= (key > position - window) | (key < sinks)
    if chunk:
        visible &= (key // chunk == position // chunk) | (key < sinks)
    if soft_cap:
        scores = soft_cap * np.tanh(scores / soft_cap)
    scores += np.broadcast_to(slopes, len(scores))[:, None, None] * (key - position)
    scores = np.where(visible, scores, -np.inf)
    logits = np.broadcast_to(logits, len(scores))[:, None, None]
    top = np.maximum(scores.max(-1, keepdims=True), logits)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True) + np.exp(logits - top)
    lse = (np.log(total) + top)[..., 0].T
    return np.einsum("hqk,khd->qhd", weights / total, v), lse


def filled(dtype, fmt, num_tokens=45, window=0, sinks=0, seed=3):
    """A manager with storage and one sequence whose rows are in layer 1; its plan and rows."""
    rng = np.random.default_rng(seed)
    spec = kv.GroupSpec(num_layers=2, num_kv_heads=2, head_dim=32, head_dim_v=16, num_blocks=8,
                        dtype=dtype, format=fmt, window=window, num_sinks=sinks)
    manager = kv.Manager(kv.Storage([spec]))
    view = manager.storage.view()
    manager.storage.fill(255)
    sequence, _ = manager.open([])
    plan = run_step(manager, (sequence, range(num_tokens)))
    k = rng.standard_normal((num_tokens, 2, 32)).astype(np.float32)
    v = rng.standard_normal((num_tokens, 2, 16)).astype(np.float32)
    kv.append(view, k, v, plan.groups[0].slot_mapping, layer=1)
    table = plan.groups[0].block_table[0]
    kv.gather(view, table, num_tokens, k=k, v=v, layer=1)  # as the cache has them
    q = rng.standard_normal((num_tokens, 4, 32)).astype(np.float32)
    return view, plan, table, q, k, v


@pytest.mark.parametrize(("dtype", "fmt", "bound"), CACHES)
def test_attend_is_close_to_float64(dtype, fmt, bound):
    view, plan, _, q, k, v = filled(dtype, fmt)
    out = np.full((45, 4, 16), np.nan, np.float32)
    lse = np.full((45, 4), np.nan, np.float64)
    assert kv.attend(q, view, plan.groups[0], layer=1, out=out, lse=lse) is out
    expected, expected_lse = reference(q, k, v, 32**-0.5)
    assert np.abs(out - expected).max() < bound
    assert np.abs(lse - expected_lse).max() < bound
    assert np.abs(kv.attend(q, view, plan.groups[0], layer=1, target="reference") -
                  expected).max() < 1e-6


def test_window_and_sinks_come_from_the_plan_or_the_caller():
    view, plan, _, q, k, v = filled("f32", "hnd", window=7, sinks=2)
    expected, _ = reference(q, k, v, 0.5, window=7, sinks=2)
    out = kv.attend(q, view, plan.groups[0], layer=1, scale=0.5)
    assert np.abs(out - expected).max() < 1e-5
    expected, _ = reference(q, k, v, 0.5, window=3)
    out = kv.attend(q, view, plan.groups[0], layer=1, scale=0.5, window=3, num_sinks=0)
    assert np.abs(out - expected).max() < 1e-5


def test_chunks_soft_caps_slopes_and_learned_sinks_are_passed_on():
    view, plan, _, q, k, v = filled("f32", "hnd")
    slopes = np.array([0.5, 0.25, -0.1, 0], np.float32)
    logits = np.array([0.5, -1, -np.inf, 2], np.float32)
    lse = np.empty((45, 4))
    out = kv.attend(q, view, plan.groups[0], layer=1, chunk=10, num_sinks=2, soft_cap=1.5,
                    alibi_slopes=slopes, sink_logits=logits, lse=lse)
    expected, expected_lse = reference(q, k, v, 32**-0.5, chunk=10, sinks=2, soft_cap=1.5,
                                       slopes=slopes, logits=logits)
    assert np.abs(out - expected).max() < 1e-5
    assert np.abs(lse - expected_lse).max() < 1e-5
    chosen = kv.choose_kernel_target(view, "reference", soft_cap=30, alibi_slopes=slopes)
    assert chosen == "reference"


def test_a_batch_of_ones_own_arrays_equals_the_plan():
    view, plan, table, q, k, v = filled("f32", "hnd")
    batch = kv.Batch(tokens(0, 5), tokens(45), table[None])
    out = kv.attend(q[40:], view, batch, layer=1)
    expected, _ = reference(q[40:], k, v, 32**-0.5)
    assert np.abs(out - expected).max() < 1e-5
    whole = kv.attend(q, view, plan.groups[0], layer=1)
    assert (whole[40:] == out).all()  # no batch changes a bit
    free = kv.attend(q[:3], view, kv.Batch([0, 3], [45], table[None]), layer=1, causal=False)
    assert np.abs(free - reference(q[:3], k, v, 32**-0.5, causal=False)[0]).max() < 1e-5


def test_threads_of_a_pool_change_no_bit():
    view, plan, _, q, _, _ = filled("f32", "hnd")
    pool = kv.ThreadPool(3)
    assert pool.num_threads == 3
    assert (kv.attend(q, view, plan.groups[0], layer=1, pool=pool) ==
            kv.attend(q, view, plan.groups[0], layer=1)).all()


def test_strided_rows_are_read_and_written():
    view, plan, table, q, k, v = filled("f32", "hnd")
    wide = np.zeros((4, 45, 40), np.float32)
    wide[:, :, 4:36] = q.transpose(1, 0, 2)
    strided = wide[:, :, 4:36].transpose(1, 0, 2)
    out = np.zeros((4, 45, 20), np.float32)
    kv.attend(strided, view, plan.groups[0], layer=1, out=out[:, :, 2:18].transpose(1, 0, 2))
    whole = kv.attend(q, view, plan.groups[0], layer=1)
    assert (out[:, :, 2:18].transpose(1, 0, 2) == whole).all()
    assert not out[:, :, :2].any() and not out[:, :, 18:].any()
    back = np.zeros((2, 20, 2, 32))
    kv.gather(view, table, 45, k=back[1:], first=10, count=20, layer=1)
    assert (back[1] == k[10:30]).all() and not back[0].any()


def test_gather_takes_a_capsule_once():
    """As torch's to_dlpack() makes them; a capsule that was taken is empty."""
    view, _, table, _, k, _ = filled("f32", "hnd")
    rows, again = np.zeros((2, 45, 2, 32), np.float32)
    kv.gather(view, table, 45, k=rows, layer=1)
    kv.gather(view, table, 45, k=again.__dlpack__(), layer=1)
    assert (rows == k).all() and (again == k).all()


def test_states_merge_to_the_whole():
    view, _, table, q, k, v = filled("f32", "hnd")
    parts = []
    for blocks, length in ((table[:1], 16), (table[1:], 29)):
        lse = np.zeros((1, 4), np.float32)
        out = kv.attend(q[44:], view, kv.Batch([0, 1], [length], blocks[None]), layer=1, lse=lse)
        parts.append((out, lse))
    (a, a_lse), (b, b_lse) = parts
    kv.merge_states(a, a_lse, b, b_lse, out=a, lse=a_lse)
    expected, expected_lse = reference(q[44:], k, v, 32**-0.5)
    assert np.abs(a - expected).max() < 1e-5 and np.abs(a_lse - expected_lse).max() < 1e-5
    # A learned sink: a state of zeros whose lse is the sink's logit, one for each head.
    sinks = np.broadcast_to(np.arange(4, dtype=np.float32), (1, 4))
    kv.merge_states(a, a_lse, np.zeros_like(a), sinks, out=b)
    share = 1 / (1 + np.exp(sinks - expected_lse))
    assert np.abs(b - expected * share[..., None]).max() < 1e-5


def test_blocks_are_copied_and_converted():
    view, plan, table, q, k, v = filled("f32", "hnd")
    free = sorted(set(range(8)) - set(table.tolist()))
    kv.copy_blocks(view, table, free[:3])
    assert (view.k[1, free[0]] == view.k[1, table[0]]).all()
    spec = kv.GroupSpec(num_layers=2, num_kv_heads=2, head_dim=32, head_dim_v=16, num_blocks=8,
                        dtype="bf16", format="granule")
    other = kv.Storage([spec])
    kv.convert_blocks(view, other.view(), table, table)
    rows = np.zeros_like(k)
    kv.gather(other.view(), table, 45, k=rows, layer=1)
    bits = np.zeros((45, 2, 32), np.uint16)
    kv.convert(k, bits)
    assert (rows.view(np.uint32) == bits.astype(np.uint32) << 16).all()


def test_latent_caches_have_one_vector():
    spec = kv.GroupSpec(head_dim=24, head_dim_v=16, v_is_prefix_of_k=True, num_blocks=4)
    view = kv.Storage([spec]).view()
    k = np.random.default_rng(0).standard_normal((10, 1, 24)).astype(np.float32)
    kv.append(view, k, None, range(10))
    v = np.zeros((10, 1, 16), np.float32)
    kv.gather(view, [0], 10, v=v)
    assert (v == k[:, :, :16]).all() and view.v_is_prefix_of_k
    lent = np.zeros((4, 1, 16, 24), np.float32)
    assert kv.View.borrow(lent, v_is_prefix_of_k=True, head_dim_v=16).head_dim_v == 16


def test_no_tokens_are_no_work():
    view, plan, table, q, _, _ = filled("f32", "hnd")
    empty = np.zeros((0, 2, 32), np.float32)
    kv.append(view, empty, empty[:, :, :16], [])
    out = kv.attend(np.zeros((0, 4, 32), np.float32), view,
                    kv.Batch([0, 0], [45], table[None]), layer=1)
    assert out.shape == (0, 4, 16)


def test_the_targets_are_named():
    view, *_ = filled("f32", "hnd")
    targets = kv.kernel_targets()
    assert "reference" in targets and kv.choose_kernel_target(view) in targets
    assert kv.choose_kernel_target(view, "reference") == "reference"


ROWS = np.zeros((3, 2, 32), np.float32)
VROWS = np.zeros((3, 2, 16), np.float32)


@pytest.mark.parametrize(("error", "text", "call"), [
    (kv.InvalidArgument, "heads", lambda w, b: kv.append(w, ROWS[:, :1], VROWS, [0, 1, 2])),
    (kv.InvalidArgument, "3", lambda w, b: kv.append(w, ROWS, VROWS, [0, 1])),
    (kv.InvalidArgument, "128", lambda w, b: kv.append(w, ROWS, VROWS, [0, 1, 128])),
    (kv.InvalidArgument, "-2", lambda w, b: kv.append(w, ROWS, VROWS, [0, -2, 1])),
    (kv.InvalidArgument, "layer", lambda w, b: kv.append(w, ROWS, VROWS, [0, 1, 2], layer=2)),
    (kv.InvalidArgument, "layer", lambda w, b: kv.append(w, ROWS, VROWS, [0, 1, 2], layer=2**50)),
    (kv.InvalidArgument, "v", lambda w, b: kv.append(w, ROWS, None, [0, 1, 2])),
    (kv.InvalidArgument, r"\[tokens, heads, head_dim\]",
     lambda w, b: kv.append(w, ROWS[0], VROWS[0], [0, 1, 2])),
    (kv.InvalidArgument, "lie 2 apart",
     lambda w, b: kv.append(w, np.zeros((3, 2, 64), np.float32)[:, :, ::2], VROWS, [0, 1, 2])),
    (TypeError, "int64", lambda w, b: kv.append(w, ROWS, VROWS, np.arange(3))),
    (TypeError, "int32", lambda w, b: kv.append(w, ROWS.astype(np.int32), VROWS, [0, 1, 2])),
    (TypeError, "complex", lambda w, b: kv.append(w, ROWS.astype(complex), VROWS, [0, 1, 2])),
    (TypeError, "no array", lambda w, b: kv.append(w, [[1.0]], VROWS, [0, 1, 2])),
    (TypeError, "", lambda w, b: kv.append(None, ROWS, VROWS, [0, 1, 2])),
    (kv.InvalidArgument, "", lambda w, b: kv.gather(w, [0], 17, k=ROWS.copy(), count=3, first=15)),
    (kv.InvalidArgument, "99", lambda w, b: kv.gather(w, [99], 3, k=ROWS.copy())),
    (kv.InvalidArgument, "", lambda w, b: kv.gather(w, [0], 3, k=ROWS[:2].copy())),
    (kv.InvalidArgument, "four axes",
     lambda w, b: kv.gather(w, [0], 3, k=ROWS.copy(), num_layers=2)),
    (kv.InvalidArgument, "2 layers",
     lambda w, b: kv.gather(w, [0], 3, k=np.zeros((3, 3, 2, 32)), num_layers=2)),
    (kv.InvalidArgument, "", lambda w, b: kv.attend(ROWS[:, :1], w, b)),
    (kv.InvalidArgument, "", lambda w, b: kv.attend(np.zeros((3, 3, 32), np.float32), w, b)),
    (kv.InvalidArgument, "", lambda w, b: kv.attend(np.zeros((3, 4, 31), np.float32), w, b)),
    (kv.InvalidArgument, "scale", lambda w, b: kv.attend(ROWS, w, b, scale=float("nan"))),
    (kv.InvalidArgument, "window", lambda w, b: kv.attend(ROWS, w, b, window=-1)),
    (kv.InvalidArgument, "window", lambda w, b: kv.attend(ROWS, w, b, window=2**33)),
    (kv.InvalidArgument, "one of them", lambda w, b: kv.attend(ROWS, w, b, window=2, chunk=3)),
    (kv.InvalidArgument, "chunked", lambda w, b: kv.attend(ROWS, w, b, chunk=-1)),
    (kv.InvalidArgument, "soft_cap", lambda w, b: kv.attend(ROWS, w, b, soft_cap=-1)),
    (kv.InvalidArgument, "3 entries, allowed: 2",
     lambda w, b: kv.attend(ROWS, w, b, alibi_slopes=np.zeros(3, np.float32))),
    (kv.InvalidArgument, "NaN",
     lambda w, b: kv.attend(ROWS, w, b, sink_logits=np.full(2, np.nan, np.float32))),
    (TypeError, "float64", lambda w, b: kv.attend(ROWS, w, b, sink_logits=np.zeros(2))),
    (kv.InvalidArgument, "avx", lambda w, b: kv.attend(ROWS, w, b, target="fast")),
    (kv.InvalidArgument, "", lambda w, b: kv.attend(ROWS, w, b, out=np.zeros((3, 2, 17)))),
    (kv.InvalidArgument, "", lambda w, b: kv.attend(ROWS, w, b, lse=np.zeros((3, 1)))),
    (kv.InvalidArgument, "", lambda w, b: kv.attend(ROWS, w, kv.Batch(
        [0, 3], [3], tokens(99)[None]))),
    (TypeError, "GroupPlan", lambda w, b: kv.attend(ROWS, w, [0, 3])),
    (TypeError, "block_table", lambda w, b: kv.Batch([0, 3], [3], np.zeros((1, 1)))),
    (kv.InvalidArgument, "contiguous",
     lambda w, b: kv.Batch([0, 3], [3], np.zeros((4, 4), np.int32)[:, ::2])),
    (kv.InvalidArgument, r"widest", lambda w, b: kv.Batch([0, 3], [3], tokens(1))),
    (kv.InvalidArgument, "", lambda w, b: kv.attend(ROWS, w, kv.Batch(
        [0, 2**31 - 1], [3], np.zeros((1, 1), np.int32)))),
    (kv.InvalidArgument, "", lambda w, b: kv.attend(ROWS, w, kv.Batch(
        [0, 3], [2**31 - 1], np.zeros((1, 1), np.int32)))),
    (kv.InvalidArgument, "8", lambda w, b: kv.copy_blocks(w, [0], [8])),
    (kv.InvalidArgument, "", lambda w, b: kv.copy_blocks(w, [0, 1], [2])),
    (kv.InvalidArgument, "", lambda w, b: kv.ThreadPool(0)),
    (kv.InvalidArgument, "", lambda w, b: kv.ThreadPool(2**40)),
    (kv.InvalidArgument, "", lambda w, b: kv.convert(ROWS, np.zeros((3, 2, 31)))),
])
def test_bad_arguments_write_nothing(error, text, call):
    view, _, table, _, _, _ = filled("f32", "hnd")
    batch = kv.Batch([0, 3], [45], table[None])
    k, v = view.k.copy(), view.v.copy()
    with pytest.raises(error, match=text):
        call(view, batch)
    assert k.tobytes() == view.k.tobytes() and v.tobytes() == view.v.tobytes()


def test_token_store_keeps_rows():
    store = kv.TokenStore(3, dtype="f64", max_tokens=4)
    rows = np.arange(12.0).reshape(4, 1, 3)
    store.append(rows[:3])
    store.append(rows[3:])
    with pytest.raises(kv.ResourceExhausted, match="full: 4 of 4 tokens"):
        store.append(rows[:1])
    other = store.copy()
    store.clear()
    back = np.zeros((2, 1, 3))
    other.gather(1, k=back)
    assert (back == rows[1:3]).all() and (len(store), len(other)) == (0, 4)
    assert "4 of 4 tokens of f64" in repr(other) and other.view().k[0, 0, 0, 3, 2] == 11
    for call in (lambda: other.gather(3, k=back), lambda: other.gather(-1, k=back),
                 lambda: store.append(rows[:, :, :2]), lambda: store.append(rows[:1], rows[:1]),
                 lambda: kv.TokenStore(0, max_tokens=1), lambda: kv.TokenStore(3, max_tokens=2**40)):
        with pytest.raises(kv.InvalidArgument):
            call()


def test_a_shared_block_is_copied_before_it_is_written():
    group = kv.GroupSpec(num_layers=2, num_kv_heads=1, head_dim=4, block_size=2, num_blocks=4)
    store = kv.BlockStore(group)
    table = store.allocate(2)
    assert table.dtype == np.int32 and (store.num_free, store.num_blocks) == (2, 4)
    view = store.view()
    rows = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
    kv.append(view, rows, rows, [table[1] * 2], layer=1)
    store.hold(table)
    own = store.make_writable(table[1])
    assert own != table[1] and (view.k[1, own, 0, 0] == rows[0, 0]).all()
    assert [store.ref_count(block) for block in (*table, own)] == [2, 1, 1]
    images = store.read([own])
    assert images.shape == (1, store.block_image_bytes)
    store.write([own], np.zeros_like(images))
    assert (view.k[1, own] == 0).all() and (view.k[1, table[1], 0, 0] == rows[0, 0]).all()
    with pytest.raises(kv.FailedPrecondition, match="block 0 has 2 references"):
        store.write(table[:1], images)
    store.release([*table, table[0], own])
    assert store.num_free == 4 and store.memory_bytes >= 4 * store.block_image_bytes
    assert repr(store).startswith("<block store: 0 of 4 blocks of 2 tokens in use, f32")
    del store
    assert view.k.shape == (2, 4, 1, 2, 4)  # the view keeps its memory


def test_a_block_store_refuses_what_is_not_there():
    store = kv.BlockStore(kv.GroupSpec(num_layers=1, num_kv_heads=1, head_dim=4, num_blocks=4))
    assert store.allocate(0).shape == (0,) and store.read([]).shape == (0, store.block_image_bytes)
    block = int(store.allocate(1)[0])
    images = store.read([block])
    for error, call in (
            (kv.ResourceExhausted, lambda: store.allocate(4)), (kv.ResourceExhausted, lambda: store.allocate(2**31 - 1)),
            (kv.InvalidArgument, lambda: store.allocate(-1)), (kv.FailedPrecondition, lambda: store.hold([3])),
            (kv.FailedPrecondition, lambda: store.release([block, block])),
            (kv.InvalidArgument, lambda: store.make_writable(4)), (kv.InvalidArgument, lambda: store.ref_count(-1)),
            (kv.InvalidArgument, lambda: store.write([block], images[:, 1:])),
            (kv.InvalidArgument, lambda: store.write([block], images[0])),
            (kv.InvalidArgument, lambda: store.write([block], np.repeat(images, 2, 0)[::2][:, ::-1])),
            (TypeError, lambda: kv.BlockStore(3)),
            (kv.InvalidArgument, lambda: kv.BlockStore(kv.GroupSpec(num_layers=1, num_kv_heads=1, head_dim=4)))):
        with pytest.raises(error):
            call()
    assert store.num_free == 3 and store.ref_count(block) == 1


def test_a_sequence_is_gathered_from_its_blocks():
    groups = [kv.GroupSpec(num_layers=2, num_kv_heads=1, head_dim=4, block_size=2, num_blocks=8)]
    manager = kv.Manager(kv.Storage(groups))
    sequence, _ = manager.open([])
    rows = np.arange(20, dtype=np.float32).reshape(5, 1, 4)
    with manager.step() as step:
        step.append(sequence, [7, 8, 9, 7, 8])
        slots = manager.slot_mapping(sequence, 0, 5)
        kv.append(manager.storage.view(), rows, rows + 100, slots, layer=1)
        now = np.zeros_like(rows)
        manager.gather(sequence, k=now, layer=1)
    k, v = np.zeros((2, 1, 4)), np.zeros((2, 1, 4), np.float16)
    manager.gather(sequence, k=k, v=v, layer=1, first=2)
    assert (now == rows).all() and (k == rows[2:4]).all() and (v == rows[2:4] + 100).all()
    # Arrays of no tokens are arrays: an empty k is not "no k".
    none = np.zeros((0, 1, 4))
    without = kv.Manager(groups)
    stranger, _ = without.open([])
    manager.gather(sequence, k=none, first=5)
    manager.gather(sequence)
    with pytest.raises(kv.InvalidArgument, match="2 rows of v for 0 of k"):
        manager.gather(sequence, k=none, v=v)
    for error, call in (
            (kv.InvalidArgument, lambda: manager.gather(sequence, k=k, first=4)),
            (kv.InvalidArgument, lambda: manager.gather(sequence, k=k, first=-1)),
            (kv.InvalidArgument, lambda: manager.gather(sequence, k=k, layer=2)),
            (kv.InvalidArgument, lambda: manager.gather(sequence, k=k, group=1)),
            (kv.InvalidArgument, lambda: manager.gather(sequence, k=k[:, :, :2])),
            (kv.NotFound, lambda: manager.gather(sequence + 1, k=k)),
            (kv.Unsupported, lambda: without.gather(stranger, k=none)),
            (TypeError, lambda: manager.gather(sequence, k=[1.0]))):
        with pytest.raises(error):
            call()
    assert (k == rows[2:4]).all()


def test_a_window_that_the_call_lacks_is_asked_for_in_words_of_every_language():
    m = kv.Manager(kv.Storage([kv.GroupSpec(head_dim=8, num_blocks=8, block_size=4, window=4)]))
    sequence, _ = m.open([])
    for _ in range(4):
        with m.step() as step:
            step.append_unnamed(sequence, 4)
            plan = step.plan()
    batch = kv.Batch(plan.query_start, plan.kv_lens, plan.groups[0].block_table)
    with pytest.raises(kv.InvalidArgument, match="does the call lack the window, or the trims"):
        kv.attend(np.zeros((4, 1, 8), np.float32), m.storage.view(), batch)
