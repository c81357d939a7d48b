"""Videos that lie in run directories, put into the page itself as far as that is sensible."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rl_training.zoo import formatting as fmt
from rl_training.zoo.page import section
from rl_training.zoo.summaries import RunSummary

KINDS = {".mp4": "video/mp4", ".webm": "video/webm"}
MAX_BYTES, MAX_TOTAL, MAX_RUNS = 8 << 20, 32 << 20, 500


def video_section(runs: Sequence[RunSummary]) -> str:
    """Every video of the runs; one that is too large is named instead."""
    shown, named, total = [], [], 0
    for run in runs[:MAX_RUNS]:
        for file in video_files(Path(run.path)):
            size = file.stat().st_size
            caption = f"{run.algo} on {run.env_id}, seed {run.seed} · {file.name}"
            if size > MAX_BYTES or total + size > MAX_TOTAL:
                named.append(f"<li>{escape(str(file))} ({fmt.size(size)}, too large to put in here)</li>")
                continue
            total += size
            source = f"data:{KINDS[file.suffix.lower()]};base64,{b64encode(file.read_bytes()).decode()}"
            video = f'<video controls muted loop preload="metadata" src="{source}"></video>'
            shown.append(f"<figure>{video}<figcaption>{escape(caption)}</figcaption></figure>")
    if not shown and not named:
        return ""
    content = f'<div class="videos">{"".join(shown)}</div>' if shown else ""
    content += f'<ul class="list">{"".join(named)}</ul>' if named else ""
    return section("Videos", content, name="videos")


def video_files(run: Path) -> list[Path]:
    """Videos in the run directory itself and in its folder `videos`."""
    found = []
    for folder in (run, run / "videos"):
        try:
            found += [f for f in folder.iterdir() if f.suffix.lower() in KINDS and f.is_file()]
        except OSError:
            continue
    return sorted(found)
