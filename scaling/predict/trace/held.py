"""Memory by liveness: what a recorded step held beyond parameters and optimizer state, from the log of its storages."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from scaling.predict.trace.capture import Capture
from scaling.predict.trace.recording import Held


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
    passes = [stretch for stretch in capture.stretches if stretch.action.kind != "O"]
    saved, flying = 0, 0
    peak = peak_gradients = in_flight = 0
    current = of_gradients = 0
    position = capture.log_begin
    for stretch in passes:
        flying += stretch.action.kind == "F"
        for number, more in log[position : stretch.log_end]:
            if number in before:
                continue
            current += more
            of_gradients += more if number in owned else 0
            if current > peak:
                peak, peak_gradients, in_flight = current, of_gradients, flying
        position = stretch.log_end
        if stretch.action.kind == "F" and not saved:
            saved = current
        flying -= stretch.action.kind == "B"
    return Held(saved=saved, in_flight=in_flight, peak=peak, peak_gradients=peak_gradients, inputs=inputs, buffers=buffers)
