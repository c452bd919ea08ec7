"""What a strategy and a model cannot do together is refused in one line that lists what they can, before any process starts."""

from __future__ import annotations

from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from scaling import paths
from scaling.config import load
from scaling.errors import UserError
from scaling.points import Machine, resolve
from scaling.spec import RunSpec
from scaling.strategies.fit import check_strategy

# torch.distributed.optim, which zero1 needs, compiles functions with TorchScript when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")


def spec_of(*overrides: str) -> RunSpec:
    with initialize_config_dir(str(paths.conf()), version_base="1.3"):
        container: Any = OmegaConf.to_container(compose("run", overrides=list(overrides)), resolve=True)
    return resolve(load(container), Machine(cores=tuple(range(16)), gpus=()), run_id="test")


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=mlp", "gpus=[1,2,4]"],
        ["model=mlp", "strategy=fsdp", "gpus=4", "strategy.dp_replicate=2"],
        ["model=gpt_tiny", "gpus=4", "strategy.dp_shard=2", "strategy.tp=2"],
        ["model=gpt_tiny", "strategy=tensor", "gpus=[1,2,4]"],
        ["model=llama_tiny", "strategy=tensor", "gpus=4", "strategy.sequence_parallel=true"],
        ["model=bert_base", "strategy=tensor", "gpus=12"],
        ["model=llama_tiny", "model.vocab=4095", "strategy=tensor", "gpus=2"],
        ["model=gpt_tiny", "model.vocab=4095", "strategy=tensor", "gpus=2"],
        ["model=resnet50", "strategy=tensor", "gpus=1"],
        ["model=resnet50", "strategy=fsdp", "gpus=2"],
    ],
)
def test_what_fits_passes(overrides: list[str]) -> None:
    check_strategy(spec_of(*overrides))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model=gpt_tiny", "strategy=tensor", "gpus=3"], ["strategy.tp=3", "num_attention_heads=4", "1, 2, 4"]),
        (["model=llama_tiny", "model.key_value_heads=2", "strategy=tensor", "gpus=4"], ["strategy.tp=4", "num_key_value_heads=2", "1, 2"]),
        (["model=mlp", "model.width=20", "strategy=tensor", "gpus=8"], ["strategy.tp=8", "in_features=20", "1, 2, 4, 5, 10, 20"]),
        (["model=resnet50", "strategy=tensor", "gpus=2"], ["no tensor-parallel plan", "write tp_plan", "colwise"]),
        (["model=gpt_tiny", "~model.tp_preparation", "strategy=tensor", "gpus=2"], ["Conv1D", "tp_preparation"]),
        (["model=resnet50", "+model.tp_plan={nothing: colwise}", "strategy=tensor", "gpus=2"], ["no layer of ResNet", "nothing"]),
        (["model=resnet50", "+model.tp_plan={classifier: diagonal}", "strategy=tensor", "gpus=2"], ["diagonal", "known: colwise"]),
        (["model=gpt_tiny", "strategy=tensor", "strategy.sequence_parallel=true", "gpus=2"], ["sequence_parallel", "tp_sequence_plan"]),
        (["model=mlp", "strategy=zero1", "strategy.dp_shard=2", "gpus=4"], ["strategy.dp_shard=2", "zero1", "dp_replicate only"]),
        (["model=mlp", "strategy=fsdp", "strategy.pp=2", "gpus=4"], ["strategy.pp=2", "fsdp", "dp_replicate, dp_shard, tp"]),
        (["model=mlp", "strategy=fsdp", "strategy.param_dtype=fp16", "gpus=2"], ["strategy.param_dtype=fp16", "float16"]),
        (["model=mlp", "strategy=ddp", "strategy.bucket_mb=0", "gpus=2"], ["strategy.bucket_mb=0", "greater than 0"]),
        (["model=mlp", "+strategy.buckets=3", "gpus=2"], ["strategy.buckets", "bucket_mb"]),
        (["model=mlp", "strategy=zero1", "+strategy.buckets=3", "gpus=2"], ["zero1", "buckets", "bucket_mb, static_graph, no_sync"]),
        (["model=mlp", "strategy._target_=no.such:thing", "gpus=2"], ["no.such:thing", "cannot be found"]),
    ],
)
def test_what_does_not_fit_is_one_line_that_lists_what_does(overrides: list[str], expected: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        check_strategy(spec_of(*overrides))
    line = str(refusal.value)
    assert "\n" not in line
    for part in expected:
        assert part in line, line
