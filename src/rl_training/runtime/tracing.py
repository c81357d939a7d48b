"""What an update does, recorded: the tensors it reads and writes, what it draws, and all of it as one graph.

Nothing here knows an algorithm. An update may be recorded if `Algorithm.update` keeps its promises: shapes do
not change, no value is read, and what counters decide is said by `Algorithm.kind`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Generator, Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import CodeGen
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from rl_training.runtime.decompositions import DECOMPOSED
from rl_training.types import Batch, UpdateResult

Tensors = Sequence[Tensor]
Run = Callable[..., Sequence[Tensor]]
"""Takes tensors, one after the other, and gives tensors."""
CompileRun = Callable[[Run, Sequence[Tensor]], Run]
"""Compiles a computation, given what it is to be tried on."""


class Uncapturable(Exception):  # noqa: N818 - it says what is so, and is no mistake
    """Why an update has to stay as it is."""


class Draw:
    """Random numbers that an update asks for: drawn before it, from the same generator in the same order."""

    def __init__(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.function, self.in_place = function, bool(function._schema.is_mutable)
        self.args, self.kwargs = tuple(args), dict(kwargs)
        if self.in_place:
            self.args = (torch.empty_like(args[0]), *args[1:])
        if any(isinstance(value, Tensor) for value in tree_leaves((self.args[self.in_place :], self.kwargs))):
            raise Uncapturable(f"what {function} draws depends on other numbers")

    def __call__(self) -> Tensor:
        drawn: Tensor = self.function(*self.args, **self.kwargs)
        return drawn


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operations as they are and notes what of the outside they touch; `undo` puts all of it back."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.externals: list[Tensor] = []
        """Tensors that were there before, in the order in which they were met."""
        self.written: list[tuple[Tensor, Tensor]] = []
        """Those that were written to, and copies of what they held."""
        self.draws: list[Draw] = []
        self.generators: list[tuple[Generator, Tensor]] = []
        self._inside = WeakTensorKeyDictionary()
        self._outside = WeakTensorKeyDictionary()
        self._saved = WeakTensorKeyDictionary()
        self._made = WeakTensorKeyDictionary()
        """Tensors made meanwhile and then written to, with what they held first: some may stay."""
        self._by_memory: dict[int, list[Tensor]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in _tensors((args, kwargs)):
            if tensor not in self._inside and tensor not in self._outside:
                self._outside[tensor] = True
                self.externals.append(tensor)
                self._by_memory.setdefault(_memory(tensor), []).append(tensor)
        _require_static(function, args)
        if _draws(function):
            self.draws.append(Draw(function, args, kwargs))
        self._save(function, args, kwargs)
        result = function(*args, **kwargs)
        for tensor in _tensors(result):
            if tensor not in self._outside:
                self._inside[tensor] = True
        return result

    def _save(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Keep a copy of what is about to change."""
        for i, argument in enumerate(function._schema.arguments):
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            if isinstance(value, Generator) and all(value is not known for known, _ in self.generators):
                self.generators.append((value, value.get_state()))
            if argument.alias_info is not None and argument.alias_info.is_write:
                for view in _tensors(value):
                    known = self._by_memory.get(_memory(view), ())
                    if not known and view not in self._made:
                        self._made[view] = view.detach().clone()
                    for tensor in known:
                        if tensor not in self._saved:
                            self._saved[tensor] = True
                            self.written.append((tensor, tensor.detach().clone()))

    def reads(self, tensor: Tensor) -> bool:
        """Whether a tensor from outside was used."""
        return tensor in self._outside

    @torch.inference_mode()  # some of them may have been made in it
    def undo(self) -> None:
        """Bring tensors and generators back to where they were."""
        for tensor, before in reversed(self.written):  # of two names for one memory the first saved is right
            tensor.copy_(before)
        made = list(self._made.items())  # type: ignore[no-untyped-call]
        for tensor, before in reversed(made):  # some are there to stay, like noise that has just begun
            tensor.copy_(before)
        for generator, state in self.generators:
            generator.set_state(state)


