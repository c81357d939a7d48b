"""Optional dependencies: what each extra brings, which envs need one, and whether it is there."""

from __future__ import annotations

from importlib.util import find_spec

EXTRAS = {
    "classic": ("pygame-ce",),
    "atari": ("ale-py",),
    "mujoco": ("mujoco", "imageio"),
    "box2d": ("box2d",),
    "video": ("imageio", "imageio-ffmpeg", "pygame-ce"),
    "wandb": ("wandb",),
    "export": ("onnx", "onnx-ir", "onnxscript", "onnxruntime"),
    "hdf5": ("h5py",),
    "tune": ("optuna",),
}
"""Extra → the distributions it installs."""

_MODULES = {"atari": "ale_py", "mujoco": "mujoco", "box2d": "Box2D"}
"""Extra that envs need → the module by which it is recognised."""

_ENVS = {
    "box2d": {"BipedalWalker", "BipedalWalkerHardcore", "CarRacing", "LunarLander", "LunarLanderContinuous"},
    "mujoco": {
        "Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum",
        "InvertedPendulum", "Pusher", "Reacher", "Swimmer", "Walker2d",
    },
}  # fmt: skip


def extra_of(env_id: str) -> str | None:
    """The extra an env needs, judged by its id alone: asking Gymnasium would cost an import."""
    if env_id.startswith("ALE/"):
        return "atari"
    base = env_id.rpartition("-v")[0] or env_id
    return next((extra for extra, names in _ENVS.items() if base in names), None)


def is_installed(extra: str | None) -> bool:
    """Is what the extra brings for envs there?"""
    return extra is None or find_spec(_MODULES[extra]) is not None


def pip_install(extra: str) -> str:
    """The command that brings an extra."""
    return f'pip install "axiomrl[{extra}]"'
