"""What a step consists of, whatever emitted it: operators on one card and collectives between cards, as frozen records without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OperatorKind = Literal["matmul", "convolution", "attention", "memory", "strided", "embedding", "optimizer", "view"]
CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv"]
Layout = Literal["TN", "NN", "NT", "NHWC", "NCHW"]
Direction = Literal["forward", "backward", "optimizer"]

ELEMENT_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True)
class MatmulShape:
    """``batch`` products of (m x k) and (k x n); a convolution as ``implicit_gemm`` makes it, ``batch`` its groups."""

    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def flops(self) -> int:
        """2 FLOPs a multiply-accumulate."""
        return 2 * self.m * self.n * self.k * self.batch

    def bytes(self, element: int) -> int:
        """Both operands and the result, each moved once, with ``element`` bytes an element."""
        return self.batch * (self.m * self.k + self.k * self.n + self.m * self.n) * element


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """``softmax(Q K^T) V``: queries and keys in tokens; ``causal`` kernels skip the upper triangle."""

    batch: int
    heads: int
    queries: int
    keys: int
    head_dim: int
    causal: bool = False

    @property
    def flops(self) -> int:
        """FLOPs of both products of the forward pass over the full square (model FLOPs: the backward pass is twice that)."""
        return 4 * self.batch * self.heads * self.queries * self.keys * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One kernel launch on one card, ``count`` times a step.

    Attributes:
        kind: ``strided``: memory-bound with permuted access. ``view``: no kernel, host time only. The others say what they are.
        name: The operator as the framework calls it (``aten.mm``).
        dtype: Format of the arithmetic: a key of ``ELEMENT_BYTES``.
        shape: Of matrix products, convolutions and attention; ``None`` for the rest.
        bytes_read: From the card's memory, with what an accumulating gradient reads back.
        bytes_written: To the card's memory.
        layout: Of a matrix product: TN forward, NN gradient of the input, NT gradient of the weight. Of a convolution: that of its images.
        chain: Neighbouring memory-bound operators with the same number above 0 become one kernel under ``compile``.
        chained_read: Part of ``bytes_read`` that the same chain produced: a fused kernel has it in registers.
        host_seconds: For which the operator keeps the host busy beyond its launch: a sleep (the model ``timed``).
        chained_written: Part of ``bytes_written`` that nobody outside the chain reads: a fused kernel never writes it.
    """

    kind: OperatorKind
    name: str = ""
    dtype: str = "fp32"
    shape: MatmulShape | AttentionShape | None = None
    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    layout: Layout = "TN"
    direction: Direction = "forward"
    count: int = 1
    chain: int = 0
    chained_read: int = 0
    chained_written: int = 0
    host_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective of a group, ``count`` times a step.

    Attributes:
        payload_bytes: S: each rank's buffer of an all-reduce, broadcast, reduce or send; the whole buffer otherwise (design of nccl-tests).
        group_size: Ranks that take part.
        axis: Dimension of the device mesh along which the group lies.
    """

    kind: CollectiveKind
    payload_bytes: int
    group_size: int
    axis: str = "dp"
    count: int = 1


def matmul(m: int, n: int, k: int, *, batch: int = 1, dtype: str = "bf16", layout: Layout = "TN", direction: Direction = "forward", count: int = 1) -> Operator:
    """Return a matrix product with the FLOPs and bytes that follow from its shape."""
    shape, element = MatmulShape(m, n, k, batch), ELEMENT_BYTES[dtype]
    written = batch * m * n * element
    return Operator(
        kind="matmul",
        dtype=dtype,
        shape=shape,
        flops=shape.flops,
        bytes_read=shape.bytes(element) - written,
        bytes_written=written,
        layout=layout,
        direction=direction,
        count=count,
    )


def implicit_gemm(
    images: int, channels_in: int, channels_out: int, pixels_in: int, pixels_out: int, taps: int, groups: int = 1, gradient: Literal["", "input", "weight"] = ""
) -> MatmulShape:
    """Return the matrix product that a convolution amounts to (Chetlur et al., cuDNN, arXiv 1410.0759); FLOPs are the same in all three passes.

    Args:
        images: Batch.
        channels_in: Channels of the input over all groups.
        channels_out: Channels of the output over all groups.
        pixels_in: Positions of an input image.
        pixels_out: Positions of an output image.
        taps: Positions of the kernel (9 for 3 x 3).
        groups: Of channels.
        gradient: Which gradient is computed; empty for the forward pass.
    """
    narrow, wide = channels_in // groups, channels_out // groups
    if gradient == "input":
        return MatmulShape(images * pixels_in, narrow, max(1, round(wide * taps * pixels_out / pixels_in)), groups)
    if gradient == "weight":
        return MatmulShape(wide, narrow * taps, images * pixels_out, groups)
    return MatmulShape(images * pixels_out, wide, narrow * taps, groups)
