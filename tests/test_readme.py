"""What the README says can be done and was measured."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from purifl.cli import _settings, app
from purifl.experiment import Experiment

ROOT = Path(__file__).parents[1]
README, RESULTS = ((ROOT / name).read_text() for name in ("README.md", "docs/results.md"))
SHELL = "".join(re.findall(r"```\n(.*?)```", README, re.DOTALL))
COMMANDS = re.findall(r"^(purifl .*?)(?:  +#.*)?$", SHELL, re.MULTILINE)
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_own_model_and_data_take_twenty_lines_and_work(capsys):
    (block,) = BLOCKS
    assert len([line for line in block.splitlines() if line]) <= 20
    names = {}
    exec(block, names)
    assert capsys.readouterr().out == f"cut off: {[4] * 7}\n"
    right = (names["trained"](names["x"]).argmax(1) == names["y"]).float().mean()
    assert right > 0.9


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command):
    group = typer.main.get_command(app)
    _, name, *args = shlex.split(command)
    context = group.commands[name].make_context(name, args)
    if name in {"run", "compare"}:
        Experiment.parse(_settings({"file": None, **context.params}))


def test_commands_are_found():
    assert {command.split()[1] for command in COMMANDS} >= {"run", "compare", "report", "resume", "list", "data"}


def test_figures_are_those_of_the_results():
    headline = re.findall(r"^\| (`[\w-]+`) \| (.*) \|$", README, re.MULTILINE)
    assert [name for name, _ in headline] == ["`upper`", "`lower`", "`gpd-paper`", "`gpd`"]
    plain = RESULTS.replace("**", "")
    for name, cells in headline:
        assert f"| {name} | {cells} |" in plain
    for name, share in (("lower", "9.7"), ("upper", "97.5"), ("gpd-paper", "85.5"), ("gpd", "97.6")):
        measured = re.search(rf"^\| `{name}` \| ({share} ± [\d.]+) \|", RESULTS, re.MULTILINE)
        assert measured
        assert f"{measured[1]} %" in README


def test_the_picture_is_light():
    assert (ROOT / "docs/images/trust.svg").stat().st_size < 150_000


def test_the_reproduction_is_that_of_the_stored_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("purifl.paper.figures.write", lambda *_: None)
    names = ["table-2", "table-3", "table-4", "table-5", "figure-7", "figure-9", "figure-14"]
    known = ["--known", str(ROOT / "docs/results/paper.parquet"), "--no-run", "--out", str(tmp_path / "out")]
    made = CliRunner().invoke(app, ["reproduce", *names, "--device", "cuda", *known])
    assert made.exit_code == 0, made.output
    for name in names:
        assert (tmp_path / "out" / f"{name}.md").read_text() == (ROOT / f"docs/reproduction/{name}.md").read_text()
