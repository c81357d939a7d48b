"""What decides how updates are computed, and what happens where that cannot be done."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.algorithms.base import Adam, Context, OffPolicyAlgorithm, OffPolicyHyperparams, descend
from rl_training.algorithms.dqn import DQN, DQNConfig
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.layers import Layer, resolve_layers
from rl_training.experiment.yaml import load_text
from rl_training.policies.config import NetworkConfig
from rl_training.runtime import compilation, recorded
from rl_training.runtime.compilation import (
    Plan,
    Updates,
    Workload,
    common_kinds,
    decide,
    plan_for,
    possible_modes,
    units,
)
from rl_training.runtime.cuda_graphs import Captured
from rl_training.runtime.tracing import Recording, Uncapturable
from rl_training.types import Batch, Spec, TransitionBatch, UpdateResult

LONG, SHORT = Workload(10**6, 256, 1000), Workload(1000, 256, 1000)


@pytest.mark.parametrize(
    ("setting", "device", "work", "compiler", "mode", "because"),
    [
        ("off", "cpu", LONG, "g++", "eager", "compile: off"),
        ("on", "cpu", SHORT, "g++", "compiled", "compile: on"),
        ("on", "cpu", LONG, None, "eager", "no C++ compiler"),
        ("auto", "cpu", LONG, "g++", "compiled", "takes about 30 s and would save about 658 s"),
        ("auto", "cpu", SHORT, "g++", "eager", "takes about 30 s and would save about 1 s"),
        ("auto", "cpu", LONG, None, "eager", "no C++ compiler"),
        ("off", "cuda", LONG, "g++", "eager", "compile: off"),
        ("on", "cuda", SHORT, "g++", "compiled and captured", "compile: on"),
        ("auto", "cuda", SHORT, "g++", "captured", "takes about 15 s and would save about 0 s"),
        ("auto", "cuda", LONG, "g++", "compiled and captured", "would save about 50 s"),
        ("on", "cuda", LONG, None, "captured", "no C++ compiler"),
    ],
)
def test_what_a_setting_means(
    setting: str, device: str, work: Workload, compiler: str | None, mode: str, because: str
) -> None:
    plan = decide(setting, device, work, compiler=compiler)
    assert plan.mode == mode
    assert because in plan.reason
    assert decide(setting, device, work, compiler=compiler, eager_only="so").mode == "eager"


@pytest.mark.parametrize(
    ("setting", "compiler", "warned"),
    [("on", None, True), ("on", "g++", False), ("auto", None, False), ("off", None, False)],
)
def test_who_asks_for_compiled_updates_is_warned_where_there_is_no_compiler(
    setting: str, compiler: str | None, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "find_compiler", lambda: compiler)
    spec = Spec(spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(2))
    algorithm = DQN.from_context(Context(spec, DQNConfig(), NetworkConfig(), torch.device("cpu")))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan_for(algorithm, setting, LONG)
    said = [str(warning.message) for warning in caught]
    found = ["compile: on, but updates are eager: no C++ compiler was found (g++, clang++ or $CXX)"]
    assert said == (found if warned else [])


def test_every_kind_that_is_compiled_has_to_be_repaid() -> None:
    work = Workload(210_000, 256, 0)  # saves 63 s
    assert decide("auto", "cpu", work, compiler="g++").mode == "compiled"
    assert decide("auto", "cpu", replace(work, kinds=2), compiler="g++").mode == "eager"


def test_convolutions_are_compiled_on_a_cpu_only_if_asked_for() -> None:
    work = replace(LONG, images=True)
    assert decide("auto", "cpu", work, compiler="g++") == Plan(
        "eager", "compiled, convolutions are no faster on a CPU"
    )
    assert decide("on", "cpu", work, compiler="g++").mode == "compiled"
    assert decide("auto", "cuda", work, compiler="g++").mode == "compiled and captured"
    pixels = Spec(spaces.Box(0, 255, (24, 24, 3), np.uint8), spaces.Discrete(2))
    context = Context(pixels, DQNConfig(), NetworkConfig(), torch.device("cpu"))
    assert "convolutions" in plan_for(DQN.from_context(context), "auto", LONG).reason


@pytest.mark.parametrize(
    ("work", "mode"),
    [
        (Workload(20_000, 256, 2577), "eager"),  # SAC for 20,000 steps
        (Workload(100_000, 256, 2577), "compiled"),
        (Workload(3_900, 256, 323), "eager"),  # PPO for a million steps in large rollouts
        (Workload(250_000, 256, 323), "compiled"),  # and in small ones
    ],
)
def test_what_auto_makes_of_some_runs(work: Workload, mode: str) -> None:
    assert decide("auto", "cpu", work, compiler="g++").mode == mode


def test_what_a_device_can_do() -> None:
    assert possible_modes("cpu", compiler="g++") == ["eager", "compiled"]
    assert possible_modes("cpu", compiler=None) == ["eager"]
    assert possible_modes("cuda", compiler="g++") == ["eager", "captured", "compiled and captured"]
    assert possible_modes("cuda", compiler=None) == ["eager", "captured"]


def test_rare_kinds_are_left_alone_and_units_are_counted() -> None:
    spec = Spec(spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(2))

    def dqn(every: int) -> DQN:
        hyperparams = DQNConfig(target_update_every=every)
        return DQN.from_context(Context(spec, hyperparams, NetworkConfig(hidden=(8, 6)), torch.device("cpu")))

    assert common_kinds(dqn(250)) == {False}
    assert common_kinds(dqn(10)) == {False, True}
    assert common_kinds(dqn(1)) == {True}
    assert units(dqn(1)) == 2 * (8 + 6 + 2)  # the target network computes as much


@pytest.mark.parametrize(
    ("text", "expected"),
    [("on", "on"), ("off", "off"), ("'on'", "on"), ("true", "on"), ("false", "off"), ("auto", "auto")],
)
def test_yaml_may_take_on_and_off_for_truth_values(text: str, expected: str) -> None:
    document = load_text(f"algo: ppo\nenv_id: CartPole-v1\ncompile: {text}\n", "config.yaml")
    assert resolve_layers([Layer("config.yaml", document.data)]).config.compile == expected


def test_another_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"compile: expected 'auto', 'on' or 'off', got 'of'.*'off'"):
        TrainConfig(algo="ppo", env_id="CartPole-v1", compile="of")  # type: ignore[arg-type]


class Regression(OffPolicyAlgorithm):
    """Fits rewards; `loss` is for tests to break."""

    Hyperparams = OffPolicyHyperparams

    def build(self, context: Context) -> None:
        self.policy = nn.Linear(3, 1)
        self.parameters = list(self.policy.parameters())
        self.optimizers["adam"] = Adam(self.parameters, self.schedule(0.1, "constant", "learning_rate"))
        self.scale: Callable[[Tensor], Tensor] = lambda errors: errors

    def update(self, batch: Batch) -> UpdateResult:
        batch = self._transitions(batch)
        errors = self.scale(self.policy(batch.obs).squeeze(-1) - batch.rewards)
        loss = errors.square().mean()
        norm = descend(loss, self.optimizers["adam"], self.parameters)
        self.num_updates += 1
        return UpdateResult({"loss": loss.detach(), "norm": norm}, errors.detach().abs())


def regression() -> Regression:
    spec = Spec(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(2))
    context = Context(spec, OffPolicyHyperparams(), NetworkConfig(), torch.device("cpu"))
    return Regression.from_context(context)


def batch_of(seed: int, rows: int = 6) -> TransitionBatch:
    g = torch.Generator().manual_seed(seed)
    obs = torch.randn(rows, 3, generator=g)
    ones, index = torch.ones(rows), torch.zeros(2, rows, dtype=torch.int64)
    return TransitionBatch(obs, index[0], torch.randn(rows, generator=g), obs, ones, ones, index)


@pytest.fixture(autouse=True)
def _graph_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "inductor", lambda graph, inputs: graph)


def agree(updates: Updates, plain: Regression, rounds: int = 3) -> None:
    for seed in range(rounds):
        found, expected = updates(batch_of(seed)), plain.update(batch_of(seed))
        torch.testing.assert_close(dict(found.metrics), dict(expected.metrics))
        torch.testing.assert_close(found.priorities, expected.priorities)
    torch.testing.assert_close(updates.algorithm.policy.state_dict(), plain.policy.state_dict())
    assert updates.algorithm.num_updates == plain.num_updates == rounds


def test_recording_leaves_no_trace() -> None:
    algorithm = regression()
    before = {name: value.clone() for name, value in algorithm.policy.state_dict().items()}
    made = recorded.RecordedUpdate(algorithm, batch_of(0), backend=lambda g, i: g, capture=False)
    assert algorithm.num_updates == 0
    torch.testing.assert_close(algorithm.policy.state_dict(), before, rtol=0, atol=0)
    moments = algorithm.optimizers["adam"].state_dict()["state"]
    assert all(not bool(value.any()) for state in moments.values() for value in state.values())
    agree(Updates(algorithm, Plan("compiled", "")), regression())
    assert made.names == ["loss", "norm"]


def test_what_was_recorded_from_is_let_go() -> None:
    algorithm, batch = regression(), batch_of(0)
    algorithm.scale = lambda errors: errors * (1.0 + mask)
    mask = torch.ones(6)
    made = recorded.RecordedUpdate(algorithm, batch, backend=lambda g, i: g, capture=False)
    gone = [weakref.ref(tensor) for tensor in (batch.obs, batch.rewards)]
    del batch
    gc.collect()
    assert [tensor() for tensor in gone] == [None, None]
    assert made(batch_of(1)).metrics["loss"] > 0.0


def test_undo_brings_back_tensors_and_generators() -> None:
    generator = torch.Generator().manual_seed(3)
    x, table = torch.ones(4), torch.zeros(2, 3)
    expected = torch.rand(4, generator=torch.Generator().manual_seed(3))
    recording = Recording()
    with recording:
        y = x * 2
        y.add_(torch.rand(4, generator=generator))
        x.mul_(3.0)
        torch._foreach_add_([table[0], table[1]], 1.0)
    assert table.eq(1).all()
    recording.undo()
    assert x.eq(1).all()
    assert table.eq(0).all()
    assert torch.equal(torch.rand(4, generator=generator), expected)
    assert [tensor.shape for tensor in recording.externals] == [x.shape, table.shape]
    assert len(recording.draws) == 1


def looks_at_values(errors: Tensor) -> Tensor:
    return errors * float(errors.detach().numpy()[0])


def asks_for_a_value(errors: Tensor) -> Tensor:
    return errors * 2.0 if errors.detach().mean() > 0 else errors


def draws_by_numbers(errors: Tensor) -> Tensor:
    return errors * torch.bernoulli(errors.detach().sigmoid())


def depends_on_shape(errors: Tensor) -> Tensor:
    return errors[errors.detach() > 0]


@pytest.mark.parametrize(
    ("scale", "why"),
    [
        (looks_at_values, "they give other numbers"),
        (draws_by_numbers, "depends on other numbers"),
        (depends_on_shape, "depends on values"),
        (asks_for_a_value, "looks at a value"),
    ],
)
def test_what_cannot_be_recorded_is_computed_as_it_is(scale: Callable[[Tensor], Tensor], why: str) -> None:
    algorithm, plain = regression(), regression()
    algorithm.scale = plain.scale = scale
    updates = Updates(algorithm, Plan("compiled", ""))
    with pytest.warns(UserWarning, match=why):
        updates(batch_of(0))
    assert why in updates.describe()["problems"][0]
    assert not any(isinstance(update, recorded.RecordedUpdate) for update in updates._ready.values())
    if scale is not draws_by_numbers:  # which draw from torch's own generator
        plain.update(batch_of(0))
        torch.testing.assert_close(algorithm.policy.state_dict(), plain.policy.state_dict())


@pytest.mark.parametrize(
    ("numbers", "elsewhere", "same"), [(256, 4, True), (256, 5, False), (63, 1, False), (1, 1, False)]
)
def test_rounding_may_turn_a_few_steps_around(numbers: int, elsewhere: int, same: bool) -> None:
    before, expected = torch.zeros(numbers), torch.full((numbers,), 1e-3)
    found = expected.clone()
    found[:elsewhere] *= -1.0
    if same:
        recorded._require_same([found], [expected], [before])
    else:
        with pytest.raises(Uncapturable, match="other numbers"):
            recorded._require_same([found], [expected], [before])


@pytest.mark.parametrize("part", [lambda kept: kept, lambda kept: kept[1:]], ids=["whole", "view"])
def test_what_begins_while_it_is_recorded_is_not_kept_by_a_graph(part: Callable[[Tensor], Tensor]) -> None:
    """Machine code would go on with a copy of it, of which nobody else knows."""
    kept: list[Tensor] = []

    def run(x: Tensor) -> list[Tensor]:
        if not kept:
            kept.append(torch.zeros_like(x))
        part(kept[0]).add_(torch.tensor(1.0))  # a number is nothing that is kept
        return [x + kept[0]]

    def compiled() -> Callable[..., Any]:
        return recorded.compiled(run, [torch.ones(3)], lambda graph, _: graph)

    with pytest.raises(Uncapturable, match="did not exist at first"):
        compiled()
    before, quick = kept[0].clone(), compiled()  # now it exists
    for _ in range(2):
        quick(torch.ones(3))
    assert (kept[0] - before).tolist()[1:] == [2.0, 2.0]


def test_an_optimiser_that_cannot_be_prepared_is_a_reason() -> None:
    algorithm = regression()
    algorithm.optimizers["adam"] = torch.optim.SGD(algorithm.parameters, lr=0.1, fused=True)
    updates = Updates(algorithm, Plan("compiled", ""))
    with pytest.warns(UserWarning, match="the optimiser 'adam' is no GuardedOptimizer"):
        updates(batch_of(0))
    assert algorithm.num_updates == 1


def test_shapes_that_change_all_the_time_are_given_up() -> None:
    algorithm = regression()
    updates = Updates(algorithm, Plan("compiled", ""))
    for rows in range(2, 2 + compilation.MAX_RECORDINGS):
        updates(batch_of(0, rows))
    with pytest.warns(UserWarning, match="more than 8"):
        updates(batch_of(0, 30))
    assert algorithm.num_updates == compilation.MAX_RECORDINGS + 1


class GraphOnPaper:
    """Stands for a CUDA graph: runs on memory of its own, where results are overwritten by the next run."""

    made: Sequence[Any] = ()
    stale = False

    def __init__(self, run: Any, inputs: Any, *, generators: Any, undo: Any, pool: Any) -> None:
        self.run, self.inputs = run, [tensor.clone() for tensor in inputs]
        run(*self.inputs)
        undo()
        self.results: list[Tensor] = []
        GraphOnPaper.made = [*GraphOnPaper.made, self]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        return [result.clone() for result in self.run(*self.inputs)]


def test_captured_updates_see_each_batch_and_a_failed_compiler_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GraphOnPaper, "made", ())
    monkeypatch.setattr(recorded, "Captured", GraphOnPaper)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    agree(Updates(regression(), Plan("captured", "")), regression())
    agree(Updates(regression(), Plan("compiled and captured", "")), regression())
    assert len(GraphOnPaper.made) == 2

    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no kernel for this")

    monkeypatch.setattr(recorded, "inductor", broken)
    updates = Updates(regression(), Plan("compiled and captured", ""))
    with pytest.warns(UserWarning, match="compiled they cannot be: RuntimeError: no kernel for this"):
        agree(updates, regression())
    assert len(GraphOnPaper.made) == 3


def test_a_captured_update_that_has_gone_stale_is_captured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GraphOnPaper, "made", ())
    monkeypatch.setattr(recorded, "Captured", GraphOnPaper)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    updates, plain = Updates(regression(), Plan("captured", "")), regression()
    agree(updates, plain)
    for stale, made in ((False, 1), (True, 2), (False, 2)):
        GraphOnPaper.made[-1].stale = stale
        found, expected = updates(batch_of(9)), plain.update(batch_of(9))
        for name, value in expected.metrics.items():
            torch.testing.assert_close(found.metrics[name], value)
        assert len(GraphOnPaper.made) == made


def test_what_was_refused_is_not_tried_again_when_a_graph_has_gone_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else two kinds of updates that a compiler fails at would make each other stale for ever."""
    tried: list[int] = []

    def broken(graph: Any, inputs: Any) -> Any:
        tried.append(len(tried))
        for graph_on_paper in GraphOnPaper.made:
            graph_on_paper.stale = True
        raise RuntimeError("no kernel for this")

    monkeypatch.setattr(GraphOnPaper, "made", ())
    monkeypatch.setattr(recorded, "Captured", GraphOnPaper)
    monkeypatch.setattr(recorded, "inductor", broken)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    algorithm = regression()
    monkeypatch.setattr(algorithm, "kind", lambda number: number % 2)
    updates = Updates(algorithm, Plan("compiled and captured", ""))
    with pytest.warns(UserWarning, match="no kernel for this"):
        updates(batch_of(0))
    for seed in range(1, 8):
        updates(batch_of(seed))
    assert len(tried) == 2
    assert len(GraphOnPaper.made) == 3  # that of the first kind anew, when the second had been tried
    assert len(updates.of_updates) == 1


