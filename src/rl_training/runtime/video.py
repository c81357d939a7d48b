"""Frames to an H.264 file."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import EnvError, MissingExtraError


def require_video() -> Any:
    """The module that writes videos, or an error that names the extra which brings it."""
    try:
        import imageio_ffmpeg
    except ImportError:
        raise MissingExtraError("writing a video", "video") from None
    return imageio_ffmpeg


class VideoWriter:
    """Writes RGB frames to an mp4; use as a context manager."""

    def __init__(self, path: str | PathLike[str], fps: float) -> None:
        self._open = require_video().write_frames
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fps, self._stream = fps, None  # type: tuple[float, Any]
        self.frames = 0

    def write(self, frame: Any) -> None:
        """Append one `[height, width, 3]` uint8 frame."""
        if frame is None:
            raise EnvError("this env renders no rgb_array frames: no video can be made of it")
        pixels = np.ascontiguousarray(frame, np.uint8)
        if self._stream is None:
            height, width = pixels.shape[:2]
            self._stream = self._open(
                str(self.path), (width, height), fps=self._fps, macro_block_size=2, ffmpeg_log_level="error"
            )
            self._stream.send(None)
        self._stream.send(pixels.tobytes())
        self.frames += 1

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
