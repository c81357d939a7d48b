"""Means over learners: what each gets, whatever they bring, and what several of them learn together."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.algorithms.a2c import A2C
from rl_training.algorithms.base import Algorithm, Context
from rl_training.algorithms.ppo import PPO
from rl_training.functional.losses import standardized
from rl_training.policies.config import NetworkConfig
from rl_training.policies.normalizer import ObsNormalizer
from rl_training.runtime.averaging import ROOM, Abandoned, Meeting, Seat
from rl_training.runtime.rewards import RewardSettings, RewardTransform
from rl_training.types import RolloutBatch, Spec


def together(members: int, work: Callable[[Seat], Any]) -> list[Any]:
    """What `work` gives in each seat of a meeting; threads do as well as processes."""
    meeting = Meeting(multiprocessing.get_context(), members)
    seats = [Seat(meeting, number) for number in range(members)]
    try:
        with ThreadPoolExecutor(members) as pool:
            return list(pool.map(work, seats))
    finally:
        for seat in seats:
            seat.leave()


def number_of(seat: Seat) -> int:
    return seat._member


@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 1000, ROOM // 4, ROOM // 4 + 1, ROOM])
def test_everyone_gets_the_mean_to_the_same_bit(members: int, size: int) -> None:
    brought = torch.randn(members, size, generator=torch.Generator().manual_seed(0))
    found = together(members, lambda seat: seat(brought[number_of(seat)].reshape(1, -1)))
    for mean in found:
        assert torch.equal(mean, found[0])
        assert mean.shape == (1, size)
    assert torch.allclose(found[0][0].double(), brought.double().mean(0), atol=1e-6)


def test_meetings_are_kept_apart_however_uneven_the_learners_are() -> None:
    def work(seat: Seat) -> list[float]:
        found = []
        for i in range(300):
            if i % 50 == 25 * number_of(seat):
                time.sleep(0.01)
            found.append(float(seat(torch.tensor([float(i), 10.0 * number_of(seat)])).sum()))
        return found

    for found in together(3, work):
        assert found == [i + 10.0 for i in range(300)]


def test_of_other_types_too() -> None:
    def work(seat: Seat) -> Tensor:
        seat(torch.full((3,), 1.0))
        return seat(torch.tensor(2.0**-40 + number_of(seat), dtype=torch.float64))

    assert [float(mean) for mean in together(2, work)] == [0.5 + 2.0**-40] * 2


def test_alone_nobody_is_waited_for() -> None:
    meeting = Meeting(multiprocessing.get_context(), 2)
    seat = Seat(meeting, 0)
    values = torch.tensor([1.0, 2.0])
    with seat.alone():
        found = seat(values)
    seat.leave()
    assert torch.equal(found, values)
    assert found.data_ptr() != values.data_ptr()


def test_who_waits_in_vain_is_told() -> None:
    seat = Seat(Meeting(multiprocessing.get_context(), 2), 0, lambda dead: not dead)
    with pytest.raises(Abandoned):
        seat(torch.zeros(1))
    assert seat.abandoned
    seat.leave()


def test_while_the_others_rest_nobody_waits_for_them() -> None:
    seat = Seat(Meeting(multiprocessing.get_context(), 2), 0)
    seat.open = False
    with seat.alone():
        assert float(seat(torch.tensor(3.0))) == 3.0
    assert not seat.refused
    with pytest.raises(Abandoned):
        seat(torch.zeros(1))
    assert seat.refused
    assert not seat.abandoned
    seat.leave()


def test_who_dies_with_the_lock_is_not_waited_for() -> None:
    meeting = Meeting(multiprocessing.get_context(), 2)
    seat = Seat(meeting, 0, lambda dead: dead)
    meeting.lock.acquire()  # and never given back
    with pytest.raises(Abandoned):
        seat(torch.zeros(1))
    seat.leave()


def test_who_is_done_already_is_not_missed() -> None:
    """The other one comes, and has answered, between a look at who is there and a look around."""
    meeting = Meeting(multiprocessing.get_context(), 2)

    def comes_now(dead: bool) -> bool:
        if not dead:
            arrived[1] = 1
        return True

    seat = Seat(meeting, 0, comes_now)
    arrived = meeting.places()[1]
    assert float(seat(torch.tensor(3.0))) == 1.5  # the other one has brought nothing but zeros
    seat.leave()


def test_advantages_are_standardised_over_what_all_have() -> None:
    values = torch.randn(2, 50, generator=torch.Generator().manual_seed(1)) * 3.0 + 40.0
    values[1] += 5.0
    found = together(2, lambda seat: standardized(values[number_of(seat)], seat))
    assert torch.allclose(torch.stack(found).flatten(), standardized(values.flatten()), atol=1e-5)


def test_statistics_are_those_of_all_observations() -> None:
    obs = torch.randn(2, 2, 40, 3, generator=torch.Generator().manual_seed(2)) + torch.tensor(
        [1.0, -7.0, 1e3]
    )
    obs[1] *= 2.0

    def work(seat: Seat) -> ObsNormalizer:
        normalizer = ObsNormalizer((3,))
        for batch in obs[number_of(seat)]:
            normalizer.update(batch, seat)
        return normalizer

    first, second = together(2, work)
    whole = ObsNormalizer((3,))
    for batch in obs.transpose(0, 1):
        whole.update(batch.reshape(-1, 3))
    for name, expected in whole.state_dict().items():
        assert torch.equal(first.state_dict()[name], second.state_dict()[name])
        assert torch.allclose(first.state_dict()[name], expected, rtol=1e-12), name


def test_rewards_are_scaled_by_the_returns_that_all_have_seen() -> None:
    rng = np.random.default_rng(0)
    rewards, dones = rng.normal(2.0, 3.0, (2, 3, 20, 8)), (rng.random((2, 3, 20, 8)) < 0.1).astype(np.float32)
    settings = RewardSettings(normalize=True)

    def scaled(blocks: Any, ends: Any, averaging: Seat | None = None) -> list[Any]:
        transform = RewardTransform(settings, blocks.shape[-1], averaging)
        found = []
        for block, end in zip(blocks.copy(), ends, strict=True):
            transform.apply(block, end)
            found.append(block)
        return found

    found = together(2, lambda seat: scaled(rewards[number_of(seat)], dones[number_of(seat)], seat))
    whole = scaled(np.concatenate(rewards, -1), np.concatenate(dones, -1))
    assert np.allclose(np.concatenate(found, -1), whole, rtol=1e-12)


def rollout(samples: int, spec: Spec) -> RolloutBatch:
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(samples, *shape, generator=generator)

    actions = torch.randint(0, int(spec.action_space.n), (samples,), generator=generator)  # type: ignore[union-attr]
    return RolloutBatch(drawn(4), actions, -drawn().abs(), drawn(), 5.0 * drawn() + 1.0, drawn())


def part_of(batch: RolloutBatch, number: int, members: int) -> RolloutBatch:
    def rows(tensor: Any) -> Any:
        return tensor.chunk(members)[number]

    fields = ("obs", "actions", "logprobs", "values", "advantages", "returns")
    return RolloutBatch(*(rows(getattr(batch, field)) for field in fields))


@pytest.mark.parametrize(
    ("cls", "more"),
    [
        (PPO, {}),
        (PPO, {"max_grad_norm": 0.01}),
        (PPO, {"clip_value_loss": False}),
        (A2C, {}),
        (A2C, {"max_grad_norm": 0.01}),
    ],
)
@pytest.mark.parametrize("members", [2, 3])
def test_several_learners_do_what_one_does_with_all_their_samples(
    cls: type[Algorithm], more: dict[str, Any], members: int
) -> None:
    """After some updates their weights are those of one learner, and each other's to the bit."""
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    spec = Spec(env.observation_space, env.action_space)
    hyperparams = cls.Hyperparams(learning_rate=1e-2, normalize_advantages=True, **more)
    context = Context(spec, hyperparams, NetworkConfig(hidden=(16,)), torch.device("cpu"), seed=1)
    batch = rollout(12 * members, spec)

    def weights(algorithm: Algorithm) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in algorithm.policy.parameters()]

    def learn(algorithm: Algorithm, samples: RolloutBatch) -> tuple[list[Tensor], list[float]]:
        norms = [float(algorithm.update(samples).metrics["grad_norm"]) for _ in range(5)]
        return weights(algorithm), norms

    # Made beforehand: weights are drawn from torch's own generator, which threads share.
    algorithms = [cls.from_context(context) for _ in range(members)]

    def work(seat: Seat) -> tuple[list[Tensor], list[float]]:
        algorithm = algorithms[number_of(seat)]
        algorithm.join(seat)
        return learn(algorithm, part_of(batch, number_of(seat), members))

    found = together(members, work)
    before = weights(cls.from_context(context))
    expected, norms = learn(cls.from_context(context), batch)
    for ours, our_norms in found:
        assert our_norms == found[0][1]
        assert all(map(torch.equal, ours, found[0][0]))
        assert our_norms == pytest.approx(norms, rel=1e-4)
        assert _distance(ours, expected) < 1e-3 * _distance(before, expected)


def _distance(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    return float(sum((a - b).square().sum() for a, b in zip(some, others, strict=True)) ** 0.5)


def test_no_learner_takes_a_step_that_one_of_them_must_not_take() -> None:
    """A gradient that is no number is none for all: weights stay, and stay the same."""
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    spec = Spec(env.observation_space, env.action_space)
    context = Context(spec, PPO.Hyperparams(), NetworkConfig(hidden=(8,)), torch.device("cpu"))
    batch = rollout(16, spec)

    algorithms = [PPO.from_context(context) for _ in range(2)]

    def work(seat: Seat) -> list[Tensor]:
        algorithm = algorithms[number_of(seat)]
        algorithm.join(seat)
        mine = part_of(batch, number_of(seat), 2)
        if number_of(seat) == 1:
            mine.returns[0] = float("nan")
        norm = algorithm.update(mine).metrics["grad_norm"]
        assert not bool(norm.isfinite())
        return list(algorithm.policy.parameters())

    for weights in together(2, work):
        assert all(map(torch.equal, weights, PPO.from_context(context).policy.parameters()))
