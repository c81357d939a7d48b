"""Play a policy that `axiomrl export RUN -o DIR` has written: python run_onnx.py DIR [EPISODES]"""

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnxruntime as ort


def flat(obs: dict[str, Any], at: str = "") -> dict[str, Any]:  # of a Dict inside a Dict, keys like a/b
    parts = (flat(v, f"{at}{k}/") if isinstance(v, dict) else {f"{at}{k}": v} for k, v in obs.items())
    return {key: value for part in parts for key, value in part.items()}


folder, episodes = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5
about = json.loads((folder / "model.onnx.json").read_text(encoding="utf-8"))
model = ort.InferenceSession(folder / "model.onnx")
names = [port["name"] for port in about["outputs"]]
observed = [port for port in about["inputs"] if port["kind"] == "observation"]
all_allowed = {port["key"]: np.ones(port["shape"][1:]) for port in observed if port["key"] == "action_mask"}
assert not about["env"], f"the policy was trained on an env that was wrapped: {about['env']}"
env = gym.make(about["run"]["env_id"], **about["run"]["env_kwargs"])
for episode in range(episodes):
    (obs, info), total, over = env.reset(seed=episode), 0.0, False
    state = {s["input"]: np.full([1, *s["shape"]], s["initial"], s["dtype"]) for s in about["state"]}
    while not over:
        mask = info.get("action_mask")  # of a MultiDiscrete a tuple, which is put one after the other
        masks = all_allowed if mask is None else {"action_mask": np.hstack(mask)}
        seen = {**masks, **flat(obs if isinstance(obs, dict) else {"obs": obs})}
        shown = {port["name"]: np.asarray(seen[port["key"]], port["dtype"])[None] for port in observed}
        outputs = dict(zip(names, model.run(names, {**shown, **state}), strict=True))
        state = {s["input"]: outputs[s["output"]] for s in about["state"]}
        obs, reward, terminated, truncated, info = env.step(outputs["action"][0])
        total, over = total + float(reward), terminated or truncated
    print(f"episode {episode}: return {total:.1f}")
