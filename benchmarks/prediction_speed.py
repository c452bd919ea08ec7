"""How long one more option takes once its step is traced: a 96-layer model over 1536 cards, in a pipeline of 16 stages.

    python benchmarks/prediction_speed.py

Prints the seconds of the first prediction (traced, or read from the cache), then the milliseconds of pricing and walking the step anew, as a planner
does for every card, link and network it compares. Exits 1 where that takes more than 5 ms.
"""

from __future__ import annotations

import sys
import time
import timeit
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from steps import forecast

from scaling.predict.pace import Pace
from scaling.predict.rungs import rungs_of

MOST_MS = 5.0
STEP = (
    *("hardware=a100_sxm_80g", "network=ib_hdr", "gpus=1536", "precision=bf16", "recompute=full", "batch_per_card=2"),
    *("model=gpt", "model.layers=96", "model.hidden=12288", "model.heads=96", "model.seq=2048", "model.vocab=51200"),
    *("strategy=pipeline", "strategy.tp=8", "strategy.pp=16", "strategy.dp_replicate=12", "strategy.microbatches=64"),
)


def main() -> int:
    """Predict once, then time the option."""
    begin = time.perf_counter()
    pace = forecast(STEP, "speed").pace
    print(f"first prediction: {time.perf_counter() - begin:.1f} s")
    option = 1e3 * min(timeit.repeat(lambda: rungs_of(Pace.of(pace.prepared, pace.scene)), number=1, repeat=50))
    print(f"one more option: {option:.1f} ms for {len(pace.prepared.order.actions):,} actions of {pace.prepared.order.lanes} stages")
    return int(option > MOST_MS)


if __name__ == "__main__":
    sys.exit(main())
