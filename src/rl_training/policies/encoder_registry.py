"""Encoders by name. Knows names and classes only and never imports torch, so that configs stay light."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rl_training.errors import UnknownNameError

if TYPE_CHECKING:
    from torch import nn

EncoderT = TypeVar("EncoderT", bound="type[nn.Module]")

BUILT_IN = ("auto", "mlp", "nature_cnn", "impala_cnn", "drq_cnn", "drq_cnn_small", "dict")
_REGISTERED: dict[str, type[nn.Module]] = {}


def register_encoder(name: str) -> Callable[[EncoderT], EncoderT]:
    """Class decorator: make an encoder selectable as `network.encoder: name`.

    The class is built with the observation space (without its action mask), has an integer `out_dim`, and
    maps a batch of observations of that space, normalised if asked for, to features `[batch, out_dim]`.
    """
    if name in BUILT_IN:
        raise ValueError(f"encoder name {name!r} is built in; choose another")

    def register(cls: EncoderT) -> EncoderT:
        known = _REGISTERED.get(name)
        if known is not None and _qualified_name(known) != _qualified_name(cls):
            raise ValueError(f"encoder name {name!r} is taken by {_qualified_name(known)}")
        _REGISTERED[name] = cls
        return cls

    return register


def encoder_name(choice: Any) -> str:
    """The name of an encoder given by name or as a class; a class is registered under its qualified name."""
    if isinstance(choice, str):
        return choice
    if not _is_module_class(choice):
        raise ValueError(f"expected the name of an encoder or a torch.nn.Module class, got {choice!r}")
    name = _qualified_name(choice)
    _REGISTERED[name] = choice  # the latest wins: a notebook cell that is run again redefines its class
    return name


def find_encoder(name: str) -> type[nn.Module]:
    """The class registered as `name`, or defined as `module.Class` in a module that is already imported."""
    cls = _REGISTERED.get(name) or _defined_in_imported_module(name)
    if cls is None:
        module = name.rpartition(".")[0]
        first = f"import {module!r}" if module else "import the module that registers it"
        hint = f"If it is your own encoder, {first} first."
        raise UnknownNameError("encoder", name, (*BUILT_IN, *_REGISTERED), hint)
    return cls


def _qualified_name(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _is_module_class(value: Any) -> bool:
    torch = sys.modules.get("torch")  # where torch was never imported, no nn.Module class can exist
    return torch is not None and isinstance(value, type) and issubclass(value, torch.nn.Module)


def _defined_in_imported_module(name: str) -> type[nn.Module] | None:
    # A config file must not be able to import code: look only at what the program imported itself.
    module_name, _, class_name = name.rpartition(".")
    cls = getattr(sys.modules.get(module_name), class_name, None)
    return cls if _is_module_class(cls) else None
