"""Exported policies do what the policies do, in runtimes that know nothing of this package."""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import rl_training
from rl_training import registry
from rl_training.algorithms.base import Algorithm
from rl_training.cli import main
from rl_training.errors import ConfigError, ExportError, MissingExtraError
from rl_training.experiment.find import find_checkpoint
from rl_training.experiment.fingerprint import read_contents
from rl_training.export import formats
from rl_training.export.deploy import DeployedPolicy, capture
from rl_training.export.policy import Export, export_policy
from rl_training.export.verify import Verification, VerificationError
from rl_training.policies.obs import to_tensor

EXAMPLE = Path(__file__).parents[2] / "examples" / "run_onnx.py"
ALGORITHMS = sorted(registry.algorithms())
SMALL: dict[str, Any] = {"num_envs": 4, "network": {"hidden": (16, 16)}, "logging": {"tensorboard": False}}
CASES: dict[str, dict[str, Any]] = {
    "ppo-discrete": {"algo": "ppo", "env_id": "axiom/Masked-v0"},
    "ppo-box": {"algo": "ppo", "env_id": "Pendulum-v1", "env": {"normalize_obs": True}},
    "ppo-dict": {"algo": "ppo", "env_id": "axiom/DictObs-v0", "env": {"normalize_obs": True}},
    "ppo-image": {"algo": "ppo", "env_id": "axiom/Image-v0", "env": {"frame_stack": 2}},
    "dqn": {"algo": "dqn", "env_id": "CartPole-v1"},
    "sac": {"algo": "sac", "env_id": "Pendulum-v1", "env": {"normalize_obs": True}},
    "recurrent-ppo": {"algo": "recurrent_ppo", "env_id": "CartPole-v1"},
}


def agent_of(**config: Any) -> Algorithm:
    """An agent whose weights and observation statistics are large enough for mistakes to show."""
    agent: Algorithm = registry.algorithm(config["algo"]).cls({**SMALL, **config})
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in agent.policy.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=generator)
    if agent.policy.normalizer is not None:
        space = agent.session.spec.observation_space
        space.seed(2)
        agent.policy.normalizer.update(to_tensor(stacked([space.sample() for _ in range(5)])))
    return agent


