// Choices.

function show(attribute, chosen) {
  for (const each of all(`[data-${attribute}]`)) {
    if (each.tagName === "OPTION") each.hidden = each.disabled = Number(each.dataset[attribute]) !== chosen;
    else each.hidden = Number(each.dataset[attribute]) !== chosen;
  }
}

function chooseSetup(setup) {
  state.setup = setup;
  show("setup", setup);
  const names = new Set(report.setups[setup].groups.map((group) => group.name));
  for (const chip of all(".chip[data-name]")) chip.hidden = !names.has(chip.dataset.name);
  CURVES.forEach(drawCurve);
  const telling = tellingRun(setup);
  for (const section of all(".played")) section.hidden = telling < 0;
  $("unplayed").hidden = telling >= 0;
  if (telling >= 0) chooseRun(telling);
}

// Of a set-up's runs the one to begin with: attackers were cut in it, and it ended with the highest accuracy.
function tellingRun(setup) {
  const worth = (each) => {
    const cuts = each.changes.some(([, edge, on]) => on && each.malicious.includes(each.edges[edge][1]));
    return (cuts ? 2 : 0) + (each.metrics.test_accuracy.at(-1) ?? 0);
  };
  const runs = report.federations.map((each, k) => ({ k, worth: each.setup === setup ? worth(each) : -1 }));
  const best = runs.reduce((a, b) => (b.worth > a.worth ? b : a));
  return best.worth < 0 ? -1 : best.k;
}

function chooseRun(chosen) {
  pause();
  state.run = chosen;
  $("run").value = String(chosen);
  show("run", chosen);
  const benign = [...new Set(run().edges.map(([client]) => client))];
  $("client").replaceChildren(...benign.map((client) => new Option(`client ${client}`, String(client))));
  if (!benign.includes(state.client))
    state.client = run().edges.find(([, neighbour]) => malicious(neighbour))?.[0] ?? benign[0];
  $("client").value = String(state.client);
  $("round").max = String(run().rounds);
  state.round = Math.min(state.round, run().rounds);
  drawMarks();
  drawLabels();
  drawWeights();
  chooseRound(state.round);
}

function chooseRound(round) {
  state.round = round;
  $("round").value = String(round);
  drawGraph();
}

function chooseClient(client) {
  state.client = client;
  $("client").value = String(client);
  drawWeights();
  drawGraph();
}

function play() {
  if (state.timer !== null) return pause();
  if (state.round >= run().rounds) chooseRound(1);
  $("play").setAttribute("aria-label", "Pause");
  $("play").querySelector("path").setAttribute("d", "M6 5h4v14H6zM14 5h4v14h-4z");
  const pace = Math.max(120, Math.min(600, 20000 / run().rounds));
  state.timer = setInterval(() => (state.round < run().rounds ? chooseRound(state.round + 1) : pause()), pace);
}

function pause() {
  clearInterval(state.timer);
  state.timer = null;
  $("play").setAttribute("aria-label", "Play the rounds");
  $("play").querySelector("path").setAttribute("d", "M8 5v14l11-7z");
}

function start() {
  swatches();
  chooseSetup(0);
  $("graph").on("plotly_click", ({ points }) => {
    const client = points[0].customdata;
    if (typeof client === "number" && !malicious(client)) chooseClient(client);
  });
  $("setup")?.addEventListener("change", (event) => chooseSetup(Number(event.target.value)));
  $("run").addEventListener("change", (event) => chooseRun(Number(event.target.value)));
  $("client").addEventListener("change", (event) => chooseClient(Number(event.target.value)));
  $("round").addEventListener("input", (event) => {
    pause();
    chooseRound(Number(event.target.value));
  });
  $("play").addEventListener("click", play);
  $("shades").addEventListener("change", (event) => {
    state.shades = event.target.checked;
    CURVES.forEach(drawCurve);
  });
  const boxes = all(".chip[data-name] input");
  const toggled = () => {
    state.hidden = new Set(boxes.filter((box) => !box.checked).map((box) => box.value));
    CURVES.forEach(drawCurve);
  };
  for (const box of boxes) box.addEventListener("change", toggled);
  for (const [id, checked] of [
    ["every", true],
    ["none", false],
  ]) {
    $(id).addEventListener("click", () => {
      for (const box of boxes) box.checked = checked;
      toggled();
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    const { round, run: chosen } = state;
    chooseSetup(state.setup);
    chooseRun(chosen);
    chooseRound(round);
  });
}

start();
