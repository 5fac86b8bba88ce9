// Curves over the rounds.

function drawCurve(key) {
  const groups = report.setups[state.setup].groups;
  const log = key === "tracking_error" && groups.some((group) => group.curves[key].mean.some((value) => value > 0));
  const traces = groups.flatMap((group) => curveTraces(group, key, log));
  const rounds = Math.max(...groups.map((group) => group.curves[key].rounds.at(-1) ?? 1));
  const measured = groups.some((group) => group.curves[key].mean.some((value) => value !== null));
  const few = groups.length <= 8;
  // Plotly writes powers of ten larger by a quarter.
  const y =
    key === "tracking_error"
      ? { type: log ? "log" : "linear", exponentformat: "power", nticks: 6, tickfont: { size: log ? 12 / 1.25 : 12 } }
      : { range: [-0.02, 1.02], tickformat: ".0%", tickvals: [0, 0.2, 0.4, 0.6, 0.8, 1] };
  const missing = {
    text: "Not measured in this set-up, or not finite",
    showarrow: false,
    x: 0.5,
    y: 0.5,
    xref: "paper",
    yref: "paper",
  };
  Plotly.react(
    key,
    traces,
    base({
      hovermode: few ? "x unified" : "closest",
      hoverdistance: few ? -1 : 30,
      xaxis: {
        title: { text: "round", standoff: 8, font: { size: 13 } },
        range: [Math.min(1, rounds - 1), rounds * 1.01],
        unifiedhovertitle: { text: "round %{x}" },
        ...whole(rounds),
      },
      yaxis: y,
      annotations: measured ? [] : [missing],
    }),
    CONFIG,
  );
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
    x: curve.rounds,
    y: positive(curve.mean),
    name: plain(group.name),
    visible,
    mode: "lines+markers",
    cliponaxis: false,
    line: { color: ink, dash, width: 2.2 },
    marker: { symbol, color: ink, size: 8, maxdisplayed: Math.ceil(curve.rounds.length / many) },
    hovertemplate: key === "tracking_error" ? "%{y:.3g}" : "%{y:.1%}",
    meta: "line",
  };
  const banded = state.shades && curve.low.some((value) => value !== null);
  const fill = { fill: "tonexty", fillcolor: faded(ink, 0.13) };
  const band = banded
    ? [
        { ...shade, y: positive(curve.low) },
        { ...shade, ...fill, y: positive(curve.high), meta: "shade" },
      ]
    : [];
  const at = curve.rounds.findIndex((round) => round >= group.detected);
  const ring =
    group.detected && at >= 0
      ? [
          {
            x: [curve.rounds[at]],
            y: [positive(curve.mean)[at]],
            mode: "markers",
            visible,
            hoverinfo: "skip",
            cliponaxis: false,
            marker: { symbol: "circle-open", size: 17, color: ink, line: { width: 2 } },
          },
        ]
      : [];
  return [...band, line, ...ring];
}

function faded(hex, alpha) {
  const [r, g, b] = [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
  return `rgba(${r},${g},${b},${alpha})`;
}