def stacked(samples: list[Any]) -> Any:
    """Observations as a batch."""
    if isinstance(samples[0], dict):
        return {key: np.stack([sample[key] for sample in samples]) for key in samples[0]}
    return np.stack(samples)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The agents of `CASES` and their ONNX exports, verified, each made once."""
    needs_onnx()
    made: dict[str, tuple[Algorithm, Export]] = {}

    def make(case: str) -> tuple[Algorithm, Export]:
        if case not in made:
            agent = agent_of(**CASES[case])
            made[case] = agent, export_policy(agent, tmp_path_factory.mktemp(case), verify=True)
        return made[case]

    return make


def needs_onnx() -> None:
    for module in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(module, reason="needs the extra export")


def session(export: Export) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(export.model_path, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("case", CASES)
def test_onnx_runtime_decides_as_the_policy_does(case: str, exported: Any) -> None:
    agent, export = exported(case)
    assert export.verification.passed
    assert export.verification.observations == 1000
    assert export.verification.largest_difference <= 1e-4
    about = json.loads(export.description_path.read_text())
    model = session(export)
    assert [i.name for i in model.get_inputs()] == [i["name"] for i in about["inputs"]]
    assert [o.name for o in model.get_outputs()] == [o["name"] for o in about["outputs"]]
    assert [[*o.shape] for o in model.get_outputs()] == [o["shape"] for o in about["outputs"]]
    # And once more without any of the verification's own code: what `predict` says of observations at random.
    space = agent.session.spec.observation_space
    space.seed(5)
    batch = stacked([space.sample() for _ in range(50)])
    entries = batch if isinstance(batch, dict) else {"obs": batch}
    observed = [port for port in about["inputs"] if port["kind"] == "observation"]
    seen = {port["name"]: entries[port["key"]].astype(port["dtype"]) for port in observed}
    state = {s["input"]: np.full([50, *s["shape"]], s["initial"], s["dtype"]) for s in about["state"]}
    actions, details, *_ = model.run(None, {**seen, **state})
    expected, _ = agent.predict(batch)
    assert actions.dtype == expected.dtype
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    assert details.std(axis=0).max() > 0.01  # they do depend on the observation


def test_normaliser_network_and_clipping_by_hand(exported: Any) -> None:
    agent, export = exported("ppo-box")
    weights = {k: v.double().numpy() for k, v in agent.policy.state_dict().items()}
    obs = np.random.default_rng(0).uniform(-8, 8, (200, 3)).astype(np.float32)
    x = (obs - weights["normalizer.mean"]) / np.sqrt(weights["normalizer.var"] + 1e-8)
    x = np.clip(x, -10, 10)
    for layer in ("core.layers.0", "core.layers.1"):
        x = np.tanh(x @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"])
    mean = x @ weights["policy_head.linear.weight"].T + weights["policy_head.linear.bias"]
    action, found = session(export).run(["action", "mean"], {"obs": obs})
    np.testing.assert_allclose(found, mean, atol=1e-5)
    np.testing.assert_allclose(action, np.clip(mean, -2.0, 2.0), atol=1e-5)
    assert (np.abs(mean) > 2.0).any()
    assert (np.abs(mean) < 2.0).any()


def test_actions_are_rescaled_to_the_bounds(exported: Any) -> None:
    _, export = exported("sac")
    obs = np.random.default_rng(0).uniform(-8, 8, (200, 3)).astype(np.float32)
    action, mean = session(export).run(["action", "mean"], {"obs": obs})
    np.testing.assert_allclose(action, 2.0 * np.tanh(mean), atol=1e-5)
    assert np.abs(action).max() > 1.0


def test_images_come_as_the_env_gives_them_and_masks_forbid(exported: Any) -> None:
    _, export = exported("ppo-image")
    (port,) = export.description["inputs"]
    assert port["dtype"] == "uint8"
    assert export.description["env"] == {"frame_stack": 2}
    _, masked = exported("ppo-discrete")
    model = session(masked)
    for allowed in range(4):
        mask = np.zeros((4, 4), np.int8)
        mask[:, allowed] = 1
        action, logits = model.run(["action", "logits"], {"obs": np.arange(4), "action_mask": mask})
        assert (action == allowed).all()
        assert (np.delete(logits, allowed, axis=1) < -1e7).all()


def test_a_memory_is_carried_by_hand_as_predict_carries_it(exported: Any) -> None:
    agent, export = exported("recurrent-ppo")
    about, model = export.description, session(export)
    assert [s["input"] for s in about["state"]] == ["state.hidden", "state.cell"]  # not the critic's
    assert all(s["initial"] == 0.0 for s in about["state"])
    carried = {s["input"]: np.zeros([1, *s["shape"]], s["dtype"]) for s in about["state"]}
    state, agreed, moved = None, 0, 0.0
    for obs in np.random.default_rng(3).normal(size=(40, 4)).astype(np.float32):
        expected, state = agent.predict(obs, state)
        names = ["action", *(s["output"] for s in about["state"])]
        action, *after = model.run(names, {"obs": obs[None], **carried})
        carried = {s["input"]: value for s, value in zip(about["state"], after, strict=True)}
        np.testing.assert_allclose(carried["state.hidden"], state["hidden"].numpy(), atol=1e-5)
        agreed += int(action[0] == expected)
        moved = max(moved, float(np.abs(carried["state.hidden"]).max()))
    assert agreed == 40
    assert moved > 0.1


@pytest.mark.parametrize("case", ["dqn", "recurrent-ppo"])
def test_the_example_plays_without_this_package(case: str, exported: Any) -> None:
    agent, export = exported(case)
    command = [sys.executable, str(EXAMPLE), str(export.model_path.parent), "3"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    env = gym.make("CartPole-v1")
    expected = []
    for episode in range(3):
        (obs, _), state, total, over = env.reset(seed=episode), None, 0.0, False
        while not over:
            action, state = agent.predict(obs, state)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        expected.append(f"episode {episode}: return {total:.1f}")
    assert shown.splitlines() == expected


class Choosy(gym.Env[Any, Any]):
    """Shows random numbers in Dicts inside a Dict, and rewards the choice by its place in the mask.

    The mask is a tuple, as Gymnasium has it for MultiDiscrete, and is given by every other step only.
    """

    observation_space = gym.spaces.Dict(
        {"a": gym.spaces.Dict({"b": gym.spaces.Box(-1, 1, (2,))}), "c": gym.spaces.Discrete(3)}
    )
    action_space = gym.spaces.MultiDiscrete([3, 4])
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        assert self.allowed is None or all(m[a] for m, a in zip(self.allowed, action, strict=True))
        self.steps += 1
        obs, info = self._seen()
        return obs, float(10 * action[0] + action[1]), self.steps == 8, False, info

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        draw = self.np_random
        obs = {"a": {"b": draw.uniform(-1, 1, 2).astype(np.float32)}, "c": draw.integers(3)}
        self.allowed = tuple(np.eye(n, dtype=np.int8)[draw.integers(n)] for n in (3, 4))
        if self.steps % 2:
            self.allowed = None
        return obs, {} if self.allowed is None else {"action_mask": self.allowed}


def test_the_example_plays_masks_and_nested_observations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_onnx()
    gym.register("test/Choosy-v0", Choosy)
    try:
        agent = agent_of(algo="ppo", env_id="test/Choosy-v0")
        export = export_policy(agent, tmp_path)
        ports = {port["name"]: port["shape"] for port in export.description["inputs"]}
        assert ports["obs.a/b"] == ["batch", 2]
        assert ports["action_mask"] == ["batch", 7]
        monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path), "3"])
        runpy.run_path(str(EXAMPLE))
        shown, env = capsys.readouterr().out.splitlines(), gym.make("test/Choosy-v0")
    finally:
        gym.registry.pop("test/Choosy-v0")
    for episode in range(3):
        (obs, info), total, over = env.reset(seed=episode), 0.0, False
        while not over:
            action, _ = agent.predict({"a/b": obs["a"]["b"], "c": obs["c"], **info})
            obs, reward, over, _, info = env.step(action)
            total += float(reward)
        assert shown[episode] == f"episode {episode}: return {total:.1f}"
    assert len(set(shown)) == len(shown) == 3


def test_the_example_is_short_and_needs_only_its_tools() -> None:
    source = EXAMPLE.read_text(encoding="utf-8")
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import)]
    names = {alias.name.split(".")[0] for node in imports for alias in node.names}
    assert names - set(sys.stdlib_module_names) == {"gymnasium", "numpy", "onnxruntime"}
    lines = [line for line in source.splitlines() if line.strip()]
    assert len([line for line in lines if not line.startswith(('"""', "import", "from"))]) <= 25


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_can_be_exported(algo: str, tmp_path: Path) -> None:
    env_id = "CartPole-v1" if "Discrete" in registry.algorithm(algo).actions else "Pendulum-v1"
    agent = agent_of(algo=algo, env_id=env_id)
    export = export_policy(agent, tmp_path, format="safetensors", verify=True, observations=60)
    assert export.verification.passed
    assert export.verification.largest_difference < 1e-5
    kept = load_file(export.model_path)
    assert kept.keys() == export.description["network"]["tensors"].keys()
    needless = ("critic", "value_head", "_sigma", "normalizer.mean")
    assert not [name for name in kept if any(part in name for part in needless)]


