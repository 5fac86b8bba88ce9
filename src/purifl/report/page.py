"""The page: one HTML file that can be mailed, needs no network, and reads well on a phone."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from purifl import __version__
from purifl.metrics import Row
from purifl.report import downloads, words
from purifl.report.content import CURVES, content
from purifl.report.downloads import Download, slug
from purifl.report.groups import Group, Setup
from purifl.report.table import COLUMNS

GENERATOR = '<meta name="generator" content="purifl">'
"""What tells our pages from other people's, which are not overwritten."""


def page(found: Sequence[Setup]) -> str:
    """The whole page. What comes from the runs is escaped, in HTML by the template and in scripts as JSON."""
    shown = content(found)
    scripts = [Markup(text) for text in (get_plotlyjs(), _script())]
    return _template().render(
        generator=Markup(GENERATOR),
        title=words.title(found),
        lede=words.what_was_run(found),
        facts=words.facts(found),
        version=__version__,
        columns=COLUMNS,
        defenses=words.defenses(found),
        setups=found,
        looks=_looks(found),
        curves=[_curve(found, key) for key in CURVES],
        federations=[_federation(each) for each in shown["federations"]],
        left_out=words.left_out(found, shown["federations"]),
        results=downloads.results(found),
        runs=downloads.runs(found),
        settings=[(setup, [(group, _settings(group)) for group in setup.groups]) for setup in found],
        data=_json(shown | {"looks": _looks(found)}),
        style=Markup(_asset("page.css")),
        scripts=scripts,
        hashes=[_hash(script) for script in scripts],
    )


def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("purifl.report", "assets"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html")


def _asset(name: str) -> str:
    return files("purifl.report").joinpath("assets", name).read_text(encoding="utf-8")


def _script() -> str:
    """The page's own script: its parts in one scope."""
    parts = (_asset(f"{name}.js") for name in ("look", "curves", "federation", "clients", "choices"))
    return '(() => {\n"use strict";\n\n' + "\n".join(parts) + "})();\n"


def _hash(script: str) -> str:
    """By which the page's policy knows its own scripts; it runs no other."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def _json(data: Row) -> Markup:
    """Data inside a script element, where no character may end it."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _looks(found: Sequence[Setup]) -> dict[str, int]:
    """A colour, dashes and marker for each name, the same in every set-up."""
    names = dict.fromkeys(group.name for setup in found for group in setup.groups)
    return {name: k for k, name in enumerate(names)}


def _curve(found: Sequence[Setup], key: str) -> Row:
    return {
        "key": key,
        "title": CURVES[key],
        "caption": words.caption(found, key),
        "words": [words.curve(setup, key) for setup in found],
        "downloads": [downloads.curves(setup, key) for setup in found],
    }


def _federation(federation: Row) -> Row:
    return federation | {
        "edges": downloads.edges(federation),
        "clients": downloads.clients(federation),
        "labels": downloads.labels(federation),
        "data_words": words.data(federation),
    }


def _settings(group: Group) -> Download:
    text = yaml.safe_dump(group.experiment.to_dict(), sort_keys=False, allow_unicode=True)
    return Download(f"{slug(group.name)}.yaml", text, "application/yaml")
