"""The precision reported is the one that ran."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from scaling.errors import UserError
from scaling.paths import conf
from scaling.workload.precision import AUTOCAST, RunningPrecision, apply_matmul_mode, cpu_flags, on_cpu, on_cuda, resolve

FAST_CPU = frozenset({"avx512f", "amx_bf16", "avx512_fp16"})


@pytest.fixture
def matmul_mode_kept() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def test_every_precision_file_names_a_known_precision() -> None:
    names = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (conf() / "precision").glob("*.yaml")}
    assert names == {name: {"name": name} for name in AUTOCAST}


def test_tf32_on_a_cpu_runs_as_fp32_and_says_so() -> None:
    running = on_cpu("tf32", FAST_CPU)
    assert (running.name, running.autocast_dtype, running.use_scaler) == ("fp32", None, False)
    assert "tf32 does not exist on a CPU" in running.notes[0]
    assert resolve("tf32", "cpu").name == "fp32"


def test_fp32_runs_everywhere_without_a_note() -> None:
    plain = RunningPrecision(name="fp32", autocast_dtype=None, use_scaler=False)
    assert on_cpu("fp32", frozenset()) == on_cuda("fp32", (6, 1), "an old card") == resolve("fp32", "cpu") == plain


@pytest.mark.parametrize(("precision", "dtype", "scaled"), [("bf16", torch.bfloat16, False), ("fp16", torch.float16, True)])
def test_half_precision_is_autocast_and_only_fp16_scales_its_loss(precision: str, dtype: torch.dtype, scaled: bool) -> None:
    for running in (on_cpu(precision, FAST_CPU), on_cuda(precision, (9, 0), "a new card")):
        assert running == RunningPrecision(name=precision, autocast_dtype=dtype, use_scaler=scaled)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_cpu_without_fast_units_is_named(precision: str) -> None:
    running = on_cpu(precision, frozenset({"avx2", "avx512f"}))
    assert running.name == precision
    assert f"no fast units for {precision}" in running.notes[0]


@pytest.mark.parametrize(
    ("precision", "capability", "name", "noted"),
    [
        ("tf32", (7, 5), "fp32", True),
        ("tf32", (8, 0), "tf32", False),
        ("bf16", (7, 5), "bf16", True),
        ("bf16", (8, 0), "bf16", False),
        ("fp16", (6, 1), "fp16", True),
        ("fp16", (7, 0), "fp16", False),
    ],
)
def test_a_card_runs_what_its_compute_capability_allows(precision: str, capability: tuple[int, int], name: str, noted: bool) -> None:
    running = on_cuda(precision, capability, "the card")
    assert running.name == name
    assert [("the card has no" in note) for note in running.notes] == [True] * noted


def test_an_unknown_precision_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="'fp64' is unknown; allowed: fp32, tf32, bf16, fp16"):
        resolve("fp64", "cpu")


def test_cpu_flags_are_read_from_x86_and_arm(tmp_path: Path) -> None:
    x86, arm = tmp_path / "x86", tmp_path / "arm"
    x86.write_text("processor\t: 0\nflags\t\t: fpu amx_bf16 avx512_fp16\n\nprocessor\t: 1\nflags\t\t: other\n", encoding="utf-8")
    arm.write_text("processor\t: 0\nFeatures\t: fp asimd asimdhp bf16\n", encoding="utf-8")
    assert cpu_flags(x86) == {"fpu", "amx_bf16", "avx512_fp16"}
    assert on_cpu("bf16", cpu_flags(arm)).notes == on_cpu("fp16", cpu_flags(arm)).notes == ()
    assert cpu_flags(tmp_path / "missing") == frozenset()


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_tf32_is_off_unless_asked_for(name: str, matmul_mode_kept: None) -> None:
    apply_matmul_mode("tf32")
    assert (torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision) == ("tf32", "tf32")
    apply_matmul_mode(name)
    assert "tf32" not in (torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.rnn.fp32_precision)


@pytest.mark.parametrize("name", ["fp32", "tf32"])
def test_older_readers_of_the_mode_still_work(name: str, matmul_mode_kept: None) -> None:
    apply_matmul_mode(name)
    tf32 = name == "tf32"
    assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == tf32
    assert torch.get_float32_matmul_precision() == ("high" if tf32 else "highest")
