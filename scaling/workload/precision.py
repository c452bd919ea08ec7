"""Which arithmetic really runs: the precision asked for, against what the device can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from scaling.errors import UserError
from scaling.spec import LOW_PRECISION

AUTOCAST: Mapping[str, torch.dtype | None] = {"fp32": None, "tf32": None, **{name: getattr(torch, dtype) for name, dtype in LOW_PRECISION.items()}}
# Flags that /proc/cpuinfo shows for native matrix or vector units of a dtype (x86, then Arm).
FAST_CPU_FLAGS = {"bf16": frozenset({"amx_bf16", "avx512_bf16", "bf16"}), "fp16": frozenset({"amx_fp16", "avx512_fp16", "asimdhp"})}
# First compute capability with tensor cores for the dtype (CUDA C++ Programming Guide, table of arithmetic by capability).
FIRST_CAPABILITY = {"tf32": (8, 0), "bf16": (8, 0), "fp16": (7, 0)}


@dataclass(frozen=True, slots=True)
class RunningPrecision:
    """The precision that runs, which is the one reported.

    Attributes:
        name: ``fp32``, ``tf32``, ``bf16`` or ``fp16``.
        autocast_dtype: Dtype of autocast regions; ``None`` for no autocast.
        use_scaler: Whether the loss is scaled, so that small fp16 gradients do not become zero.
        notes: What differs from what was asked for, and missing fast units.
    """

    name: str
    autocast_dtype: torch.dtype | None
    use_scaler: bool
    notes: tuple[str, ...] = ()


def resolve(precision: str, device: torch.device | str) -> RunningPrecision:
    """Return what runs when ``precision`` is asked for on ``device``.

    Raises:
        UserError: No such precision.
    """
    if precision not in AUTOCAST:
        raise UserError(f"precision {precision!r} is unknown; allowed: {', '.join(AUTOCAST)}")
    if torch.device(device).type == "cuda":
        return on_cuda(precision, torch.cuda.get_device_capability(device), torch.cuda.get_device_name(device))
    return on_cpu(precision, cpu_flags(Path("/proc/cpuinfo")))


def on_cpu(precision: str, flags: frozenset[str]) -> RunningPrecision:
    """Return what runs on a CPU with these flags; TF32 is a format of NVIDIA's tensor cores, so a CPU runs fp32."""
    if precision == "tf32":
        return _running("fp32", "tf32 does not exist on a CPU: ran and reported as fp32")
    fast = FAST_CPU_FLAGS.get(precision)
    if fast is not None and not flags & fast:
        return _running(precision, f"this CPU has no fast units for {precision}: its speed says nothing about {precision} on other hardware")
    return _running(precision)


def on_cuda(precision: str, capability: tuple[int, int], name: str) -> RunningPrecision:
    """Return what runs on a card of that compute capability."""
    if precision == "fp32" or capability >= FIRST_CAPABILITY[precision]:
        return _running(precision)
    if precision == "tf32":
        return _running("fp32", f"{name} has no TF32 units: ran and reported as fp32")
    return _running(precision, f"{name} has no fast units for {precision}: it is emulated or runs on the general units")


def _running(name: str, *notes: str) -> RunningPrecision:
    return RunningPrecision(name=name, autocast_dtype=AUTOCAST[name], use_scaler=name == "fp16", notes=notes)


def cpu_flags(cpuinfo: Path) -> frozenset[str]:
    """Return the feature flags of the first core (``flags`` on x86, ``Features`` on Arm); empty where there is no such file."""
    if not cpuinfo.is_file():
        return frozenset()
    for line in cpuinfo.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def apply_matmul_mode(name: str) -> None:
    """Switch TF32 on for ``tf32`` and off for everything else, in matrix products and in convolutions.

    torch leaves it on for convolutions by default, so an ``fp32`` result would not be fp32. These two switches keep torch's
    older and newer settings in agreement; writing ``fp32_precision`` alone makes every reader of the older ones raise.
    """
    tf32 = name == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
