"""What of a step's exchange and memory gets into the result, and which remarks go with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from scaling import paths
from scaling.config import load
from scaling.footprint import footprint, too_large_for_one_card
from scaling.measure.baseline import SoloPlan
from scaling.measure.preparation import Preparation
from scaling.points import Machine, resolve
from scaling.spec import RunSpec
from scaling.step_records import Collective, MemoryUse

REDUCED = Collective(kind="all_reduce", axis="dp_replicate", calls_per_step=4, payload_bytes_per_step=400)
HELD = MemoryUse(peak=90, parameters=40, gradients=40, optimizer=0, activations=8, other=2)
AS_ASKED = SoloPlan(micro_batch=2, grad_accumulation=4)


def spec_of(*overrides: str) -> RunSpec:
    with initialize_config_dir(str(paths.conf()), version_base="1.3"):
        composed = compose("run", overrides=["model=mlp", "gpus=[1,2]", "batch_per_card=8", "grad_accumulation=4", *overrides])
    container: Any = OmegaConf.to_container(composed, resolve=True)
    return resolve(load(container), Machine(cores=(0, 1), gpus=()), run_id="test")


def known(**changes: Any) -> Preparation:
    return replace(Preparation(solo=AS_ASKED, collectives={"gpus2": ((REDUCED,), (REDUCED,))}, memory={"gpus2": (HELD, HELD)}), **changes)


def test_every_rank_has_its_memory_and_the_point_its_exchange() -> None:
    spec = spec_of()
    fields, notes = footprint(spec, spec.point("gpus2"), known())
    assert fields == {"collectives": (REDUCED,), "memory_bytes_peak_per_rank": (90, 90), "memory_bytes_per_rank": (HELD, HELD)}
    assert notes == []


def test_the_hint_about_no_sync_stands_at_points_that_exchange() -> None:
    spec = spec_of("strategy.no_sync=false")
    assert footprint(spec, spec.point("gpus1"), known())[1] == []
    (note,) = footprint(spec, spec.point("gpus2"), known())[1]
    assert "strategy.no_sync=true exchanges them once, 1/4 of the payload" in note


def test_a_compiled_step_shows_no_split_of_memory_because_the_look_sees_the_plain_one() -> None:
    spec = spec_of("compile=true")
    fields, (note,) = footprint(spec, spec.point("gpus2"), known())
    assert (fields["memory_bytes_peak_per_rank"], fields["memory_bytes_per_rank"], fields["collectives"]) == ((), (), (REDUCED,))
    assert note.startswith("memory by owner withheld")
    on_card = replace(spec, device="cuda")
    assert footprint(on_card, on_card.point("gpus2"), known())[0]["memory_bytes_peak_per_rank"] == (90, 90)


def test_only_a_point_of_one_card_is_too_large_for_one_card() -> None:
    spec = spec_of()
    pair = SoloPlan(micro_batch=2, grad_accumulation=4, argument="depth", depth=8, shallow=2, deep=4)
    for preparation in (known(solo=pair), known(solo=None, fits_one_card=False)):
        error = too_large_for_one_card(spec, spec.point("gpus1"), preparation)
        assert error is not None
        assert error.kind == "refused"
        assert too_large_for_one_card(spec, spec.point("gpus2"), preparation) is None
    assert too_large_for_one_card(spec, spec.point("gpus1"), known()) is None
    assert too_large_for_one_card(spec, spec.point("gpus1"), known(solo=None)) is None  # interrupted before it was known
