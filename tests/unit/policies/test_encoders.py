"""Encoders: which is chosen for a space, what shapes come out, and what they make of layouts and scales."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn
from torch.testing import assert_close

from rl_training.errors import ConfigError, UnknownNameError
from rl_training.policies.build import build_actor_critic, build_encoder
from rl_training.policies.config import NetworkConfig
from rl_training.policies.encoder_registry import find_encoder
from rl_training.policies.encoders import (
    ConvEncoder,
    DictEncoder,
    DrqCNN,
    FlatEncoder,
    ImpalaCNN,
    NatureCNN,
    OneHotEncoder,
    register_encoder,
    set_precision,
)
from rl_training.policies.images import Image, image_layout
from rl_training.policies.obs import to_tensor
from rl_training.types import Spec


def box(*shape: int, dtype: type = np.float32, high: float | None = None) -> spaces.Box:
    if high is None:
        high = 255 if dtype is np.uint8 else np.inf
    return spaces.Box(0 if dtype is np.uint8 else -high, high, shape, dtype)


def batch_of(space: spaces.Space, n: int = 3) -> Tensor | dict[str, Tensor]:
    space.seed(0)
    samples = [space.sample() for _ in range(n)]
    if isinstance(space, spaces.Dict):
        return to_tensor({key: np.stack([sample[key] for sample in samples]) for key in space})
    return to_tensor(np.stack(samples))


MIXED = spaces.Dict(
    {
        "camera": box(40, 50, 3, dtype=np.uint8),
        "joints": box(5),
        "mode": spaces.Discrete(4, start=2),
        "flags": spaces.MultiBinary(3),
        "items": spaces.MultiDiscrete([2, 3]),
    }
)


@pytest.mark.parametrize(
    ("space", "kind", "out_dim"),
    [
        (box(4), FlatEncoder, 4),
        (box(), FlatEncoder, 1),
        (box(2, 3), FlatEncoder, 6),
        (box(3, 4, 2), FlatEncoder, 24),
        (box(10, 3, dtype=np.uint8), FlatEncoder, 30),
        (spaces.Box(0, 9, (4,), np.int64), FlatEncoder, 4),
        (spaces.Box(-1, 1, (4,), np.float64), FlatEncoder, 4),
        (spaces.Discrete(6), OneHotEncoder, 6),
        (spaces.MultiDiscrete([2, 3, 4]), OneHotEncoder, 9),
        (spaces.MultiDiscrete([[2, 3], [4, 2]]), OneHotEncoder, 11),
        (spaces.MultiBinary(5), FlatEncoder, 5),
        (spaces.MultiBinary([2, 3]), FlatEncoder, 6),
        (box(84, 84, 4, dtype=np.uint8), NatureCNN, 512),
        (box(4, 84, 84, dtype=np.uint8), NatureCNN, 512),
        (box(84, 84, dtype=np.uint8), NatureCNN, 512),
        (box(4, 64, 48, 3, dtype=np.uint8), NatureCNN, 512),
        (box(3, 40, 37), NatureCNN, 512),
        (box(7, 7, 3, dtype=np.uint8), ImpalaCNN, 256),
        (box(16, 16, 3), ImpalaCNN, 256),
        (MIXED, DictEncoder, 512 + 5 + 4 + 3 + 5),
    ],
    ids=str,
)
def test_auto_choice_and_output_shape(space: spaces.Space, kind: type, out_dim: int) -> None:
    encoder = build_encoder("auto", space)
    assert type(encoder) is kind
    assert encoder.out_dim == out_dim
    features = encoder(batch_of(space))
    assert features.shape == (3, out_dim)
    assert features.dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "space", "kind", "out_dim"),
    [
        ("mlp", box(10, 10, 3, dtype=np.uint8), FlatEncoder, 300),
        ("mlp", MIXED, DictEncoder, 40 * 50 * 3 + 5 + 4 + 3 + 5),
        ("impala_cnn", box(84, 84, 4, dtype=np.uint8), ImpalaCNN, 256),
        ("impala_cnn", MIXED, DictEncoder, 256 + 5 + 4 + 3 + 5),
        ("nature_cnn", box(84, 84, 4, dtype=np.uint8), NatureCNN, 512),
        ("dict", spaces.Dict({"a": box(2), "b": box(3)}), DictEncoder, 5),
    ],
)
def test_choice_by_name(name: str, space: spaces.Space, kind: type, out_dim: int) -> None:
    encoder = build_encoder(name, space)
    assert type(encoder) is kind
    assert encoder(batch_of(space)).shape == (3, out_dim)


def test_one_hot_values_with_a_start() -> None:
    discrete = build_encoder("auto", spaces.Discrete(3, start=-1))
    assert discrete(torch.tensor([-1, 1])).tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    multi = build_encoder("auto", spaces.MultiDiscrete([2, 3], start=[0, 10]))
    assert multi(torch.tensor([[1, 12], [0, 10]])).tolist() == [[0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]


@pytest.mark.parametrize(
    ("shape", "planes"),
    [
        ((84, 84, 4), (4, 84, 84)),
        ((4, 84, 84), (4, 84, 84)),
        ((210, 160, 3), (3, 210, 160)),
        ((3, 16, 256), (3, 16, 256)),
        ((16, 256, 3), (3, 16, 256)),
        ((8, 8, 111), (111, 8, 8)),
        ((12, 64, 64), (12, 64, 64)),
        ((64, 48), (1, 64, 48)),
        ((4, 64, 48, 3), (12, 64, 48)),
        ((4, 3, 64, 48), (12, 64, 48)),
    ],
)
def test_image_layouts(shape: tuple[int, ...], planes: tuple[int, int, int]) -> None:
    layout = image_layout(shape)
    assert (layout.channels, layout.height, layout.width) == planes


@pytest.mark.parametrize("name", ["nature_cnn", "impala_cnn"])
def test_channels_first_and_last_give_the_same_features(name: str) -> None:
    first = build_encoder(name, box(3, 40, 48, dtype=np.uint8))
    last = build_encoder(name, box(40, 48, 3, dtype=np.uint8))
    last.load_state_dict(first.state_dict())
    image = batch_of(box(3, 40, 48, dtype=np.uint8))
    features = first(image)
    assert features.abs().max() > 0
    torch.testing.assert_close(features, last(image.permute(0, 2, 3, 1).contiguous()))


def test_a_stack_of_frames_equals_its_frames_as_channels() -> None:
    stacked = build_encoder("nature_cnn", box(2, 40, 48, 3, dtype=np.uint8))
    flat = build_encoder("nature_cnn", box(6, 40, 48, dtype=np.uint8))
    flat.load_state_dict(stacked.state_dict())
    frames = batch_of(box(2, 40, 48, 3, dtype=np.uint8))
    torch.testing.assert_close(stacked(frames), flat(frames.permute(0, 1, 4, 2, 3).flatten(1, 2)))


@pytest.mark.parametrize("name", ["nature_cnn", "impala_cnn", "mlp"])
def test_bytes_are_scaled_to_one(name: str) -> None:
    of_bytes = build_encoder(name, box(40, 40, 3, dtype=np.uint8))
    of_floats = build_encoder(name, box(40, 40, 3, high=1.0))
    of_floats.load_state_dict(of_bytes.state_dict())
    image = batch_of(box(40, 40, 3, dtype=np.uint8))
    torch.testing.assert_close(of_bytes(image), of_floats(image.float() / 255))


def test_bytes_with_a_lower_declared_maximum_are_scaled_by_it() -> None:
    encoder = build_encoder("auto", box(4, dtype=np.uint8, high=10))
    torch.testing.assert_close(
        encoder(torch.tensor([[0, 5, 10, 1]], dtype=torch.uint8)), torch.tensor([[0.0, 0.5, 1.0, 0.1]])
    )


def test_an_image_too_small_for_the_encoder_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"20x40 is too small for 'nature_cnn'.*36x36.*impala_cnn"):
        build_encoder("nature_cnn", box(20, 40, 3, dtype=np.uint8))


@pytest.mark.parametrize(
    ("name", "space", "message"),
    [
        ("nature_cnn", box(4), "needs an image"),
        ("impala_cnn", spaces.Dict({"a": box(4)}), "needs an image"),
        ("dict", box(4), "needs a Dict observation space"),
        ("auto", spaces.Text(5), r"Text\(.*not supported; supported are Box, Discrete"),
        ("auto", spaces.Dict({"x": spaces.Dict({"y": box(2)})}), "under the key 'x' is not supported"),
        ("auto", spaces.Tuple([box(2)]), "not supported"),
    ],
)
def test_unsuitable_spaces_are_named(name: str, space: spaces.Space, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_encoder(name, space)


class Doubled(nn.Module):
    """A user's encoder, given as an object."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.out_dim = space.shape[0]
        self.linear = nn.Linear(self.out_dim, self.out_dim)
        nn.init.constant_(self.linear.weight, 2.0)

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.linear(obs)
        return features


