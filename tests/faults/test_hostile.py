"""Files from a stranger: whatever they hold, a typed error refuses them and nothing of them is run."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import resource
import shutil
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import rl_training
from rl_training.cli import main
from rl_training.errors import AxiomError, CheckpointError, ConfigError
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.experiment.find import find_checkpoint
from rl_training.experiment.fingerprint import read_contents
from rl_training.experiment.layers import file_layers, load_config
from rl_training.experiment.manifest import rendered

MEMORY = 256 << 20
"""The most memory that a refusal may cost."""


class Payload:
    """Touches the canary when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.canary}",)


def payload(canary: Path) -> bytes:
    return pickle.dumps(Payload(canary))


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that must not be there afterwards, and a directory beside which nothing may appear."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.json").write_text('{"key": "value"}')
    yield tmp_path / "canary"
    assert not (tmp_path / "canary").exists()
    assert (tmp_path / "secret.json").read_text() == '{"key": "value"}'


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run to copy."""
    return rl_training.train(
        algo="ppo", env_id="CartPole-v1", num_envs=2, total_timesteps=32,
        output_dir=str(tmp_path_factory.mktemp("runs")), num_steps=16, num_minibatches=2, update_epochs=1,
        network={"hidden": [4]}, evaluation={"every_steps": 0}, logging={"tensorboard": False},
    ).run_dir  # fmt: skip


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def checkpoint(run_dir: Path) -> Path:
    return run_dir / "checkpoints" / "step_32"


def vouch(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a manifest as somebody would who knows how to compute its hash."""
    manifest = json.loads((path / "manifest.json").read_text())
    manifest.pop("sha256")
    change(manifest)
    (path / "manifest.json").write_bytes(rendered(manifest))


def put(path: Path, name: str, data: bytes) -> None:
    """A file with a manifest that vouches for it."""
    (path / name).write_bytes(data)
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    vouch(path, lambda m: m["files"].__setitem__(name, entry))


def safetensors(header: dict[str, Any], data: bytes = b"", claimed: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if claimed is None else claimed) + text + data


USES: dict[str, Callable[[Path], Any]] = {
    "read": lambda path: read_checkpoint(find_checkpoint(path)),
    "load": rl_training.load,
    "evaluate": lambda path: rl_training.evaluate(path, num_episodes=1),
    "resume": lambda path: rl_training.resume(path, total_timesteps=64),
    "init_from": lambda path: rl_training.train(
        algo="ppo", env_id="CartPole-v1", total_timesteps=32, init_from=path, output_dir="none"
    ),
}


