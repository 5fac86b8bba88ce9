// What is known of clients one by one: whom they trust, and what they hold.

const marked = (client) => `${malicious(client) ? "◆ " : ""}${client}`;

// A row for each client that is named, as high as there is room for; `over` is drawn on top.
function drawHeatMap(plot, clients, table, { across, down, amounts, told, x, xaxis, cell, over = [], ...more }) {
  const height = Math.max(200, 70 + Math.max(8, Math.min(cell, 1100 / clients.length)) * clients.length);
  const title = (text) => ({ text, standoff: 8, font: { size: 13 } });
  $(plot).style.height = `${height}px`;
  const trace = {
    type: "heatmap",
    x,
    y: clients.map((_, k) => k),
    z: table,
    zmin: 0,
    zmax: Math.max(largest(table), Number.MIN_VALUE),
    colorscale: [
      [0, color("soft")],
      [1, color("s1")],
    ],
    ygap: 2,
    customdata: table.map((row, k) => row.map(() => marked(clients[k]))),
    hovertemplate: `${told}<extra></extra>`,
    colorbar: {
      title: { text: amounts, side: "right", font: { size: 13 } },
      thickness: 12,
      outlinewidth: 0,
      tickfont: { color: color("quiet") },
    },
    ...more,
  };
  const axes = {
    xaxis: { title: title(across), showgrid: false, ...xaxis },
    yaxis: { title: title(down), showgrid: false, autorange: "reversed", ...ticks(clients.map(marked)) },
  };
  const layout = { height, margin: { l: 62, r: 8, t: 8, b: 44 }, hovermode: "closest", ...axes };
  Plotly.react(plot, [trace, ...over], base(layout), CONFIG);
}

function drawWeights() {
  const { edges, trust, rounds } = run();
  const own = edges.map((_, k) => k).filter((k) => edges[k][0] === state.client);
  $("weights").hidden = !trust;
  $("weights-none").hidden = Boolean(trust);
  const told = own.map(weightWords).join("; ") || "it has no neighbours";
  $("weights-told").textContent = `Client ${state.client} at the end: ${told}.`;
  if (!trust) return;
  const table = own.map((k) => trust.map((row) => row[k]));
  drawHeatMap(
    "weights",
    own.map((k) => edges[k][1]),
    table,
    {
      across: "round",
      down: "neighbour",
      amounts: "trust",
      told: "neighbour %{customdata}, round %{x}: %{z:.4g}",
      x: trust.map((_, k) => k + 1),
      xaxis: { range: [0.5, rounds + 0.5], ...whole(rounds) },
      xgap: $("weights").clientWidth > 14 * rounds ? 1 : 0,
      cell: 24,
      over: [changesOf(own, true, "x-thin"), changesOf(own, false, "circle-open")],
    },
  );
  const words = `trust of client ${state.client} in ${own.length} neighbours over ${rounds} rounds`;
  $("weights").setAttribute("aria-label", `Heat map of the ${words}.`);
}

// Where edges were cut, or taken up again.
function changesOf(edges, on, symbol) {
  const found = run().changes.filter(([, edge, cut]) => cut === on && edges.includes(edge));
  const ink = color("ink");
  return {
    x: found.map(([at]) => at),
    y: found.map(([, edge]) => edges.indexOf(edge)),
    mode: "markers",
    hoverinfo: "skip",
    marker: { symbol, size: 9, color: ink, line: { width: 2.2, color: ink } },
  };
}

function weightWords(k) {
  const neighbour = run().edges[k][1];
  const last = run().trust ? run().trust.at(-1)[k] : null;
  const happened = run()
    .changes.filter(([, edge]) => edge === k)
    .map(([at, , on]) => `${on ? "cut" : "taken up again"} in round ${at}`);
  const weight = last === null ? [] : [`trust ${last}`];
  const kind = malicious(neighbour) ? "attacker" : "client";
  return `${kind} ${neighbour}: ${[...weight, ...happened].join(", ") || "not cut"}`;
}

function drawLabels() {
  const { histograms } = run();
  $("labels").hidden = !histograms.length;
  if (!histograms.length) return;
  const labels = histograms[0].length;
  drawHeatMap(
    "labels",
    histograms.map((_, client) => client),
    histograms,
    {
      across: "label",
      down: "client",
      amounts: "samples",
      told: "client %{customdata}, label %{x}: %{z} samples",
      xaxis: labels <= 20 ? { dtick: 1 } : {},
      xgap: 2,
      cell: 26,
      texttemplate: histograms.length * labels <= 400 ? "%{z}" : "",
    },
  );
}
