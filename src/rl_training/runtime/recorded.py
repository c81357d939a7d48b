"""One kind of update, recorded for batches of one shape: compiled, captured as a CUDA graph, or both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.optim import GuardedOptimizer
from rl_training.runtime.cuda_graphs import Captured
from rl_training.runtime.device import find_compiler
from rl_training.runtime.tracing import (
    Recording,
    Run,
    Uncapturable,
    leaves,
    packed,
    rebuilt,
    results_of,
    row_of,
    trace,
    unpacked,
)
from rl_training.types import Batch, UpdateResult

Backend = Callable[[GraphModule, Sequence[Tensor]], Run]
"""Makes something quick of a graph; the inputs are examples."""

Round = Callable[[], list[UpdateResult]]

Witness = Callable[[Sequence[Tensor]], Sequence[Tensor] | None]
"""Those results that have to be the same, and with them what is drawn; None: all, and what is written."""

TOLERANCE = 0.1
"""How far a recorded update may be from the plain one, relative to what the plain one changes."""
WAYWARD = 64
"""Of so many numbers one may go anywhere: rounding moves weights whose gradient is next to nothing by a whole
step of Adam, up or down. Another computation has most of them elsewhere."""


def inductor(graph: GraphModule, inputs: Sequence[Tensor]) -> Run:
    """Machine code for a graph, by torch's compiler."""
    import torch._inductor

    on_cpu = all(tensor.device.type == "cpu" for tensor in inputs)
    settings: dict[str, Any] = {
        # What calls the kernels is compiled too, as small updates take a quarter less. Older torch: untried.
        "cpp_wrapper": on_cpu and torch.__version__ >= "2.13",
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "loop_ordering_after_fusion": False,  # torch 2.11 trips over SAC's update on a GPU with it
    }
    if (compiler := find_compiler()) is not None:  # torch itself would take $CXX or g++, and nothing else
        settings["cpp.cxx"] = (None, compiler)
    with torch.no_grad():
        # Unlike `compile` this finds what an earlier process has compiled.
        compiled: Run = torch._inductor.standalone_compile(
            graph, list(inputs), dynamic_shapes="from_example_inputs", options={"config_patches": settings}
        )
    return compiled


class _Model:
    """What a plain computation does, found out by doing it and taking it back: the measure of a quick one."""

    def __init__(self, plain: Run, undo: Callable[[], None], witness: Witness = lambda _: None) -> None:
        """`undo` takes back what is no tensor."""
        self.recording, self._undo, self._witness = Recording(), undo, witness
        try:
            with self.recording:
                results = plain()
            self._expected, self._in_part = self._evidence(results)
            self._positions = self._where()
        finally:
            self.undo()

    @property
    def generators(self) -> list[torch.Generator]:
        """Those that random numbers were drawn from."""
        return [generator for generator, _ in self.recording.generators]

    def undo(self) -> None:
        """Take back what has been computed for the recording's sake; the next run draws the same numbers."""
        self.recording.undo()
        self._undo()

    def require_same(self, run: Run) -> None:
        """Refuse a computation that gives or writes other numbers; it is run if that can be told."""
        if not self._expected:
            return
        found, _ = self._evidence(run())
        _require_same(found, self._expected, [] if self._in_part else self._before)
        if self._in_part and not all(map(torch.equal, self._where(), self._positions)):
            raise Uncapturable("recorded, they draw another number of random numbers")

    def _evidence(self, results: Sequence[Tensor]) -> tuple[list[Tensor], bool]:
        """What has to be the same, and whether that is only a part of the results."""
        chosen = self._witness(results)
        told = [result.detach().clone() for result in (results if chosen is None else chosen)]
        return ([*told, *self._written()], False) if chosen is None else (told, True)

    def _where(self) -> list[Tensor]:
        """Where the generators are that random numbers were drawn from."""
        return [generator.get_state() for generator in self.generators]

    @property
    def _before(self) -> list[Tensor]:
        return [before for _, before in self.recording.written]

    def _written(self) -> list[Tensor]:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()  # it may still be writing into main memory
        return [tensor.detach().clone() for tensor, _ in self.recording.written]


