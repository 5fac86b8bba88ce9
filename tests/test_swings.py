"""What the last round of a run owes to luck."""

import pytest
from swings import UPPER, behind, figure, main, read, table


def curves():
    dips = [90.0] * 9 + [80.0]
    return {(*UPPER, 0): [90.0] * 10, ("backdoor-9", "gpd", 0): dips, ("lie", "gpd", 0): [89.0] * 10}


def test_a_dip_in_the_last_round_counts_a_tenth_over_the_last_ten():
    assert behind(curves(), "backdoor-9", 0, 1) == pytest.approx(-10)
    assert behind(curves(), "backdoor-9", 0, 10) == pytest.approx(-1)
    assert "| backdoor-9, last round | −10.0 | −10.0 |" in table(curves(), [0])
    assert len(figure(curves(), [0]).axes) == 3


def test_rows_that_are_there_are_shown_and_not_measured_again(tmp_path, monkeypatch, capsys):
    out = tmp_path / "swings.csv"
    lines = [f"{a},{d},{s},{t},{x / 100}" for (a, d, s), curve in curves().items() for t, x in enumerate(curve, 1)]
    out.write_text("\n".join(["attack,defense,seed,round,test_accuracy", *lines]))
    assert read(out)["lie", "gpd", 0] == pytest.approx([89.0] * 10)
    monkeypatch.setattr("sys.argv", ["swings", "--seeds", "0", "--out", str(out), "--figure", str(tmp_path / "s.svg")])
    main()
    assert "| lie, last 10 | −1.0 |" in capsys.readouterr().out
    assert (tmp_path / "s.svg").stat().st_size > 0


def test_a_seed_that_the_other_settings_do_not_have_is_in_no_mean():
    others = {(attack, defense, 19): curve for (attack, defense, _), curve in curves().items()}
    assert "| lie, last 10 | −1.0 | – |" in table(others, [19])
    assert "| lie, last 10 | −1.0 | −1.0 | −1.0 |" in table(curves() | others, [0, 19])


@pytest.mark.parametrize(
    "wrong", [["--seeds", "zero"], ["--seeds", "1,,2"], ["--figure", "x.gif"], ["--device", "abacus"]]
)
def test_what_cannot_be_measured_is_refused_with_exit_code_2(wrong, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["swings", "--out", str(tmp_path / "none.csv"), *wrong])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert wrong[1] in capsys.readouterr().err


def test_another_studys_rows_are_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "study.csv").write_text("dataset,part\nmnist,star\n")
    monkeypatch.setattr("sys.argv", ["swings", "--out", str(tmp_path / "study.csv")])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "study.csv is not a study: its columns are dataset, part" in capsys.readouterr().err
