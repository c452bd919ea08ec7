"""Watches one step of a rank: every operator and collective, in the order in which the card meets them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from scaling.predict.operators import Collective, CollectiveKind
from scaling.predict.trace import streams
from scaling.predict.trace.classify import Classifier, Draft
from scaling.predict.trace.recording import UNSCALING, Ready
from scaling.predict.trace.storages import Storages
from scaling.predict.traced import Issue, Wait
from scaling.schedule.walk import Action
from scaling.strategies.exchange import NAMESPACES, axis_of, group_of, kind_of, payload_bytes
from scaling.workload.observe import StepObserver

KINDS: dict[str, CollectiveKind] = {"send": "send_recv"}
"""Kinds that the prices know by another name; a ``recv`` is the other end of its ``send``."""
_SILENT = {"recv", "barrier"}

Recorded = Draft | Issue | Wait | Ready


@dataclass(slots=True)
class Stretch:
    """What one action launched.

    Attributes:
        action: Whose it is.
        items: With the place of each: behind how many items of the main stream, and in which order there.
        begin: Items of the main stream in the actions before.
        main: Items of the main stream in this one.
        log_end: Length of the log of storages when it ended.
    """

    action: Action
    begin: int
    items: list[tuple[int, int, Recorded]] = field(default_factory=list)
    main: int = 0
    log_end: int = 0

    @property
    def end(self) -> int:
        """Items of the main stream up to its end."""
        return self.begin + self.main

    def place(self, position: int) -> int:
        """Return a position on the main stream as a place in this action: what lies in an earlier one is its beginning."""
        return min(max(position - self.begin, 0), self.main)

    def ordered(self) -> list[Recorded]:
        """Return the items in the order in which the card meets them."""
        return [item for _, _, item in sorted(self.items, key=lambda entry: entry[:2])]


class Capture(StepObserver):  # type: ignore[no-untyped-call]  # as torch leaves it
    """A dispatch mode that files operators and collectives under the actions of the step.

    Args:
        degrees: Size of each axis of the traced mesh, outermost first.
        tf32: Whether products of float32 run in TF32.

    Attributes:
        actions: In the order in which the step enters them; known when the strategy has been applied.
        stretches: One an action, as far as the step has come.
        storages: What operators touched.
        log_begin: Length of the log of storages when the step began.
    """

    def __init__(self, degrees: Mapping[str, int], *, tf32: bool) -> None:
        super().__init__()
        self.actions: tuple[Action, ...] = ()
        self.log_begin = 0
        self.storages = Storages()
        self.classifier = Classifier(self.storages.number, tf32=tf32)
        self.stretches: list[Stretch] = []
        self._degrees = degrees
        self._issued = 0
        self._pending: dict[int, set[int]] = {}  # number of a collective: storages of its result
        self._on_touch: set[int] = set()  # those that the first operator on their result waits for
        self._last_on_lane: dict[str, int] = {}
        self._deferred: list[tuple[set[int], Draft]] = []
        self._around = ExitStack()

    def __enter__(self) -> Any:
        self._around.enter_context(_whole_shapes_unseen())
        self._around.enter_context(self.storages.resizes_seen())
        self._around.enter_context(streams.remembered(lambda: self._stretch.end if self.stretches else 0, self._wait_for))
        return super().__enter__()

    def __exit__(self, *failure: Any) -> None:
        super().__exit__(*failure)
        self._around.close()

    def begin(self, known: Sequence[Tensor]) -> None:
        """A step begins; these tensors are there before it."""
        for tensor in known:
            self.storages.number(tensor)
        self.log_begin = len(self.storages.log)

    def enter_phase(self, phase: str) -> None:
        """The step begins its next action; a reduction behind the last pass, for which no stage waits, begins the optimizer's."""
        if phase == "reduction" and self.actions[len(self.stretches)].kind != "O":
            return  # of one run of the schedule among several
        if phase == "optimizer" and self.stretches and self.kind == "O":
            return  # it began with the reduction
        if self.stretches:
            self._leave()
        begin = self._stretch.end if self.stretches else 0
        self.stretches.append(Stretch(self.actions[len(self.stretches)], begin))
        self._last_on_lane.clear()

    def finish(self) -> None:
        """The step is over."""
        self._leave()

    @property
    def kind(self) -> str:
        """Kind of the action under way: ``F``, ``B`` or ``O``."""
        return self._stretch.action.kind

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator and note what it launches."""
        if not self.stretches:
            return func(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default and self.kind == "O":
            return 0.0  # a scaler asks whether a gradient was infinite; without data, none was
        if func._opname == UNSCALING:
            self.add(Draft("optimizer", UNSCALING))  # its size is known from the parameters, whatever their number here
            return None
        result = func(*args, **kwargs)
        if func.namespace in NAMESPACES:
            self._exchange(func, args, kwargs, result)
        elif func.namespace not in ("profiler", "prim"):
            self._operate(func, args, kwargs, result)
        return result

    def add(self, draft: Draft) -> None:
        """File an operator that no dispatcher saw."""
        draft.direction = self._direction()
        self._file(draft)

    def ready(self, gradient: Tensor) -> None:
        """DDP's reducer takes a gradient."""
        self._append(Ready(gradient.nbytes, str(gradient.dtype)))

    def issue(self, kind: CollectiveKind, payload: int, group: dist.ProcessGroup, results: Any = ()) -> int:
        """File a collective on the current stream and return its number."""
        ranks = dist.get_process_group_ranks(group)
        axis = axis_of(ranks, self._degrees)
        self._issued += 1
        number, stream = self._issued, streams.current()
        item = Issue(number, Collective(kind=kind, payload_bytes=payload, group_size=len(ranks), axis=axis), lane=axis)
        self._pending[number] = {self.storages.number(leaf) for leaf in tree_leaves(results) if isinstance(leaf, Tensor)}
        if stream.main:
            self._append(item)
        else:
            place = max(self._stretch.place(stream.reached.position), self._last_on_lane.get(axis, 0))
            self._insert(place, item)
            stream.reached.numbers.add(number)
        self._last_on_lane[axis] = self._stretch.main if stream.main else place
        return number

    def wait(self, number: int) -> None:
        """The main stream waits for a collective."""
        self._wait_for({number})

    @property
    def _stretch(self) -> Stretch:
        return self.stretches[-1]

    def _leave(self) -> None:
        for number in [number for number in self._pending if number in self._on_touch]:
            self.wait(number)
        for numbers in [needed for needed, _ in self._deferred]:
            self._wait_for(numbers)
        self._stretch.log_end = len(self.storages.log)

    def _exchange(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        if func._opname == "wait_tensor":
            touched = self.storages.number(args[0])
            for number in [number for number, results in self._pending.items() if touched in results]:
                self.wait(number)
            return
        group = group_of(func, args)
        kind = kind_of(func._opname)
        # Activations between stages are the schedule's transfers, priced from ``boundary_bytes``; what the optimizer waits for is not.
        if group is None or group.size() == 1 or kind in _SILENT or (kind == "send" and self.kind != "O"):
            return
        buffers = [*args, *kwargs.values(), result]
        known: Any = KINDS.get(kind, kind)
        number = self.issue(known, payload_bytes(buffers), group, buffers)
        if func.namespace == "c10d" and streams.current().main:
            self._on_touch.add(number)

    def _operate(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        for draft in self.classifier.drafts(func, args, kwargs, result):
            draft.direction = self._direction()
            # Sums in place are autograd's own, which adds to a gradient what a compiled backward pass hands it: no compiler sees both.
            draft.fusable = draft.fusable and not (draft.direction == "backward" and func is torch.ops.aten.add_.Tensor)
            self._file(draft)

    def _file(self, draft: Draft) -> None:
        """Put an operator where its stream runs it."""
        stream = streams.current()
        if stream.main:
            if draft.kind != "view":
                for number in [number for number in self._on_touch if number in self._pending and self._pending[number] & {*draft.reads, *draft.writes}]:
                    self.wait(number)
            self._append(draft)
            return
        draft.sharded, draft.fusable = True, False
        if open_numbers := stream.reached.numbers & self._pending.keys():
            self._deferred.append((set(open_numbers), draft))
        else:
            self._insert(self._stretch.place(stream.reached.position), draft)

    def _direction(self) -> str:
        if self.kind == "O":
            return "optimizer"
        # Autograd runs gradients with grad mode off, and a checkpointed forward with it on.
        return "backward" if self.kind == "B" and not torch.is_grad_enabled() else "forward"

    def _wait_for(self, numbers: set[int]) -> None:
        for number in sorted(numbers & self._pending.keys()):
            del self._pending[number]
            self._append(Wait(number))
        still, self._deferred = self._deferred, []
        for needed, draft in still:
            if needed & self._pending.keys():
                self._deferred.append((needed, draft))
            else:
                self._append(draft)

    def _append(self, item: Recorded) -> None:
        self._stretch.main += 1
        self._stretch.items.append((self._stretch.main, 0, item))

    def _insert(self, place: int, item: Recorded) -> None:
        self._stretch.items.append((place, len(self._stretch.items) + 1, item))


@contextmanager
def _whole_shapes_unseen() -> Iterator[None]:
    """Keep DTensor to itself while it works out the shape of a whole result.

    It runs each operator that it meets for the first time on whole tensors without data: nothing that a card would launch, but a mode sees it.
    """
    original = ShardingPropagator._propagate_tensor_meta_non_cached

    def unseen(propagator: ShardingPropagator, schema: Any) -> Any:
        with _disable_current_modes():
            return original(propagator, schema)

    room: Any = ShardingPropagator
    room._propagate_tensor_meta_non_cached = unseen
    try:
        yield
    finally:
        room._propagate_tensor_meta_non_cached = original
