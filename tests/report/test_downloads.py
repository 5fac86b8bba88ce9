"""Files and folders of a report get names that every file system takes."""

import hashlib

from purifl.report.downloads import slug

LONG = "digits, iid, under none, " + ", ".join(f"model.setting_{k} {k}" for k in range(40))


def test_a_name_that_is_short_enough_stays_as_it_is():
    assert slug("digits, label-dir, under backdoor-9") == "digits-label-dir-under-backdoor-9"
    assert slug("x" * 80) == "x" * 80
    assert slug("...") == "run"


def test_a_long_name_is_shortened_to_its_beginning_and_stays_different_from_others():
    names = [LONG, f"{LONG}1", LONG.replace(" 39", " 93"), "x" * 81, "x" * 82]
    short = [slug(name) for name in names]
    assert len(set(short)) == len(names)
    assert all(len(each) <= 80 for each in short)
    assert short[0].startswith("digits-iid-under-none-model.setting-0-0-")
    assert short[0].endswith(f"-{hashlib.sha256(LONG.encode()).hexdigest()[:8]}")
