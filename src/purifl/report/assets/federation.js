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
      x,
      y,
      mode: "lines",
      hoverinfo: "skip",
      meta: kind,
      opacity: kind === "trusts" ? Math.min(0.9, Math.max(0.15, 1.4 * sparse)) : 1,
      line: { color: styles[kind].color, dash: styles[kind].dash, width: crowding * styles[kind].width(level) },
    })),
    {
      ...crosses,
      mode: "markers",
      meta: "crosses",
      hovertemplate: "%{text}<extra></extra>",
      marker: {
        symbol: "x-thin",
        size: Math.max(4, 11 * crowding),
        line: { width: 1 + 1.4 * crowding, color: color("ink") },
      },
    },
  ];
}

function nodeTraces(accuracy) {
  const { spots, clients, excluded } = run();
  const size = Math.max(10, 32 * Math.min(1, Math.sqrt(14 / clients)));
  const ids = [...Array(clients).keys()];
  const trace = (members, marker, ink, told) => ({
    x: members.map((k) => spots[k][0]),
    y: members.map((k) => spots[k][1]),
    customdata: members,
    mode: size > 12 ? "markers+text" : "markers",
    text: members.map(String),
    hovertext: members.map(told),
    hovertemplate: "%{hovertext}<extra></extra>",
    textfont: { size: Math.max(8, size * 0.42), color: ink },
    marker: { size, line: { color: color("ink"), width: 1.2 }, ...marker },
    cliponaxis: false,
  });
  const benign = ids.filter((k) => !malicious(k));
  const attackers = ids.filter(malicious);
  const tested = benign.filter((k) => typeof accuracy[k] === "number");
  const untested = benign.filter((k) => typeof accuracy[k] !== "number");
  const chosen = {
    x: [spots[state.client]?.[0]],
    y: [spots[state.client]?.[1]],
    mode: "markers",
    hoverinfo: "skip",
    cliponaxis: false,
    meta: "chosen",
    marker: { symbol: "circle-open", size: size + 12, color: color("accent"), line: { width: 3 } },
  };
  return [
    chosen,
    {
      ...trace(
        tested,
        { color: tested.map((k) => accuracy[k]), cmin: 0, cmax: 1, colorscale: CIVIDIS },
        tested.map((k) => (accuracy[k] > 0.55 ? "#000" : "#fff")),
        (k) => `client ${k}: accuracy ${percent(accuracy[k])}`,
      ),
      meta: "benign",
    },
    {
      ...trace(untested, { color: color("soft") }, color("ink"), (k) => `client ${k}: not tested yet`),
      meta: "untested",
    },
    {
      ...trace(
        attackers,
        {
          symbol: "diamond",
          size: size * 1.15,
          color: excluded ? color("card") : color("attack"),
          line: { color: excluded ? color("attack") : color("ink"), width: excluded ? 2 : 1.2 },
        },
        excluded ? color("ink") : "#000",
        (k) => `client ${k}: attacker${excluded ? ", left out from the start" : ""}`,
      ),
      meta: "attackers",
    },
  ];
}

function drawGraph() {
  const cut = cutsAt(state.round);
  const changed = run().changes.filter(([at]) => at === state.round);
  const now = new Set(changed.filter(([, , on]) => on).map(([, edge]) => edge));
  const accuracy = accuracyAt(state.round);
  const axis = { visible: false, range: [-1.16, 1.16] };
  Plotly.react(
    "graph",
    [...edgeTraces(cut, now), ...nodeTraces(accuracy)],
    base({
      margin: { l: 0, r: 0, t: 0, b: 0 },
      hovermode: "closest",
      xaxis: axis,
      yaxis: { ...axis, scaleanchor: "x" },
    }),
    CONFIG,
  );
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
  $("graph").setAttribute(
    "aria-label",
    `Graph of ${run().clients} clients in round ${state.round} of ${rounds}: ` +
      `${open} of ${toAttackers} edges to attackers are open, ${wrong} of ${toBenign} between benign clients are wrongly cut.`,
  );
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
  $("marks").replaceChildren(
    ...[...kinds].map(([at, kind]) => {
      const mark = document.createElement("i");
      mark.className = kind === "wrong" ? "wrong" : "";
      mark.style.left = `${rounds > 1 ? (100 * (at - 1)) / (rounds - 1) : 0}%`;
      return mark;
    }),
  );
}
