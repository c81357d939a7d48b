"""Frames to an H.264 file."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import AxiomError, EnvError, MissingExtraError

SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".avi", ".flv", ".ts", ".mpg", ".mpeg", ".3gp", ".wmv")
"""Files that ffmpeg can put such frames into; .gif and .webm hold no H.264."""


def require_video() -> Any:
    """The module that writes videos, or an error that names the extra which brings it."""
    try:
        import imageio_ffmpeg
    except ImportError:
        raise MissingExtraError("writing a video", "video") from None
    return imageio_ffmpeg


class VideoWriter:
    """Writes RGB frames to a video; use as a context manager.

    A file that cannot be written is refused at once, before anything is played for it.
    """

    def __init__(self, path: str | PathLike[str], fps: float) -> None:
        self._open = require_video().write_frames
        self.path = Path(path)
        _require_writable(self.path)
        self._fps, self._stream = fps, None  # type: tuple[float, Any]
        self.frames = 0

    def write(self, frame: Any) -> None:
        """Append one `[height, width, 3]` uint8 frame."""
        if frame is None:
            raise EnvError("this env renders no rgb_array frames: no video can be made of it")
        pixels = np.ascontiguousarray(frame, np.uint8)
        try:
            if self._stream is None:
                height, width = pixels.shape[:2]
                self._stream = self._open(
                    str(self.path),
                    (width, height),
                    fps=self._fps,
                    macro_block_size=2,
                    ffmpeg_log_level="error",
                )
                self._stream.send(None)
            self._stream.send(pixels.tobytes())
        except OSError as error:  # ffmpeg has said why; its whole command line helps nobody
            raise AxiomError(f"{self.path}: cannot be written: {str(error).splitlines()[0]}") from None
        self.frames += 1

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()


def _require_writable(path: Path) -> None:
    if path.is_dir():
        raise AxiomError(f"{path}: is a directory; a video needs the name of a file, such as video.mp4")
    if path.suffix.lower() not in SUFFIXES:
        raise AxiomError(f"{path}: no kind of video that can be written: use {', '.join(SUFFIXES)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AxiomError(f"{path}: cannot be written: {error.strerror}") from None
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise AxiomError(f"{path}: cannot be written: permission denied")