@pytest.mark.parametrize(
    "config",
    [
        {"algo": "ppo", "network": {"distribution": "squashed_gaussian"}},
        {"algo": "ppo", "network": {"distribution": "state_dependent"}},
        {
            "algo": "recurrent_ppo",
            "network": {"distribution": "state_dependent"},
            "hyperparams": {"core": "gru"},
        },
    ],
    ids=["squashed", "state-dependent", "gru"],
)
def test_every_kind_of_gaussian_can_be_exported(config: dict[str, Any], tmp_path: Path) -> None:
    agent = agent_of(env_id="Pendulum-v1", **config)
    export = export_policy(agent, tmp_path, format="safetensors", verify=True, observations=60)
    assert export.verification.largest_difference < 1e-5
    carried = [part["input"] for part in export.description["state"]]
    assert carried == (["state.hidden"] if config["algo"] == "recurrent_ppo" else [])  # noise is not carried


def test_an_export_computes_in_float32_and_leaves_the_agent_alone() -> None:
    agent = agent_of(algo="ppo", env_id="axiom/Image-v0", precision="bf16")
    before = {name: value.clone() for name, value in agent.policy.state_dict().items()}
    deployed = DeployedPolicy(agent.policy, agent.session.spec)
    capture(deployed)
    assert deployed.policy.encoder.precision == torch.float32
    assert agent.policy.encoder.precision == torch.bfloat16
    assert agent.policy.training
    assert all(parameter.requires_grad for parameter in agent.policy.parameters())
    assert all(torch.equal(value, before[name]) for name, value in agent.policy.state_dict().items())


SPACES = ["Identity", "MultiDiscrete", "MultiBinary", "IdentityBox", "DictObs", "Image", "Masked"]


@pytest.mark.full
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_and_space_in_onnx_runtime(algo: str, space: str, tmp_path: Path) -> None:
    needs_onnx()
    try:
        agent = agent_of(algo=algo, env_id=f"axiom/{space}-v0")
    except ConfigError:
        return  # not one of the algorithm's action spaces
    assert export_policy(agent, tmp_path, verify=True).verification.passed


