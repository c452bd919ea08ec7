"""What an operator is to a card: which kind of kernel, of which shape, with how many FLOPs and bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tag, Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from scaling.predict.operators import AttentionShape, Layout, MatmulShape, OperatorKind, implicit_gemm
from scaling.workload.arithmetic import is_arithmetic
from scaling.workload.flop_formulas import FORMULAS

aten = torch.ops.aten
DTYPES = {torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
_LOOK_UPS = {aten.embedding, aten.embedding_dense_backward, aten._embedding_bag, aten._embedding_bag_forward_only, aten._embedding_bag_backward}
# Reads of a table go to the rows that are asked for, so they are as large as the result.
_GATHERING = {aten.embedding, aten.index_select, aten.gather, aten.index, aten.take, aten._embedding_bag, aten._embedding_bag_forward_only}
_GATHERING |= {aten.nll_loss_forward}
_WITHOUT_KERNEL = {
    "_unsafe_view",
    "lift_fresh",
    "resize_",
    "set_",
    "_local_scalar_dense",
    "_reshape_alias",
    "record_stream",
    "_has_compatible_shallow_copy_type",
}
_OVERWRITES = {"copy_", "zero_", "fill_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_"}
# Reductions and normalisations that a compiler fuses with their neighbours and that torch tags as neither pointwise nor reduction.
_FUSABLE = {"native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward", "_softmax", "_softmax_backward_data"}
_FUSABLE |= {"_log_softmax", "_log_softmax_backward_data", "_to_copy", "clone", "copy_", "native_dropout", "native_dropout_backward", "masked_fill"}


@dataclass(slots=True)
class Draft:
    """An operator before it is known what follows it.

    Attributes:
        reads: Bytes read, by number of the storage.
        writes: Bytes written, likewise.
        fusable: Whether a compiler fuses it with its neighbours.
        sharded: Whether it works on parts of parameters.
    """

    kind: OperatorKind
    name: str
    dtype: str = "fp32"
    shape: MatmulShape | AttentionShape | None = None
    flops: int = 0
    layout: Layout = "TN"
    direction: str = "forward"
    count: int = 1
    reads: dict[int, int] = field(default_factory=dict)
    writes: dict[int, int] = field(default_factory=dict)
    fusable: bool = False
    sharded: bool = False


@dataclass(frozen=True, slots=True)
class _Traits:
    """What holds of every call of an operator."""

    written: frozenset[str]
    view: bool
    fusable: bool


@cache
def traits(func: Any) -> _Traits:
    """Return what an operator's schema and tags say."""
    name, schema = func._opname, func._schema
    written = frozenset(argument.name for argument in schema.arguments if argument.alias_info is not None and argument.alias_info.is_write)
    empty = name.startswith(("empty", "new_empty", "_efficientzerotensor"))
    view = func.is_view or empty or name in _WITHOUT_KERNEL or name.startswith(("is_", "_is_", "sym_"))
    kin = name.removesuffix("_backward").rstrip("_")
    tagged = any(Tag.pointwise in overload.tags or Tag.reduction in overload.tags for overload in _overloads(name, kin))
    return _Traits(written, view and not name.endswith("_copy"), not view and (tagged or name in _FUSABLE or kin in _FUSABLE))


def _overloads(*names: str) -> list[Any]:
    packets = [getattr(aten, name) for name in names if hasattr(aten, name)]
    return [getattr(packet, overload) for packet in packets for overload in packet.overloads()]


