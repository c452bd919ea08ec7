"""What the card itself does, in one process: CUDA events against the host's clock, and matrix products in each precision.

Usage: ``python scripts/gpu_card.py RESULT.json``
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from scaling.catalogue.load import load_cards
from scaling.catalogue.peaks import peak
from scaling.catalogue.recognise import recognise
from scaling.machine.cards import visible_cards
from scaling.measure.blocks import time_steps
from scaling.measure.cards import matmul_gflops
from scaling.measure.clocks import CudaClock
from scaling.workload.precision import AUTOCAST, apply_matmul_mode, resolve

AGREEMENT = 0.02
"""Events and the host's clock may differ by so much over a stretch that begins and ends with a synchronisation."""


def clocks(device: torch.device) -> dict[str, float | bool]:
    """Time the same products with events and with the host's clock."""
    left, right = (torch.randn(4096, 4096, device=device) for _ in range(2))
    for _ in range(5):
        torch.mm(left, right)
    torch.cuda.synchronize(device)
    begun = time.perf_counter()
    laps, events = time_steps(lambda: torch.mm(left, right), CudaClock(), drop=0, steps=200, seconds=0.0)
    host = time.perf_counter() - begun
    return {"events_seconds": events, "laps_seconds": sum(laps), "host_seconds": host, "ok": abs(events / host - 1) <= AGREEMENT}


def products(device: torch.device) -> list[dict[str, object]]:
    """Measure the matmul rate of each precision and set it against the card's data sheet, where the catalogue has the card."""
    info = visible_cards()[0]
    card = recognise(load_cards(Path("hardware")), info.name, info.pci_device_id, info.memory_bytes)
    rows: list[dict[str, object]] = []
    for name in AUTOCAST:
        running = resolve(name, device)
        apply_matmul_mode(running.name)
        gflops = matmul_gflops(device, running)
        listed = None if card is None else peak(card, running.name)  # type: ignore[arg-type]  # resolve returns one of the names
        fraction = None if listed is None else gflops / listed.gflops
        # A product faster than the data sheet means a wrong peak or a wrong clock.
        rows.append({"precision": running.name, "gflops": gflops, "fraction_of_peak": fraction, "ok": fraction is None or fraction <= 1.0})
    return rows


def main() -> int:
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    found = {
        "card": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "clocks": clocks(device),
        "products": products(device),
    }
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
