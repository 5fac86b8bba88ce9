"""The docs page, and the file that lists and help texts are read from, are what the code says."""

from pathlib import Path

import pytest

from purifl.catalogue import as_json, markdown, registry
from purifl.glance import STORED, entries, names

KINDS = ["attacks", "defenses", "detectors", "datasets", "partitions", "topologies", "models"]


def test_the_docs_page_is_up_to_date():
    page = Path(__file__).parents[1] / "docs" / "catalogue.md"
    assert page.read_text() == markdown(), "run: make docs"


def test_the_stored_catalogue_is_up_to_date():
    assert STORED.read_text(encoding="utf-8") == as_json(), "run: make docs"


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_says_what_it_is(kind):
    for entry in registry(kind).describe():
        assert 10 < len(entry["summary"]) < 140, entry["name"]
        assert entry["summary"].endswith("."), entry["name"]
        assert all(parameter["description"] for parameter in entry["parameters"]), entry["name"]


@pytest.mark.parametrize("plural", KINDS)
def test_lists_and_help_texts_say_what_the_registry_says(plural):
    assert names(plural) == list(registry(plural))
    assert entries(plural) == registry(plural).describe()