@register_encoder("tripled")
class Tripled(Doubled):
    """A user's encoder, registered by name."""

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = 1.5 * self.linear(obs)
        return features


def test_custom_encoder_by_name_is_used_and_keeps_its_own_init() -> None:
    policy = build_actor_critic(
        Spec(box(4), spaces.Discrete(2)), NetworkConfig(encoder="tripled"), normalize_obs=False
    )
    assert isinstance(policy.encoder, Tripled)
    assert isinstance(policy.critic_encoder, Tripled)
    assert policy.critic_encoder is not policy.encoder
    assert (policy.encoder.linear.weight == 2.0).all()


def test_custom_encoder_by_object_is_kept_by_its_name() -> None:
    config = NetworkConfig(encoder=Doubled)
    assert config.encoder == f"{__name__}.Doubled"
    reread = NetworkConfig(encoder=str(config.encoder))
    policy = build_actor_critic(Spec(box(4), spaces.Discrete(2)), reread, normalize_obs=False)
    assert isinstance(policy.encoder, Doubled)


def test_a_qualified_name_is_found_only_in_modules_already_imported() -> None:
    assert find_encoder(f"{__name__}.Doubled") is Doubled
    with pytest.raises(UnknownNameError, match=r"import 'my_pkg\.nets' first"):
        find_encoder("my_pkg.nets.Net")
    with pytest.raises(UnknownNameError):
        find_encoder("os.system")