class RecordedUpdate:
    """What `algorithm.update` does to batches like `batch`, recorded without a trace in the algorithm.

    A run that is stopped and resumed records in the middle of training: whatever recording computes is taken
    back, and the recorded update is compared with the plain one before it is trusted.
    """

    def __init__(
        self, algorithm: Algorithm, batch: Batch, *, backend: Backend | None, capture: bool, pool: Any = None
    ) -> None:
        for name, optimizer in algorithm.optimizers.items():
            if not isinstance(optimizer, GuardedOptimizer):
                raise Uncapturable(f"the optimiser {name!r} is no GuardedOptimizer")
            optimizer.prepare()
        self.algorithm, number = algorithm, algorithm.num_updates
        self.names: list[str] = []
        self.steps = 0

        def update() -> list[Tensor]:
            result = algorithm.update(batch)
            self.names, self.steps = list(result.metrics), algorithm.num_updates - number
            return packed(result)

        def undo() -> None:
            algorithm.num_updates = number

        model = _Model(update, undo)
        self.read = [i for i, leaf in enumerate(leaves(batch)) if model.recording.reads(leaf)]
        self.places = [_places(batch)[i] for i in self.read]
        plain = partial(self._plain, batch)  # who is compiled or captured does not keep it, nor the batch
        try:
            self.run: Run = (
                plain if backend is None else _compiled(plain, self._inputs(batch), backend, model)
            )
            if capture:
                self.run = Captured(
                    self.run, self._inputs(batch), generators=model.generators, undo=model.undo, pool=pool
                )
            model.require_same(partial(self.run, *self._inputs(batch)))
        finally:
            model.undo()

    @property
    def stale(self) -> bool:
        """Whether it has to be recorded anew before it is used again."""
        return isinstance(self.run, Captured) and self.run.stale

    def __call__(self, batch: Batch) -> UpdateResult:
        """The update, with all that the plain one would have done."""
        number = self.algorithm.num_updates
        results = self.run(*self._inputs(batch))
        self.algorithm.num_updates = number + self.steps  # whether the run counts too or not
        return unpacked(self.names, results)

    def _inputs(self, batch: Batch) -> list[Tensor]:
        """The tensors of a batch that updates read."""
        return [
            getattr(batch, field) if key is None else getattr(batch, field)[key] for field, key in self.places
        ]

    def _plain(self, batch: Batch, *inputs: Tensor) -> list[Tensor]:
        """The update itself, on tensors in the place of those of a batch."""
        tensors = leaves(batch)
        for i, tensor in zip(self.read, inputs, strict=True):
            tensors[i] = tensor
        return packed(self.algorithm.update(rebuilt(batch, tensors)))


def compiled(run: Run, inputs: Sequence[Tensor], backend: Backend) -> Run:
    """`run` compiled, without leaving a trace. It may draw numbers and write to tensors, but not learn."""
    model = _Model(lambda: list(run(*inputs)), lambda: None)
    try:
        quick = _compiled(run, inputs, backend, model)
        model.require_same(partial(quick, *inputs))
    finally:
        model.undo()
    return quick


def by_inductor(run: Run, inputs: Sequence[Tensor]) -> Run:
    """`compiled` by torch's compiler."""
    return compiled(run, inputs, inductor)


def _compiled(plain: Run, inputs: Sequence[Tensor], backend: Backend, model: _Model) -> Run:
    """`plain` as one graph of its inputs and of all that it reads besides, compiled."""
    draws = model.recording.draws
    others = [t for t in model.recording.externals if all(t is not given for given in inputs)]
    # Traced with the rows turned around: what has got stuck in the trace will show with other values.
    graph = trace(plain, [_turned(tensor) for tensor in inputs], others, draws)
    model.undo()
    externals = [tensor.detach() for tensor in others]
    quick = backend(graph, [*inputs, *externals, *(draw() for draw in draws)])
    model.undo()

    @torch.no_grad()
    def run(*inputs: Tensor) -> Sequence[Tensor]:
        return quick(*inputs, *externals, *[draw() for draw in draws])

    return run


