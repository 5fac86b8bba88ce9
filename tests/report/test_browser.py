"""The page in a real browser: it loads on its own, moves when it is told to, and shows the stored numbers."""

from __future__ import annotations

import shutil
from urllib.parse import unquote

import pytest

from purifl import Experiment, run
from purifl.report import write_report
from synthetic import HOSTILE, HostileDefense, edge, event, row, synthetic

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CURVES = ("test_accuracy", "attack_accuracy", "tracking_error")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH (Debian: apt-get install chromium)")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page on runs; at the end fails on anything that it said on the console or asked of the network."""
    complaints, contexts = [], []

    def open_page(results, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or complaints.append(request.url))
        page.goto(write_report(results, tmp_path / str(len(contexts))).as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints


@pytest.fixture(scope="module")
def results():
    """Two defences with two seeds under one attack, and one run under another."""
    settings = {
        "clients": 5, "rounds": 6, "topology": "ring", "model": {"name": "mlp", "hidden": 4},
        "training": {"gradient": "steps", "local_steps": 3}, "attack": {"name": "backdoor-9", "malicious_clients": [1]},
    }  # fmt: skip
    made = [
        {"defense": {"name": "gpd", "threshold": 0.9}, "seed": 0},
        {"defense": {"name": "gpd", "threshold": 0.9}, "seed": 1},
        {"defense": "lower", "seed": 0},
        {"defense": "lower", "seed": 1},
        {"defense": "lower", "attack": {"name": "single-image", "malicious_clients": [2, 3]}},
    ]
    return [run(Experiment.parse(settings | each)) for each in made]


def traces(page, plot):
    """What Plotly drew."""
    return page.evaluate(
        "id => document.getElementById(id).data.map(t => ({meta: t.meta, visible: t.visible ?? true, name: t.name,"
        " x: [...(t.x ?? [])], y: [...(t.y ?? [])], z: t.z && t.z.map(r => [...r]),"
        " color: Array.isArray(t.marker?.color) ? [...t.marker.color] : null}))",
        plot,
    )


def lines(page, plot):
    return {trace["name"]: trace for trace in traces(page, plot) if trace["meta"] == "line"}


def move_to(page, number):
    page.locator("#round").fill(str(number))


def cuts(result, number):
    """The edges that are cut in a round, by what happened until then."""
    state = {}
    for each in result.events:
        if each["round"] <= number:
            state[each["client"], each["neighbour"]] = each["event"] == "cut"
    return {ends for ends, cut in state.items() if cut}


def test_curves_have_the_stored_numbers(opened, results):
    page = opened(results)
    for key in CURVES:
        for name, runs in (("gpd", results[:2]), ("lower", results[2:4])):
            pairs = zip(*(each.history for each in runs), strict=True)
            expected = [sum(each[key] for each in pair) / 2 for pair in pairs]
            assert lines(page, key)[name]["y"] == pytest.approx(expected)
            assert lines(page, key)[name]["x"] == [1, 2, 3, 4, 5, 6]


def test_every_defence_and_the_shades_can_be_switched_off_and_on(opened, results):
    page = opened(results)
    box = page.get_by_role("checkbox", name="lower")
    for shown in (True, False, True):
        box.set_checked(shown)
        for key in CURVES:
            assert [lines(page, key)[name]["visible"] for name in ("gpd", "lower")] == [True, shown]
    for button, shown in (("none", False), ("all", True)):
        page.get_by_role("button", name=button, exact=True).click()
        assert {trace["visible"] for trace in lines(page, "tracking_error").values()} == {shown}
    shades = page.get_by_role("checkbox", name="shades")
    for shown in (True, False):
        shades.set_checked(shown)
        assert any(trace["meta"] == "shade" for trace in traces(page, "test_accuracy")) == shown


def test_the_slider_moves_the_graph_to_the_stored_state(opened, results):
    result = results[0]
    page = opened([result])
    assert result.events
    seen = set()
    for number in range(1, 7):
        move_to(page, number)
        drawn = {trace["meta"]: trace for trace in traces(page, "graph")}
        accuracy = result.history[number - 1]["accuracy_by_client"]
        assert drawn["benign"]["color"] == [accuracy[k] for k in sorted(accuracy, key=int)]
        cut = cuts(result, number)
        to_attackers = {(e["client"], e["neighbour"]) for e in result.trust if e["neighbour"] in result.malicious}
        state, row = page.locator("#state").inner_text().split("\n"), result.history[number - 1]
        assert f"{100 * row['test_accuracy']:.1f} %" in state
        assert f"{100 * row['attack_accuracy']:.1f} %" in state
        assert f"{row['missed_edges']} of {len(to_attackers)} edges" in state
        assert f"{row['false_alarm_edges']} of {len(result.trust) - len(to_attackers)} edges" in state
        assert row["missed_edges"] == len(to_attackers - cut)
        now = [e for e in result.events if (e["round"], e["event"]) == (number, "cut")]
        assert len(drawn["crosses"]["x"]) == len(now)
        assert len(drawn.get("severed", {"x": []})["x"]) == 3 * len(cut & to_attackers)
        assert ("was cut by" in page.locator("#told").inner_text()) == bool(now)
        seen.add(str(traces(page, "graph")))
    assert len(seen) == 6


def test_rounds_can_be_played_and_stepped_by_keyboard(opened, results):
    page = opened([results[0]])
    page.locator("#round").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#now").inner_text() == "2 / 6"
    page.get_by_role("button", name="Play the rounds").click()
    page.get_by_role("button", name="Pause").wait_for()
    page.locator("#now", has_text="6 / 6").wait_for()
    page.get_by_role("button", name="Play the rounds").wait_for()
    assert page.locator("#round").input_value() == "6"


def test_weights_and_data_have_the_stored_numbers(opened, results):
    result = results[0]
    page = opened([result])
    for client in ("0", "3"):
        page.locator("#client").select_option(client)
        own = [k for k, each in enumerate(result.trust) if each["client"] == int(client)]
        assert traces(page, "weights")[0]["z"] == [[each["trust"][k] for each in result.history] for k in own]
        assert f"Client {client} at the end" in page.locator("#weights-told").text_content()
    assert traces(page, "labels")[0]["z"] == result.histograms


def test_a_client_is_chosen_by_clicking_on_it(opened, results):
    page = opened([results[0]], viewport={"width": 1280, "height": 900})
    assert page.locator("#client").input_value() == "0"
    page.locator("#graph").scroll_into_view_if_needed()
    box = page.locator("#graph .textpoint", has_text="3").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert page.locator("#client").input_value() == "3"


def test_another_set_up_can_be_chosen(opened, results):
    page = opened(results)
    page.locator("#setup").select_option(label="digits, iid, under single-image")
    expected = [each["test_accuracy"] for each in results[4].history]
    assert lines(page, "test_accuracy").keys() == {"lower"}
    assert lines(page, "test_accuracy")["lower"]["y"] == expected
    assert not page.get_by_role("checkbox", name="gpd").is_visible()
    assert page.locator("#run option:not([hidden])").all_inner_texts() == ["lower"]
    assert "single-image" in page.locator("#test_accuracy").get_attribute("aria-label")
    (link,) = [each for each in page.locator("figure.test_accuracy a.download").all() if each.is_visible()]
    with page.expect_download() as download:
        link.click()
    text = download.value.path().read_text()
    assert text == unquote(link.get_attribute("href").split(",", 1)[1])
    assert text.splitlines()[1].startswith(f"lower,1,{expected[0]}")


def test_a_set_up_that_had_no_room_says_so(opened, results, monkeypatch):
    monkeypatch.setattr("purifl.report.content._NUMBERS", 2 * len(results[0].trust) * 6)
    page = opened(results)
    assert page.locator("#graph").is_visible()
    page.locator("#setup").select_option(label="digits, iid, under single-image")
    assert not page.locator("#graph").is_visible()
    assert "1 federation of 3 would make this page too large" in page.locator("#unplayed").inner_text()
    page.locator("#setup").select_option(index=0)
    assert page.locator("#graph").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone_and_colours_follow_the_scheme(opened, results, scheme):
    page = opened(results, viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    paper, ink = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, document.getElementById('graph').layout.font.color]"
    )
    assert (sum(map(int, paper[4:-1].split(","))) > 600) == (scheme == "light")
    assert (int(ink[1:3], 16) < 100) == (scheme == "light")
    page.emulate_media(color_scheme="light")
    page.wait_for_function("() => parseInt(document.getElementById('graph').layout.font.color.slice(1, 3), 16) < 100")


