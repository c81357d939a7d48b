"""DrQ-v2: shifts, noise and its schedule, and who trains the encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.base import Context
from rl_training.algorithms.drqv2 import DrQv2, DrQv2Config
from rl_training.errors import ConfigError
from rl_training.policies.build_pixels import build_random_shift
from rl_training.policies.config import NetworkConfig
from rl_training.policies.encoders import DrqCNN, FlatEncoder, SmallDrqCNN
from rl_training.types import Spec, TransitionBatch

ACTIONS = spaces.Box(-1.0, 1.0, (2,))
IMAGE = spaces.Box(0, 255, (20, 18, 6), np.uint8)


def make(obs_space: Any = IMAGE, network: NetworkConfig | None = None, **hyperparams: Any) -> DrQv2:
    network = network or NetworkConfig(hidden=(16,))
    spec = Spec(obs_space, ACTIONS)
    return DrQv2.from_context(Context(spec, DrQv2Config(**hyperparams), network, torch.device("cpu"), seed=1))


def pictures(n: int = 8, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(256, (n, *IMAGE.shape), generator=g, dtype=torch.uint8)


def batch(n: int = 8, discount: float = 0.9) -> TransitionBatch:
    g = torch.Generator().manual_seed(3)
    return TransitionBatch(
        obs=pictures(n, 1),
        actions=torch.rand(n, 2, generator=g) * 2 - 1,
        rewards=torch.randn(n, generator=g),
        next_obs=pictures(n, 2),
        discount=torch.full((n,), discount),
        weights=torch.ones(n),
        index=torch.zeros(2, n, dtype=torch.int64),
    )


def test_one_schedule_serves_exploration_and_learning() -> None:
    drq = make(exploration_sigma=1.0, exploration_sigma_final=0.2, exploration_fraction=0.5)
    for progress, sigma in ((0.0, 1.0), (0.25, 0.6), (0.5, 0.2), (1.0, 0.2)):
        drq.set_progress(progress)
        assert drq.exploration.metrics() == {"noise_sigma": pytest.approx(sigma)}
        assert float(drq.sigma) == pytest.approx(sigma)
    drq.set_progress(0.25)
    still = torch.zeros(20_000, 2)
    noise = drq.exploration.explore(still, still, torch.Generator().manual_seed(0))
    assert float((noise.abs() < 0.6).float().mean()) == pytest.approx(0.683, abs=0.01)
    assert float(noise.abs().max()) == 1.0  # what is taken is not cut off at noise_clip


def test_noise_of_what_is_learned_is_clipped_and_follows_the_schedule() -> None:
    drq = make(spaces.Box(-1.0, 1.0, (3,)), noise_clip=0.3)
    with torch.no_grad():
        drq.policy.head.weight.zero_()
        drq.policy.head.bias.copy_(torch.atanh(torch.tensor([0.5, 0.9])))
    obs = torch.zeros(10_000, 3)
    for sigma in (0.1, 1.0):
        drq.sigma.fill_(sigma)
        noise = drq.noisy_action(obs).detach() - torch.tensor([0.5, 0.9])
        assert float(noise.abs().max()) <= 0.3 + 1e-6
        unclipped = float((noise[:, 0].abs() < 0.2999).float().mean())
        assert unclipped == pytest.approx({0.1: 0.9973, 1.0: 0.2358}[sigma], abs=0.015)
        assert float((0.9 + noise[:, 1]).max()) == pytest.approx(1.0)
    drq.noisy_action(obs).sum().backward()  # actions at the bound keep their gradient
    grad = drq.policy.head.bias.grad
    assert grad is not None
    torch.testing.assert_close(grad, 10_000 * (1 - torch.tensor([0.5, 0.9]) ** 2), rtol=1e-3, atol=0.0)


def test_encoder_and_critic_trunk_learn_from_critics_alone_and_have_the_right_targets() -> None:
    drq = make()
    assert set(drq.networks) == {"critics", "target_critics"}
    assert isinstance(drq.policy.encoder, DrqCNN)
    encoder = set(drq.policy.encoder.parameters())
    assert encoder <= set(drq.critic_parameters)
    assert not encoder & set(drq.actor_parameters)
    assert set(drq.policy.core.parameters()) <= set(drq.actor_parameters)
    for still, part in (("actor_learning_rate", "encoder."), ("learning_rate", ("core.", "head."))):
        drq = make(actor_learning_rate=1e-3)
        drq.schedules[still].value.zero_()
        before = {name: p.detach().clone() for name, p in drq.policy.named_parameters()}
        drq.update(batch())
        moved = {name for name, p in drq.policy.named_parameters() if not torch.equal(p, before[name])}
        assert moved == {name for name in before if name.startswith(part)}


def test_targets_read_the_encoder_that_is_learned() -> None:
    drq = make(shift_pad=0)
    features = drq.encode(batch())
    assert features.next_target is features.next
    torch.testing.assert_close(features.next, drq.policy.encoder(batch().next_obs).detach())


def test_both_ends_are_shifted_on_their_own_and_acting_sees_no_shift() -> None:
    drq = make(shift_pad=3)
    b = batch()
    plain = drq.policy.encoder(b.obs)
    first, second = drq.encode(b), drq.encode(b)
    assert not torch.equal(first.now, plain)
    assert not torch.equal(first.now, second.now)
    same = make(shift_pad=3).encode(TransitionBatch(**{**vars_of(b), "next_obs": b.obs}))
    assert not torch.equal(same.now, same.next)
    assert torch.equal(drq.policy.act(b.obs).actions, drq.policy.act(b.obs).actions)


def vars_of(b: TransitionBatch) -> dict[str, Any]:
    return {name: getattr(b, name) for name in TransitionBatch.__dataclass_fields__}


def test_the_actor_climbs_the_lower_critic() -> None:
    drq = make(spaces.Box(-1.0, 1.0, (3,)))
    drq.sigma.zero_()
    obs = torch.randn(8, 3)
    loss = drq.actor_loss(batch(), obs)["loss"]
    values = drq.critics(torch.cat([obs, drq.policy.action(obs)], 1))
    assert values.shape == (2, 8, 1)
    torch.testing.assert_close(loss, -torch.minimum(values[0], values[1]).mean())
    assert (values[0] != values[1]).all()


@pytest.mark.parametrize(
    ("shape", "axes"), [((9, 24, 20), (1, 2)), ((24, 20, 9), (0, 1)), ((3, 24, 20, 1), (1, 2))]
)
def test_all_frames_of_a_stack_are_shifted_alike_wherever_channels_are(
    shape: tuple[int, ...], axes: tuple[int, int]
) -> None:
    shift = build_random_shift(Spec(spaces.Box(0, 255, shape, np.uint8), ACTIONS), 2)
    rows = torch.arange(shape[axes[0]], dtype=torch.uint8)
    columns = torch.arange(shape[axes[1]], dtype=torch.uint8)
    image = (rows[:, None] * 10 + columns).movedim((0, 1), (0, 1))
    for axis in range(len(shape)):
        if axis not in axes:
            image = image.unsqueeze(axis)
    images = image.expand(16, *shape)
    moved = shift(images, torch.Generator().manual_seed(0))
    assert isinstance(moved, torch.Tensor)
    assert moved.shape == images.shape
    others = [axis + 1 for axis in range(len(shape)) if axis not in axes]
    assert all(torch.equal(moved, moved.narrow(axis, 0, 1).expand_as(moved)) for axis in others)
    corners = moved.flatten(1)[:, 0] if axes == (0, 1) else moved[:, 0].flatten(1)[:, 0]
    assert len(corners.unique()) > 3


def test_only_images_are_shifted() -> None:
    space = spaces.Dict({"camera": IMAGE, "pose": spaces.Box(-1.0, 1.0, (4,))})
    shift = build_random_shift(Spec(space, ACTIONS), 4)
    obs: Any = {"camera": pictures(), "pose": torch.randn(8, 4)}
    moved: Any = shift(obs, torch.Generator().manual_seed(0))
    assert moved["pose"] is obs["pose"]
    assert not torch.equal(moved["camera"], obs["camera"])


def test_encoders_and_their_smallest_pictures() -> None:
    network = NetworkConfig(hidden=(16,), encoder="drq_cnn_small")
    drq = make(spaces.Box(0, 255, (48, 48, 3), np.uint8), network)
    assert type(drq.policy.encoder) is SmallDrqCNN
    assert drq.policy.encoder.out_dim == 32 * 5 * 5
    assert make(spaces.Box(0, 255, (84, 84, 9), np.uint8)).policy.encoder.out_dim == 32 * 35 * 35
    assert isinstance(make(spaces.Box(-1.0, 1.0, (3,))).policy.encoder, FlatEncoder)
    assert make(spaces.Box(0, 255, (15, 15, 3), np.uint8)).policy.encoder.out_dim == 32
    with pytest.raises(ConfigError, match=r"14x14 is too small .* needs 15x15"):
        make(spaces.Box(0, 255, (14, 14, 3), np.uint8))


def test_weights_start_orthogonal() -> None:
    drq = make()
    critic_trunk = drq.critics.trunk.linear.weight  # type: ignore[union-attr]
    for weight in (critic_trunk, drq.policy.core.trunk.linear.weight):  # type: ignore[union-attr]
        small = weight if weight.shape[0] < weight.shape[1] else weight.T
        torch.testing.assert_close(small @ small.T, torch.eye(len(small)), atol=1e-4, rtol=0)