def captured(
    run: Run,
    *,
    plain: Run | None = None,
    undo: Callable[[], None] = lambda: None,
    witness: Witness = lambda _: None,
) -> Captured:
    """`run` as a CUDA graph that reads and writes tensors where they are, recorded without leaving a trace.

    `plain` does the same with torch's own operations. It is run once to learn what is changed; that is taken
    back, and `undo` takes back what is no tensor. The graph has to do the same, as far as `witness` can tell.
    """
    model = _Model(plain or run, undo, witness)
    try:
        graph = Captured(run, (), generators=model.generators, undo=model.undo, warm_ups=1)
        model.require_same(graph)
    finally:
        model.undo()
    return graph


class RecordedRound:
    """A longer computation on the GPU, updates of `algorithm` among it, as one CUDA graph.

    `plain` and `quick` do the same and answer with the results of their updates; `quick` is captured. There
    have been such updates before: what they remember is in memory that is no graph's.
    """

    def __init__(
        self, algorithm: Algorithm, plain: Round, quick: Round, *, alike_at_first: bool = False
    ) -> None:
        """`alike_at_first`: nothing comes before the first update that rounding could make more of."""
        self.algorithm, number = algorithm, algorithm.num_updates
        self.names: list[list[str]] = []
        self.steps = 0

        def look() -> list[Tensor]:
            results = plain()
            self.names = [list(result.metrics) for result in results]
            self.steps = algorithm.num_updates - number
            return [row_of(results)]

        def undo() -> None:
            algorithm.num_updates = number

        def witness(results: Sequence[Tensor]) -> Sequence[Tensor] | None:
            # What rounding does to one update is known. The next ones make more and more of it, so that after
            # many two right answers may be far apart: nothing would follow from a difference.
            if self.steps == 1:
                return None
            return [results[0][: len(self.names[0])]] if alike_at_first else []

        self.graph = captured(lambda: [row_of(quick())], plain=look, undo=undo, witness=witness)

    @property
    def stale(self) -> bool:
        """Whether it has to be recorded anew before it is used again."""
        return self.graph.stale

    def __call__(self) -> list[UpdateResult]:
        """The same once more."""
        number = self.algorithm.num_updates
        (numbers,) = self.graph()
        self.algorithm.num_updates = number + self.steps
        return results_of(numbers, self.names)


def _places(batch: Batch) -> list[tuple[str, str | None]]:
    """The field of each of the `leaves` of a batch, and its key in there where the field is a dict."""
    values = ((field.name, getattr(batch, field.name)) for field in dataclasses.fields(batch))
    return [
        (name, key)
        for name, value in values
        if value is not None
        for key in ([None] if isinstance(value, Tensor) else value)
    ]


def _turned(tensor: Tensor) -> Tensor:
    """The same rows in reverse order, in memory laid out the same way."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(
        tensor.flip(0) if tensor.ndim else tensor
    )


def _require_same(found: Sequence[Tensor], expected: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Compare results, and what tensors hold now with what they should, by how much they have changed."""
    origins = [*(torch.zeros_like(tensor) for tensor in expected[: len(expected) - len(before)]), *before]
    for ours, plain, origin in zip(found, expected, origins, strict=True):
        ours, plain, start = (tensor.double().nan_to_num() for tensor in (ours, plain, origin))
        change = torch.linalg.vector_norm(plain - start)
        errors = (ours - plain).abs().flatten().sort().values
        error = torch.linalg.vector_norm(errors[: len(errors) - len(errors) // WAYWARD])
        if not bool(error <= TOLERANCE * change + 1e-6 * torch.linalg.vector_norm(start) + 1e-12):
            shape = tuple(plain.shape)
            raise Uncapturable(
                f"recorded, they give other numbers: {float(error):.3g} off in a tensor of shape {shape} "
                f"that changes by {float(change):.3g}"
            )
