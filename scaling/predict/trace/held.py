"""Memory by liveness: what a recorded step held beyond parameters and optimizer state, from the log of its storages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from scaling.predict.trace.capture import Capture
from scaling.predict.trace.recording import Held, Moment


def held_by(capture: Capture, gradients: Sequence[Tensor], *, inputs: int, buffers: int) -> Held:
    """Return what a step held.

    Args:
        capture: Of the whole step.
        gradients: At its end.
        inputs: Bytes of the cached batches.
        buffers: Bytes of the modules' buffers.
    """
    log = capture.storages.log
    owned = {capture.storages.number(gradient) for gradient in gradients}
    before = {number for number, _ in log[: capture.log_begin]}
    flying = current = of_gradients = 0
    moments: list[Moment] = []
    position = capture.log_begin
    for stretch in capture.stretches:
        kind = stretch.action.kind
        if kind == "O":
            break
        flying += kind == "F"
        fullest = Moment(flying, current - of_gradients, of_gradients)
        for number, more in log[position : stretch.log_end]:
            if number not in before:
                current += more
                of_gradients += more if number in owned else 0
                if current > fullest.passing + fullest.gradients:
                    fullest = Moment(flying, current - of_gradients, of_gradients)
        moments.append(fullest)
        position = stretch.log_end
        flying -= kind == "B"
    return Held(
        saved=_saved(log[capture.log_begin : position], capture.stretches[0].log_end - capture.log_begin),
        moments=tuple(moments),
        inputs=inputs,
        buffers=buffers,
    )


def _saved(log: Sequence[tuple[int, int]], first: int) -> int:
    """Return the bytes that the first forward pass leaves for its backward pass: what outlives all passes is there once, whatever their number.

    Args:
        log: Of all passes of a step: storages, and the bytes that each gained or lost.
        first: Entries of the first forward pass.
    """
    left: Counter[int] = Counter()
    for number, more in log[:first]:
        left[number] += more
    saved = left.copy()
    for number, more in log[first:]:
        if number in left:
            left[number] += more
    return sum(size for number, size in saved.items() if left[number] <= 0)
