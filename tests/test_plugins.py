"""CONTRIBUTING.md, followed to the letter, from a package outside the source tree."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The three files of the walk-through, written where a user would, and installed into a folder of their own."""
    source, site = tmp_path_factory.mktemp("loud"), tmp_path_factory.mktemp("site")
    blocks = re.findall(r"`([\w.]+)`, [^`]*?\n\n```\w+\n(.*?)```", TEXT, re.S)
    assert [name for name, _ in blocks] == ["loud.py", "pyproject.toml", "test_loud.py"]
    for name, text in blocks:
        (source / name).write_text(text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), str(source)], check=True, timeout=120)
    return source, dict(os.environ, PYTHONPATH=str(site), OMP_NUM_THREADS="1")


def purifl(env, *args, cwd):
    command = [sys.executable, "-m", "purifl", *args]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_it_is_listed_with_its_parameters(installed, tmp_path):
    _, env = installed
    entries = {e["name"]: e for e in json.loads(purifl(env, "list", "attacks", "--json", cwd=tmp_path).stdout)}
    assert entries["loud"]["summary"].startswith("Malicious clients send the benign average")
    assert "volume" in {p["name"] for p in entries["loud"]["parameters"]}


def test_it_runs_and_its_parameters_are_validated(installed, tmp_path):
    _, env = installed
    args = ["run", "--attack", "loud", "--model", "mlp", "--rounds", "2", "--json"]
    good = purifl(env, *args, "--set", "attack.volume=5", cwd=tmp_path)
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["attack"] == "loud"
    bad = purifl(env, *args, "--set", "attack.volume=-5", cwd=tmp_path)
    assert bad.returncode == 2
    assert "attack.volume" in bad.stderr


def test_its_own_test_passes(installed):
    source, env = installed
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_loud.py"]
    done = subprocess.run(command, env=env, cwd=source, capture_output=True, text=True, timeout=200, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_without_it_the_name_is_unknown(tmp_path):
    done = purifl(dict(os.environ), "run", "--attack", "loud", cwd=tmp_path)
    assert done.returncode == 2
    assert "attack: 'loud'" in done.stderr


def test_a_broken_plugin_is_named(tmp_path):
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[purifl.attack]\nbroken = no_such_module\n")
    done = purifl(dict(os.environ, PYTHONPATH=str(tmp_path)), "list", "attacks", cwd=tmp_path)
    assert done.returncode == 2
    assert "plug-in 'broken' (no_such_module)" in done.stderr
    assert "Traceback" not in done.stderr
