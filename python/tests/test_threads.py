# SPDX-License-Identifier: Apache-2.0
"""Several threads: one manager, kernels without the GIL, plans that a kernel reads."""

import sys
import threading
import time

import numpy as np
import pytest

import kvfolio as kv


def in_threads(count, body):
    """Runs body(i) in as many threads; raises what one of them raised."""
    errors = []

    def guarded(i):
        try:
            body(i)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_calls_of_one_manager_take_turns():
    m = kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=200, block_size=4)], order="unordered",
                   max_steps_in_flight=8)
    turn = threading.Lock()  # whose step is open

    def body(i):
        for round_ in range(100):
            sequence, cached = m.open([i, round_ % 3, 1, 2, 3])
            with turn:
                step = m.step()
                step.append(sequence, [i, round_ % 3, 1, 2, 3][cached:])
                step.plan()
                step.commit()
            if round_ % 10 == 0:
                m.check_invariants()  # without the GIL: the others wait for it
            step.complete()
            m.close(sequence)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        in_threads(4, body)
    finally:
        sys.setswitchinterval(interval)
    m.check_invariants()
    assert m.num_sequences == 0 and m.counters.sequences_opened == 400


def big_cache():
    spec = kv.GroupSpec(num_kv_heads=2, head_dim=128, num_blocks=600)
    m = kv.Manager(kv.Storage([spec]))
    m.storage.fill(0)
    sequence, _ = m.open([])
    with m.step() as step:
        step.append(sequence, np.zeros(8192, np.int32))
    step = m.step()
    step.append(sequence, np.zeros(64, np.int32))
    return m, step


def test_attend_runs_without_the_gil():
    """While one thread attends, this one gets on: it sees the kernel run."""
    m, step = big_cache()
    view = m.storage.view()
    group = step.plan().groups[0]
    q = np.ones((64, 16, 128), np.float32)
    state = {"running": False, "seen": 0, "done": False}

    def attend():
        for _ in range(20):
            state["running"] = True
            kv.attend(q, view, group)
            state["running"] = False
        state["done"] = True

    thread = threading.Thread(target=attend)
    thread.start()
    while not state["done"]:
        state["seen"] += state["running"]
    thread.join()
    # With the GIL held in the kernel, this loop would run only between two calls.
    assert state["seen"] > 100
    step.drop()


def test_a_plan_that_a_kernel_reads_is_not_given_up():
    m, step = big_cache()
    view = m.storage.view()
    q = np.ones((64, 16, 128), np.float32)
    state = {"group": step.plan(copy=False).groups[0], "stop": False}

    def attend():
        while not state["stop"]:
            try:
                kv.attend(q, view, state["group"])
            except kv.FailedPrecondition:
                pass  # between two kernels the plan was made again

    thread = threading.Thread(target=attend)
    thread.start()
    refused = None
    while refused is None:
        try:
            state["group"] = step.plan(copy=False).groups[0]
            time.sleep(0.001)
        except kv.FailedPrecondition as error:
            refused = str(error)
    state["stop"] = True
    thread.join()
    assert "a kernel reads the plan of ticket 2" in refused
    step.drop()
    with pytest.raises(kv.FailedPrecondition):
        kv.attend(q, view, state["group"])


def test_two_threads_attend_with_one_pool():
    m, step = big_cache()
    rng = np.random.default_rng(2)
    view = m.storage.view()
    view.k[:] = rng.standard_normal(view.k.shape)
    view.v[:] = rng.standard_normal(view.v.shape)
    group = step.plan().groups[0]
    q = rng.standard_normal((64, 16, 128)).astype(np.float32)
    alone = kv.attend(q, view, group)
    pool = kv.ThreadPool(2)
    results = {}

    def body(i):
        results[i] = kv.attend(q, view, group, pool=pool)

    in_threads(3, body)
    for result in results.values():
        assert (result == alone).all()
    step.drop()