@pytest.mark.parametrize("case", ["ppo-dict", "recurrent-ppo"])
def test_a_torch_program_holds_no_pickle_and_loads_by_torch_alone(case: str, tmp_path: Path) -> None:
    agent = agent_of(**CASES[case])
    export = export_policy(agent, tmp_path, format="torch", verify=True, observations=100)
    assert export.verification.passed
    with zipfile.ZipFile(export.model_path) as archive:
        contents = {info.filename: archive.read(info) for info in archive.infolist()}
    assert not [name for name, data in contents.items() if data.startswith((b"\x80\x02", b"PK\x03\x04"))]
    assert not [name for name in contents if name.endswith(".pt") and contents[name]]
    (config,) = [json.loads(data) for name, data in contents.items() if name.endswith("weights_config.json")]
    assert {entry["use_pickle"] for entry in config["config"].values()} == {False}
    module = torch.export.load(export.model_path).module()
    for rows in (1, 3):
        zeros = [
            torch.zeros([rows, *port["shape"][1:]], dtype=getattr(torch, port["dtype"]))
            for port in export.description["inputs"]
        ]
        expected = [[rows, *port["shape"][1:]] for port in export.description["outputs"]]
        assert [[*output.shape] for output in module(*zeros)] == expected


def test_the_description_of_a_network_is_enough_to_compute_it_in_numpy(tmp_path: Path) -> None:
    agent = agent_of(algo="ppo", env_id="CartPole-v1", env={"normalize_obs": True})
    export = export_policy(agent, tmp_path, format="safetensors")
    about = json.loads(export.description_path.read_text())
    tensors = load_file(export.model_path)
    obs = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)

    def log_softmax(x: Any, axis: int) -> Any:
        return x - np.log(np.exp(x).sum(axis=axis, keepdims=True))

    operations: dict[str, Any] = {
        "aten.sub.Tensor": np.subtract,
        "aten.mul.Tensor": np.multiply,
        "aten.clamp.default": np.clip,
        "aten.reshape.default": np.reshape,
        "aten.sym_size.int": lambda x, axis: x.shape[axis],
        "aten.to.dtype": lambda x, dtype: x.astype(dtype),
        "aten.linear.default": lambda x, weight, bias: x @ weight.T + bias,
        "aten.tanh.default": np.tanh,
        "aten.log_softmax.int": log_softmax,
        "aten.argmax.default": np.argmax,
    }
    results: dict[str, Any] = {}

    def value(argument: Any) -> Any:
        if isinstance(argument, list):
            return [value(item) for item in argument]
        if not isinstance(argument, dict):
            return argument
        ((kind, name),) = argument.items()
        return {"input": {"obs": obs}, "tensor": tensors, "node": results, "dtype": {name: name}}[kind][name]

    for node in about["network"]["nodes"]:
        results[node["name"]] = operations[node["op"]](*value(node["args"]))
    expected, _ = agent.predict(obs)
    np.testing.assert_array_equal(value(about["network"]["outputs"]["action"]), expected)


def test_nothing_of_this_machine_is_in_the_files(exported: Any, tmp_path: Path) -> None:
    agent, onnx = exported("ppo-discrete")
    exports = [onnx, export_policy(agent, tmp_path, format="torch")]
    files = [path for export in exports for path in (export.model_path, export.description_path)]
    here = str(Path(rl_training.__file__).parents[2]).encode()
    assert not [file for file in files if here in file.read_bytes() or b"site-packages" in file.read_bytes()]


def test_torch_writes_data_and_no_code_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.export.pt2_archive._package._should_use_pickle", lambda _: True)
    with pytest.raises(ExportError, match="store as code; use onnx or safetensors"):
        export_policy(agent_of(algo="ppo", env_id="CartPole-v1"), tmp_path, format="torch")
    assert not any(tmp_path.iterdir())


class Broken(formats.Safetensors):
    """Writes other weights than it was given."""

    def __init__(self, change: float) -> None:
        self.change = change

    def write(self, program: Any, deployed: Any) -> formats.Written:
        for name, tensor in program.state_dict.items():
            if name.endswith("policy_head.linear.bias"):
                tensor[0] += self.change
        return super().write(program, deployed)


