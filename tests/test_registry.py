from typing import ClassVar

import pytest
from pydantic import Field

from purifl.catalogue import _REGISTRIES
from purifl.errors import ConfigError, unknown_name
from purifl.registry import Component, Registry

ENTRIES = [(kind, name) for kind, registry in _REGISTRIES.items() for name in registry]


class Shape(Component):
    """What is registered here."""


@pytest.fixture
def shapes():
    registry: Registry[Shape] = Registry("shape", "purifl.errors")

    @registry.register("square")
    class Square(Shape):
        """Four equal sides.

        And more than anybody reads in a list.
        """

        reference: ClassVar[str] = "Euclid: Elements"
        side: float = Field(1.0, gt=0, description="its length")

    @registry.register("point")
    class Point(Shape):
        """No extent."""

    @registry.register("polygon")
    class Polygon(Shape):
        """Many sides."""

        sides: int = Field(ge=3, description="how many")

    return registry


def refusal(registry, spec):
    with pytest.raises(ConfigError) as caught:
        registry.resolve(spec)
    return str(caught.value)


def test_a_component_is_given_by_name_by_mapping_or_as_itself(shapes):
    assert shapes.resolve("square") == shapes.resolve({"name": "square"}) == shapes.resolve(shapes["square"]())
    assert shapes.resolve({"name": "square", "side": 2}).side == 2
    assert list(shapes) == ["point", "polygon", "square"]


def test_a_component_writes_its_name_and_is_read_back(shapes):
    square = shapes.resolve({"name": "square", "side": 2})
    assert square.model_dump() == {"name": "square", "side": 2.0}
    assert shapes.resolve(square.model_dump()) == square


def test_an_entry_describes_itself(shapes):
    square = shapes.describe()[2]
    assert (square["name"], square["summary"], square["reference"]) == (
        "square",
        "Four equal sides.",
        "Euclid: Elements",
    )
    assert square["parameters"] == [
        {"name": "side", "default": 1.0, "description": "its length", "type": "number", "exclusiveMinimum": 0}
    ]


def test_a_name_is_taken_once(shapes):
    with pytest.raises(ValueError, match="'point' is already registered"):
        shapes.register("point")(type("Other", (Shape,), {}))


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("squar", ["shape: 'squar'", "did you mean 'square'?", "point, polygon, square"]),
        ("xyz", ["shape: 'xyz'", "allowed: point, polygon, square"]),
        ({"side": 2}, ["shape: {'side': 2}", "give a name"]),
        (None, ["shape: None", "give a name"]),
        ({"name": ["square"]}, ["shape: ['square']", "allowed: point"]),
        ({"name": "square", "sied": 2}, ["shape: 'sied'", "did you mean 'side'?"]),
        ({"name": "square", "side": -2}, ["shape.side: -2", "greater than 0"]),
        ({"name": "square", "side": "wide"}, ["shape.side: 'wide'", "valid number"]),
        ({"name": "point", "side": 2}, ["shape.side: 2", "'point' takes no parameters"]),
        ({"name": "polygon"}, ["shape.sides", "'polygon' needs it"]),
    ],
)
def test_a_refusal_names_the_field_the_value_and_what_is_allowed(shapes, spec, parts):
    message = refusal(shapes, spec)
    assert all(part in message for part in parts), message


def test_no_did_you_mean_without_anything_near():
    assert "did you mean" not in str(unknown_name("shape", "xyz", ["square"]))
    assert "did you mean 'square'" in str(unknown_name("shape", "squar", ["square"]))


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_every_entry_is_described_in_one_line_with_all_its_parameters(kind, name):
    entry = next(entry for entry in _REGISTRIES[kind].describe() if entry["name"] == name)
    assert entry["summary"]
    assert len(entry["summary"]) <= 120
    assert entry["summary"].endswith(".")
    assert [p["name"] for p in entry["parameters"]] == list(_REGISTRIES[kind][name].model_fields)
    assert all(p["description"] for p in entry["parameters"])


def test_what_the_requirements_name_is_there():
    wanted = {
        "attacks": {"backdoor-9", "backdoor-1", "single-image"},
        "defenses": {"lower", "upper", "gpd-paper", "gpd-text", "gpd"},
        "detectors": {"consistency", "similarity", "history", "persistence", "none"},
        "datasets": {"digits", "mnist", "fashion-mnist", "cifar-10", "20newsgroups"},
        "partitions": {"iid", "non-overlap", "label-dir", "quantity-dir"},
        "topologies": {"complete", "line", "ring", "star", "grid", "k-regular", "erdos-renyi", "small-world", "file"},
        "models": {"cnn", "mlp", "vit", "resnet18", "swin"},
    }
    assert wanted.keys() == _REGISTRIES.keys()
    assert not {(kind, name) for kind, names in wanted.items() for name in names} - set(ENTRIES)