def test_names_are_text(opened):
    page = opened([synthetic(HostileDefense()), synthetic("gpd")])
    assert page.locator("tbody th").first.inner_text() == HOSTILE
    assert page.locator("#run option").first.inner_text().strip() == HOSTILE
    assert page.locator("main script, main b:not(#now b)").count() == 0
    page.locator("#test_accuracy").scroll_into_view_if_needed()
    page.locator("#test_accuracy .nsewdrag").hover()
    page.locator("#test_accuracy .hoverlayer", has_text=HOSTILE[:20]).wait_for(state="attached")


def without_neighbours():
    result = synthetic("upper", topology="star")
    result.trust, result.events = [], []
    result.history = [row(1, trust=[], attack_accuracy=None), row(2, trust=[], attack_accuracy=None)]
    return result


def large():
    """A hundred clients, everyone connected to everyone, and as many edges as are followed."""
    result = synthetic(clients=100)
    result.trust = [edge(i, j, 0.01, False) for i in range(100) for j in range(100) if i != j]
    result.malicious = [99]
    result.events = [event(2, i, 99) for i in range(98)]
    result.histograms = [[k % 7] * 20 for k in range(100)]
    result.history = [row(n, trust=[0.01] * len(result.trust)) for n in range(1, 21)]
    return result


def without_trust():
    result = synthetic()
    result.history = [{key: value for key, value in each.items() if key != "trust"} for each in result.history]
    return result


def diverged():
    result = synthetic()
    nulls = dict.fromkeys((*CURVES, "test_accuracy_min"))
    lost = {"accuracy_by_client": dict.fromkeys("012"), "trust": [None] * 4}
    result.history = [row(1, **nulls, **lost), row(2, **nulls, **lost)]
    result.histograms = []
    return result


@pytest.mark.parametrize("made", [without_neighbours, without_trust, diverged, large])
def test_odd_runs_are_shown(opened, made):
    page = opened([made()])
    page.locator("#round").press("End")
    assert page.locator("#now").inner_text().startswith(str(len(made().history)))
    assert page.locator("#weights-none").is_visible() == (made is without_trust)
