"""Strict YAML: plain data only, numbers as people write them, no repeated keys, no expanding bombs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rl_training.errors import ConfigError

_SCIENTIFIC = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_MAX_NODES = 20_000
_MAX_BYTES = 1_000_000

Path_ = tuple[str, ...]


@dataclass(slots=True)
class Document:
    """A parsed file: its data and the line each key stands on."""

    source: str
    data: dict[str, Any]
    lines: dict[Path_, int] = field(default_factory=dict)

    def where(self, key: str) -> str:
        """The source and the line of a dotted key, or of the nearest thing around it that has one."""
        places = {".".join(path): line for path, line in self.lines.items()}
        around = [name for name in places if f"{key}.".startswith(f"{name}.")]
        return f"{self.source}:{places[max(around, key=len)]}" if around else self.source


def load_file(path: str | Path) -> Document:
    """Read a YAML mapping from a file."""
    path = Path(path)
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)  # no more: it may be a device without an end
        if len(data) > _MAX_BYTES:
            raise ConfigError(f"{path}: larger than {_MAX_BYTES} bytes; not a configuration")
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    return load_text(text, str(path))


def load_text(text: str, source: str) -> Document:
    """Read a YAML mapping from a string."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "nested too deeply"
        raise ConfigError(f"{source}{where}: not valid YAML: {problem}") from None
    builder = _Builder(source)
    try:
        data = {} if root is None else builder.build(root, ())
    except RecursionError:  # an alias that contains itself
        raise ConfigError(f"{source}: nested too deeply") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: expected a mapping of keys to values, got {type(data).__name__}")
    return Document(source, data, builder.lines)


def parse_value(text: str) -> Any:
    """One value as it would be read from a file: for the command line."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return text
    return text if node is None else _Builder("command line").build(node, ())


def dump(data: dict[str, Any]) -> str:
    """Write plain data in the order given."""
    return yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=100
    )


def dump_line(data: dict[str, Any]) -> str:
    """Write one key and its value without a line break."""
    text = yaml.dump(data, Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=float("inf"))
    return str(text).strip()[1:-1]


class _Dumper(yaml.SafeDumper):
    """Writes plain data so that this module reads the same again: a text like 3e-4 needs its quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write everything out: the same list twice is no reason for anchors."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "'" if _SCIENTIFIC.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)


class _Builder:
    """Turns YAML nodes into plain data, noting lines on the way."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[Path_, int] = {}
        self._budget = _MAX_NODES
        self._scalars = yaml.SafeLoader("")

    def build(self, node: yaml.Node, path: Path_) -> Any:
        self._budget -= 1
        if self._budget < 0:
            raise ConfigError(f"{self.source}: more than {_MAX_NODES} values; refusing to expand it")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if node.tag not in _COLLECTIONS:
            raise ConfigError(f"{self.source}:{node.start_mark.line + 1}: {node.tag} is not plain data")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        return [self.build(item, path) for item in node.value]

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{self.source}:{line}: keys must be plain words")
            key = str(key_node.value)
            if key in result:
                raise ConfigError(f"{self.source}:{line}: {'.'.join((*path, key))}: written twice")
            self.lines[(*path, key)] = line
            result[key] = self.build(value_node, (*path, key))
        return result

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        line = node.start_mark.line + 1
        if node.style is None and node.tag == "tag:yaml.org,2002:str" and _SCIENTIFIC.fullmatch(node.value):
            return float(node.value)  # YAML 1.1 reads 3e-4 as a string
        try:
            value = self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError, AttributeError):  # what PyYAML does with !!bool x
            raise ConfigError(f"{self.source}:{line}: {node.tag} is not plain data") from None
        if value is None or isinstance(value, bool | int | float | str):
            return value
        return str(node.value)  # dates and the like are text to us
