# SPDX-License-Identifier: Apache-2.0
"""Sixty lines over installed wheels, with nothing but NumPy: scripts/wheel runs it. --tiers: kvfolio-tiers is there;
--cuda: so is kvfolio-cuda, and perhaps no device."""

import sys
import tempfile

import numpy as np

import kvfolio as kv

spec = kv.GroupSpec(num_layers=2, num_kv_heads=2, head_dim=64, num_blocks=32, block_size=4)
m = kv.Manager(kv.Storage([spec]))
view = m.storage.view()
prompt = np.arange(30, dtype=np.int32)
results = []
for _ in range(2):
    sequence, cached = m.open(prompt)
    with m.step() as step:
        step.append(sequence, prompt[cached:])
        plan = step.plan(copy=False)
        step.run_copies()
        group = plan.groups[0]
        rows = np.broadcast_to(prompt[cached:, None, None] / 30, (plan.num_tokens, 2, 64))
        rows = rows.astype(np.float32)
        kv.append(view, rows, rows, group.slot_mapping)
        results.append(kv.attend(rows[-1:], view, kv.Batch([0, 1], [30],
                                                           np.asarray(group.block_table))))
    m.close(sequence)
assert cached == 29 and (results[0] == results[1]).all(), "a hit changed a bit"
try:
    np.asarray(group.slot_mapping)
    raise SystemExit("a view outlived its step")
except kv.FailedPrecondition:
    pass
try:
    m.open(np.arange(3))
    raise SystemExit("int64 tokens were taken")
except TypeError:
    pass
try:
    with m.step() as step:
        step.append(m.open([])[0], range(200))
except kv.OutOfBlocks as error:
    assert error.needed == 50 and error.free + error.evictable == 32
m.check_invariants()
if "--tiers" not in sys.argv:
    try:
        import kvfolio.tiers
        raise SystemExit("kvfolio.tiers is there without its package")
    except ModuleNotFoundError as error:
        assert f"pip install kvfolio-tiers=={kv.__version__}" in str(error)
else:
    from kvfolio import tiers

    model = tiers.ModelIdentity(model="m", weights="w", tokenizer="t", model_dtype="f32", positions="p", engine="e")
    with tempfile.TemporaryDirectory() as folder:
        tiers.save(m, f"{folder}/cache.kv", model)
        for found in (0, 28):
            other = kv.Manager(kv.Storage([spec]), list_findable=True)
            with tiers.DiskTier(f"{folder}/disk", bytes=8 << 20) as disk, \
                    tiers.Offload(other, model, arena_bytes=1 << 20, tiers=[disk], timeout=5.0) as cache:
                opened = cache.open(prompt)
                ready = cache.wait(5)
                assert [each.cached_tokens for each in ready] == [found], ready
                with other.step() as step:
                    step.append(opened.sequence, prompt[found:])
                    step.run_copies()
        other = kv.Manager(kv.Storage([spec]))
        assert tiers.restore(other, f"{folder}/cache.kv", model).records_loaded == 8
        assert other.probe(prompt) == 29
    with open("/proc/self/maps") as maps:
        mapped = {line.split()[-1] for line in maps if "libkvfolio" in line}
    assert len(mapped) == 2, mapped  # one core, one library of tiers
    print("kvfolio.tiers: fine")
if "--cuda" not in sys.argv:
    try:
        import kvfolio.cuda
        raise SystemExit("kvfolio.cuda is there without its package")
    except ModuleNotFoundError as error:
        assert f"pip install kvfolio-cuda=={kv.__version__}" in str(error)
else:
    # A kvfolio of another build is refused; then this one is taken.
    mine = kv._core._interface_id
    kv._core._interface_id = lambda: "ffff-abi1"
    try:
        from kvfolio import cuda
        raise SystemExit("kvfolio_cuda took a kvfolio of another build")
    except ImportError as error:
        assert "ffff-abi1" in str(error) and mine() in str(error), error
    kv._core._interface_id = mine
    from kvfolio import cuda

    if cuda.available():
        storage = cuda.Storage([spec])
        cuda.fill(storage.view(), 0)
        storage.check()
    else:
        try:
            cuda.Storage([spec])
            raise SystemExit("a storage without a device")
        except kv.Unavailable:
            pass
    with open("/proc/self/maps") as maps:
        cores = {line.split()[-1] for line in maps if line.rstrip().endswith("/libkvfolio.so.0")}
    assert len(cores) == 1, cores
    print(f"kvfolio.cuda: fine ({cuda.why_not() or cuda.Device(0)})")
print(f"kvfolio {kv.__version__} on Python {sys.version.split()[0]}, NumPy {np.__version__}: fine")
