"""What a request becomes on a given machine: counts, batches, cores; and what is refused, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from scaling import paths
from scaling.config import load
from scaling.equipment import Choice, choose
from scaling.errors import UserError
from scaling.points import Machine, resolve
from scaling.spec import RunSpec

TWO_CORES = Machine(cores=(0, 1), gpus=())
UNKNOWN = Machine(cores=(0, 1), gpus=("Odd GPU", "Odd GPU"), interconnect="pcie", hardware=(None, None))
MIXED = Machine(cores=(0, 1), gpus=("Tesla T4", "NVIDIA A10"), interconnect="pcie", hardware=("t4", "a10"))
EIGHT_CORES = Machine(cores=tuple(range(8)), gpus=())
FOUR_CARDS = Machine(cores=tuple(range(16)), gpus=("NVIDIA H100 80GB HBM3",) * 4, interconnect="nvlink", hardware=("h100_sxm_80g",) * 4)


def spec_of(*overrides: str, machine: Machine = TWO_CORES, others: Sequence[Machine] = ()) -> RunSpec:
    with initialize_config_dir(str(paths.conf()), version_base="1.3"):
        composed = compose("run", overrides=["model=mlp", *overrides])
    container: Any = OmegaConf.to_container(composed, resolve=True)
    return resolve(load(container), machine, run_id="test", others=others)


def test_a_curve_without_a_count_is_what_the_machine_has() -> None:
    assert [point.gpus for point in spec_of().points] == [1, 2]
    assert [point.gpus for point in spec_of(machine=FOUR_CARDS).points] == [1, 2, 4]
    assert [point.gpus for point in spec_of(machine=Machine(cores=(0,), gpus=())).points] == [1]
    assert [point.gpus for point in spec_of(machine=Machine(cores=(0, 1), gpus=("x",) * 6)).points] == [1, 2, 4, 6]


def test_weak_scaling_keeps_the_batch_of_a_card() -> None:
    spec = spec_of("gpus=[1,2]", "batch_per_card=6", "grad_accumulation=3")
    assert [point.batch.batch_global for point in spec.points] == [6, 12]
    assert {point.batch.micro_batch for point in spec.points} == {2}
    assert spec.solo.batch_per_data_rank == 6


def test_accumulation_times_micro_batch_times_cards_is_the_global_batch() -> None:
    spec = spec_of("gpus=8", "batch_per_card=8", "grad_accumulation=4", machine=EIGHT_CORES)
    batch = spec.points[0].batch
    assert batch.micro_batch * batch.grad_accumulation * 8 == batch.batch_global == 64


def test_strong_scaling_divides_the_global_batch_and_solo_takes_all_of_it() -> None:
    spec = spec_of("gpus=[1,2]", "scaling=strong", "batch_global=8")
    assert [point.batch.batch_per_data_rank for point in spec.points] == [8, 4]
    assert spec.solo.batch_global == 8


def test_a_global_batch_divides_over_groups_and_may_have_fewer_samples_than_cards() -> None:
    point = spec_of("gpus=8", "scaling=strong", "batch_global=6", "strategy.dp_shard=2", "strategy.tp=4", "grad_accumulation=3", machine=EIGHT_CORES).points[0]
    assert (point.batch.batch_per_data_rank, point.batch.micro_batch, point.batch_per_card) == (3, 1, 0.75)


def test_one_card_does_fewer_passes_where_it_has_too_few_samples_for_those_of_a_group() -> None:
    spec = spec_of("gpus=[1,4]", "batch_per_card=2", "strategy=tensor", "grad_accumulation=8", machine=EIGHT_CORES)
    assert [(point.batch.micro_batch, point.batch.grad_accumulation) for point in spec.points] == [(1, 2), (1, 8)]
    assert (spec.solo.micro_batch, spec.solo.grad_accumulation) == (1, 2)


def test_cards_that_split_the_work_of_a_group_add_their_batches_to_it() -> None:
    weak = spec_of("gpus=4", "batch_per_card=6", "strategy.dp_shard=2", "strategy.tp=2", "grad_accumulation=3", machine=EIGHT_CORES).points[0]
    assert (weak.batch.batch_global, weak.batch.batch_per_data_rank, weak.batch.micro_batch) == (24, 12, 4)
    strong = spec_of("gpus=4", "scaling=strong", "batch_global=8", "strategy.tp=4", machine=EIGHT_CORES).points[0]
    assert (strong.batch.batch_global, strong.batch.batch_per_data_rank, strong.batch_per_card) == (8, 8, 2)


def test_the_plan_of_a_model_is_for_the_strategy_and_not_for_its_factory() -> None:
    workload = spec_of("model=gpt_tiny", "gpus=1").workload
    assert workload.tensor.plan["transformer.h.*.attn.c_attn"] == "colwise"
    assert workload.tensor.preparation == "scaling.workload.language:gpt_heads_apart"
    assert not {key for key in workload.model.arguments if key.startswith("tp_")}


def test_threads_are_the_same_for_all_points_and_never_more_than_cores() -> None:
    spec = spec_of("gpus=[1,4]", machine=EIGHT_CORES)
    assert spec.threads_per_rank == 2
    assert sorted(core for cores in spec.affinity for core in cores) == list(range(8))


def test_a_gpu_gets_longer_blocks_and_time_to_warm_up() -> None:
    on_cpu, on_gpu = spec_of().measure, spec_of(machine=FOUR_CARDS).measure
    assert (on_cpu.block_seconds, on_cpu.soak_seconds) == (0.5, 0.0)
    assert (on_gpu.block_seconds, on_gpu.soak_seconds) == (2.0, 30.0)
    assert spec_of("measure.block_seconds=3", "measure.soak_seconds=0", machine=FOUR_CARDS).measure.block_seconds == 3.0


@pytest.mark.parametrize(
    ("overrides", "machine", "expected"),
    [
        (["batch_per_card=0"], TWO_CORES, ["batch_per_card=0", "positive integer"]),
        (["batch_per_card=-5"], TWO_CORES, ["batch_per_card=-5", "positive integer"]),
        (["batch_per_card="], TWO_CORES, ["batch_per_card=(blank)", "positive integer"]),
        (["batch_per_card=2.5"], TWO_CORES, ["batch_per_card=2.5", "positive integer"]),
        (["batch_per_card=null"], TWO_CORES, ["batch_per_card=null", "positive integer"]),
        (["gpus=0"], TWO_CORES, ["gpus=0", "positive integer"]),
        (["gpus=[]"], TWO_CORES, ["gpus=[]", "gpus=2"]),
        (["gpus=[2,2]"], TWO_CORES, ["gpus=[2, 2]", "twice"]),
        (["gpus=[0,2]"], TWO_CORES, ["gpus=[0, 2]", "positive integer"]),
        (["gpus=many"], TWO_CORES, ["gpus=", "card count"]),
        (["gpus=true"], TWO_CORES, ["gpus=true", "card count"]),
        (["gpus=3"], TWO_CORES, ["gpus=3", "2 cores", "measure.oversubscribe=true"]),
        (["gpus=8"], FOUR_CARDS, ["gpus=8", "4 CUDA cards"]),
        (["device=cuda"], TWO_CORES, ["device=cuda", "device=cpu"]),
        (["device=tpu"], TWO_CORES, ['device="tpu"', "auto, cpu, cuda"]),
        (["learning_rate=nan"], TWO_CORES, ["learning_rate", "finite"]),
        (["learning_rate=inf"], TWO_CORES, ["learning_rate", "finite"]),
        (["learning_rate=0"], TWO_CORES, ["learning_rate=0", "positive"]),
        (["optimizer=adam"], TWO_CORES, ['optimizer="adam"', "sgd, adamw"]),
        (["recompute=half"], TWO_CORES, ['recompute="half"', "none, selective, full"]),
        (["compile=maybe"], TWO_CORES, ['compile="maybe"', "true or false"]),
        (["measure.memory_limit_gb=0"], TWO_CORES, ["measure.memory_limit_gb=0", "positive number of GB"]),
        (["measure.block_steps=0"], TWO_CORES, ["measure.block_steps=0", "positive integer"]),
        (["measure.rounds=0"], TWO_CORES, ["measure.rounds=0", "positive integer"]),
        (["measure.timeout=0"], TWO_CORES, ["measure.timeout=0", "positive"]),
        (["measure.rounds=50"], TWO_CORES, ["measure.rounds_max=40", "measure.rounds=50"]),
        (["scaling=strong"], TWO_CORES, ["batch_global=64"]),
        (["scaling=strong", "batch_global=7", "gpus=[1,2]"], TWO_CORES, ["batch_global=7", "gpus=2", "1, 7"]),
        (["batch_global=8"], TWO_CORES, ["batch_global", "scaling=strong"]),
        (["grad_accumulation=3", "batch_per_card=8"], TWO_CORES, ["grad_accumulation=3", "divisor of 8"]),
        (["gpus=2", "strategy.tp=4"], TWO_CORES, ["strategy.tp=4", "gpus=2", "1, 2"]),
        (["gpus=2", "model=resnet50", "+model.tp_plan=[a]"], TWO_CORES, ["model.tp_plan", "colwise"]),
        (["network=ib_ndr"], FOUR_CARDS, ["network=ib_ndr", "leave network out"]),
        (["gpus=4", "interconnect=nvlink"], TWO_CORES, ["interconnect=nvlink", "no GPU", "device=cpu"]),
        (["hardware=a100_sxm_80g"], TWO_CORES, ["hardware=a100_sxm_80g", "no GPU", "device=cpu"]),
        (["interconnect=nvlink", "device=cpu"], FOUR_CARDS, ["interconnect=nvlink", "never labelled"]),
        (["interconnect=pcie"], FOUR_CARDS, ["interconnect=pcie", "nvlink"]),
        (["hardware=a100_sxm_80g"], FOUR_CARDS, ["hardware=a100_sxm_80g", "h100_sxm_80g", "leave hardware out"]),
        (["hardware=b200"], Machine(cores=(0,), gpus=("Odd",), hardware=(None,)), ["hardware=b200", "Odd (not in the catalogue)"]),
        (["+surprise=1"], TWO_CORES, ["surprise", "unknown key"]),
        (["source=guess"], TWO_CORES, ['source="guess"', "auto, measure, predict, both"]),
        (["name=a/b"], TWO_CORES, ["name", "letters"]),
    ],
)
def test_a_bad_request_is_one_line_that_says_what_was_given_and_what_is_allowed(overrides: list[str], machine: Machine, expected: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        spec_of(*overrides, machine=machine)
    line = str(refusal.value)
    assert "\n" not in line
    for part in expected:
        assert part in line, line


def choice_of(*overrides: str, machine: Machine = TWO_CORES, others: Sequence[Machine] = ()) -> Choice:
    with initialize_config_dir(str(paths.conf()), version_base="1.3"):
        container: Any = OmegaConf.to_container(compose("run", overrides=["model=mlp", *overrides]), resolve=True)
    return choose(load(container), machine, run_id="test", others=others)


@pytest.mark.parametrize(
    ("overrides", "machine", "equipment", "reason"),
    [
        (["interconnect=nvlink"], TWO_CORES, "h100_sxm_80g over nvlink", "no GPU found here"),
        (["interconnect=pcie"], TWO_CORES, "h100_sxm_80g over pcie", "no GPU found here"),
        (["hardware=t4"], TWO_CORES, "t4 over pcie", "no GPU found here"),
        (["source=predict"], TWO_CORES, "h100_sxm_80g over nvlink", ""),
        (["gpus=8"], FOUR_CARDS, "h100_sxm_80g over nvlink", "this machine has 4 CUDA cards"),
        (["interconnect=pcie"], FOUR_CARDS, "h100_sxm_80g over pcie", "the cards of this machine are connected by nvlink"),
        (["hardware=a100_sxm_80g"], FOUR_CARDS, "a100_sxm_80g over nvlink", "the cards of this machine are h100_sxm_80g"),
        (["network=ib_ndr", "gpus=16"], FOUR_CARDS, "h100_sxm_80g over nvlink and ib_ndr", "this is one machine"),
        (["hardware=cpu", "interconnect=gloo"], TWO_CORES, "cpu over gloo", ""),
    ],
)
def test_what_is_not_here_is_predicted_and_the_reason_said(overrides: list[str], machine: Machine, equipment: str, reason: str) -> None:
    choice = (
        choice_of("gpus=4", *overrides, machine=machine) if not any(entry.startswith("gpus") for entry in overrides) else choice_of(*overrides, machine=machine)
    )
    assert not choice.measured
    assert (str(choice.equipment), choice.reason) == (equipment, reason)


def test_what_is_here_is_measured_and_both_predicts_beside_it() -> None:
    assert choice_of("gpus=[1,2]") == Choice(spec=spec_of("gpus=[1,2]"), equipment=None, measured=True)
    here = choice_of("source=both", machine=FOUR_CARDS)
    assert here.measured
    assert str(here.equipment) == "h100_sxm_80g over nvlink"
    beside = choice_of("source=both", "gpus=[1,2]", "hardware=cpu", "interconnect=gloo")
    assert (beside.measured, beside.spec.device, str(beside.equipment)) == (True, "cpu", "cpu over gloo")


def test_only_the_cards_that_a_curve_takes_must_be_of_one_kind_and_what_is_here_is_not_assumed() -> None:
    equipment = choice_of("source=both", "gpus=1", machine=MIXED).equipment
    assert equipment is not None
    assert (equipment.card.name, equipment.assumed) == ("t4", ())


def test_a_network_may_be_named_where_several_nodes_measure_and_both_predicts_their_layout() -> None:
    assert [point.nodes for point in spec_of("network=ib_ndr", "gpus=[4,8]", "source=measure", machine=FOUR_CARDS, others=[FOUR_CARDS]).points] == [1, 2]
    choice = choice_of("source=both", "network=ib_ndr", "gpus=[4,8]", machine=FOUR_CARDS, others=[FOUR_CARDS])
    assert choice.measured
    assert choice.equipment is not None
    assert (str(choice.equipment), choice.equipment.cards_per_node) == ("h100_sxm_80g over nvlink and ib_ndr", 4)
    twelve = choice_of("source=both", "gpus=12", machine=replace(FOUR_CARDS, gpus=FOUR_CARDS.gpus * 3, hardware=FOUR_CARDS.hardware * 3))
    assert twelve.equipment is not None
    assert twelve.equipment.cards_per_node == 12


def test_predicted_machines_are_filled_rank_by_rank() -> None:
    choice = choice_of("source=predict", "gpus=[4,16,20]", "network=ib_hdr", "gpus_per_node=8")
    assert [point.nodes for point in choice.spec.points] == [1, 2, 3]
    assert choice.spec.device == "cuda"


def test_predicted_machines_hold_eight_cards_or_as_many_as_the_nodes_asked_for_need() -> None:
    assert [point.nodes for point in choice_of("source=predict", "gpus=[8,16]", "network=ib_hdr").spec.points] == [1, 2]
    assert [point.nodes for point in choice_of("source=predict", "gpus=[4,16]", "network=ib_hdr", "nodes=4").spec.points] == [1, 4]


@pytest.mark.parametrize(
    ("overrides", "machine", "expected"),
    [
        (["source=measure", "gpus=4", "interconnect=nvlink"], TWO_CORES, ["interconnect=nvlink", "no GPU", "device=cpu"]),
        (["source=both", "gpus=8"], FOUR_CARDS, ["gpus=8", "4 CUDA cards"]),
        (["interconnect=nvlink"], TWO_CORES, ["gpus=4", "number of cards"]),
        (["interconnect=nvlink", "gpus=16"], TWO_CORES, ["gpus=16", "2 machines of gpus_per_node=8", "network=ib_ndr", "gpus_per_node=16"]),
        (["source=predict", "gpus=4", "network=ib_hdr", "nodes=3"], TWO_CORES, ["gpus=4", "nodes=3"]),
        (["source=predict", "gpus=2", "device=cpu"], TWO_CORES, ["hardware=cpu", "memory_bandwidth_gbs"]),
        (["source=both", "gpus=2"], TWO_CORES, ["hardware=cpu"]),
        (["source=predict", "gpus=2", "input=loader"], TWO_CORES, ["input=loader"]),
        (["interconnect=nvlink", "device=cpu", "gpus=2"], FOUR_CARDS, ["interconnect=nvlink", "never labelled"]),
        (["gpus=3"], TWO_CORES, ["gpus=3", "2 cores"]),
        (["source=both", "gpus=2"], UNKNOWN, ["'Odd GPU'", "hardware/odd_gpu.yaml", "hardware=h100_sxm_80g"]),
        (["interconnect=nvlink", "gpus=2"], UNKNOWN, ["'Odd GPU'", "hardware/odd_gpu.yaml", "hardware=h100_sxm_80g"]),
        (["source=both", "gpus=2", "network=ib_ndr"], FOUR_CARDS, ["network=ib_ndr", "leave network out"]),
        (["source=both", "gpus=2"], MIXED, ["t4 and a10", "hardware=t4", "CUDA_VISIBLE_DEVICES"]),
        (["gpus=8"], MIXED, ["t4 and a10", "hardware=t4"]),
    ],
)
def test_what_can_be_neither_measured_nor_predicted_is_refused(overrides: list[str], machine: Machine, expected: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        choice_of(*overrides, machine=machine)
    line = str(refusal.value)
    assert "\n" not in line
    for part in expected:
        assert part in line, line


def test_the_cards_and_link_that_are_here_may_be_named() -> None:
    assert spec_of("hardware=h100_sxm_80g", "interconnect=nvlink", machine=FOUR_CARDS).device == "cuda"


def test_oversubscribing_is_allowed_when_asked_for() -> None:
    spec = spec_of("gpus=4", "measure.oversubscribe=true")
    assert spec.affinity == ((0,), (1,), (0,), (1,))
    assert spec.threads_per_rank == 1
