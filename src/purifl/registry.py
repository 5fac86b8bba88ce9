"""One registry for everything that has a name: attacks, defences, detectors, data sets, partitions, ...

An entry is a :class:`Component`: a class whose pydantic fields are its parameters and whose docstring is
its description. Configuration, ``purifl list`` and the help texts all read the registry, so none of them
can go stale. In a configuration a component is written as its name, or as a mapping of its name and
parameters::

    attack: backdoor-9
    attack: {name: backdoor-9, target: 3}
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer

from purifl.errors import ConfigError, PuriflError, unknown_name

PAPER = "Li, Miao, Zhang, Yin: Gradient Purification, Frontiers of Computer Science 2025"


class Component(BaseModel):
    """Something chosen by name: its fields are its parameters, its docstring says what it is."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: ClassVar[str] = ""
    reference: ClassVar[str] = ""
    needs: ClassVar[str] = ""
    """What must hold for it to work, in words."""

    @model_serializer(mode="wrap")
    def _with_name(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"name": self.name, **handler(self)}

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return inspect.getdoc(cls).splitlines()[0] if cls.__doc__ else ""  # type: ignore[union-attr]

    @classmethod
    def parameters(cls) -> list[dict[str, Any]]:
        """Each parameter with its default, what it accepts and what it means."""
        schema = cls.model_json_schema()["properties"] if cls.model_fields else {}
        keys = ("type", "enum", "anyOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        return [
            {"name": name, "default": prop.get("default"), "description": prop.get("description", "")}
            | {key: prop[key] for key in keys if key in prop}
            for name, prop in schema.items()
        ]


C = TypeVar("C", bound=Component)


class Registry(Generic[C]):
    """The components of one kind, by name.

    Args:
        kind: The configuration field they are chosen in, for example ``"attack"``.
        package: The package whose modules register them; imported on first use, together with what other
            installed packages name under the entry point ``purifl.<kind>``.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind, self._package = kind, package
        self._entries: dict[str, type[C]] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[type[C]], type[C]]:
        """Class decorator that enters a component under ``name``; a name taken twice is refused."""

        def enter(cls: type[C]) -> type[C]:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is already registered by {self._entries[name]!r}")
            cls.name = name
            self._entries[name] = cls
            return cls

        return enter

    def _load(self) -> None:
        if self._loaded:
            return
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(getattr(package, "__path__", [])):
            importlib.import_module(f"{self._package}.{module.name}")
        for plugin in entry_points(group=f"purifl.{self.kind}"):
            try:
                plugin.load()
            except Exception as error:
                raise PuriflError(f"plug-in {plugin.name!r} ({plugin.value}) cannot be loaded: {error}") from error
        self._loaded = True

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._entries))

    def __getitem__(self, name: str) -> type[C]:
        self._load()
        try:
            return self._entries[name]
        except (KeyError, TypeError):
            raise unknown_name(self.kind, name, self._entries) from None

    def resolve(self, spec: Any) -> C:  # noqa: ANN401 - whatever a configuration file holds
        """Turn what a configuration says into the component, or say what is wrong with it."""
        if isinstance(spec, Component):
            return spec  # type: ignore[return-value]
        if isinstance(spec, str):
            spec = {"name": spec}
        if not isinstance(spec, Mapping) or "name" not in spec:
            raise ConfigError(self.kind, spec, "give a name, or a mapping with a name and its parameters")
        params = {key: value for key, value in spec.items() if key != "name"}
        try:
            return self[spec["name"]].model_validate(params)
        except ValidationError as error:
            raise from_validation(error, self.kind, self[spec["name"]]) from None

    def describe(self) -> list[dict[str, Any]]:
        """What ``purifl list`` shows: name, summary, parameters and reference of every entry."""
        return [
            {
                "name": name,
                "summary": self[name].summary(),
                "parameters": self[name].parameters(),
                "reference": self[name].reference,
                "needs": self[name].needs,
            }
            for name in self
        ]


def from_validation(error: ValidationError, where: str, model: type[BaseModel]) -> ConfigError:
    """The first thing pydantic found wrong, in our words: the field, the value and what is allowed."""
    first = error.errors()[0]
    path = _field_path(model, first["loc"])
    field = ".".join([where, *path] if where else path)
    if first["type"] == "extra_forbidden":
        fields = _fields_at(model, path[:-1])
        return (
            unknown_name(field.rpartition(".")[0] or "setting", path[-1], fields)
            if fields
            else ConfigError(field, first["input"], f"{_called(model, where)} takes no parameters")
        )
    if first["type"] == "missing":
        called = _called(model, where)
        return ConfigError(field, None, f"{called} needs it" if called else "it has to be given")
    if first["type"] == "too_short":
        return ConfigError(field, first["input"], f"give {first['ctx']['min_length']} or more")
    message = first["msg"].removeprefix("Input ").removeprefix("Value error, ").replace("a valid tuple", "a list")
    return ConfigError(field, first["input"], f"it {message}" if message.startswith("should") else message)


def _field_path(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """The field that an error is about; what pydantic adds for the branches of a union is left out."""
    path: list[str] = []
    inside: type[BaseModel] | None = model
    for part in loc:
        if inside is not None or isinstance(part, int):
            path.append(str(part))
        if isinstance(part, str):
            field = inside.model_fields.get(part) if inside is not None else None
            inside = _model_in(field.annotation) if field is not None else None
    return path


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The model that a field is, or a list of."""
    if get_origin(annotation) in (list, tuple):
        annotation = get_args(annotation)[0]
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _called(model: type[BaseModel], where: str) -> str:
    return f"{where} {model.name!r}" if issubclass(model, Component) else where


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """The field names of the (possibly nested) model that ``path`` leads to."""
    for part in path:
        if not part.isdigit():
            inside = _model_in(model.model_fields[part].annotation)
            if inside is None:
                return []
            model = inside
    return list(model.model_fields)
