"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);

  // Text only ever becomes a text node: evidence is written by machines under suspicion.
  const el = (tag, attributes = {}, ...children) => {
    const found = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined && value !== false) found.setAttribute(key, value === true ? "" : value);
    }
    found.append(...children.filter((child) => child !== null && child !== undefined));
    return found;
  };
  const unpack = async (packed) => {
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  // What a terminal would act on is shown as `cat -v` does: colours, cursor moves, and characters that turn the writing round.
  const signs = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
  const visible = (text) => text.replace(/\r\n/g, "\n").replace(signs, (c) => {
    const code = c.charCodeAt(0);
    return code < 32 ? `^${String.fromCharCode(64 + code)}` : `<U+${code.toString(16).toUpperCase().padStart(4, "0")}>`;
  });
  const badge = (state) => el("span", { class: `badge s-${state.replace(" ", "-")}` },
    el("span", { "aria-hidden": "true" }, data.glyphs[state] ?? "·"), ` ${state}`);
  const unitOf = (unit) => (unit === "us" ? "µs" : unit);
  const number = (value) => (typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(6))) : String(value));
  const amount = (value, unit) => (value === null || value === undefined ? "–" : `${number(value)}${unit ? `\u00a0${unitOf(unit)}` : ""}`);
  const link = (name, gate) => `#node/${encodeURIComponent(name)}${gate ? `/${gate}` : ""}`;

  // -- colours --------------------------------------------------------------------------------------------------
  const themes = { auto: ["◐", "as the system"], light: ["○", "light"], dark: ["●", "dark"] };
  const onColours = [];
  const setTheme = (name) => {
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    $("theme").replaceChildren(`${themes[name][0]} `, el("span", {}, name));
    $("theme").setAttribute("aria-label", `Colours: ${themes[name][1]}`);
    $("theme").dataset.now = name;
    onColours.forEach((draw) => draw());
  };
  $("theme").addEventListener("click", () => {
    const names = Object.keys(themes);
    setTheme(names[(names.indexOf($("theme").dataset.now) + 1) % names.length]);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => onColours.forEach((draw) => draw()));
  setTheme("auto");

  // -- tiles ----------------------------------------------------------------------------------------------------
  const tiles = [...document.querySelectorAll(".tile")];
  const shownTiles = () => tiles.filter((tile) => !tile.parentElement.hidden);
  const rove = (tile, focus = true) => {
    tiles.forEach((other) => { other.tabIndex = other === tile ? 0 : -1; });
    if (focus) tile.focus();
  };
  const show = () => {
    const states = [...document.querySelectorAll(".count[aria-pressed=true]")].map((b) => b.dataset.state);
    const words = $("find").value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const tile of tiles) {
      const text = tile.dataset.text.toLowerCase();
      tile.parentElement.hidden = !((!states.length || states.includes(tile.dataset.state)) && words.every((word) => text.includes(word)));
    }
    const left = shownTiles();
    $("found").textContent = left.length === tiles.length ? "" : `${left.length} of ${tiles.length} shown`;
    if (left.length && !left.some((tile) => tile.tabIndex === 0)) rove(left[0], false);
  };
  document.querySelectorAll(".count").forEach((button) => button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
    show();
  }));
  $("find").addEventListener("input", show);
  if (tiles.length) rove(tiles[0], false);
  $("tiles").addEventListener("keydown", (event) => {
    const all = shownTiles();
    const at = all.indexOf(document.activeElement);
    if (at < 0) return;
    const columns = all.filter((tile) => tile.offsetTop === all[0].offsetTop).length || 1;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -at, End: all.length - 1 - at }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const next = all[at + step];
    if (next) rove(next);
  });

  // -- one node -------------------------------------------------------------------------------------------------
  const dialog = $("node");
  let opener = null;
  const places = new Map(data.order.map(([name], place) => [name, place]));

  const output = (reading, key, path) => {
    const kept = reading[key];
    if (!kept) return null;
    const stored = data.outputs[kept.sha256];
    const box = el("div", {});
    box.append(el("p", { class: "meta" }, `${key}, ${kept.bytes} bytes, SHA-256 `, el("code", {}, kept.sha256),
      stored && stored[1] ? `, ${stored[1]} characters are left out in the middle` : "", " · on the node: ", el("code", {}, path)));
    if (!stored) box.append(el("p", { class: "note" }, "Not in this file, which would have become too large. It is in evidence.tar.gz beside it."));
    else {
      const text = el("pre", { tabindex: "0" }, "…");
      box.append(text);
      unpack(stored[0]).then((shown) => { text.textContent = visible(shown); });
    }
    return box;
  };
  const readingOf = (reading, path, open) => {
    const ended = reading.error ? reading.error : `status ${reading.rc ?? "none"}`;
    const box = el("details", { class: "reading" },
      el("summary", {}, el("code", {}, reading.command || "a reading without a command"), ` `,
        el("span", { class: "meta" }, `${ended}${reading.seconds === null ? "" : `, ${number(reading.seconds)} s`}`)));
    box.addEventListener("toggle", () => {
      if (!box.open || box.dataset.done) return;
      box.dataset.done = "1";
      const shown = [output(reading, "stdout", path), output(reading, "stderr", path)].filter(Boolean);
      box.append(...(shown.length ? shown : [el("p", { class: "note" }, "It printed nothing.")]));
    });
    box.open = open;
    return box;
  };
  const checksTable = (checks) => {
    const order = ["fail", "unknown", "warn", "pass"];
    const sorted = [...checks].sort((a, b) => order.indexOf(a.verdict) - order.indexOf(b.verdict));
    const body = el("tbody");
    const row = (c) => el("tr", {},
      el("td", {}, badge(c.verdict)), el("td", {}, el("code", {}, c.check.split(".").slice(1).join(".") || c.check)), el("td", {}, c.subject),
      el("td", { class: `value s-${c.verdict}` }, c.value === null ? "nothing read" : amount(c.value, c.unit)),
      el("td", {}, amount(c.limit, c.unit), c.limit_source ? el("br") : null, c.limit_source ? el("span", { class: "quiet" }, c.limit_source) : null),
      el("td", {}, c.reason, c.remedy ? el("br") : null, c.remedy ? el("b", {}, c.remedy) : null));
    const some = sorted.slice(0, 120);
    body.append(...some.map(row));
    const table = el("table", {}, el("thead", {}, el("tr", {}, ...["Verdict", "Check", "Subject", "Measured", "Limit", "Why, what to do"].map((t) => el("th", { scope: "col" }, t)))), body);
    const box = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Checks" }, table);
    if (sorted.length > some.length) {
      const more = el("button", { type: "button" }, `Show ${sorted.length - some.length} more`);
      more.addEventListener("click", () => { body.append(...sorted.slice(some.length).map(row)); more.remove(); });
      box.append(more);
    }
    return box;
  };
  const gateBox = (stage, gate, verdict, checks, evidence, wanted) => {
    const box = el("details", { class: "gate", "data-gate": gate },
      el("summary", {}, badge(verdict), el("b", {}, gate), el("span", { class: "quiet" }, ` ${stage}, ${checks.length} checks`)));
    // A hundred tables at once are slow: filled when it is opened.
    box.addEventListener("toggle", () => {
      if (!box.open || box.dataset.done) return;
      box.dataset.done = "1";
      if (checks.length) box.append(checksTable(checks));
      if (evidence) {
        box.append(el("p", { class: "meta" }, "Evidence ", el("code", {}, evidence.path), ", SHA-256 ", el("code", {}, evidence.sha256)));
        box.append(...evidence.readings.map((reading) => readingOf(reading, evidence.path, gate === wanted && evidence.readings.length < 4)));
      } else box.append(el("p", { class: "note" }, "The evidence of this gate was not fetched."));
    });
    box.open = gate === wanted || (!wanted && verdict !== "pass");
    return box;
  };
  const openNode = async (name, gate) => {
    const place = places.get(name);
    if (place === undefined) return;
    const [, state, reason] = data.order[place];
    const node = JSON.parse(await unpack(data.nodes[name]));
    const step = (to, label, sign) => {
      const other = data.order[to];
      const button = el("button", { type: "button", "aria-label": label, disabled: !other }, sign);
      button.addEventListener("click", () => { location.replace(link(other[0], gate)); });
      return button;
    };
    const close = el("button", { type: "button", "aria-label": "Close" }, "✕ Close");
    close.addEventListener("click", () => dialog.close());
    const body = el("div", { class: "body" });
    if (reason) body.append(el("p", {}, reason));
    const units = Object.entries(node.units);
    if (units.length) body.append(el("p", { class: "quiet" }, units.map(([unit, word]) => `${unit}: ${word}`).join(", ")));
    const seen = new Set();
    const boxes = [];
    for (const [stage, head] of Object.entries(node.stages)) {
      for (const [gateName, own] of Object.entries(head.gates)) {
        seen.add(`${stage} ${gateName}`);
        boxes.push(gateBox(stage, gateName, own.verdict, node.checks.filter((c) => c.stage === stage && c.gate === gateName),
          node.evidence.find((e) => e.stage === stage && e.gate === gateName), gate));
      }
    }
    for (const e of node.evidence) {
      if (!seen.has(`${e.stage} ${e.gate}`)) boxes.push(gateBox(e.stage, e.gate, "unknown", [], e, gate));
    }
    const loose = node.checks.filter((c) => !seen.has(`${c.stage} ${c.gate}`));
    if (loose.length) body.append(checksTable(loose));
    body.append(...boxes);
    if (!boxes.length && !loose.length) body.append(el("p", { class: "note" }, "There is nothing of this node in this run."));
    dialog.replaceChildren(
      el("div", { class: "head" }, el("h2", { id: "node-h" }, name), badge(state), el("span", { class: "gap" }),
        step(place - 1, "Node before", "← before"), step(place + 1, "Next node", "next →"), close), body);
    if (!dialog.open) { opener = document.activeElement; dialog.showModal(); }
    dialog.scrollTop = 0;
    const target = gate && boxes.find((box) => box.dataset.gate === gate);
    if (target) { target.firstChild.focus(); target.scrollIntoView({ block: "start", behavior: "instant" }); dialog.scrollTop -= 60; } else close.focus();
    dialog.dataset.shown = name;
  };
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => {
    history.replaceState(null, "", location.pathname + location.search);
    dialog.dataset.shown = "";
    if (opener && opener.isConnected) opener.focus({ preventScroll: true });
  });
  const route = () => {
    const [, name, gate] = location.hash.match(/^#node\/([^/]+)(?:\/(\w+))?$/) ?? [];
    if (name) openNode(decodeURIComponent(name), gate);
    else if (dialog.open) dialog.close();
  };
  addEventListener("hashchange", route);
  route();

  // -- fabric ---------------------------------------------------------------------------------------------------
  const SMALL = 20;
  const fabricBox = $("matrix");
  if (fabricBox && data.fabric) unpack(data.fabric).then((packed) => matrix(fabricBox, JSON.parse(packed)));

  function matrix(box, fabric) {
    const count = fabric.nodes.length;
    const first = fabric.columns.indexOf(fabric.quantities[0]?.key);
    const blamed = new Set(fabric.blamed.flatMap((b) => b.nodes));
    const errorOf = (pair) => fabric.errors[pair[6]];
    const choose = (label, options) => {
      const list = el("select", {}, ...options.map(([value, text]) => el("option", { value }, text)));
      list.addEventListener("change", () => draw());
      return [el("label", {}, `${label} `, list), list];
    };
    const [whatLabel, what] = choose("Show", fabric.quantities.map((q, i) => [i, `${q.label}${q.unit ? ` (${unitOf(q.unit)})` : ""}`]));
    const [railLabel, rail] = choose("Rail", [["worst", "worst of all rails"], ...fabric.rails.map((r) => [r, `rail ${r}`])]);
    const readout = el("p", { class: "readout", role: "status" });
    const holder = el("div", { class: "matrix-box" });
    const legend = el("div", { class: "legend" });
    const badPairs = el("details", { class: "bad-pairs" });
    box.replaceChildren(el("div", { class: "matrix-tools" }, whatLabel, railLabel, legend), readout, holder, badPairs);

    let cells, q, column, low, high, cursor = [0, Math.min(1, count - 1)];
    const worse = (a, b) => (q.better === "lower" ? a > b : a < b);
    const over = (value) => q.limits.length > 0 && (q.better === "lower" ? value > q.limits.at(-1) : value < q.limits[0]);
    // A pair judged bad that is within every limit of this quantity is bad for another one.
    const isBad = (pair) => typeof pair[column] === "number" && (over(pair[column]) || (pair[5] === true && !fabric.quantities.some((other, i) =>
      typeof pair[first + i] === "number" && other.limits.length > 0 && (other.better === "lower" ? pair[first + i] > other.limits.at(-1) : pair[first + i] < other.limits[0]))));
    const collect = () => {
      q = fabric.quantities[Number(what.value)];
      column = first + Number(what.value);
      cells = new Array(count * count);
      const put = (i, j, pair, own) => {
        const old = cells[i * count + j];
        const value = pair[column] ?? null;
        // The direction that was measured itself wins over its mirror image; of several rails the worst is shown.
        if (!old || (own && !old.own) || (own === old.own && value !== null && (old.value === null || worse(value, old.value)))) {
          cells[i * count + j] = { value, pair, own, bad: isBad(pair), lost: value === null };
        } else if (own === old.own && value === null) old.lost = true;
      };
      for (const pair of fabric.pairs) {
        if (rail.value !== "worst" && pair[2] !== Number(rail.value)) continue;
        if (pair[column] === undefined) continue;
        put(pair[0], pair[1], pair, true);
        if (pair[0] !== pair[1]) put(pair[1], pair[0], pair, false);
      }
      const good = cells.filter((c) => c && c.value !== null && !c.bad).map((c) => c.value).sort((a, b) => a - b);
      // Up to the limit, where there is one: noise among good pairs must not look like a pattern.
      const limit = q.limits.length ? (q.better === "lower" ? q.limits.at(-1) : q.limits[0]) : null;
      low = q.better === "higher" && limit !== null ? limit : good[0] ?? 0;
      high = q.better === "lower" && limit !== null ? limit : good.at(-1) ?? low;
    };
    const share = (value) => {
      if (high <= low) return 0.1;
      const part = Math.min(1, Math.max(0, (value - low) / (high - low)));
      return q.better === "lower" ? part : 1 - part;
    };
    const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const rgb = (hex) => [1, 3, 5].map((at) => parseInt((hex.length === 4 ? `#${[...hex.slice(1)].map((c) => c + c).join("")}` : hex).slice(at, at + 2), 16));
    const mix = (part) => {
      const [a, b] = [rgb(css("--heat-lo")), rgb(css("--heat-hi"))];
      return a.map((v, i) => Math.round(v + (b[i] - v) * part));
    };
    const ink = (c) => (0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2] > 140 ? "#14181c" : "#f4f6f8");
    const describe = (i, j) => {
      const names = `${fabric.nodes[i]} – ${fabric.nodes[j]}`;
      const cell = cells[i * count + j];
      if (!cell) return [`${names}: ${i === j ? "the same node" : "not in the schedule"}`, ""];
      const ports = `rail ${cell.pair[2]}, ${fabric.nodes[cell.pair[0]]} ${fabric.hcas[cell.pair[3]]} to ${fabric.nodes[cell.pair[1]]} ${fabric.hcas[cell.pair[4]]}`;
      if (cell.value === null) return [`${names}: not measured (${ports})${errorOf(cell.pair) ? `: ${errorOf(cell.pair)}` : ""}`, ""];
      const others = rail.value === "worst" && cell.lost ? "; other rails were not measured" : "";
      return [`${names}: ${amount(cell.value, q.unit)}, ${ports}${others}${errorOf(cell.pair) ? `; ${errorOf(cell.pair)}` : ""}`, cell.bad ? ` ✕ bad${q.limits.length ? `, limit ${q.limits.map((l) => amount(l, q.unit)).join(" or ")}` : ""}` : ""];
    };
    const say = () => {
      const [text, bad] = describe(...cursor);
      readout.replaceChildren(text, el("b", { class: "s-fail" }, bad));
    };
    const name = (i) => (blamed.has(fabric.nodes[i]) ? `◆ ${fabric.nodes[i]}` : fabric.nodes[i]);
    const move = (event, then) => {
      const [i, j] = cursor;
      const page = 10;
      const to = {
        ArrowRight: [i, j + 1], ArrowLeft: [i, j - 1], ArrowDown: [i + 1, j], ArrowUp: [i - 1, j], Home: [i, 0], End: [i, count - 1],
        PageDown: [i + page, j], PageUp: [i - page, j],
      }[event.key];
      if (event.key === "Enter") { location.hash = link(fabric.nodes[i], q.gate); return; }
      if (!to) return;
      event.preventDefault();
      cursor = to.map((v) => Math.min(count - 1, Math.max(0, v)));
      then();
      say();
    };

    const drawTable = () => {
      const cellOf = (i, j) => {
        const cell = cells[i * count + j];
        const td = el("td", { role: "gridcell", tabindex: cursor[0] === i && cursor[1] === j ? 0 : -1, "data-at": `${i} ${j}`, "aria-label": describe(i, j).join("") });
        if (!cell) { td.className = i === j ? "same" : "none"; td.textContent = i === j ? "" : "·"; return td; }
        if (cell.value === null) { td.className = "none"; td.textContent = "n/m"; } else if (cell.bad) { td.className = "bad"; td.textContent = `✕ ${number(cell.value)}`; } else {
          const colour = mix(share(cell.value));
          td.style.background = `rgb(${colour})`;
          td.style.color = ink(colour);
          td.textContent = number(cell.value);
        }
        if (cell.bad && (blamed.has(fabric.nodes[i]) || blamed.has(fabric.nodes[j]))) td.classList.add("blamed-cell");
        return td;
      };
      const head = (i, scope) => el("th", { scope, class: blamed.has(fabric.nodes[i]) ? "blamed-end" : null }, name(i));
      const table = el("table", { class: "grid", role: "grid", "aria-label": "Pairs of nodes; arrow keys move, Enter opens the node" },
        el("thead", {}, el("tr", {}, el("td", { class: "same" }), ...fabric.nodes.map((_, i) => head(i, "col")))),
        el("tbody", {}, ...fabric.nodes.map((_, i) => el("tr", {}, head(i, "row"), ...fabric.nodes.map((_n, j) => cellOf(i, j))))));
      const at = () => table.querySelector(`[data-at="${cursor[0]} ${cursor[1]}"]`);
      table.addEventListener("keydown", (event) => move(event, () => {
        table.querySelectorAll("[tabindex='0']").forEach((td) => { td.tabIndex = -1; });
        at().tabIndex = 0;
        at().focus();
      }));
      const point = (event) => {
        const td = event.target.closest("td[data-at]");
        if (td) { cursor = td.dataset.at.split(" ").map(Number); say(); }
      };
      table.addEventListener("mouseover", point);
      table.addEventListener("focusin", point);
      holder.replaceChildren(table);
    };

    let canvas = null;
    const drawCanvas = () => {
      if (!canvas) {
        canvas = el("canvas", { tabindex: "0", role: "application", "aria-label": "Matrix of pairs of nodes; arrow keys move, Enter opens the node, the text below says what is there" });
        canvas.addEventListener("keydown", (event) => move(event, drawCanvas));
        canvas.addEventListener("mousemove", (event) => {
          const { margin, size } = canvas.layout;
          const at = [event.offsetY, event.offsetX].map((v) => Math.floor((v - margin) / size));
          if (at.every((v) => v >= 0 && v < count) && String(at) !== String(cursor)) { cursor = at; drawCanvas(); say(); }
        });
        canvas.addEventListener("click", () => { location.hash = link(fabric.nodes[cursor[0]], q.gate); });
        holder.replaceChildren(canvas);
        addEventListener("resize", () => drawCanvas());
      }
      const longest = Math.max(...fabric.nodes.map((n) => n.length)) + 2;
      const margin = Math.ceil(longest * 6.2) + 6;
      const size = Math.max(5, Math.min(20, Math.floor((Math.max(320, box.clientWidth) - margin - 8) / count)));
      const edge = margin + size * count + 1;
      const scale = Math.min(3, window.devicePixelRatio || 1);
      if (canvas.width !== edge * scale) { canvas.width = edge * scale; canvas.height = edge * scale; canvas.style.width = `${edge}px`; canvas.style.height = `${edge}px`; }
      canvas.layout = { margin, size };
      const c = canvas.getContext("2d");
      c.setTransform(scale, 0, 0, scale, 0, 0);
      c.fillStyle = css("--bg");
      c.fillRect(0, 0, edge, edge);
      const gap = size > 6 ? 1 : 0.5;
      const colours = Array.from({ length: 33 }, (_, i) => `rgb(${mix(i / 32)})`);
      const [red, dot, mark, text, quiet] = ["--heat-bad", "--line", "--mark", "--ink", "--quiet"].map(css);
      for (let i = 0; i < count; i += 1) {
        for (let j = 0; j < count; j += 1) {
          const cell = cells[i * count + j];
          const [x, y] = [margin + j * size, margin + i * size];
          if (!cell) {
            if (i !== j) { c.fillStyle = dot; c.fillRect(x + size / 2 - 0.5, y + size / 2 - 0.5, 1, 1); }
          } else if (cell.value === null) {
            c.strokeStyle = quiet; c.lineWidth = 0.8;
            c.beginPath(); c.moveTo(x + gap, y + size - gap); c.lineTo(x + size - gap, y + gap); c.stroke();
          } else {
            c.fillStyle = cell.bad ? red : colours[Math.round(share(cell.value) * 32)];
            c.fillRect(x, y, size - gap, size - gap);
            if (cell.bad && size > 5) {
              c.strokeStyle = "#fff"; c.lineWidth = 1.1;
              c.beginPath(); c.moveTo(x + 1.5, y + 1.5); c.lineTo(x + size - gap - 1.5, y + size - gap - 1.5);
              c.moveTo(x + size - gap - 1.5, y + 1.5); c.lineTo(x + 1.5, y + size - gap - 1.5); c.stroke();
            }
          }
        }
      }
      const every = Math.ceil(11 / size);
      c.font = `${Math.min(11, Math.max(9, size + 2))}px ${css("--mono")}`;
      for (let i = 0; i < count; i += 1) {
        const guilty = blamed.has(fabric.nodes[i]);
        const here = cursor[0] === i, there = cursor[1] === i;
        const near = [...Array(count).keys()].some((k) => k !== i && Math.abs(k - i) < every && (blamed.has(fabric.nodes[k])));
        const regular = i % every === 0 && !near;
        const middle = margin + i * size + size / 2;
        if (guilty) {
          c.strokeStyle = mark; c.lineWidth = 1.2;
          c.strokeRect(margin - 1, margin + i * size - 0.8, size * count + 1, size + 0.6);
          c.strokeRect(margin + i * size - 0.8, margin - 1, size + 0.6, size * count + 1);
        }
        c.textBaseline = "middle";
        const label = (on, row) => {
          if (!(on || guilty || regular)) return;
          c.fillStyle = guilty ? mark : on ? text : quiet;
          c.save();
          if (row) { c.textAlign = "right"; c.translate(margin - 5, middle); } else { c.textAlign = "left"; c.translate(middle, margin - 5); c.rotate(-Math.PI / 2); }
          if (on && !regular && !guilty) { const width = c.measureText(name(i)).width; c.fillStyle = css("--bg"); c.fillRect(row ? -width - 3 : -1, -7, width + 4, 14); c.fillStyle = text; }
          c.fillText(name(i), 0, 0);
          c.restore();
        };
        if (!here) label(false, true);
        if (!there) label(false, false);
      }
      for (const [i, row] of [[cursor[0], true], [cursor[1], false]]) {
        const middle = margin + i * size + size / 2;
        c.save();
        if (row) { c.textAlign = "right"; c.translate(margin - 5, middle); } else { c.textAlign = "left"; c.translate(middle, margin - 5); c.rotate(-Math.PI / 2); }
        const width = c.measureText(name(i)).width;
        c.fillStyle = text;
        c.fillRect(row ? -width - 3 : -3, -7, width + 6, 14);
        c.fillStyle = css("--bg");
        c.fillText(name(i), 0, 0);
        c.restore();
      }
      c.strokeStyle = text; c.lineWidth = 2;
      c.strokeRect(margin + cursor[1] * size - 1, margin + cursor[0] * size - 1, size + 1, size + 1);
    };
    const drawLegend = () => {
      const ramp = el("canvas", { width: 120, height: 10, "aria-hidden": "true" });
      const c = ramp.getContext("2d");
      for (let i = 0; i < 120; i += 1) { c.fillStyle = `rgb(${mix(q.better === "lower" ? i / 119 : 1 - i / 119)})`; c.fillRect(i, 0, 1, 10); }
      const limits = q.limits.length ? `✕ bad: ${q.better === "lower" ? "above" : "below"} ${q.limits.map((l) => amount(l, q.unit)).join(" or ")}${q.limit_source ? ` (${q.limit_source})` : ""}` : "no limit is known";
      legend.replaceChildren(el("span", {}, ramp, `${amount(low, q.unit)} – ${amount(high, q.unit)}`), el("span", {}, limits),
        el("span", {}, count <= SMALL ? "n/m: not measured" : "╱ not measured, · not in the schedule"), el("span", {}, "◆ blamed or suspected"));
    };
    const drawBad = () => {
      const bad = fabric.pairs.filter((pair) => (rail.value === "worst" || pair[2] === Number(rail.value)) && isBad(pair));
      bad.sort((a, b) => (worse(a[column], b[column]) ? -1 : 1));
      const lost = fabric.pairs.filter((pair) => pair[column] === null && errorOf(pair) && (rail.value === "worst" || pair[2] === Number(rail.value)));
      const rows = [...bad.map((p) => [p, amount(p[column], q.unit)]), ...lost.map((p) => [p, `not measured: ${errorOf(p)}`])];
      badPairs.hidden = !rows.length;
      badPairs.replaceChildren(el("summary", {}, `${bad.length} bad and ${lost.length} unmeasured pairs as a list`), el("table", {},
        el("thead", {}, el("tr", {}, ...["Rail", "Client", "Server", q.label].map((t) => el("th", { scope: "col" }, t)))),
        el("tbody", {}, ...rows.slice(0, 100).map(([p, text]) => el("tr", {}, el("td", {}, String(p[2])),
          el("td", {}, el("a", { href: link(fabric.nodes[p[0]], q.gate) }, fabric.nodes[p[0]]), ` ${fabric.hcas[p[3]]}`),
          el("td", {}, el("a", { href: link(fabric.nodes[p[1]], q.gate) }, fabric.nodes[p[1]]), ` ${fabric.hcas[p[4]]}`), el("td", {}, text))))),
      rows.length > 100 ? el("p", { class: "quiet" }, `${rows.length - 100} more are in report.json.`) : null);
    };
    const draw = () => {
      collect();
      if (count <= SMALL) drawTable(); else drawCanvas();
      drawLegend();
      drawBad();
      say();
    };
    onColours.push(() => draw());
    // The worst pair is what one looks for first.
    collect();
    const worst = cells.map((cell, at) => [cell, at]).filter(([cell]) => cell && cell.value !== null).sort(([a], [b]) => (worse(a.value, b.value) ? -1 : 1))[0];
    if (worst) cursor = [Math.floor(worst[1] / count), worst[1] % count];
    draw();
    box.dataset.ready = "true";
  }
})();
