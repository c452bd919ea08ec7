"""The formats of CUDA's autocast, against the installed torch's own header."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from scaling.predict.promotion import FULL_PRECISION, LOWER_PRECISION, cuda_dtype


def listed(macro: str) -> set[str]:
    header = Path(str(find_spec("torch").origin)).parent / "include" / "ATen" / "autocast_mode.h"  # type: ignore[union-attr]
    text = header.read_text(encoding="utf-8")
    body = re.search(rf"#define {macro}\(_\)(.*?)\n\n", text, re.DOTALL)
    assert body is not None
    return set(re.findall(r"_\((\w+)", body.group(1)))


def test_the_lists_are_those_of_the_installed_torch() -> None:
    assert listed("AT_FORALL_LOWER_PRECISION_FP") == LOWER_PRECISION
    # norm has a signature of its own and stands in no plain list.
    assert listed("AT_FORALL_FP32") | listed("AT_FORALL_FP32_SET_OPT_DTYPE") | {"norm"} == FULL_PRECISION


@pytest.mark.parametrize(
    ("operator", "autocast", "inputs", "expected"),
    [
        ("aten.mm.default", "bf16", ["fp32", "fp32"], "bf16"),
        ("aten.mm.default", None, ["fp32", "fp32"], "fp32"),
        ("aten.layer_norm.default", "fp16", ["fp16"], "fp32"),
        ("softmax", "bf16", ["bf16"], "fp32"),
        ("aten.add.Tensor", "bf16", ["bf16", "fp32"], "fp32"),
        ("aten.gelu", "bf16", ["bf16"], "bf16"),
        ("aten.relu_", "fp16", ["fp16"], "fp16"),
        ("aten.mm", "bf16", ["fp64", "fp64"], "fp64"),
    ],
)
def test_an_operator_computes_in_the_format_of_its_list(operator: str, autocast: str | None, inputs: list[str], expected: str) -> None:
    assert cuda_dtype(operator, autocast, inputs) == expected


def test_an_operator_without_floating_inputs_is_refused() -> None:
    with pytest.raises(ValueError, match="arange"):
        cuda_dtype("arange", "bf16", [])