def test_a_recording_that_fails_makes_graphs_stale_that_draw_random_numbers() -> None:
    """What torch has registered for them are the states that generators had before."""
    draws, does_not = (Captured.__new__(Captured) for _ in range(2))
    for graph in (draws, does_not):
        graph._draws, graph._after = graph is draws, Captured.failures
        assert not graph.stale
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Captured, "failures", Captured.failures + 1)
        assert (draws.stale, does_not.stale) == (True, False)


def test_after_other_weights_were_loaded_updates_are_recorded_anew() -> None:
    algorithm, plain = regression(), regression()
    updates = Updates(algorithm, Plan("compiled", ""))
    updates(batch_of(5))
    algorithm.load_state_dict(plain.state_dict())
    updates.forget()
    agree(updates, plain)


def test_updates_within_a_larger_graph_count_as_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "inductor", lambda graph, inputs: graph)
    updates = Updates(regression(), Plan("compiled and captured", ""))
    inner = updates.within_graphs()
    assert inner is not None
    assert "updates not computed so" not in updates.surroundings
    inner(batch_of(0))
    assert updates.surroundings["updates not computed so"] == 0


@pytest.mark.parametrize("works", [True, False])
def test_a_larger_graph_counts_as_tried(works: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a resume that captures nothing, or that does where nothing was, would be called exact."""

    def recording(*_: Any) -> object:
        if not works:
            raise Uncapturable("it is not to be had")
        return object()

    monkeypatch.setattr(recorded, "RecordedRound", recording)
    updates = Updates(regression(), Plan("captured", ""))
    assert "updates not computed so" not in updates.surroundings
    with nullcontext() if works else pytest.warns(UserWarning, match="it is not to be had"):
        found = updates.record_round(plain=list, quick=list)
    assert (found is not None) is works
    assert updates.of_updates == []  # learners may differ in it
    assert updates.surroundings["updates not computed so"] == (0 if works else 1)


def test_the_time_of_what_is_captured_within_something_larger_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]

    def make(self: Updates, kind: Any, batch: Batch) -> Callable[[Batch], UpdateResult]:
        clock[0] += 20.0
        return self.algorithm.update

    monkeypatch.setattr(compilation, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(Updates, "_make", make)
    updates = Updates(regression(), Plan("compiled and captured", ""))
    inner = updates.within_graphs()
    assert inner is not None
    inner(batch_of(0))
    assert updates.describe()["seconds"] == 20.0
    inner.forget()

    def capture() -> UpdateResult:
        clock[0] += 5.0
        return inner(batch_of(0))

    updates.attempt("both", capture)
    assert updates.describe()["seconds"] == 45.0
