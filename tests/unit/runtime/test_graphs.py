"""What is captured on a GPU, rehearsed without one: a "graph" that runs the same code again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import rl_training
from rl_training.data.layout import RolloutLayout
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.samplers import CapturableSampler
from rl_training.data.storage import in_memory
from rl_training.envs.batched import State
from rl_training.envs.batched.classic import CartPole
from rl_training.errors import ConfigError, NonFiniteError
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.policies.exploration import (
    Exploration,
    Level,
    OrnsteinUhlenbeckNoise,
    RepeatedEpsilonGreedy,
)
from rl_training.runtime import memory, off_policy, recorded, trainer
from rl_training.runtime.acting import CapturedActing
from rl_training.runtime.compilation import MAX_RECORDINGS, Plan
from rl_training.runtime.cuda_graphs import Captured
from rl_training.runtime.recorded import captured
from rl_training.runtime.rounds import CapturedRounds
from rl_training.runtime.tracing import Uncapturable
from rl_training.types import StepResult, UpdateResult


class Rehearsal:
    """Treats a computation as a recording would: warm-ups that are taken back, then one call a replay."""

    made = 0
    stale = False

    def __init__(
        self,
        run: Callable[..., Sequence[Tensor]],
        inputs: Sequence[Tensor],
        *,
        generators: Sequence[torch.Generator] = (),
        undo: Callable[[], None] = lambda: None,
        pool: Any = None,
        warm_ups: int = 3,
    ) -> None:
        self.run, self.generators = run, list(generators)
        for _ in range(warm_ups + 1):
            run(*inputs)
            undo()
        type(self).made += 1

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        return [result.clone() for result in self.run(*inputs)]


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what is done, to which tensors, and which of the results are new ones."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.noted: list[tuple[Any, Any, Any, list[tuple[Tensor, bool]]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        given = {tensor.untyped_storage().data_ptr() for tensor in tensors_of((args, kwargs))}
        made = [(tensor, tensor.untyped_storage().data_ptr() not in given) for tensor in tensors_of(result)]
        self.noted.append((function, args, kwargs, made))
        return result


def tensors_of(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


class Tape(Rehearsal):
    """As a graph does it: operations are repeated on the tensors of the recording, and no code is run."""

    def __init__(self, run: Any, inputs: Sequence[Tensor], **how: Any) -> None:
        super().__init__(run, inputs, **how)
        self.inputs = [tensor.detach().clone() for tensor in inputs]
        with _Operations() as operations:
            self.results = list(run(*self.inputs))
        self.noted = operations.noted
        how.get("undo", lambda: None)()

    @torch.inference_mode()
    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        for own, tensor in zip(self.inputs, inputs, strict=True):
            own.copy_(tensor)
        for function, args, kwargs, made in self.noted:
            again = tensors_of(function(*args, **kwargs))
            for (tensor, new), result in zip(made, again, strict=True):
                if new:
                    tensor.copy_(result)
        return [result.clone() for result in self.results]


@pytest.fixture
def rehearsed(monkeypatch: pytest.MonkeyPatch) -> type[Rehearsal]:
    """A machine that seems to have a GPU."""
    return rehearse(monkeypatch, Rehearsal)


@pytest.fixture
def taped(monkeypatch: pytest.MonkeyPatch) -> type[Rehearsal]:
    """The same, where graphs repeat operations; so nothing is done by NumPy."""
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor.clone())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(RolloutBuffer, "on_host", False)
    return rehearse(monkeypatch, Tape)


def rehearse(monkeypatch: pytest.MonkeyPatch, graph: type[Rehearsal]) -> type[Rehearsal]:
    class Counted(graph):  # type: ignore[misc,valid-type]
        made = 0

    monkeypatch.setattr(recorded, "Captured", Counted)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(trainer, "plan_for", lambda *_: Plan("captured", "rehearsal"))
    monkeypatch.setattr(off_policy, "_in_graphs", lambda *_: True)
    monkeypatch.setattr(off_policy, "pinned", in_memory)
    monkeypatch.setattr(off_policy, "seen_by", lambda device: lambda tensor: tensor)
    return Counted


def test_recording_leaves_no_trace_and_replays_go_on() -> None:
    weights, generator = torch.zeros(3), torch.Generator().manual_seed(1)
    count = [0]

    def run() -> list[Tensor]:
        count[0] += 1
        for place in (weights[1:2], weights[2:]):
            place.add_(torch.rand(1, generator=generator))  # through a view
        return [weights.sum()]

    def undo() -> None:
        count[0] = 0

    before = generator.get_state()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded, "Captured", Rehearsal)
        graph: Any = captured(run, undo=undo)
    assert len(graph.generators) == 1
    assert count == [0]
    assert torch.equal(weights, torch.zeros(3))
    assert torch.equal(generator.get_state(), before)
    generator.set_state(before)
    drawn = torch.cat([torch.rand(1, generator=generator) for _ in range(2)])
    generator.set_state(before)
    assert torch.equal(graph()[0], drawn.sum())
    assert torch.equal(weights[1:], drawn)


def test_what_a_failed_warm_up_had_launched_is_over_before_it_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was launched on a stream of its own, and would be written after what is brought back."""
    events: list[str] = []
    side: Any = SimpleNamespace(wait_stream=lambda other: events.append("the side waits"))
    here: Any = SimpleNamespace(wait_stream=lambda other: events.append("we wait"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: here)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())

    def run() -> list[Tensor]:
        events.append("launched")
        raise MemoryError

    with pytest.raises(MemoryError):
        Captured(run, ())
    assert events == ["the side waits", "launched", "we wait"]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("look", [float, bool], ids=["number", "truth"])