class _Substitution(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Puts numbers that were drawn before in the place of draws."""

    def __init__(self, drawn: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn = iter(drawn)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not _draws(function):
            return function(*args, **(kwargs or {}))
        drawn = next(self.drawn)
        in_place = bool(function._schema.is_mutable)
        return torch.ops.aten.copy_.default(args[0], drawn) if in_place else drawn.clone()


def trace(run: Run, inputs: Tensors, externals: Tensors, draws: Sequence[Draw]) -> GraphModule:
    """The operations of `run(*inputs)` as a graph of `inputs`, then `externals`, then what `draws` give.

    The backward pass, the optimiser and writes to `externals` are part of it. It is traced by running it,
    with all its effects.
    """
    _require_apart(externals)
    drawn = [draw().clone() for draw in draws]

    def all_of_it(*tensors: Tensor) -> list[Tensor]:
        # Tensors are known by identity: whoever reads a parameter reads what was passed here.
        with _Substitution(tensors[len(tensors) - len(drawn) :]):
            return list(run(*tensors[: len(inputs)]))

    # One mode for all shapes that are noted: else torch makes one, with a stack trace, for each operation.
    with tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))):
        graph = make_fx(all_of_it, decomposition_table=DECOMPOSED)(*inputs, *externals, *drawn)
    _require_known(graph)
    graph.graph.set_codegen(CodeGen())
    for node in graph.graph.nodes:
        node.meta.clear()  # what tracing knows of values would contradict what compiling finds out
    graph.recompile()
    return graph


def _require_known(graph: GraphModule) -> None:
    """What a graph writes to has to be passed to it: of all else it keeps a copy of its own."""
    kept = list(graph.graph.find_nodes(op="get_attr"))
    for node in kept:  # and views of it, which are added
        for user in node.users:
            schema = getattr(user.target, "_schema", None)
            for argument, value in zip(schema.arguments if schema else (), user.args, strict=False):
                if argument.alias_info is not None and node in tree_leaves(value):
                    if argument.alias_info.is_write:
                        raise Uncapturable(
                            "a tensor that did not exist at first is kept and written to; make it before, "
                            "in `__init__` say"
                        )
                    kept.append(user)


def _require_apart(tensors: Tensors) -> None:
    """A graph cannot know that two of its inputs are the same memory."""
    seen: dict[int, Tensor] = {}
    for tensor in tensors:
        if seen.setdefault(_memory(tensor), tensor) is not tensor:
            raise Uncapturable(f"tensors of shape {tuple(tensor.shape)} and others share memory")


def leaves(batch: Batch) -> list[Tensor]:
    """The tensors of a batch, in the order of its fields."""
    found: list[Tensor] = []
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        found += [value] if isinstance(value, Tensor) else list(value.values()) if value else []
    return found


def rebuilt(batch: Batch, tensors: Iterable[Tensor]) -> Batch:
    """A batch like this one, of other tensors in the order of `leaves`."""
    rest = iter(tensors)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor):
            fields[field.name] = next(rest)
        else:
            fields[field.name] = {key: next(rest) for key in value} if value else value
    return type(batch)(**fields)


def packed(result: UpdateResult) -> list[Tensor]:
    """A result as tensors: all metrics in one row, then the priorities, if there are any."""
    numbers = torch.stack([value.detach().float().reshape(()) for value in result.metrics.values()])
    return [numbers] if result.priorities is None else [numbers, result.priorities.detach()]


def row_of(results: Sequence[UpdateResult]) -> Tensor:
    """All numbers of some results, one after the other."""
    return torch.stack([value.detach().float().reshape(()) for r in results for value in r.metrics.values()])


def results_of(row: Tensor, names: Sequence[Sequence[str]]) -> list[UpdateResult]:
    """Results from such a row, given the names of their numbers."""
    values = iter(row.unbind())
    return [UpdateResult({name: next(values) for name in each}) for each in names]


def unpacked(names: Sequence[str], tensors: Tensors) -> UpdateResult:
    """The result that `packed` gave, with its names."""
    numbers, *priorities = tensors
    return UpdateResult(
        dict(zip(names, numbers.unbind(), strict=True)), priorities[0] if priorities else None
    )


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _memory(tensor: Tensor) -> int:
    """What tells apart the memory of tensors that are alive; what holds nothing shares nothing."""
    return tensor.untyped_storage().data_ptr() or id(tensor)


def _draws(function: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in function.tags


def _require_static(function: Any, args: Sequence[Any]) -> None:
    """What is recorded runs with other numbers later: no shape and no branch may depend on them."""
    # In inference mode `bool` of a tensor arrives whole, and has no tag.
    if torch.Tag.data_dependent_output in function.tags or function is torch.ops.aten.is_nonzero.default:
        raise Uncapturable(f"{function} looks at a value (`.item()`, `if` on a tensor)")
    if torch.Tag.dynamic_output_shape in function.tags:
        indexes = function is torch.ops.aten.index.Tensor
        if not indexes or any(index.dtype in (torch.bool, torch.uint8) for index in _tensors(args[1])):
            raise Uncapturable(f"the shape that {function} gives depends on values")
