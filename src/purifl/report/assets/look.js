// How everything looks: the data, the colours of the scheme, and what tells runs apart.

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
const SHAPES = [
  "M18 4.5a3.5 3.5 0 1 0 .01 0z",
  "M14.7 4.7h6.6v6.6h-6.6z",
  "M18 3.4 22.6 8 18 12.6 13.4 8z",
  "M18 3.6 22.4 11.4H13.6z",
  "M18 12.4 13.6 4.6H22.4z",
  "M16.6 4h2.8v2.6H22v2.8h-2.6V12h-2.8V9.4H14V6.6h2.6z",
  "M15 5l6 6M21 5l-6 6",
  "M18 3.2l1.4 3.3 3.5.3-2.7 2.3.8 3.5-3-1.9-3 1.9.8-3.5-2.7-2.3 3.5-.3z",
];
const CIVIDIS = [
  [0, "#00224e"],
  [0.2, "#35456c"],
  [0.4, "#666970"],
  [0.6, "#948e77"],
  [0.8, "#c8b866"],
  [1, "#fee838"],
];
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
  const axis = {
    color: color("quiet"),
    tickfont: { size: 12 },
    gridcolor: color("line"),
    linecolor: color("line"),
    zeroline: false,
    fixedrange: true,
  };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    dragmode: false,
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: color("ink") },
    margin: { l: 52, r: 14, t: 10, b: 44 },
    hoverlabel: {
      bgcolor: color("card"),
      bordercolor: color("line"),
      font: { color: color("ink"), size: 13 },
      align: "left",
    },
    ...extra,
    xaxis: { ...axis, ...extra.xaxis },
    yaxis: { ...axis, ...extra.yaxis },
  };
}
