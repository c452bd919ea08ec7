"""What a step exchanges, against the bytes and calls that follow from the model's shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trace_cases import calls, of_step_case

from scaling.analysis.collectives import accumulation_hint, busiest
from scaling.predict.tracing import traced_step
from scaling.step_records import Collective
from scaling.strategies.exchange import GROUP_ARGUMENTS, KINDS, NAMESPACES, axis_of, kind_of

WIDTH, DEPTH, CLASSES, MICRO_BATCH = 16, 3, 8, 4
PARAMETER_BYTES = 4 * (DEPTH * (WIDTH * WIDTH + WIDTH) + WIDTH * CLASSES + CLASSES)
SMALL = {"target": "scaling.workload.perceptron:mlp", "arguments": {"width": WIDTH, "depth": DEPTH, "classes": CLASSES}}
LAYERS, HIDDEN, SEQ, VOCAB = 2, 32, 8, 64
GPT = {
    "target": "scaling.workload.language:gpt",
    "model": "gpt_tiny",
    "arguments": {"layers": LAYERS, "hidden": HIDDEN, "heads": 4, "seq": SEQ, "vocab": VOCAB},
}
ACTIVATION_BYTES = 4 * MICRO_BATCH * SEQ * HIDDEN
TWO_RANKS: dict[str, dict[str, Any]] = {
    "ddp": {**SMALL, "strategy": "ddp", "degrees": {"dp_replicate": 2}, "optimizer": "adamw"},
    "ddp_large": {
        **SMALL,
        "arguments": {"width": 512, "depth": 4, "classes": 8},
        "strategy": "ddp",
        "degrees": {"dp_replicate": 2},
        "options": {"bucket_mb": 1},
    },
    "ddp_buffers": {"target": "step_cases:normalised", "strategy": "ddp", "degrees": {"dp_replicate": 2}},
    "accumulated": {**SMALL, "strategy": "ddp", "degrees": {"dp_replicate": 2}, "accumulation": 4},
    "accumulated_each": {**SMALL, "strategy": "ddp", "degrees": {"dp_replicate": 2}, "accumulation": 4, "options": {"no_sync": False}},
    "zero1": {**SMALL, "strategy": "zero1", "degrees": {"dp_replicate": 2}, "optimizer": "adamw"},
    "fsdp": {**SMALL, "strategy": "fsdp", "degrees": {"dp_shard": 2}, "optimizer": "adamw"},
    "fsdp_kept": {**SMALL, "strategy": "fsdp", "degrees": {"dp_shard": 2}, "options": {"reshard": False}},
    "tensor": {**GPT, "strategy": "tensor", "degrees": {"tp": 2}},
    "tensor_recomputed": {**GPT, "strategy": "tensor", "degrees": {"tp": 2}, "recompute": "full"},
    "fsdp_selective": {**SMALL, "strategy": "fsdp", "degrees": {"dp_shard": 2}, "recompute": "selective"},
    "pipeline": {**GPT, "strategy": "pipeline", "degrees": {"pp": 2}, "options": {"schedule": "gpipe", "microbatches": 2}},
}
FOUR_RANKS: dict[str, dict[str, Any]] = {
    "product": {**GPT, "strategy": "fsdp", "degrees": {"dp_shard": 2, "tp": 2}},
    "hybrid": {**SMALL, "strategy": "fsdp", "degrees": {"dp_replicate": 2, "dp_shard": 2}},
}


@pytest.fixture(scope="module")
def two(observe: Any) -> Any:
    return observe(2, TWO_RANKS)


@pytest.fixture(scope="module")
def four(observe: Any) -> Any:
    return observe(4, FOUR_RANKS)


def exchanged(seen: Any, case: str) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (calls, bytes) by kind and axis, after checking that all ranks saw the same."""
    assert all(rank["collectives"] == seen[case][0]["collectives"] for rank in seen[case])
    return {(entry["kind"], entry["axis"]): (entry["calls_per_step"], entry["payload_bytes_per_step"]) for entry in seen[case][0]["collectives"]}


