"""The docs page is what the code says."""

from pathlib import Path

import pytest

from purifl.catalogue import markdown, registry
from purifl.glance import names

KINDS = ["attacks", "defenses", "detectors", "datasets", "partitions", "topologies", "models"]


def test_the_docs_page_is_up_to_date():
    page = Path(__file__).parents[1] / "docs" / "catalogue.md"
    assert page.read_text() == markdown(), "run: make docs"


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_says_what_it_is(kind):
    for entry in registry(kind).describe():
        assert 10 < len(entry["summary"]) < 140, entry["name"]
        assert entry["summary"].endswith("."), entry["name"]
        assert all(parameter["description"] for parameter in entry["parameters"]), entry["name"]


@pytest.mark.parametrize("plural", KINDS)
def test_help_texts_name_everything_without_importing_it(plural):
    assert names(registry(plural).kind, plural) == list(registry(plural))
