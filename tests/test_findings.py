"""The tables and the figure that the documents have of the study, from rows made for it."""

import csv
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import study
from findings import Findings, ahead, figure, main, markdown, short, worst_part
from study import FOUND, KEY, read

USUAL = dict.fromkeys(FOUND, "0") | {"malicious_edges": "16", "benign_edges": "56", "detected_round": "5"}


def row(defense="gpd", accuracy="0.9", seed="0", **changed):
    setting = {"dataset": "mnist", "part": "attacks", "topology": "complete", "partition": "iid", "attack": "lie",
               "level": "1.0", "ratio": "0.2"}  # fmt: skip
    return USUAL | setting | {"defense": defense, "test_accuracy": accuracy, "seed": seed} | changed


def upper(accuracy, seed="0", **changed):
    return row("upper", accuracy, seed, **{"attack": "backdoor-9", "malicious_edges": "0"} | changed)


def test_gpd_is_compared_with_upper_seed_by_seed():
    found = Findings(
        [upper("0.5"), upper("0.9", "1"), upper("0.1", "2"), row(accuracy="0.6"), row(accuracy="0.9", seed="1")]
    )
    ((setting,),) = found.tables().values()
    assert found.differences(setting, ahead) == pytest.approx([0.1, 0.0])
    header, _, line = markdown(found, [setting]).splitlines()
    assert "worst part" not in header, "nothing is known of it on a complete graph"
    assert "| lie, iid | 2 | 70.0 ± 254.1 | 75.0 ± 190.6 | +5.0 ± 63.5 |" in line


def test_weak_and_adaptive_attacks_have_the_upper_of_the_others():
    weak = row(accuracy="0.8", part="weak", level="0.2")
    assert Findings([upper("0.9"), weak]).differences(weak, ahead) == pytest.approx([-0.1])


def test_forty_percent_attackers_are_measured_under_every_attack_once_and_have_an_upper_for_each():
    cells = [study.USUAL | cell for part in ("ratios", "forty") for cell in study.cells(part)]
    forty = [(c["defense"], c["attack"], c["partition"]) for c in cells if c["ratio"] == 0.4]
    assert len(set(forty)) == len(forty)
    assert {each for each in forty if each[0] == "gpd"} == {
        ("gpd", attack, partition) for attack in study.ATTACKS for partition in study.PARTITIONS
    }
    bound = {"part": "ratios", "ratio": "0.4", "partition": "label-dir"}
    run = row(accuracy="0.8", part="forty", ratio="0.4", partition="label-dir", attack="fang")
    assert Findings([upper("0.9", **bound), run]).differences(run, ahead) == pytest.approx([-0.1])


def test_what_is_missed_by_little_are_settings_of_the_study_with_an_upper_each():
    parts = {name: [study.USUAL | cell for cell in study.cells(name)] for name in ("ratios", "forty", "skewed")}
    missed = [study.USUAL | cell for cell in study.cells("missed")]
    assert all(any(cell in cells for cells in parts.values()) for cell in missed)
    rows = [row(**{key: str(value) for key, value in cell.items()}, part="missed") for cell in missed]
    (settings,) = Findings(rows).tables().values()
    assert len(settings) == 7
    assert all(Findings(rows).differences(setting, ahead) for setting in settings)


def test_the_worst_part_of_a_graph():
    sparse = {"part": "sparse", "topology": "ring"}
    run, bound = row(components="0.90 0.70", **sparse), upper("0.8", components="0.85 0.80", **sparse)
    assert worst_part(run, bound) == pytest.approx(-0.1)
    assert "| −10.0 |" in markdown(Findings([run, bound]), [run])


def test_an_attacker_never_cut_and_one_cut_in_no_seed_but_one():
    found = Findings([row(detected_round="", missed_edges="8"), row(seed="1", detected_round=""), row(seed="2")])
    assert "| 0 | never | 16.7 % | 0.0 % |" in markdown(found, [row()])