def test_an_export_that_differs_is_found_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = agent_of(algo="ppo", env_id="CartPole-v1")
    agent.save(tmp_path / "agent")
    arguments = ["export", str(tmp_path / "agent"), "-o", str(tmp_path / "out"), "--format", "safetensors"]
    monkeypatch.setitem(formats.FORMATS, "safetensors", Broken(1e-3))
    assert main([*arguments, "--verify"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.match(
        r"verification failed: the safetensors export does not do what the policy does: 1,000 observations, "
        r"largest difference \S+ \(in logits\), tolerance 0.0001\n",
        shown.err,
    )
    assert not (tmp_path / "out").exists()
    assert main([*arguments, "--verify", "--tolerance", "0.01", "--observations", "50"]) == 0
    assert "50 observations" in capsys.readouterr().out
    monkeypatch.setitem(formats.FORMATS, "safetensors", Broken(50.0))
    with pytest.raises(VerificationError, match="other choices"):
        export_policy(agent, tmp_path / "out", format="safetensors", verify=True, observations=20)


def test_ties_are_no_difference_and_numbers_that_are_none_are() -> None:
    from rl_training.export.verify import _not_tied

    scores = np.array([[1.0, 1.0 - 1e-6, 0.0], [1.0, 0.5, 0.0]])
    one, two = np.array([0, 0]), np.array([1, 1])
    assert _not_tied(one, two, scores, 1e-4) == 1
    assert _not_tied(one, two, scores, 1e-9) == 2
    assert _not_tied(one, two, None, 1.0) == 2
    bits = np.array([[1, 0], [1, 1]]), np.array([[1, 1], [0, 1]])
    assert _not_tied(*bits, np.array([[3.0, -1e-6], [2.0, 4.0]]), 1e-4) == 1
    verification = Verification(1e-4)
    verification.note("mean", np.array([1e8, 0.5]), np.array([1e8 + 8.0, 0.5]))
    assert verification.largest_difference == pytest.approx(8e-8)
    verification.note("mean", np.array([1.0]), np.array([np.nan]))
    assert not verification.passed


def test_the_command_writes_the_best_checkpoint_and_says_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = rl_training.train(
        algo="ppo", env_id="CartPole-v1", num_envs=2, total_timesteps=128, num_steps=16, num_minibatches=2,
        output_dir=str(tmp_path), evaluation={"every_steps": 32, "episodes": 2},
        checkpoint={"every_steps": 32, "keep_last": 9}, logging={"tensorboard": False},
    )  # fmt: skip
    capsys.readouterr()
    arguments = ["export", str(result.run_dir), "-o", str(tmp_path / "out"), "--format", "torch"]
    for which in ("best", "latest"):
        assert main([*arguments, "--which", which, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        checkpoint = find_checkpoint(result.run_dir, which)
        about = json.loads(Path(answer["description"]).read_text())
        assert answer["checkpoint"] == checkpoint.name
        assert about["run"]["run_name"] == result.run_dir.name
        contents = read_contents(checkpoint)
        assert about["run"]["step"] == contents.step
        assert about["run"]["fingerprint"]["weights"] == contents.fingerprint()["weights"]
        assert about["verification"] is None
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert "input        obs: float32[batch, 4]" in table
    assert "output       logits: float32[batch, 2]" in table
    assert "verified     no; --verify compares it with the policy" in table


def test_mistakes_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    agent = agent_of(algo="ppo", env_id="CartPole-v1")
    with pytest.raises(ConfigError, match="unknown format 'onxx'; did you mean 'onnx'"):
        export_policy(agent, tmp_path, format="onxx")  # type: ignore[arg-type]
    assert main(["export", str(tmp_path / "nothing"), "-o", str(tmp_path / "out")]) == 2
    assert "no such run or checkpoint" in capsys.readouterr().err
    assert main(["export", str(tmp_path), "-o", "x", "--tolerance", "-1"]) == 2
    assert "expected a number of at least 0, got '-1'" in capsys.readouterr().err
    assert main(["export", str(tmp_path), "-o", "x", "--observations", "9"]) == 2
    assert "give --verify" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="file: cannot be written: File exists"):
        export_policy(agent, tmp_path / "file", format="torch")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r'to onnx needs .* pip install "axiomrl\[export\]"'):
        export_policy(agent, tmp_path)


class Counted(torch.nn.Module):
    """An encoder that looks at the size of its batch in a way that fixes it."""

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.out_dim = 4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(len(x), 4)


def test_a_policy_that_cannot_be_captured_is_explained(tmp_path: Path) -> None:
    agent = agent_of(algo="ppo", env_id="CartPole-v1", network={"encoder": Counted})
    with pytest.raises(ExportError, match=r"cannot be captured .* constant \(2\).*x\.shape\[0\] does not"):
        export_policy(agent, tmp_path, format="torch")
