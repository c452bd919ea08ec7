"""Prices against published rows, constants against their fits, and the document against its script."""

from __future__ import annotations

from dataclasses import replace

import accuracy
import fit
import numpy as np
import page
import pairs
import pytest
import steps
from published import CARDS, GENERAL, links, predicted_us, ring_shares, series

from scaling.predict.constants import constants_of
from scaling.predict.operators import matmul
from scaling.predict.price import price
from scaling.predict.table import OperatorTable

FITS = list(fit.fits())


@pytest.mark.parametrize("entry", FITS, ids=lambda entry: entry.where)
def test_each_fitted_constant_comes_out_of_the_data_that_it_names(entry: fit.Fit) -> None:
    for name, fitted, shipped in fit.differences(entry):
        assert fit.agrees(fitted, shipped), name


@pytest.mark.parametrize(
    ("machine", "median", "bulk"),
    [
        ("a100_vtrain", 0.04, 0.03),
        ("a100_mleng", 0.10, 0.03),
        ("a100_superbench", 0.06, 0.04),
        ("h100_dgxc", 0.06, 0.03),
        ("v100_vtrain", 0.02, 0.02),
        ("h100_ndr", 0.06, 0.03),
        ("a100_p4de", 0.04, 0.03),
    ],
)
def test_published_all_reduces_are_met(machine: str, median: float, bulk: float) -> None:
    data = series(machine)
    errors = np.abs(predicted_us(data, links(machine)) / data.us - 1)
    assert np.median(errors) < median
    assert np.median(errors[data.size >= accuracy.BULK_BYTES]) < bulk


@pytest.mark.parametrize("machine", ["rtx4090_epyc", "rtx2080ti_autodl"])
def test_pcie_hosts_are_met_within_their_wide_spread(machine: str) -> None:
    data = series(machine)
    ratio = predicted_us(data, links(machine)) / data.us
    assert 1 / 3 < np.median(ratio) < 3


@pytest.mark.parametrize("point", list(ring_shares()), ids=lambda point: f"{point[0]}-nodes-{point[1]}-MB")
def test_rings_over_up_to_128_nodes_are_met_although_no_constant_was_fitted_on_them(point: tuple[int, int, float, float]) -> None:
    _, _, share, predicted = point
    assert predicted == pytest.approx(share, rel=0.3)


@pytest.mark.parametrize("name", ["a100_sxm_80g", "a100_pcie_80g", "gh200_96g"])
def test_the_best_published_product_lies_about_a_tenth_above_a_typical_one(name: str) -> None:
    row = fit.best_shape(name)
    assert row is not None
    m, n, k = (int(row[key]) for key in "mnk")
    alone = replace(constants_of(CARDS[name], CARDS, GENERAL), in_step=1.0)
    rate = 2 * m * n * k / price(OperatorTable.of([matmul(m, n, k)]), alone).seconds[0] / 1e12
    assert 0.8 < rate / float(row["tflops"]) < 1.0


def test_the_document_says_what_its_script_finds() -> None:
    assert page.written(accuracy.START, accuracy.END) == accuracy.section()


def test_a_whole_published_step_is_met() -> None:
    (step,) = [step for step in steps.steps() if step.name.startswith("MPT-125m, 8 A100, seq 2048")]
    assert step.found.seconds == pytest.approx(step.seconds, rel=0.06)
    assert step.inside


@pytest.mark.long
def test_the_document_says_of_every_whole_step_what_its_script_finds() -> None:
    rows = steps.predicted(steps.steps())
    assert page.written(steps.START, steps.END).splitlines() == list(steps.lines(rows))
    median = np.median([abs(step.error) for step in rows if step.family != "Narayanan et al. 2021"])
    assert median < 0.05


@pytest.mark.long
def test_the_document_says_of_every_pair_of_card_counts_what_its_script_finds() -> None:
    assert page.written(pairs.START, pairs.END).splitlines() == list(pairs.lines(pairs.pairs()))