def refused(path: Path, harmless: Sequence[str]) -> str:
    """Every use ends in a typed error, at little cost, but for those that are `harmless`; one message."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    message = ""
    for name, use in USES.items():
        if name not in harmless:
            with pytest.raises(AxiomError) as caught:
                use(path)
            message = message or str(caught.value)
    for argv in (["eval", "--checkpoint", str(path)], ["resume", "--checkpoint", str(path)]):
        assert main(argv) == 2
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < MEMORY, f"{grown >> 20} MiB to say no"
    assert not Path("none").exists()
    return message


HARMLESS = {
    "state that misses its parts": ["read"],
    "a config of a huge network": ["read", "init_from"],
    "an env that imports a module": ["read", "init_from"],
}
"""What can be read, and where weights are taken and nothing else: the refusal comes with the use."""
NESTED = 100_000
HOSTILE: dict[str, Callable[[Path, Path], Any]] = {
    "a pickle named safetensors": lambda c, canary: put(c, "policy.safetensors", payload(canary)),
    "a pickle named state.json": lambda c, canary: put(c, "state.json", payload(canary)),
    "a pickle named manifest.json": lambda c, canary: (c / "manifest.json").write_bytes(payload(canary)),
    "a renamed .pt": lambda c, canary: _renamed_pt(c, canary),
    "a header longer than the file": lambda c, _: put(
        c, "policy.safetensors", safetensors({}, claimed=1 << 40)),
    "a header of 2^63 bytes": lambda c, _: put(
        c, "policy.safetensors", safetensors({}, claimed=(1 << 63) - 1)),
    "a tensor of 4 TB": lambda c, _: put(c, "policy.safetensors", safetensors(
        {"w": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}, b"\0" * 16)),
    "a tensor whose size overflows": lambda c, _: put(c, "policy.safetensors", safetensors(
        {"w": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 16]}}, b"\0" * 16)),
    "an empty tensor of huge sides": lambda c, _: put(c, "policy.safetensors", safetensors(
        {"w": {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}})),
    "tensors that overlap": lambda c, _: put(c, "policy.safetensors", safetensors(
        {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
         "b": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}}, b"\0" * 24)),
    "a manifest that claims 10^15 bytes": lambda c, _: vouch(
        c, lambda m: m["files"]["policy.safetensors"].update(bytes=10**15)),
    "a sparse file larger than memory": lambda c, _: _sparse(c),
    "sizes that are no numbers": lambda c, _: vouch(
        c, lambda m: m["files"]["policy.safetensors"].update(bytes="1e9")),
    "a version that is no number": lambda c, _: vouch(c, lambda m: m.update(format_version="1; import os")),
    "a version of the future": lambda c, _: vouch(c, lambda m: m.update(format_version=10**9)),
    "a version of the past": lambda c, _: vouch(c, lambda m: m.update(format_version=-(10**9))),
    "deeply nested state": lambda c, _: put(
        c, "state.json", b'{"policy": ' + b"[" * NESTED + b"]" * NESTED + b"}"),
    "deeply nested objects": lambda c, _: put(c, "state.json", b'{"a":' * NESTED + b"1" + b"}" * NESTED),
    "a number of a million digits": lambda c, _: put(c, "state.json", b'{"trainer": ' + b"9" * 10**6 + b"}"),
    "state that is a list": lambda c, _: put(c, "state.json", b"[]"),
    "state that misses its parts": lambda c, _: put(c, "state.json", b"{}"),
    "names that lead up": lambda c, _: _extra_file(c, "../../../secret.json"),
    "absolute names": lambda c, _: _extra_file(c, "/etc/passwd"),
    "a hidden name": lambda c, _: _extra_file(c, ".bashrc"),
    "a symlink to a file outside": lambda c, _: _link(c, "state.json", c.parents[2] / "secret.json"),
    "a symlink in place of the manifest": lambda c, _: _link(c, "manifest.json", c / "real.json"),
    "a device": lambda c, _: _link(c, "policy.safetensors", Path("/dev/zero")),
    "a pipe": lambda c, _: _pipe(c, "policy.safetensors"),
    "a directory in place of a file": lambda c, _: _folder(c, "policy.safetensors"),
    "a config with a python tag": lambda c, canary: put(
        c, "config.yaml", f"algo: !!python/object/apply:os.system ['touch {canary}']\n".encode()),
    "a config with an alias bomb": lambda c, _: put(c, "config.yaml", BOMB.encode()),
    "a config of a huge network": lambda c, _: put(c, "config.yaml", (c / "config.yaml").read_bytes().replace(
        b"hidden: [4]", b"hidden: [1000000000000, 1000000000000]")),
    "an env that imports a module": lambda c, canary: _module_env(c, canary),
    "an unknown algorithm": lambda c, _: put(c, "config.yaml", (c / "config.yaml").read_bytes().replace(
        b"algo: ppo", b"algo: os.system")),
    "a space of a huge shape": lambda c, _: put(c, "spec.json", (c / "spec.json").read_bytes().replace(
        b'"shape": [\n      4\n    ]', b'"shape": [1000000000000000]')),
    "spaces that are code": lambda c, canary: put(c, "spec.json", json.dumps(
        {"observation": {"type": f"__import__('os').system('touch {canary}')"}, "action": {}}).encode()),
}  # fmt: skip
BOMB = "algo: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefghijklm", "bcdefghijklmn", strict=True)
)


def _renamed_pt(path: Path, canary: Path) -> None:
    torch.save({"w": Payload(canary)}, path.parent / "agent.pt")
    put(path, "policy.safetensors", (path.parent / "agent.pt").read_bytes())
    (path.parent / "agent.pt").unlink()


def _extra_file(path: Path, name: str) -> None:
    entry = {"sha256": hashlib.sha256(b'{"key": "value"}').hexdigest(), "bytes": 16}
    vouch(path, lambda m: m["files"].__setitem__(name, entry))


def _link(path: Path, name: str, target: Path) -> None:
    if target == path / "real.json":
        (path / name).rename(target)
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(target)


def _pipe(path: Path, name: str) -> None:
    (path / name).unlink()
    os.mkfifo(path / name)
    vouch(path, lambda m: m["files"][name].update(bytes=0))


def _folder(path: Path, name: str) -> None:
    (path / name).unlink()
    (path / name).mkdir()


def _sparse(path: Path) -> None:
    size = 1 << 42
    with open(path / "policy.safetensors", "r+b") as file:
        file.truncate(size)
    vouch(path, lambda m: m["files"]["policy.safetensors"].update(bytes=size))


def _module_env(path: Path, canary: Path) -> None:
    Path("evil.py").write_text(f"open({str(canary)!r}, 'w').close()\n")
    data = (path / "config.yaml").read_bytes().replace(b"env_id: CartPole-v1", b"env_id: evil:Env-v0")
    put(path, "config.yaml", data)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_checkpoints_are_refused(name: str, checkpoint: Path, canary: Path, report: Any) -> None:
    HOSTILE[name](checkpoint, canary)
    message = refused(checkpoint, HARMLESS.get(name, ()))
    assert str(checkpoint) in message or "algo" in message or message.startswith("network: larger than")
    report("hostile checkpoints", "fixtures")


@pytest.mark.parametrize(
    "pointer", ["../other", "/etc", "checkpoints/../../other", "a\0b", "checkpoints/link", 5, ["x"], {"a": 1}]
)
def test_metadata_that_point_elsewhere(pointer: Any, run_dir: Path, canary: Path) -> None:
    """A run directory from a stranger: its pointers do not lead out of it."""
    shutil.copytree(run_dir / "checkpoints" / "step_32", run_dir.parent / "other")
    (run_dir / "checkpoints" / "link").symlink_to(run_dir.parent / "other")
    metadata = json.loads((run_dir / "metadata.json").read_text())
    metadata["latest_checkpoint"] = metadata["best_checkpoint"] = pointer
    (run_dir / "metadata.json").write_text(json.dumps(metadata))
    with pytest.warns(UserWarning, match=r"Using .*step_32 instead"):
        assert find_checkpoint(run_dir) == run_dir / "checkpoints" / "step_32"


def test_a_checkpoint_does_not_say_where_to_write(checkpoint: Path, canary: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    data = (checkpoint / "config.yaml").read_text()
    line = next(line for line in data.splitlines() if line.startswith("output_dir:"))
    put(checkpoint, "config.yaml", data.replace(line, f"output_dir: {elsewhere}").encode())
    copied = Path(shutil.copytree(checkpoint, tmp_path / "copied"))
    assert rl_training.resume(copied, total_timesteps=64).run_dir.parent == Path("runs")
    given = rl_training.resume(copied, total_timesteps=64, output_dir="mine").run_dir
    assert given.parent == Path("mine")
    assert rl_training.load(copied).learn(total_timesteps=64).session.run_dir.parent == Path("runs")
    assert not elsewhere.exists()


YAML = {
    "python object": "algo: !!python/object/apply:os.system ['touch canary']\n",
    "python name": "algo: !!python/name:os.system\n",
    "python module": "algo: !!python/module:antigravity\n",
    "alias bomb": BOMB,
    "self reference": "algo: &a {b: *a}\n",
    "merge bomb": "a: &a {x: 1}\n" + "".join(f"k{i}: {{<<: [*a, *a, *a, *a]}}\n" for i in range(10)),
    "deep nesting": "algo: " + "[" * 5_000,
    "deep flow mappings": "algo: " + "{a: " * 5_000,
    "a huge number": "total_timesteps: " + "9" * 100_000 + "\nalgo: ppo\nenv_id: CartPole-v1\n",
    "binary": "algo: !!binary gIJLAS4=\n",
    "null bytes": "algo: p\0po\n",
    "an include of another file": "include: /etc/passwd\nalgo: ppo\n",
    "an include that climbs": "include: ../../../../../../etc/passwd\n",
    "an include of a device": "include: /dev/zero\n",
}


@pytest.mark.parametrize("name", YAML)
def test_hostile_yaml_is_refused(name: str, canary: Path, report: Any) -> None:
    Path("hostile.yaml").write_text(YAML[name])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result: list[BaseException | None] = []

    def read() -> None:
        try:
            load_config("hostile.yaml")
            result.append(None)
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(timeout=20)
    assert result, "it hangs"
    assert isinstance(result[0], ConfigError), result
    assert main(["train", "--config", "hostile.yaml"]) == 2
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY
    report("hostile YAML", "fixtures")


def test_inspecting_a_stranger_needs_no_torch_and_refuses_the_same(checkpoint: Path, canary: Path) -> None:
    code = textwrap.dedent("""
        import sys
        from rl_training.cli import main
        codes = [main(["inspect", sys.argv[1], "--json"]), main(["inspect", sys.argv[1], sys.argv[1]])]
        print(codes, "torch" in sys.modules, file=sys.stderr)
    """)

    def inspect() -> str:
        command = [sys.executable, "-c", code, str(checkpoint)]
        environment = {**os.environ, "PYTHONPATH": str(Path(rl_training.__file__).parents[1])}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return done.stderr.strip().splitlines()[-1]

    assert inspect() == "[0, 0] False"
    put(checkpoint, "policy.safetensors", payload(canary))
    with pytest.raises(CheckpointError, match="cannot be understood"):
        read_contents(checkpoint)
    assert inspect() == "[2, 2] False"


def test_a_file_that_is_included_is_read_as_strictly() -> None:
    with pytest.raises(ConfigError, match=r"cannot be read|not valid YAML|expected a mapping|unknown"):
        file_layers(Path("/etc/passwd"))