def test_unknown_encoder_names_the_nearest() -> None:
    with pytest.raises(
        UnknownNameError, match=r"'natur_cnn'; did you mean 'nature_cnn'\?.*registers it first"
    ):
        build_encoder("natur_cnn", box(84, 84, 4, dtype=np.uint8))


@pytest.mark.parametrize("wrong", [3, None, int, nn.ReLU()])
def test_config_refuses_what_is_no_encoder(wrong: object) -> None:
    with pytest.raises(ConfigError, match=r"name of an encoder or a torch\.nn\.Module class"):
        NetworkConfig(encoder=wrong)


def test_taken_names_are_refused() -> None:
    with pytest.raises(ValueError, match="built in"):
        register_encoder("mlp")
    with pytest.raises(ValueError, match=r"taken by .*Tripled"):
        register_encoder("tripled")(Doubled)


def test_custom_encoder_without_out_dim_is_explained() -> None:
    @register_encoder("no_out_dim")
    class NoOutDim(nn.Module):
        def __init__(self, space: spaces.Space) -> None:
            super().__init__()

    with pytest.raises(ConfigError, match="'no_out_dim' must have an integer attribute 'out_dim'"):
        build_encoder("no_out_dim", box(4))


def test_network_config_does_not_import_torch() -> None:
    code = "import sys, rl_training.policies.config as c; c.NetworkConfig(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("encoder", [NatureCNN, ImpalaCNN])