@pytest.mark.ranks
class TestDataParallel:
    def test_ddp_all_reduces_its_gradients_exactly_once(self, two: Any) -> None:
        assert exchanged(two, "ddp") == {("all_reduce", "dp_replicate"): (1, PARAMETER_BYTES)}

    def test_every_bucket_of_the_reducer_is_seen(self, two: Any) -> None:
        calls, payload = exchanged(two, "ddp_large")["all_reduce", "dp_replicate"]
        assert payload == 4 * (4 * (512 * 512 + 512) + 512 * 8 + 8)
        assert 3 <= calls <= 6

    def test_buffers_of_batch_normalisation_are_broadcast_and_listed_apart(self, two: Any) -> None:
        found = exchanged(two, "ddp_buffers")
        assert found["all_reduce", "dp_replicate"][1] == 4 * (16 * 16 + 16 + 2 * 16 + 16 * 8 + 8)
        assert found["broadcast", "dp_replicate"] == (2, 4 * 2 * 16 + 8)

    def test_four_all_reduces_without_no_sync_and_one_with_it(self, two: Any) -> None:
        assert exchanged(two, "accumulated") == {("all_reduce", "dp_replicate"): (1, PARAMETER_BYTES)}
        assert exchanged(two, "accumulated_each") == {("all_reduce", "dp_replicate"): (4, 4 * PARAMETER_BYTES)}

    def test_zero1_also_broadcasts_each_parameter_once(self, two: Any) -> None:
        found = exchanged(two, "zero1")
        assert found["all_reduce", "dp_replicate"] == (1, PARAMETER_BYTES)
        assert found["broadcast", "dp_replicate"] == (2, PARAMETER_BYTES)


