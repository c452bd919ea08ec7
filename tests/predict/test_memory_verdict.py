"""Whether a step fits: the sum of its parts against the card, the thresholds, and the largest batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_samples import CARDS, MEMORY

from scaling import paths
from scaling.catalogue.card import GIB
from scaling.catalogue.load import read_card
from scaling.predict.memory import forecast
from scaling.predict.traced import StageMemory

CARD = CARDS["h100_sxm_80g"]
AVAILABLE = int(80 * GIB * 0.99)
RUNTIME = 10**9 + 375 * 10**6


def holding(total: int) -> StageMemory:
    """Return a stage that holds so many bytes, all of them parameters in whole allocator segments."""
    return StageMemory(parameters=total // 2**21 * 2**21, gradients=0, optimizer=0, activations=0, in_flight=1, temporaries=0)


@pytest.mark.parametrize(("share", "verdict"), [(0.5, "fits"), (0.91, "fits"), (0.93, "unreliable"), (0.99, "unreliable"), (1.01, "does_not_fit")])
def test_the_verdict_follows_from_the_share_of_the_card(share: float, verdict: str) -> None:
    found = forecast([holding(int(share * AVAILABLE) - RUNTIME)], CARD, batch_per_card=4, communicates=True)
    assert found.verdict == verdict
    assert found.available == AVAILABLE
    assert found.needed == pytest.approx(share * AVAILABLE, rel=1e-3)
    assert found.largest_batch_per_card is None


def test_what_is_needed_is_the_sum_of_the_parts() -> None:
    found = forecast([MEMORY], CARD, batch_per_card=4, communicates=True)
    parts = (found.parameters, found.gradients, found.optimizer, found.activations, found.temporaries, found.inputs)
    assert found.needed == sum(parts) + found.communicators + found.context + found.rounding
    assert forecast([MEMORY], CARD, batch_per_card=4, communicates=False).needed == found.needed - found.communicators


def test_a_stated_peak_counts_and_not_the_sum_of_what_is_not_held_at_once() -> None:
    whole, peak = (forecast([stage], CARD, batch_per_card=4, communicates=True).needed for stage in (MEMORY, replace(MEMORY, peak=4 * 10**9)))
    assert whole - peak == 5_101_000_000 - 4_000_000_000


def test_a_stage_holds_the_activations_of_all_micro_batches_under_way() -> None:
    first, last = (replace(MEMORY, in_flight=count) for count in (4, 1))
    found = forecast([last, first], CARD, batch_per_card=4, communicates=True)
    assert (found.stage, found.activations) == (1, 4 * MEMORY.activations)


@settings(max_examples=20)
@given(st.integers(1, 64), st.integers(10**6, 10**10))
def test_the_largest_batch_leaves_the_headroom_and_one_more_does_not(batch: int, activations: int) -> None:
    stage = replace(MEMORY, activations=activations)
    found = forecast([stage], CARD, batch_per_card=batch, communicates=True)
    largest = found.largest_batch_per_card
    assert largest is not None

    def needed(samples: int) -> float:
        return found.needed + (samples / batch - 1) * (activations + stage.inputs)

    assert needed(largest) <= 0.8 * AVAILABLE + 1
    assert needed(largest + 1) > 0.8 * AVAILABLE - 1


def test_a_process_has_no_context_and_no_segments() -> None:
    found = forecast([MEMORY], replace(CARD, form="process"), batch_per_card=4, communicates=True)
    assert found.context == found.communicators == found.rounding == 0
    assert found.available == 80 * GIB


def test_a_process_whose_memory_nobody_gave_gets_no_verdict() -> None:
    shipped = read_card(paths.conf() / "hardware" / "cpu.yaml")
    assert shipped.memory_gb is None
    assert forecast([MEMORY], shipped, batch_per_card=4, communicates=True) is None
    given = forecast([MEMORY], replace(shipped, memory_gb=16), batch_per_card=4, communicates=True)
    assert given is not None
    assert given.available == 16 * GIB