def test_the_round_by_which_half_were_cut_and_rows_that_do_not_know_it():
    rounds = {"0": "3", "1": "4", "2": "9"}
    rows = [row(seed=seed, median_cut_round=half) for seed, half in rounds.items()]
    assert "| 4 | 5 | 0.0 % |" in markdown(Findings(rows), [row()])
    never = [row(seed=seed, median_cut_round="", detected_round="") for seed in "01"]
    assert "| never | never | 0.0 % |" in markdown(Findings(never), [row()])
    older = [row(seed="0", median_cut_round="")]
    assert "half cut by" not in markdown(Findings(older), [row()])


def test_half_of_the_edges_are_cut_before_all_are():
    history = [{"round": k, "missed_edges": missed} for k, missed in enumerate([16, 9, 8, 0], 1)]
    assert study.median_cut_round(SimpleNamespace(history=history), 16) == 3
    assert study.median_cut_round(SimpleNamespace(history=history[:2]), 16) is None
    assert study.median_cut_round(SimpleNamespace(history=history), 0) is None


def test_files_to_figure(tmp_path, monkeypatch, capsys):
    rows = [upper("0.9"), row(), row(attack="fang", partition="label-dir")]  # the last without an Upper of its own
    with (tmp_path / "study.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, KEY + FOUND)
        writer.writeheader()
        writer.writerows(rows)
    assert read(tmp_path / "study.csv") == rows
    assert len(figure(Findings(rows), "mnist").axes) == 1
    monkeypatch.setattr("sys.argv", ["findings", str(tmp_path / "study.csv"), "--figure", str(tmp_path / "a.svg")])
    main()
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    assert "mnist, attacks" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["findings", str(tmp_path / "study.csv"), "--figure", "a.gif"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "a.gif" in capsys.readouterr().err
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    monkeypatch.setattr("sys.argv", ["findings", str(tmp_path / "other.csv")])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "other.csv is not a study: its columns are a, b" in capsys.readouterr().err


def test_a_run_that_fails_stops_no_other_of_a_study(tmp_path, monkeypatch, capsys):
    def job(settings, device):
        if settings["partition"] == "label-dir":
            raise MemoryError("too large")
        return settings | dict.fromkeys(FOUND, 1)

    monkeypatch.setattr(study, "job", job)
    monkeypatch.setattr(study, "ProcessPoolExecutor", lambda workers, _: ThreadPoolExecutor(workers))
    out = tmp_path / "study.csv"
    monkeypatch.setattr("sys.argv", ["study", "--parts", "bounds", "--seeds", "1", "--out", str(out)])
    with pytest.raises(SystemExit) as end:
        study.main()
    assert end.value.code == 1
    assert len(read(out)) == 6
    assert capsys.readouterr().err.count("'label-dir'") == 2


def test_in_short_a_part_has_how_many_settings_are_within_its_goal_and_the_least():
    rows = [
        *(upper("0.9", seed) for seed in "01"),
        *(row(accuracy=accuracy, seed=seed) for seed, accuracy in zip("01", ("0.890", "0.905"), strict=True)),
        row(accuracy="0.893", attack="ndss", missed_edges="4", false_alarm_edges="7"),
        row(part="honest", attack="none", malicious_edges="0"),
        *(run(part="ratios", ratio="0.6", accuracy="0.7") for run in (upper, row)),
    ]
    found = Findings(rows)
    _, _, *lines = short(found, [each for part in found.tables().values() for each in part]).splitlines()
    assert lines == [
        "| attacks | 2 | 3 | 1 of 2 | −0.5 | −0.7 | ndss, iid | 8.3 % | 4.2 % |",
        "| honest | 1 | 1 | – | – | – | – | – | 0.0 % |",
        "| ratios, ratio 0.6 | 1 | 1 | – | +0.0 | +0.0 | lie, iid, ratio 0.6 | 0.0 % | 0.0 % |",
    ]


def test_a_sample_is_of_gpd_alone_and_the_same_each_time():
    jobs = [{"defense": defense, "seed": seed} for seed in range(20) for defense in ("gpd", "upper")]
    chosen = study.sample(jobs, 5)
    assert chosen == study.sample(jobs, 5)
    assert {each["defense"] for each in chosen} == {"gpd"}
    assert len({each["seed"] for each in chosen}) == 5
    assert len(study.sample(jobs, 50)) == 20