def test_whoever_reads_a_value_is_not_captured(look: Callable[[Tensor], float], inference: bool) -> None:
    weights = torch.ones(2)
    with torch.inference_mode(inference), pytest.raises(Uncapturable, match="looks at a value"):
        captured(lambda: [weights * look(weights.mul_(2).sum())])
    assert torch.equal(weights, torch.ones(2))


def test_a_graph_that_does_something_else_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "Captured", Rehearsal)
    weights, generator = torch.ones(100), torch.Generator().manual_seed(1)
    before = generator.get_state()

    def adds(scale: float, says: float) -> Callable[[], list[Tensor]]:
        def run() -> list[Tensor]:
            weights.add_(torch.rand(100, generator=generator), alpha=scale)
            return [torch.tensor(says)]

        return run

    plain = adds(1.0, says=2.0)
    for scale, says, refused in ((1.01, 2.0, False), (1.2, 2.0, True), (1.0, 3.0, True)):
        with pytest.raises(Uncapturable, match="other numbers") if refused else nullcontext():
            captured(adds(scale, says), plain=plain)
        assert torch.equal(weights, torch.ones(100))
        assert torch.equal(generator.get_state(), before)
    captured(adds(1.2, 2.0), plain=plain, witness=lambda results: [])
    captured(adds(1.2, 2.0), plain=plain, witness=lambda results: results)
    with pytest.raises(Uncapturable, match="other numbers"):
        captured(adds(1.0, 3.0), plain=plain, witness=lambda results: results)

    def draws_more() -> list[Tensor]:
        torch.rand(1, generator=generator)
        return plain()

    with pytest.raises(Uncapturable, match="draw another number"):
        captured(draws_more, plain=plain, witness=lambda results: results)
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize(("updates", "compared"), [(1, True), (2, False)])
def test_rounds_of_one_update_are_compared(
    updates: int, compared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding grows from update to update; what comes of many of them proves nothing."""
    algorithm: Any = SimpleNamespace(optimizers={}, num_updates=5)

    class Replay(Rehearsal):
        """As a graph does it: nothing that is no tensor changes."""

        def __call__(self, *inputs: Tensor) -> list[Tensor]:
            number = algorithm.num_updates
            found = super().__call__(*inputs)
            algorithm.num_updates = number
            return found

    monkeypatch.setattr(recorded, "Captured", Replay)
    weights = torch.zeros(3)

    def learn(step: float) -> list[UpdateResult]:
        for _ in range(updates):
            algorithm.num_updates += 1
            weights.add_(step)
        return [UpdateResult({"weight": weights.sum()})]

    with pytest.raises(Uncapturable) if compared else nullcontext():
        recorded.RecordedRound(algorithm, lambda: learn(1.0), lambda: learn(2.0))
    assert (algorithm.num_updates, weights.tolist()) == (5, [0.0] * 3)
    with pytest.raises(Uncapturable):
        recorded.RecordedRound(algorithm, lambda: learn(1.0), lambda: learn(2.0), alike_at_first=True)
    same = recorded.RecordedRound(algorithm, lambda: learn(1.0), lambda: learn(1.0))
    assert same()[0].metrics["weight"] == 3.0 * updates
    assert algorithm.num_updates == 5 + updates


def run_ppo(folder: Path, **more: Any) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    hyperparams = {"num_steps": 16, "num_minibatches": 2, "update_epochs": 2, **more.pop("hyperparams", {})}
    agent = rl_training.train(
        algo="ppo", env_id="CartPole-v1", num_envs=8, total_timesteps=16 * 8 * 5, output_dir=str(folder),
        env=more.pop("env", {"backend": "batched", "normalize_obs": True}),
        hyperparams=hyperparams, evaluation={"every_steps": 0},
        logging={"every_steps": 128, "tensorboard": False}, **more,
    )  # fmt: skip
    return results_of(agent.run_dir)


def results_of(run_dir: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    metadata = json.loads((run_dir / "metadata.json").read_text())
    state = read_checkpoint(run_dir / metadata["latest_checkpoint"]).state
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    clock = ("time/", "elapsed", "steps_per_second")
    return state, [{k: v for k, v in line.items() if not k.startswith(clock)} for line in lines], metadata


def assert_same(first: Any, second: Any) -> None:
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            if key != "clock":
                assert_same(first[key], second[key])
    elif isinstance(first, list | tuple):
        for a, b in zip(first, second, strict=True):
            assert_same(a, b)
    elif isinstance(first, Tensor | np.ndarray):
        np.testing.assert_array_equal(np.asarray(first), np.asarray(second))
    else:
        assert first == second


def test_a_whole_iteration_is_the_same_as_its_parts(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    plain = run_ppo(tmp_path / "plain", compile="off")
    counted = request.getfixturevalue("rehearsed")
    state, lines, metadata = run_ppo(tmp_path / "whole")
    assert counted.made == 1
    assert metadata["compilation"]["problems"] == []
    assert_same(state, plain[0])
    assert_same(lines, plain[1])


def test_a_broken_reward_is_found_though_it_is_clipped(
    tmp_path: Path, rehearsed: type[Rehearsal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a whole iteration nobody looks at a reward before the learner's has been made of it."""
    steps = [0]

    def broken(self: CartPole, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor]:
        following, rewards, over = step(self, state, actions)
        steps[0] += 1
        if rehearsed.made and steps[0] >= breaks[0]:
            rewards = rewards.clone()
            rewards[5] = torch.inf
        return following, rewards, over

    step, breaks = CartPole.step, [10**9]
    monkeypatch.setattr(CartPole, "step", broken)

    class Break(rl_training.Callback):
        def on_update(self, trainer: Any) -> None:
            if trainer.iteration == 3:
                breaks[0] = steps[0] + 4

    words = "the reward of env 5 at step 3 of the rollout is NaN or infinite: the env is broken"
    with pytest.raises(NonFiniteError, match=words):
        run_ppo(tmp_path, callbacks=[Break()], env={"backend": "batched", "clip_reward": 1.0})
    assert rehearsed.made == 1


def test_iterations_that_look_at_a_value_stay_in_parts(tmp_path: Path, rehearsed: type[Rehearsal]) -> None:
    with pytest.warns(UserWarning, match="^more than an update at a time cannot be captured"):
        state, lines, metadata = run_ppo(tmp_path / "parts", hyperparams={"target_kl": 0.5})
    assert len(lines) == 5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "plan_for", lambda *_: Plan("eager", "twin"))
        twin = run_ppo(tmp_path / "plain", hyperparams={"target_kl": 0.5})
    assert_same(state, twin[0])
    assert "looks at a value" in metadata["compilation"]["problems"][0]


