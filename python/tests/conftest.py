# SPDX-License-Identifier: Apache-2.0
"""What several files of tests share."""

import numpy as np
import pytest

import kvfolio as kv


@pytest.fixture
def manager():
    """Sixteen blocks of four tokens."""
    return kv.Manager([kv.GroupSpec(head_dim=8, num_blocks=16, block_size=4)])


def tokens(*numbers):
    return np.array(numbers, np.int32)


def run_step(manager, *appends):
    """One step with these (sequence, tokens); its plan."""
    with manager.step() as step:
        for sequence, numbers in appends:
            step.append(sequence, numbers)
        return step.plan()


def state_of(manager):
    """All that a failed call must not change."""
    return (manager.describe(), manager.counters.to_dict(), manager.usage().to_dict(),
            manager.block_states().tolist(), manager.ref_counts().tolist(),
            sorted(int(s) for s in manager.sequences()))