def test_bf16_encoders_agree_with_fp32_up_to_rounding(encoder: type[ConvEncoder]) -> None:
    torch.manual_seed(0)
    net = encoder(image_layout((4, 84, 84)), scale=1 / 255)
    frames = torch.randint(0, 256, (8, 4, 84, 84), dtype=torch.uint8)

    def features_and_gradient() -> tuple[torch.Tensor, torch.Tensor]:
        net.zero_grad()
        features = net(frames)
        features.square().sum().backward()
        assert net.dense.weight.grad is not None
        return features.detach(), net.dense.weight.grad.clone()

    exact = features_and_gradient()
    set_precision(net, torch.bfloat16)
    for rough, reference in zip(features_and_gradient(), exact, strict=True):
        assert rough.dtype == torch.float32
        error = (rough - reference).norm() / reference.norm()
        assert 1e-5 < error < 0.02  # bfloat16 keeps 8 bits; no error at all would mean it was not used


def test_planes_lie_in_channels_last_memory_whatever_the_layout() -> None:
    for shape in ((4, 84, 84), (84, 84, 3), (84, 84)):
        planes = Image(image_layout(shape), 1 / 255)(torch.zeros((2, *shape), dtype=torch.uint8))
        assert planes.is_contiguous(memory_format=torch.channels_last)


def nature(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Mnih et al. 2015, as a textbook would write it."""
    for layer, stride in (("convs.0", 4), ("convs.2", 2), ("convs.4", 1)):
        x = F.conv2d(x, w[f"{layer}.weight"], w[f"{layer}.bias"], stride).clamp(min=0)
    return F.linear(x.flatten(1), w["dense.weight"], w["dense.bias"]).clamp(min=0)


def impala(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Espeholt et al. 2018: a convolution, a pool and two residual blocks, three times."""

    def conv(x: Tensor, layer: str) -> Tensor:
        return F.conv2d(x, w[f"{layer}.weight"], w[f"{layer}.bias"], padding=1)

    for stage in range(0, 12, 4):
        x = F.max_pool2d(conv(x, f"convs.{stage}"), 3, stride=2, padding=1)
        for block in (f"convs.{stage + 2}", f"convs.{stage + 3}"):
            x = x + conv(conv(x.clamp(min=0), f"{block}.first").clamp(min=0), f"{block}.second")
    return F.linear(x.clamp(min=0).flatten(1), w["dense.weight"], w["dense.bias"]).clamp(min=0)


def drq(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Yarats et al. 2021."""
    x = x - 0.5
    for layer, stride in (("convs.0", 2), ("convs.2", 1), ("convs.4", 1), ("convs.6", 1)):
        x = F.conv2d(x, w[f"{layer}.weight"], w[f"{layer}.bias"], stride).clamp(min=0)
    return x.flatten(1)


@pytest.mark.parametrize(("encoder", "written"), [(NatureCNN, nature), (ImpalaCNN, impala), (DrqCNN, drq)])
def test_features_and_gradients_are_those_of_the_network_written_out(encoder: Any, written: Any) -> None:
    torch.manual_seed(0)
    net = encoder(image_layout((4, 40, 44)), scale=1 / 255)
    frames = torch.randint(0, 256, (5, 4, 40, 44), dtype=torch.uint8)
    exact = {name: value.detach().double().requires_grad_() for name, value in net.named_parameters()}
    features, expected = net(frames), written(frames.double() / 255, exact)
    assert_close(features, expected.float(), rtol=1e-4, atol=1e-6)
    assert (features == 0).any()  # the last ReLU is there
    weights = torch.randn_like(features)
    gradients = torch.autograd.grad((features * weights).sum(), list(net.parameters()))
    references = torch.autograd.grad((expected * weights).sum(), list(exact.values()))
    for gradient, reference in zip(gradients, references, strict=True):
        assert float((gradient - reference).norm() / reference.norm()) < 1e-4


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_planes_are_scaled_and_moved_and_their_source_is_left_alone(dtype: torch.dtype) -> None:
    pixels = torch.arange(2 * 36 * 36, dtype=torch.float32).remainder(200).to(dtype).reshape(2, 36, 36, 1)
    before = pixels.clone()
    planes = Image(image_layout((36, 36, 1)), scale=0.5, offset=-3.0)(pixels)
    assert torch.equal(planes, before.float().permute(0, 3, 1, 2) * 0.5 - 3.0)
    assert torch.equal(pixels, before)