@pytest.mark.ranks
class TestShardedAndTensorParallel:
    def test_fsdp_gathers_every_layer_forward_and_backward_and_scatters_gradients_once(self, two: Any) -> None:
        layers = DEPTH + 1
        assert exchanged(two, "fsdp") == {
            ("all_gather", "dp_shard"): (2 * layers, 2 * PARAMETER_BYTES),
            ("reduce_scatter", "dp_shard"): (layers, PARAMETER_BYTES),
        }

    def test_parameters_kept_after_forward_are_gathered_once(self, two: Any) -> None:
        assert exchanged(two, "fsdp_kept")["all_gather", "dp_shard"] == (DEPTH + 1, PARAMETER_BYTES)

    def test_tensor_parallel_all_reduces_two_activations_a_block_each_way(self, two: Any) -> None:
        # Megatron-LM, arXiv 1909.08053, section 3: f and g are one all-reduce each, in attention and in the feed-forward part; the embedding ends
        # with one, the head begins with one on the way back, and its output is put together for the loss.
        found = exchanged(two, "tensor")
        assert found["all_reduce", "tp"] == (4 * LAYERS + 2, (4 * LAYERS + 2) * ACTIVATION_BYTES)
        assert found["all_gather", "tp"] == (1, ACTIVATION_BYTES // HIDDEN * VOCAB)
        assert set(found) == {("all_reduce", "tp"), ("all_gather", "tp")}

    def test_recomputing_a_block_repeats_the_all_reduce_inside_it_and_not_its_last(self, two: Any) -> None:
        assert exchanged(two, "tensor_recomputed")["all_reduce", "tp"] == (5 * LAYERS + 2, (5 * LAYERS + 2) * ACTIVATION_BYTES)

    def test_recomputing_under_fsdp_gathers_no_more_than_backward_does_anyway(self, two: Any) -> None:
        assert exchanged(two, "fsdp_selective") == exchanged(two, "fsdp")

    def test_pipeline_stages_send_activations_one_way_and_gradients_the_other(self, two: Any) -> None:
        for rank in two["pipeline"]:
            found = {(entry["kind"], entry["axis"]): (entry["calls_per_step"], entry["payload_bytes_per_step"]) for entry in rank["collectives"]}
            # Two micro-batches of half the samples each, and the gradient of the embedding that both stages share.
            assert found["send", "pp"] == found["recv", "pp"] == (2 + 1, ACTIVATION_BYTES + 4 * VOCAB * HIDDEN)

    def test_a_product_exchanges_on_both_axes_and_names_them(self, four: Any) -> None:
        found = exchanged(four, "product")
        assert found["all_reduce", "tp"] == (4 * LAYERS + 2, (4 * LAYERS + 2) * ACTIVATION_BYTES)
        assert {kind for kind, axis in found if axis == "dp_shard"} == {"all_gather", "reduce_scatter"}

    def test_hybrid_sharding_all_reduces_the_shards_across_copies(self, four: Any) -> None:
        found = exchanged(four, "hybrid")
        assert found["reduce_scatter", "dp_shard"] == (DEPTH + 1, PARAMETER_BYTES)
        assert found["all_reduce", "dp_replicate"] == (DEPTH + 1, PARAMETER_BYTES // 2)


@pytest.mark.ranks
class TestTheTraceSaysTheSame:
    """What is predicted to be exchanged is what was: call by call, byte by byte."""

    @pytest.mark.parametrize("case", TWO_RANKS)
    def test_on_two_ranks(self, two: Any, case: str) -> None:
        self._compare(TWO_RANKS[case], two[case])

    @pytest.mark.parametrize("case", FOUR_RANKS)
    def test_on_four_ranks(self, four: Any, case: str) -> None:
        self._compare(FOUR_RANKS[case], four[case])

    def _compare(self, case: dict[str, Any], seen: list[dict[str, Any]]) -> None:
        step = traced_step(*of_step_case(case, len(seen)), folder=None)
        for rank, found in enumerate(seen):
            measured: dict[tuple[str, str], list[int]] = {}
            for axis, kind, payload in found["calls"]:
                measured.setdefault((axis, kind), []).append(payload)
            assert calls(step, rank * len(step.lanes) // len(seen)) == measured


class TestMemoryOfStrategies:
    pytestmark = pytest.mark.ranks

    def test_ddp_holds_everything_and_its_buckets(self, two: Any) -> None:
        for rank in two["ddp"]:
            memory = rank["memory"]
            assert (memory["parameters"], memory["gradients"]) == (PARAMETER_BYTES, PARAMETER_BYTES)
            assert memory["optimizer"] == 2 * PARAMETER_BYTES + 4 * 2 * (DEPTH + 1)  # and a step count for each parameter
            assert memory["other"] >= PARAMETER_BYTES

    def test_zero1_shards_the_optimizer_state_alone(self, two: Any) -> None:
        parts = [rank["memory"] for rank in two["zero1"]]
        assert sum(part["optimizer"] for part in parts) == 2 * PARAMETER_BYTES + 4 * 2 * (DEPTH + 1)
        assert all(0 < part["optimizer"] < 2 * PARAMETER_BYTES for part in parts)
        assert all(part["parameters"] == PARAMETER_BYTES for part in parts)

    def test_fsdp_shards_parameters_gradients_and_state(self, two: Any) -> None:
        for rank in two["fsdp"]:
            memory = rank["memory"]
            assert (memory["parameters"], memory["gradients"]) == (PARAMETER_BYTES // 2, PARAMETER_BYTES // 2)
            assert memory["optimizer"] == PARAMETER_BYTES + 4 * 2 * (DEPTH + 1)


def operators_with_a_group() -> list[str]:
    schemas = torch._C._jit_get_all_schemas()
    return [
        schema.name.partition("::")[2]
        for schema in schemas
        if schema.name.partition("::")[0] in NAMESPACES and any(argument.name in GROUP_ARGUMENTS for argument in schema.arguments)
    ]


def test_every_collective_operator_of_this_torch_has_a_kind() -> None:
    names = operators_with_a_group()
    assert len(names) > 25
    unknown = {name for name in names if kind_of(name) not in KINDS.values()}
    assert unknown <= {"batch_p2p_ops"}  # several sends and receives in one operator: listed under its own name


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("allreduce_", "all_reduce"),
        ("_allgather_base_", "all_gather"),
        ("all_gather_into_tensor", "all_gather"),
        ("_reduce_scatter_base_", "reduce_scatter"),
        ("reduce_", "reduce"),
        ("recv_any_source_", "recv"),
        ("alltoall_base_", "all_to_all"),
    ],
)
def test_kinds_follow_the_operators_names(operator: str, kind: str) -> None:
    assert kind_of(operator) == kind


def test_an_axis_is_named_after_the_coordinate_in_which_its_ranks_differ() -> None:
    degrees = {"pp": 2, "dp_shard": 2, "tp": 2}
    assert [axis_of(ranks, degrees) for ranks in ([0, 1], [5, 7], [2, 6], [0, 1, 2, 3], range(8))] == ["tp", "dp_shard", "pp", "dp_shardxtp", "ppxdp_shardxtp"]


@given(st.lists(st.integers(2, 3), min_size=1, max_size=3), st.data())
def test_every_row_of_a_mesh_is_named_after_its_own_axis(sizes: list[int], data: st.DataObject) -> None:
    names = ["pp", "dp_shard", "tp"][: len(sizes)]
    axis = data.draw(st.integers(0, len(sizes) - 1))
    mesh = torch.arange(torch.tensor(sizes).prod().item()).view(*sizes).movedim(axis, -1).reshape(-1, sizes[axis])
    row = mesh[data.draw(st.integers(0, len(mesh) - 1))].tolist()
    assert axis_of(row, dict(zip(names, sizes, strict=True))) == names[axis]


def test_the_busiest_rank_stands_for_the_point() -> None:
    def send(calls: int, payload: int) -> Collective:
        return Collective(kind="send", axis="pp", calls_per_step=calls, payload_bytes_per_step=payload)

    reduce = Collective(kind="all_reduce", axis="dp_replicate", calls_per_step=1, payload_bytes_per_step=5)
    assert busiest([(send(4, 400), reduce), (send(8, 800),)]) == (reduce, send(8, 800))
    assert busiest([]) == ()


def test_the_hint_comes_where_no_sync_would_save_exchanges_and_nowhere_else() -> None:
    assert "each of the 4 micro-batches" in accumulation_hint(4, no_sync=False)
    assert [accumulation_hint(1, no_sync=False), accumulation_hint(4, no_sync=True), accumulation_hint(4, no_sync=None)] == ["", "", ""]
