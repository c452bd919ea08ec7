"""The record of one card as its YAML file states it; units stand in the names, every rate is dense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from scaling.catalogue.pricing import Pricing

GIB = 2**30
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]
PciDeviceId = Annotated[str, Field(pattern=r"^[0-9A-Fa-f]{4}$")]

# NVML reports less than the nominal size: ECC on GDDR takes 1/16 and the firmware some more (a 16 GiB T4 shows 15109 MiB, 0.922).
# Variants that share a name or an id lie further apart than that (10 and 12 GiB: 0.833), so the two bounds never meet.
_MEMORY_LOW, _MEMORY_HIGH = 0.90, 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakTflops:
    """Dense peaks in TFLOPS (1e12 FLOP/s, 1 MAC = 2 FLOPs), 16 and 8 bit with fp32 accumulation; ``None``: no such unit, or not known."""

    __pydantic_config__ = _STRICT
    fp32: Positive | None = None
    tf32: Positive | None = None
    fp16: Positive | None = None
    bf16: Positive | None = None
    fp8: Positive | None = None
    fp64: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLink:
    """The card's own links to other cards.

    Attributes:
        generation: NVLink generation; ``None`` for xGMI.
        links: Links of one card.
        bidir_gbs: All links of one card together, both directions added, in 1e9 bytes/s.
        topology: How cards are joined (``bridge_pair``, ``mesh``, ``nvswitch``, ...).
    """

    __pydantic_config__ = _STRICT
    kind: Literal["nvlink", "xgmi"]
    generation: Count | None = None
    links: Count
    bidir_gbs: Positive
    topology: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Pcie:
    """The card's PCIe side.

    Attributes:
        p2p: Whether the stock driver lets two such cards copy to each other over PCIe; ``None``: depends, or not known.
        p2p_note: What that rests on, where it is not plain.
    """

    __pydantic_config__ = _STRICT
    generation: Count
    lanes: Count
    p2p: bool | None = None
    p2p_note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """An example price of one card; users put their own beside it.

    Attributes:
        msrp: List price at launch.
        low: Lowest price found, of the given kind.
        high: Highest price found, of the given kind.
        kind: What was priced.
        date: When, as far as known (``2026-05``).
    """

    __pydantic_config__ = _STRICT
    currency: Text
    msrp: Positive | None = None
    low: Positive | None = None
    high: Positive | None = None
    kind: Literal["msrp", "list", "street", "used", "new"]
    date: str | None = None
    source: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One card: the fields without a default are the keys that a YAML file must have.

    Attributes:
        name: The file's name without ``.yaml``; what users write after ``hardware=``.
        nvml_names: Exact names that NVML (or the vendor's own library) gives it.
        pci_device_ids: Device halves of its PCI ids, four hex digits each.
        memory_gb: Nominal memory size in units of 2^30 bytes, which is what vendors print as GB; ``None`` for a process alone, whose part of a host is unknown.
        memory_bandwidth_gbs: In 1e9 bytes/s.
        boost_mhz: Clock behind the vendor's fp32 peak.
        tensor_boost_mhz: Clock behind the tensor-core peaks where it is another one.
        sm_count: Streaming multiprocessors (compute units on AMD).
        power_limit_watts: Default board power limit.
        pricing: Constants that turn operators and collectives into seconds.
        source: Where the figures come from.
    """

    __pydantic_config__ = _STRICT
    name: Text
    vendor: Text
    nvml_names: tuple[Text, ...]
    pci_device_ids: tuple[PciDeviceId, ...]
    memory_gb: Positive | None
    peak_tflops: PeakTflops
    source: Text
    architecture: str | None = None
    compute_capability: str | None = None
    form: str | None = None
    memory_type: str | None = None
    memory_bandwidth_gbs: Positive | None = None
    boost_mhz: Positive | None = None
    tensor_boost_mhz: Positive | None = None
    sm_count: Count | None = None
    power_limit_watts: Positive | None = None
    link: CardLink | None = None
    pcie: Pcie | None = None
    ecc: bool | None = None
    price: Price | None = None
    pricing: Pricing | None = None
    confidence: Literal["high", "medium", "low"] = "low"
    notes: str = ""

    @property
    def is_process(self) -> bool:
        """Whether it is a process with cores of its own, as ``device=cpu`` makes one (``form: process``): such a card launches nothing, it computes."""
        return self.form == "process"

    @property
    def memory_range_bytes(self) -> tuple[float, float]:
        """Total memory, in bytes, that NVML may report for this card; NVML reports no process."""
        nominal = (self.memory_gb or 0) * GIB
        return nominal * _MEMORY_LOW, nominal * _MEMORY_HIGH

    def recognition_keys(self) -> frozenset[str]:
        """What the card is recognised by, next to its memory: PCI device ids in upper case and exact names."""
        return frozenset(pci.upper() for pci in self.pci_device_ids) | frozenset(self.nvml_names)
