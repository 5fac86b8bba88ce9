"""What a model is: a recipe that builds an ``nn.Module`` once the data's shape and classes are known."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, model_serializer
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from purifl.errors import ConfigError, PuriflError
from purifl.registry import Component, Registry

RUNNING_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_TRIED = 2  # inputs; a statistic of a mini-batch needs more than one


class ModelSpec(Component):
    """A model by name."""

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """A freshly initialised model for inputs of ``shape``; its weights come from torch's generator."""


models: Registry[ModelSpec] = Registry("model", "purifl.models")


@dataclass(frozen=True)
class Build:
    """A model for given data; calling it builds a fresh one."""

    spec: ModelSpec
    shape: tuple[int, ...]
    classes: int

    def __call__(self) -> nn.Module:
        """A freshly initialised model."""
        return self.spec.build(self.shape, self.classes)

    def check(self, model: nn.Module, like: Tensor) -> None:
        """Refuse a user's own model that cannot take inputs ``like`` these; built-in ones see to that when built."""
        if isinstance(self.spec, Imported):
            self.spec.try_out(model, like.new_zeros(_TRIED, *like.shape[1:]), self.classes)

    @property
    def key(self) -> Hashable:
        """Equal for models of equal structure; None for users' own, whose factories may do anything."""
        return None if isinstance(self.spec, Imported) else (self.spec.model_dump_json(), self.shape, self.classes)


class Imported(ModelSpec):
    """A model from the user's own code: ``package.module:factory``, called as factory(shape, classes, ...).

    In a configuration its name is the import path, and every other key is passed on to the factory::

        model: {name: mymodels:tiny, width: 8}
    """

    factory: str = Field(description="where the factory is, as package.module:factory")
    params: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the factory")

    @property
    def name(self) -> str:  # type: ignore[override]
        """The import path."""
        return self.factory

    @model_serializer(mode="plain")
    def _with_name(self) -> dict[str, Any]:  # type: ignore[override]
        return {"name": self.factory, **self.params}

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Import the factory, call it and see that it returned a module."""
        factory = imported(self.factory, "model")
        try:
            inspect.signature(factory).bind(shape, classes, **self.params)
        except (TypeError, ValueError) as error:
            raise ConfigError("model", self.factory, f"it has to accept (shape, classes, ...): {error}") from None
        with self._blamed(f"it fails when called for inputs of shape {shape} and {classes} classes"):
            model = factory(shape, classes, **self.params)
        if not isinstance(model, nn.Module):
            raise ConfigError(
                "model", self.factory, f"it has to return a torch.nn.Module, not a {type(model).__name__}"
            )
        return model

    @torch.no_grad()
    def try_out(self, model: nn.Module, x: Tensor, classes: int) -> None:
        """See whether ``model`` gives each of the inputs ``x`` a score for each class; its buffers stay as they are.

        In evaluation mode, in which layers draw nothing, so that trying it out cannot change a run.
        """
        before, training = [(buffer, buffer.clone()) for buffer in model.buffers()], model.training
        with self._blamed(f"it cannot take a batch of shape {tuple(x.shape)} and type {x.dtype}"):
            scores = model.eval()(x)
        model.train(training)
        for buffer, first in before:
            buffer.copy_(first)
        given = tuple(scores.shape) if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
        if given != (len(x), classes):
            wanted = f"a tensor of shape {(len(x), classes)}, a score for each of the {classes} classes"
            raise ConfigError("model", self.factory, f"for {len(x)} inputs it has to give {wanted}, not {given}")

    @contextmanager
    def _blamed(self, failure: str) -> Iterator[None]:
        """Within it whatever the user's code raises is a ConfigError, except what already says what to change."""
        try:
            yield
        except PuriflError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError("model", self.factory, f"{failure}: {_raised(error, self.factory)}") from error


def imported(path: str, field: str) -> Callable[..., object]:
    """The function at ``package.module:name``, or a ConfigError about the setting ``field``."""
    module, _, attribute = path.partition(":")
    try:
        with _importable_cwd():
            found: Callable[..., object] = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        said = _raised(error, path)
        raise ConfigError(field, path, f"give package.module:factory, importable from here ({said})") from error
    return found


def _raised(error: BaseException, path: str) -> str:
    """What was raised, on one line, and where in the package of ``path``: the user sees no traceback."""
    package = path.partition(":")[0].partition(".")[0]
    lines = [
        f" ({Path(frame.f_code.co_filename).name}, line {number})"
        for frame, number in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package
    ]
    return f"{type(error).__name__}: {' '.join(str(error).split())}{lines[-1] if lines else ''}"


@contextmanager
def _importable_cwd() -> Iterator[None]:
    """The current directory on the import path, as it is for ``python -m``."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def resolve_model(spec: Any) -> ModelSpec:  # noqa: ANN401 - whatever a configuration file holds
    """Turn what a configuration says into a model recipe; a name with a colon is an import path.

    Example:
        >>> resolve_model({"name": "mymodels:tiny", "width": 8}).model_dump()
        {'name': 'mymodels:tiny', 'width': 8}
    """
    name = spec.get("name") if isinstance(spec, Mapping) else spec
    if not isinstance(name, str) or ":" not in name:
        return models.resolve(spec)
    params = {key: value for key, value in spec.items() if key != "name"} if isinstance(spec, Mapping) else {}
    return Imported(factory=name, params=params)


def check_model(model: nn.Module) -> None:
    """Refuse a model that is more than its parameters, or has none to train.

    Clients exchange and average parameters only. Running statistics, as batch normalisation keeps them,
    would stay behind. Constant buffers do no harm.
    """
    kind = type(model).__name__
    for dotted, _ in model.named_buffers():
        owner, _, buffer = dotted.rpartition(".")
        if buffer in RUNNING_STATISTICS:
            layer = f"layer {owner!r} ({type(model.get_submodule(owner)).__name__})" if owner else "it"
            raise ConfigError(
                "model",
                kind,
                f"{layer} keeps running statistics ({buffer}), which are not parameters and do not survive "
                "averaging; use GroupNorm or LayerNorm",
            )
    for dotted, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ConfigError("model", kind, f"parameter {dotted!r} is lazy and has no shape yet; give its sizes")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError("model", kind, "it needs at least one trainable parameter")


def image_shape(model: str, shape: tuple[int, ...], smallest: int, patch: int = 1) -> tuple[int, int, int]:
    """``shape`` as (channels, height, width) if ``model`` can take such images, else the error."""
    if len(shape) != 3:
        given = f"feature vectors of length {shape[0]}" if len(shape) == 1 else f"inputs of shape {shape}"
        raise ConfigError("model", model, f"it needs images (channels, height, width), the data has {given}; use mlp")
    channels, height, width = shape
    if min(height, width) < smallest or height % patch or width % patch:
        multiples = f" and multiples of {patch}" if patch > 1 else ""
        raise ConfigError(
            "model",
            model,
            f"height and width have to be at least {smallest}{multiples}, the images are {height}x{width}",
        )
    return channels, height, width
