"use strict";
(() => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const $ = (id) => document.getElementById(id);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
  const CURVES = Object.keys(report.setups[0].groups[0].curves);
  const largest = (table) => table.reduce((top, row) => row.reduce((a, b) => (b > a ? b : a), top), 0);
  const state = { setup: 0, run: 0, round: 1, client: 0, hidden: new Set(), shades: true, timer: null };

  // How runs, neighbours and numbers look: colour, dashes and marker each tell neighbouring runs apart.
  const DASHES = ["solid", "dash", "dashdot", "dot"];
  const STROKES = ["", "7 4", "8 3 2 3", "2 3"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star"];
  const SHAPES = ["M18 4.5a3.5 3.5 0 1 0 .01 0z", "M14.7 4.7h6.6v6.6h-6.6z", "M18 3.4 22.6 8 18 12.6 13.4 8z",
    "M18 3.6 22.4 11.4H13.6z", "M18 12.4 13.6 4.6H22.4z", "M16.6 4h2.8v2.6H22v2.8h-2.6V12h-2.8V9.4H14V6.6h2.6z",
    "M15 5l6 6M21 5l-6 6", "M18 3.2l1.4 3.3 3.5.3-2.7 2.3.8 3.5-3-1.9-3 1.9.8-3.5-2.7-2.3 3.5-.3z"];
  const CIVIDIS = [[0, "#00224e"], [0.2, "#35456c"], [0.4, "#666970"], [0.6, "#948e77"], [0.8, "#c8b866"], [1, "#fee838"]];
  const amount = () => [[0, color("soft")], [1, color("s1")]];
  const CONFIG = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false, showTips: false };

  // The k-th look: after eight, colours come again with other dashes and markers.
  const ways = (k) => ({ hue: k % 8, dash: (k + Math.floor(k / 8)) % 4, shape: (k + 3 * Math.floor(k / 8)) % 8 });

  function look(k) {
    const { hue, dash, shape } = ways(k);
    return { color: color(`s${hue}`), dash: DASHES[dash], symbol: SYMBOLS[shape] };
  }

  function swatches() {
    for (const swatch of all(".swatch")) {
      const { hue, dash, shape } = ways(Number(swatch.dataset.look));
      const ink = `var(--s${hue})`;
      swatch.innerHTML = `<svg viewBox="0 0 36 16"><path d="M0 8h36" fill="none" stroke="${ink}" stroke-width="2.4"
        stroke-dasharray="${STROKES[dash]}"/><path d="${SHAPES[shape]}" fill="${ink}" stroke="${ink}"/></svg>`;
    }
  }

  const whole = (rounds) => (rounds <= 10 ? { dtick: 1 } : { nticks: 8 });

  // Names beside the rows of a heat map, as many as there is room for.
  function ticks(names) {
    const shown = names.map((_, k) => k).filter((k) => k % Math.ceil(names.length / 60) === 0);
    return { tickvals: shown, ticktext: shown.map((k) => names[k]) };
  }

  function base(extra) {
    const axis = { color: color("quiet"), tickfont: { size: 12 }, gridcolor: color("line"), linecolor: color("line"), zeroline: false, fixedrange: true };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, dragmode: false,
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: color("ink") },
      margin: { l: 52, r: 14, t: 10, b: 44 },
      hoverlabel: { bgcolor: color("card"), bordercolor: color("line"), font: { color: color("ink"), size: 13 }, align: "left" },
      ...extra,
      xaxis: { ...axis, ...extra.xaxis },
      yaxis: { ...axis, ...extra.yaxis },
    };
  }

  // Curves over the rounds.

  function drawCurve(key) {
    const groups = report.setups[state.setup].groups;
    const log = key === "tracking_error" && groups.some((group) => group.curves[key].mean.some((value) => value > 0));
    const traces = groups.flatMap((group) => curveTraces(group, key, log));
    const rounds = Math.max(...groups.map((group) => group.curves[key].rounds.at(-1) ?? 1));
    const measured = groups.some((group) => group.curves[key].mean.some((value) => value !== null));
    const few = groups.length <= 8;
    const y = key === "tracking_error"
      ? { type: log ? "log" : "linear", exponentformat: "power", nticks: 6 }
      : { range: [-0.02, 1.02], tickformat: ".0%", tickvals: [0, 0.2, 0.4, 0.6, 0.8, 1] };
    const missing = { text: "Not measured in this set-up", showarrow: false, x: 0.5, y: 0.5, xref: "paper", yref: "paper" };
    Plotly.react(key, traces, base({
      hovermode: few ? "x unified" : "closest", hoverdistance: few ? -1 : 30,
      xaxis: { title: { text: "round", standoff: 8, font: { size: 13 } }, range: [Math.min(1, rounds - 1), rounds * 1.01], unifiedhovertitle: { text: "round %{x}" }, ...whole(rounds) },
      yaxis: y,
      annotations: measured ? [] : [missing],
    }), CONFIG);
    const words = all(`figure.${key} [data-setup="${state.setup}"]`).find((each) => each.tagName === "P");
    $(key).setAttribute("aria-label", `Line chart over the rounds. ${words.textContent}`);
  }

  function curveTraces(group, key, log) {
    const curve = group.curves[key];
    const { color: ink, dash, symbol } = look(report.looks[group.name]);
    const visible = !state.hidden.has(group.name);
    const positive = (values) => (log ? values.map((value) => (value > 0 ? value : null)) : values);
    const shade = { x: curve.rounds, mode: "lines", line: { width: 0 }, hoverinfo: "skip", visible };
    const many = Math.max(1, Math.ceil(curve.rounds.length / 10));
    const line = {
      x: curve.rounds, y: positive(curve.mean), name: plain(group.name), visible, mode: "lines+markers", cliponaxis: false,
      line: { color: ink, dash, width: 2.2 },
      marker: { symbol, color: ink, size: 8, maxdisplayed: Math.ceil(curve.rounds.length / many) },
      hovertemplate: key === "tracking_error" ? "%{y:.3g}" : "%{y:.1%}", meta: "line",
    };
    const banded = state.shades && curve.low.some((value) => value !== null);
    const fill = { fill: "tonexty", fillcolor: faded(ink, 0.13) };
    const band = banded ? [{ ...shade, y: positive(curve.low) }, { ...shade, ...fill, y: positive(curve.high), meta: "shade" }] : [];
    const at = curve.rounds.findIndex((round) => round >= group.detected);
    const ring = group.detected && at >= 0
      ? [{ x: [curve.rounds[at]], y: [positive(curve.mean)[at]], mode: "markers", visible, hoverinfo: "skip", cliponaxis: false,
        marker: { symbol: "circle-open", size: 17, color: ink, line: { width: 2 } } }]
      : [];
    return [...band, line, ...ring];
  }

  function faded(hex, alpha) {
    const [r, g, b] = [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
    return `rgba(${r},${g},${b},${alpha})`;
  }

  // The federation in one round.

  const run = () => report.federations[state.run];
  const malicious = (client) => run().malicious.includes(client);
  const edgeName = (k) => run().edges[k];

  function cutsAt(round) {
    const cut = new Array(run().edges.length).fill(false);
    for (const [at, edge, on] of run().changes) if (at <= round) cut[edge] = on;
    return cut;
  }

  function accuracyAt(round) {
    const known = run().accuracy.filter(([at]) => at <= round);
    return known.length ? known.at(-1)[1] : {};
  }

  function metricAt(key, round) {
    const values = run().metrics[key];
    for (let at = round; at > 0; at--) if (values[at - 1] !== null) return values[at - 1];
    return null;
  }

  function degrees() {
    const found = new Array(run().clients).fill(1);
    for (const [client] of run().edges) found[client]++;
    return found;
  }

  function edgeTraces(cut, now) {
    const { spots, edges, trust } = run();
    const room = Math.min(1, 0.4 + $("graph").clientWidth / 1000);
    const sparse = Math.sqrt(120 / Math.max(edges.length, 1));
    const crowding = room * Math.min(1, Math.max(0.3, sparse));
    const sizes = degrees();
    const styles = {
      severed: { color: color("severed"), dash: "dash", width: () => 1.2 },
      trusts: { color: color("trusts"), dash: "solid", width: (level) => 0.5 + 0.6 * level },
      exposed: { color: color("attack"), dash: "solid", width: (level) => 1 + 0.6 * level },
      wrong: { color: color("wrong"), dash: "dot", width: () => 2.4 },
    };
    const lines = {};
    const crosses = { x: [], y: [], text: [] };
    edges.forEach(([client, neighbour], k) => {
      const bad = malicious(neighbour);
      const kind = cut[k] ? (bad ? "severed" : "wrong") : bad ? "exposed" : "trusts";
      const share = (trust ? (trust[state.round - 1][k] ?? 0) : 1 / sizes[client]) * sizes[client];
      const level = cut[k] ? 0 : Math.max(0, Math.min(5, Math.round(4 * share)));
      const [[x, y], [toX, toY]] = [spots[client], spots[neighbour]];
      const part = bad ? 1 : 0.5;
      const line = (lines[`${kind} ${level}`] ??= { kind, level, x: [], y: [] });
      line.x.push(x, x + part * (toX - x), null);
      line.y.push(y, y + part * (toY - y), null);
      if (now.has(k)) {
        crosses.x.push(x + (bad ? 0.5 : 0.3) * (toX - x));
        crosses.y.push(y + (bad ? 0.5 : 0.3) * (toY - y));
        crosses.text.push(`client ${client} cuts client ${neighbour}`);
      }
    });
    const order = Object.keys(styles);
    const drawn = Object.values(lines).sort((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind) || a.level - b.level);
    return [
      ...drawn.map(({ kind, level, x, y }) => ({
        x, y, mode: "lines", hoverinfo: "skip", meta: kind,
        opacity: kind === "trusts" ? Math.min(0.9, Math.max(0.15, 1.4 * sparse)) : 1,
        line: { color: styles[kind].color, dash: styles[kind].dash, width: crowding * styles[kind].width(level) },
      })),
      { ...crosses, mode: "markers", meta: "crosses", hovertemplate: "%{text}<extra></extra>",
        marker: { symbol: "x-thin", size: Math.max(4, 11 * crowding), line: { width: 1 + 1.4 * crowding, color: color("ink") } } },
    ];
  }

  function nodeTraces(accuracy) {
    const { spots, clients, excluded } = run();
    const size = Math.max(10, 32 * Math.min(1, Math.sqrt(14 / clients)));
    const ids = [...Array(clients).keys()];
    const trace = (members, marker, ink, told) => ({
      x: members.map((k) => spots[k][0]), y: members.map((k) => spots[k][1]), customdata: members,
      mode: size > 12 ? "markers+text" : "markers", text: members.map(String), hovertext: members.map(told),
      hovertemplate: "%{hovertext}<extra></extra>", textfont: { size: Math.max(8, size * 0.42), color: ink },
      marker: { size, line: { color: color("ink"), width: 1.2 }, ...marker }, cliponaxis: false,
    });
    const benign = ids.filter((k) => !malicious(k));
    const attackers = ids.filter(malicious);
    const tested = benign.filter((k) => typeof accuracy[k] === "number");
    const untested = benign.filter((k) => typeof accuracy[k] !== "number");
    const chosen = { x: [spots[state.client]?.[0]], y: [spots[state.client]?.[1]], mode: "markers", hoverinfo: "skip",
      cliponaxis: false, meta: "chosen", marker: { symbol: "circle-open", size: size + 12, color: color("accent"), line: { width: 3 } } };
    return [
      chosen,
      { ...trace(tested, { color: tested.map((k) => accuracy[k]), cmin: 0, cmax: 1, colorscale: CIVIDIS },
        tested.map((k) => (accuracy[k] > 0.55 ? "#000" : "#fff")), (k) => `client ${k}: accuracy ${percent(accuracy[k])}`), meta: "benign" },
      { ...trace(untested, { color: color("soft") }, color("ink"), (k) => `client ${k}: not tested yet`), meta: "untested" },
      { ...trace(attackers, { symbol: "diamond", size: size * 1.15, color: excluded ? color("card") : color("attack"),
        line: { color: excluded ? color("attack") : color("ink"), width: excluded ? 2 : 1.2 } },
      excluded ? color("ink") : "#000", (k) => `client ${k}: attacker${excluded ? ", left out from the start" : ""}`), meta: "attackers" },
    ];
  }

  function drawGraph() {
    const cut = cutsAt(state.round);
    const changed = run().changes.filter(([at]) => at === state.round);
    const now = new Set(changed.filter(([, , on]) => on).map(([, edge]) => edge));
    const accuracy = accuracyAt(state.round);
    const axis = { visible: false, range: [-1.16, 1.16] };
    Plotly.react("graph", [...edgeTraces(cut, now), ...nodeTraces(accuracy)], base({
      margin: { l: 0, r: 0, t: 0, b: 0 }, hovermode: "closest", xaxis: axis, yaxis: { ...axis, scaleanchor: "x" },
    }), CONFIG);
    tell(cut, changed, accuracy);
  }

  function tell(cut, changed, accuracy) {
    const { edges, rounds, excluded } = run();
    const toAttackers = edges.filter(([, neighbour]) => malicious(neighbour)).length;
    const toBenign = edges.length - toAttackers;
    const open = edges.filter(([, neighbour], k) => malicious(neighbour) && !cut[k]).length;
    const wrong = edges.filter(([, neighbour], k) => !malicious(neighbour) && cut[k]).length;
    const facts = [
      ["Test accuracy", percent(metricAt("test_accuracy", state.round))],
      ["Attack accuracy", percent(metricAt("attack_accuracy", state.round))],
      ["Open to attackers", `${open} <small>of ${toAttackers} edges</small>`],
      ["Wrongly cut", `${wrong} <small>of ${toBenign} edges</small>`],
    ];
    $("state").innerHTML = facts.map(([name, value]) => `<div><dt>${name}</dt><dd>${value}</dd></div>`).join("");
    $("now").innerHTML = `<b>${state.round}</b> / ${rounds}`;
    $("round").setAttribute("aria-valuetext", `round ${state.round} of ${rounds}`);
    const shares = Object.values(accuracy).filter((value) => typeof value === "number");
    const [low, high] = [percent(Math.min(...shares)), percent(Math.max(...shares))];
    const range = shares.length ? ` Benign clients are at ${low === high ? low : `${low} to ${high}`}.` : "";
    const left = excluded ? " The attackers were left out from the start." : "";
    $("told").textContent = `${changes(changed)}${range}${left}`;
    $("graph").setAttribute("aria-label", `Graph of ${run().clients} clients in round ${state.round} of ${rounds}: `
      + `${open} of ${toAttackers} edges to attackers are open, ${wrong} of ${toBenign} between benign clients are wrongly cut.`);
  }

  function changes(changed) {
    if (!changed.length) return "Nobody was cut in this round.";
    const by = {};
    for (const [, edge, on] of changed) {
      const [client, neighbour] = edgeName(edge);
      const who = `${malicious(neighbour) ? "attacker" : "benign client"} ${neighbour} was ${on ? "cut" : "taken up again"} by`;
      (by[who] ??= []).push(client);
    }
    const some = (clients) => (clients.length > 12 ? `${clients.length} clients` : clients.join(", "));
    const said = Object.entries(by).map(([who, clients]) => `${who} ${some(clients)}`);
    const shown = said.slice(0, 6).join("; ") + (said.length > 6 ? `; and ${said.length - 6} more` : "");
    return `${shown[0].toUpperCase()}${shown.slice(1)}.`;
  }

  function drawMarks() {
    const { changes: changed, rounds } = run();
    const kinds = new Map();
    for (const [at, edge, on] of changed) {
      if (!on) continue;
      const kind = malicious(edgeName(edge)[1]) ? "attacker" : "wrong";
      if (kinds.get(at) !== "attacker") kinds.set(at, kind);
    }
    $("marks").replaceChildren(...[...kinds].map(([at, kind]) => {
      const mark = document.createElement("i");
      mark.className = kind === "wrong" ? "wrong" : "";
      mark.style.left = `${rounds > 1 ? (100 * (at - 1)) / (rounds - 1) : 0}%`;
      return mark;
    }));
  }

  // One client's trust in its neighbours.

  function drawWeights() {
    const { edges, trust, rounds } = run();
    const own = edges.map(([client, neighbour], k) => ({ client, neighbour, k })).filter(({ client }) => client === state.client);
    const told = own.map(({ neighbour, k }) => weightWords(neighbour, k));
    $("weights").hidden = !trust;
    $("weights-none").hidden = Boolean(trust);
    $("weights-told").textContent = `Client ${state.client} at the end: ${told.join("; ") || "it has no neighbours"}.`;
    if (!trust) return;
    const name = (neighbour) => `${malicious(neighbour) ? "◆ " : ""}${neighbour}`;
    const labels = own.map(({ neighbour }) => name(neighbour));
    const x = [...Array(rounds).keys()].map((k) => k + 1);
    const top = largest(own.map(({ k }) => trust.map((row) => row[k])));
    const mark = (on, symbol) => {
      const found = run().changes.filter(([, edge, cut]) => cut === on && edges[edge][0] === state.client);
      return { x: found.map(([at]) => at), y: found.map(([, edge]) => labels.indexOf(name(edges[edge][1]))), mode: "markers",
        hoverinfo: "skip", marker: { symbol, size: 9, color: color("ink"), line: { width: 2.2, color: color("ink") } } };
    };
    const height = Math.max(200, 70 + Math.max(8, Math.min(24, 1000 / own.length)) * own.length);
    $("weights").style.height = `${height}px`;
    Plotly.react("weights", [
      { type: "heatmap", x, y: labels.map((_, k) => k), z: own.map(({ k }) => trust.map((row) => row[k])), zmin: 0, zmax: top,
        colorscale: amount(), customdata: own.map(({ neighbour }) => x.map(() => name(neighbour))), ygap: 2,
        xgap: $("weights").clientWidth > 14 * rounds ? 1 : 0,
        hovertemplate: "neighbour %{customdata}, round %{x}: %{z:.4g}<extra></extra>",
        colorbar: { title: { text: "trust", side: "right", font: { size: 13 } }, thickness: 12, outlinewidth: 0, tickfont: { color: color("quiet") } } },
      mark(true, "x-thin"), mark(false, "circle-open"),
    ], base({
      height, margin: { l: 62, r: 8, t: 8, b: 44 }, hovermode: "closest",
      xaxis: { title: { text: "round", standoff: 8, font: { size: 13 } }, showgrid: false, range: [0.5, rounds + 0.5], ...whole(rounds) },
      yaxis: { title: { text: "neighbour", standoff: 8, font: { size: 13 } }, showgrid: false, autorange: "reversed", ...ticks(labels) },
    }), CONFIG);
    $("weights").setAttribute("aria-label", `Heat map of the trust of client ${state.client} in ${own.length} neighbours over ${rounds} rounds.`);
  }

  function weightWords(neighbour, k) {
    const last = run().trust ? run().trust.at(-1)[k] : null;
    const happened = run().changes.filter(([, edge]) => edge === k).map(([at, , on]) => `${on ? "cut" : "taken up again"} in round ${at}`);
    const weight = last === null ? [] : [`trust ${last}`];
    return `${malicious(neighbour) ? "attacker" : "client"} ${neighbour}: ${[...weight, ...happened].join(", ") || "not cut"}`;
  }

  // What each client holds.

  function drawLabels() {
    const { histograms } = run();
    if (!histograms.length) return;
    const clients = histograms.map((_, k) => `${malicious(k) ? "◆ " : ""}${k}`);
    const cells = histograms.length * histograms[0].length;
    const height = Math.max(220, 70 + Math.max(9, Math.min(26, 1200 / clients.length)) * clients.length);
    $("labels").style.height = `${height}px`;
    Plotly.react("labels", [{
      type: "heatmap", z: histograms, y: clients.map((_, k) => k), colorscale: amount(), zmin: 0,
      zmax: Math.max(1, largest(histograms)), xgap: 2, ygap: 2, customdata: histograms.map((row, k) => row.map(() => clients[k])),
      texttemplate: cells <= 400 ? "%{z}" : "", hovertemplate: "client %{customdata}, label %{x}: %{z} samples<extra></extra>",
      colorbar: { title: { text: "samples", side: "right", font: { size: 13 } }, thickness: 12, outlinewidth: 0, tickfont: { color: color("quiet") } },
    }], base({
      height, margin: { l: 62, r: 8, t: 8, b: 44 }, hovermode: "closest",
      xaxis: { title: { text: "label", standoff: 8, font: { size: 13 } }, showgrid: false, dtick: histograms[0].length <= 20 ? 1 : undefined },
      yaxis: { title: { text: "client", standoff: 8, font: { size: 13 } }, showgrid: false, autorange: "reversed", ...ticks(clients) },
    }), CONFIG);
  }

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
    if (!benign.includes(state.client)) state.client = run().edges.find(([, neighbour]) => malicious(neighbour))?.[0] ?? benign[0];
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
    $("round").addEventListener("input", (event) => { pause(); chooseRound(Number(event.target.value)); });
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
    for (const [id, checked] of [["every", true], ["none", false]]) {
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
})();