@pytest.mark.parametrize(
    ("algo", "updates", "graphs"),
    [("sac", 1, 1), ("td3", 1, 2), ("sac", 3, 2), ("td3", 2, 3), ("td3", 3, 4)],
    ids=lambda value: str(value),
)
@pytest.mark.filterwarnings("ignore:the policy's choices cannot be captured")  # steps need a real GPU
def test_drawing_and_learning_as_one(
    algo: str,
    updates: int,
    graphs: int,
    tmp_path: Path,
    rehearsed: type[Rehearsal],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each kind of update is a graph, and so is each order of them in which a round makes several."""

    def run(name: str) -> tuple[Any, ...]:
        agent = rl_training.train(
            algo=algo, env_id="Pendulum-v1", num_envs=2, total_timesteps=80, output_dir=str(tmp_path / name),
            network={"hidden": [8]},
            hyperparams={
                "learning_starts": 20, "batch_size": 8, "buffer_size": 60,
                "train_every": 2, "gradient_steps": updates,
            },
            evaluation={"every_steps": 0}, logging={"every_steps": 10, "tensorboard": False},
        )  # fmt: skip
        return results_of(agent.run_dir)

    state, lines, _ = run("rounds")
    assert rehearsed.made == graphs
    monkeypatch.setattr(trainer, "plan_for", lambda *_: Plan("eager", "twin"))
    twin = run("eager")
    assert_same(state, twin[0])
    assert_same(lines, twin[1])


OFF_POLICY: dict[str, dict[str, Any]] = {
    "sac": {"learning_rate_schedule": "linear"},
    "td3": {},
    "ddpg": {"exploration_noise": "ou"},
    "crossq": {},
    "dqn": {"target_update_every": 4, "n_step": 2},
    "noisy_dqn": {"target_update_every": 4},
}


@pytest.mark.parametrize("algo", OFF_POLICY)
def test_rounds_need_no_more_than_their_operations(
    algo: str, tmp_path: Path, taped: type[Rehearsal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph runs no line of Python again: what is counted or chosen there has to come out the same."""

    def run(name: str) -> tuple[Any, ...]:
        agent = rl_training.train(
            algo=algo, env_id="CartPole-v1" if "dqn" in algo else "Pendulum-v1", num_envs=2,
            total_timesteps=80, output_dir=str(tmp_path / name), network={"hidden": [8]},
            hyperparams={
                "learning_starts": 20, "batch_size": 8, "buffer_size": 60,
                "train_every": 2, "gradient_steps": 3, **OFF_POLICY[algo],
            },
            evaluation={"every_steps": 0}, logging={"every_steps": 10, "tensorboard": False},
        )  # fmt: skip
        return results_of(agent.run_dir)

    state, lines, metadata = run("rounds")
    assert metadata["compilation"]["problems"] == []
    assert taped.made >= 3  # choices, single updates, a round of several
    monkeypatch.setattr(trainer, "plan_for", lambda *_: Plan("eager", "twin"))
    twin = run("eager")
    assert_same(state, twin[0])
    assert_same(lines, twin[1])


@pytest.mark.parametrize("backend", ["batched", "sync"])
def test_iterations_need_no_more_than_their_operations(
    backend: str, tmp_path: Path, taped: type[Rehearsal], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"backend": backend, "normalize_obs": True, "normalize_reward": True}
    state, lines, metadata = run_ppo(tmp_path / "taped", env=env)
    assert metadata["compilation"]["problems"] == []
    assert taped.made == (1 if backend == "batched" else 2)
    monkeypatch.setattr(trainer, "plan_for", lambda *_: Plan("eager", "twin"))
    twin = run_ppo(tmp_path / "eager", env=env)
    assert_same(state, twin[0])
    assert_same(lines, twin[1])


class Graph:
    """Calls what it was made of, and keeps count."""

    def __init__(self, count: int, quick: Callable[[], list[UpdateResult]], launches: list[int]) -> None:
        self.count, self.quick, self.launches = count, quick, launches
        self.stale = False

    def __call__(self) -> list[UpdateResult]:
        assert not self.stale
        self.launches.append(self.count)
        return self.quick()


class Counting:
    """Updates that count, told apart by their kind; what is recorded of them cannot fail, or always does.

    As in torch, a recording that fails makes the graphs that there are useless.
    """

    def __init__(self, refuses: Callable[[int], bool] = lambda count: False, kinds: int = 2) -> None:
        self.algorithm: Any = SimpleNamespace(
            num_updates=0, update=self.update, kind=lambda number: min(number % 3 % kinds, kinds - 1)
        )
        self.launches: list[int] = []
        self.recorded: list[int] = []
        self.refuses = refuses
        self.graphs: list[Graph] = []
        self.calls: list[str] = []
        """Which way an update was made."""

    def update(self, batch: Any) -> UpdateResult:
        return self._made("plain")

    def __call__(self, batch: Any) -> UpdateResult:
        return self._made("as it is")

    def inner(self, batch: Any) -> UpdateResult:
        return self._made("inner")

    def _made(self, way: str) -> UpdateResult:
        self.calls.append(way)
        self.algorithm.num_updates += 1
        return UpdateResult({"number": torch.tensor(float(self.algorithm.num_updates))})

    def record_round(
        self, *, plain: Callable[[], list[UpdateResult]], quick: Any, alike_at_first: bool
    ) -> Any:
        assert alike_at_first
        number, calls = self.algorithm.num_updates, len(self.calls)
        count = len(plain())
        assert self.calls[calls:] == ["plain"] * count  # a graph is compared with that, not with itself
        del self.calls[calls:]
        self.algorithm.num_updates = number
        if self.refuses(count):
            for graph in self.graphs:
                graph.stale = True
            return None
        self.recorded.append(count)
        self.graphs.append(Graph(count, quick, self.launches))
        return self.graphs[-1]


def rounds_of(updates: Any) -> CapturedRounds:
    return CapturedRounds(updates, updates.inner, lambda update: update(None))


def numbers(results: Sequence[UpdateResult]) -> list[float]:
    return [float(result.metrics["number"]) for result in results]


def test_rounds_of_several_are_recorded_when_single_updates_are() -> None:
    updates = Counting()
    rounds = rounds_of(updates)
    assert numbers(rounds(3)) == [1.0, 2.0, 3.0]
    assert updates.launches == [1]  # the first of each kind is made as it is
    assert numbers(rounds(3)) == [4.0, 5.0, 6.0]
    assert updates.launches == [1] * 4
    assert numbers(rounds(3)) == [7.0, 8.0, 9.0]
    assert updates.launches == [1] * 4 + [3]
    assert rounds(0) == []
    assert set(updates.calls) == {"inner"}


def test_rounds_that_cannot_be_recorded_are_made_of_single_ones() -> None:
    updates = Counting(refuses=lambda count: count > 1)
    rounds = rounds_of(updates)
    assert numbers([result for _ in range(4) for result in rounds(3)]) == [float(n + 1) for n in range(12)]
    assert updates.launches == [1] * 10
    assert updates.recorded == [1] * 4  # both anew after the failure, which took their random numbers away


def test_updates_that_cannot_be_recorded_at_all_are_made_as_they_are() -> None:
    updates = Counting(refuses=lambda count: True)
    rounds = rounds_of(updates)
    assert numbers([result for _ in range(3) for result in rounds(3)]) == [float(n + 1) for n in range(9)]
    assert updates.launches == []
    assert updates.calls == ["inner", "inner"] + ["as it is"] * 7  # the first of either kind comes before


def test_no_more_than_a_few_rounds_are_recorded() -> None:
    updates = Counting()
    rounds = rounds_of(updates)
    made = [number for count in range(1, 40) for number in numbers(rounds(count))]
    assert made == [float(n + 1) for n in range(len(made))]
    assert len(set(updates.launches)) == MAX_RECORDINGS + 1
    assert [count for count in updates.recorded if count == 1] == [1, 1]
    assert len(updates.recorded) == MAX_RECORDINGS + 2


def test_single_updates_are_recorded_however_many_kinds_there_are() -> None:
    updates = Counting()
    updates.algorithm.kind = lambda number: number % 20
    rounds = rounds_of(updates)
    assert numbers([result for _ in range(60) for result in rounds(1)]) == [float(n + 1) for n in range(60)]
    assert updates.launches == [1] * 40


def test_long_rounds_are_made_of_several_graphs() -> None:
    updates = Counting(kinds=1)
    rounds, longest = rounds_of(updates), CapturedRounds.LONGEST
    rounds(2)
    assert numbers(rounds(2 * longest + 3)) == [float(n + 3) for n in range(2 * longest + 3)]
    assert updates.launches == [1, longest, longest, 3]


def test_pinned_memory_is_announced_and_refused_with_what_it_really_takes(
    tmp_path: Path, rehearsed: type[Rehearsal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Pendulum: 3 × 4 bytes of observation, 4 each of action, reward, generation and age, and 3 flags."""

    def run() -> Any:
        return rl_training.train(
            algo="sac", env_id="Pendulum-v1", total_timesteps=8, num_envs=2, output_dir=str(tmp_path),
            network={"hidden": [8]}, evaluation={"every_steps": 0}, logging={"tensorboard": False},
            hyperparams={"buffer_storage": "memory", "buffer_size": 1024, "batch_size": 8},
        )  # fmt: skip

    # With the write heads 1,026 rows: beyond 1,024 all but the observations need the next power of two.
    taken = 1024 * 16 + 2048 * (4 * 4 + 3)
    monkeypatch.setattr(memory, "available_memory", lambda device: taken - 1)
    with pytest.raises(ConfigError, match=r"hyperparams\.buffer_size: needs"):
        run()
    monkeypatch.setattr(memory, "available_memory", lambda device: taken)
    metadata = json.loads((run().run_dir / "metadata.json").read_text())
    assert metadata["resources"]["replay_buffer"]["bytes"] == taken


def filled_buffer(steps: int, ends_every: int) -> ReplayBuffer:
    layout = RolloutLayout(obs_shape=(1,), obs_dtype=torch.float32, action_shape=(), action_dtype=torch.int64)
    buffer = ReplayBuffer(16, 2, layout)
    buffer.begin(np.zeros((2, 1), np.float32))
    for step in range(1, steps + 1):
        over = np.full(2, step % ends_every == 0)
        obs = np.full((2, 1), step, np.float32)
        ended = np.flatnonzero(over)
        final = obs[ended] if len(ended) else None
        no = np.zeros(2, bool)
        buffer.add(torch.zeros(2, dtype=torch.int64), StepResult(obs, np.ones(2), over, no, ended, final))
    return buffer


def test_capturable_draws_are_uniform_over_what_starts_something() -> None:
    buffer = filled_buffer(steps=23, ends_every=3)
    sampler = CapturableSampler(buffer, gamma=0.9)
    sampler.load_state_dict({})
    batch = sampler.sample(40_000, torch.Generator().manual_seed(0))
    starts = np.flatnonzero(buffer.starts.flatten().numpy())
    found, counts = np.unique(batch.index[0][batch.weights > 0].numpy(), return_counts=True)
    np.testing.assert_array_equal(found, starts)
    expected = counts.sum() / len(starts)
    assert (abs(counts - expected) < 5 * expected**0.5).all()
    assert batch.weights.mean() > 0.999


def test_draws_that_find_nothing_weigh_nothing() -> None:
    buffer = filled_buffer(steps=4, ends_every=99)
    buffer.starts.zero_()
    sampler = CapturableSampler(buffer, gamma=0.9)
    sampler.load_state_dict({})
    batch = sampler.sample(7, torch.Generator().manual_seed(0))
    assert batch.weights.tolist() == [0.0] * 7


def test_noise_that_drifts_stays_in_its_own_memory() -> None:
    noise, actions = OrnsteinUhlenbeckNoise(0.2), torch.zeros(2, 1)
    generator = torch.Generator().manual_seed(0)
    noise.explore(actions, actions, generator)
    where, saved = noise._value, noise.state_dict()["value"]
    again = noise.explore(actions, actions, generator)
    assert noise._value is where
    assert where is not None
    assert not torch.equal(saved, where)  # what was saved stays as it was
    assert torch.equal(again, where)
    noise.reset(torch.tensor([True, False]))
    assert where[0] == 0.0
    assert where[1] != 0.0


@pytest.mark.parametrize(
    "make",
    [lambda: OrnsteinUhlenbeckNoise(0.2), lambda: RepeatedEpsilonGreedy(0.5, 0.5, 1.0)],
    ids=["ou", "repeats"],
)
def test_noise_that_begins_while_steps_are_captured_begins_at_zero(
    make: Callable[[], Exploration], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the process remembers is made when it is first asked, which is for the recording's sake."""
    monkeypatch.setattr(recorded, "Captured", Rehearsal)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor.clone())
    waits = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: waits)

    def steps(*, capture: bool) -> list[Tensor]:
        noise, generator = make(), torch.Generator().manual_seed(0)

        def choose(obs: Any) -> list[Tensor]:
            return [noise.explore(obs * 0.0, torch.rand(obs.shape, generator=generator), generator)]

        with torch.inference_mode():
            obs = np.ones((20, 3), np.float32)
            act: Any = lambda obs: choose(torch.as_tensor(obs))  # noqa: E731
            act = CapturedActing(choose, obs, torch.device("cpu"), told=[True]) if capture else act
            return [act(obs)[0].clone() for _ in range(3)]

    for ours, plain in zip(steps(capture=True), steps(capture=False), strict=True):
        assert torch.equal(ours, plain)


def test_a_level_made_while_collecting_follows_its_schedule() -> None:
    level = Level(1.0, 0.0, 0.5)
    with torch.inference_mode():
        level.on(torch.device("meta"))
    level.set_progress(0.25)
    assert level.value == pytest.approx(0.5)
