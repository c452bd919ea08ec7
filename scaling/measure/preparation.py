"""What is known of a launch before its first round, and how the ranks' answers become records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from scaling.errors import UserError
from scaling.measure.baseline import SoloPlan
from scaling.records import RankReport
from scaling.step_records import Collective, FlopCount, MemoryUse


@dataclass(slots=True, kw_only=True)
class Preparation:
    """What is known before the first round.

    Attributes:
        reports: What each rank says of itself.
        flops: Model FLOPs of the solo step.
        solo: What one card alone runs; ``None`` while that is not known.
        fits_one_card: ``False`` once it is known that nothing fits one card: then there is no baseline.
        warmup_steps: Warm-up steps run for each point (all its programs run at least so many).
        unproven: Programs whose removal of communication could not be proven; their rungs (``sharded``, ``inside``) are withheld.
        collectives: What each rank of a point exchanges in a step, by point name.
        memory: What each rank of a point holds in a step, by point name.
        notes: Remarks by point name.
    """

    reports: tuple[RankReport, ...] = ()
    flops: FlopCount | None = None
    solo: SoloPlan | None = None
    fits_one_card: bool = True
    tokens_per_sample: int | None = None
    warmup_steps: dict[str, int] = field(default_factory=dict)
    unproven: set[str] = field(default_factory=set)
    collectives: dict[str, tuple[tuple[Collective, ...], ...]] = field(default_factory=dict)
    memory: dict[str, tuple[MemoryUse, ...]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)


def require_equal_specs(reports: Sequence[RankReport]) -> None:
    """Check that all ranks read the same bytes.

    Raises:
        UserError: One did not.
    """
    for report in reports[1:]:
        if report.spec_sha256 != reports[0].spec_sha256:
            raise UserError(
                f"rank {report.rank} on {report.card.host} read another configuration ({report.spec_sha256[:12]}) than rank 0 on {reports[0].card.host} "
                f"({reports[0].spec_sha256[:12]}); start all ranks from the same run folder"
            )


def tuples(value: Any) -> Any:
    """Turn JSON lists into tuples, as the records hold them."""
    if isinstance(value, list):
        return tuple(tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: tuples(item) for key, item in value.items()}
    return value