class Classifier:
    """Turns calls of operators into drafts.

    Args:
        number: Gives each storage its number.
        tf32: Whether products of float32 run in TF32.

    Attributes:
        uncounted: Operators that did arithmetic and have no formula.
    """

    def __init__(self, number: Callable[[Tensor], int], *, tf32: bool) -> None:
        self._number = number
        self._tf32 = tf32
        self._formulas = FlopCounterMode(display=False, custom_mapping=FORMULAS).flop_registry
        self.uncounted: set[str] = set()

    def drafts(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> list[Draft]:
        """Return what a call launches; nothing where no tensor takes part."""
        packet, told = func.overloadpacket, traits(func)
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        draft = Draft(kind="view" if told.view else "memory", name=str(packet), fusable=told.fusable)
        reads, writes = self._traffic(func, args, kwargs, results, told.written)
        if not reads and not writes:
            return []
        floating = [tensor for tensor in (*reads, *writes) if tensor.dtype in DTYPES]
        draft.dtype = DTYPES[max(floating, key=lambda tensor: tensor.dtype.itemsize).dtype] if floating else "fp32"
        if told.view:
            return [draft]
        limit = sum(tensor.nbytes for tensor in writes) if packet in _GATHERING else None
        draft.reads = self._bytes(reads, limit)
        draft.writes = self._bytes(writes, None)
        return self._with_arithmetic(packet, args, kwargs, result, draft, reads)

    def _traffic(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: list[Tensor], written: frozenset[str]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the tensors that a call reads and those that it writes."""
        reads: list[Tensor] = []
        writes = list(results)
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | dict(kwargs)
        for name, value in named.items():
            tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
            if name in written:
                known = {id(tensor) for tensor in results}
                writes += [tensor for tensor in tensors if id(tensor) not in known]
                if name == "out" or func._opname in _OVERWRITES or func.namespace == "fsdp":
                    continue
            reads += tensors
        return reads, writes

    def _bytes(self, tensors: list[Tensor], limit: int | None) -> dict[int, int]:
        found: dict[int, int] = {}
        for tensor in tensors:
            size = min(tensor.nbytes, tensor.untyped_storage().nbytes())  # an expanded tensor has fewer than elements
            size = size if limit is None else min(size, limit)
            number = self._number(tensor)
            found[number] = found.get(number, 0) + size
        return found

    def _with_arithmetic(self, packet: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, draft: Draft, reads: list[Tensor]) -> list[Draft]:
        formula = self._formulas.get(packet)
        flops = int(formula(*args, **kwargs, out_val=result)) if formula is not None else 0
        if formula is None and packet._qualified_op_name.startswith("aten::") and is_arithmetic(packet):
            self.uncounted.add(str(packet))
        if packet in _LOOK_UPS:
            draft.kind, draft.fusable, draft.flops = "embedding", False, flops
            return [draft]
        if flops == 0:
            if draft.kind == "memory" and _permuted(reads, result):
                draft.kind = "strided"
            return [draft]
        draft.flops, draft.fusable = flops, False
        rule = next((rule for names, rule in _RULES if packet._qualified_op_name.partition("::")[2].startswith(names)), _any_product)
        return rule(draft, args, result, self._product_dtype)

    def _product_dtype(self, tensor: Tensor) -> str:
        name = DTYPES.get(tensor.dtype, "fp32")
        return "tf32" if name == "fp32" and self._tf32 else name


_Dtype = Callable[[Tensor], str]


def _permuted(reads: list[Tensor], result: Any) -> bool:
    """Tell whether an operator turns a tensor over: reads one of the result's size whose elements lie in another order."""
    results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    if not results:
        return False
    out = results[0]
    return any(
        tensor.shape == out.shape and tensor.dim() > 1 and 0 not in tensor.stride() and _order(tensor) != _order(out) for tensor in reads if tensor.numel() > 1
    )


def _order(tensor: Tensor) -> tuple[int, ...]:
    """Return the dimensions from the slowest to the fastest, those of size 1 left out."""
    wide = [dimension for dimension in range(tensor.dim()) if tensor.shape[dimension] > 1]
    strides = tensor.stride()
    return tuple(sorted(wide, key=lambda dimension: -strides[dimension]))


def _transposed(matrix: Tensor) -> bool:
    return matrix.stride(-1) != 1 and matrix.stride(-2) == 1 and matrix.shape[-1] > 1 and matrix.shape[-2] > 1


def _product(draft: Draft, args: Sequence[Any], result: Any, dtype: _Dtype) -> list[Draft]:
    """Matrix products: the two matrices are the last two of the leading tensor arguments."""
    left, right = [argument for argument in args if isinstance(argument, Tensor)][-2:]
    if right.dim() < 2:
        return _any_product(draft, args, result, dtype)
    *batch, rows, depth = left.shape
    draft.kind, draft.dtype, draft.shape = "matmul", dtype(left), MatmulShape(rows, right.shape[-1], depth, prod(batch))
    draft.layout = "NT" if _transposed(left) else "TN" if _transposed(right) else "NN"
    return [draft]


def _any_product(draft: Draft, args: Sequence[Any], result: Any, dtype: _Dtype) -> list[Draft]:
    """What else does arithmetic, as the matrix product of the result's size that does as much."""
    tensors = [leaf for leaf in tree_leaves((result, args)) if isinstance(leaf, Tensor)]
    columns = tensors[0].shape[-1] if tensors[0].dim() else 1
    rows = max(1, tensors[0].numel() // max(1, columns))
    draft.kind, draft.dtype = "matmul", dtype(tensors[0])
    draft.shape = MatmulShape(rows, columns, max(1, draft.flops // (2 * rows * columns)))
    return [draft]


def _attention(draft: Draft, args: Sequence[Any], result: Any, dtype: _Dtype) -> list[Draft]:
    """Fused attention, forward and backward, whichever kernel a CPU takes."""
    backward = "backward" in draft.name
    query, key = args[1:3] if backward else args[:2]
    causal = any(argument is True for argument in args)  # the only flag among their positional arguments that is ever set in training
    draft.kind, draft.dtype = "attention", DTYPES.get(query.dtype, "fp32")
    draft.shape = AttentionShape(query.shape[0], query.shape[1], query.shape[2], key.shape[2], query.shape[3], causal)
    return [draft]


def _convolution(draft: Draft, args: Sequence[Any], result: Any, dtype: _Dtype) -> list[Draft]:
    images, weight = args[:2]
    draft.kind, draft.dtype, draft.layout = "convolution", dtype(images), _image_layout(images)
    draft.shape = _implicit(images, weight, result, transposed=args[6], groups=args[8], gradient="")
    return [draft]


def _convolution_backward(draft: Draft, args: Sequence[Any], result: Any, dtype: _Dtype) -> list[Draft]:
    """One kernel for each gradient that is asked for; that of the bias comes with the weight's."""
    gradient, images, weight = args[:3]
    asked = [name for name, wanted in zip(("input", "weight"), args[10][:2], strict=True) if wanted]
    drafts = []
    for name in asked:
        shape = _implicit(images, weight, gradient, transposed=args[7], groups=args[9], gradient=name)
        part = Draft("convolution", draft.name, dtype(images), shape, draft.flops // len(asked), _image_layout(images))
        part.reads = {number: size // len(asked) for number, size in draft.reads.items()}
        part.writes = {number: size // len(asked) for number, size in draft.writes.items()}
        drafts.append(part)
    return drafts


def _implicit(images: Tensor, weight: Tensor, output: Tensor, *, transposed: bool, groups: int, gradient: str) -> MatmulShape:
    taps = prod(weight.shape[2:])
    if transposed:  # it is the gradient of the input of the convolution with the roles of input and output changed
        gradient = {"": "input", "input": "", "weight": "weight"}[gradient]
        images, output = output, images
    kind: Any = gradient
    return implicit_gemm(images.shape[0], images.shape[1], output.shape[1], prod(images.shape[2:]), prod(output.shape[2:]), taps, groups, kind)


def _image_layout(images: Tensor) -> Layout:
    if images.dim() == 4 and images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous():
        return "NHWC"
    return "NCHW"


def _recurrent(draft: Draft, args: Sequence[Any], result: Any, dtype: _Dtype) -> list[Draft]:
    """A recurrent layer as cuDNN runs it: inputs of all steps at once, then one product a step."""
    inputs, weight_input, weight_hidden = args[:3]
    passes = 2 if "backward" in draft.name else 1
    time, batch, features = inputs.shape
    first = Draft("matmul", draft.name, dtype(inputs), MatmulShape(time * batch, weight_input.shape[0], features), count=passes)
    then = Draft("matmul", draft.name, dtype(inputs), MatmulShape(batch, weight_hidden.shape[0], weight_hidden.shape[1]), count=passes * time)
    for part in (first, then):
        assert isinstance(part.shape, MatmulShape)
        part.flops = part.shape.flops
    first.reads, first.writes = draft.reads, draft.writes
    return [first, then]


_RULES: tuple[tuple[tuple[str, ...], Callable[[Draft, Sequence[Any], Any, _Dtype], list[Draft]]], ...] = (
    (("_scaled_dot_product",), _attention),
    (("convolution_backward",), _convolution_backward),
    (("convolution", "_convolution"), _convolution),
    (("mkldnn_rnn_layer",), _recurrent),
    (("mm", "addmm", "_addmm_activation", "bmm", "baddbmm"), _product),
)
