"use strict";
// Small charts. Texts are only ever set as texts.
const SVG = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);

function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  return fill(made, attributes, children);
}
function shape(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}
function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  for (const child of children) if (child !== null) made.append(child);
  return made;
}
const whole = (n) => (n === null || n === undefined ? "–" : Math.round(n).toLocaleString("en"));
function short(n) {
  if (n >= 1e9) return (n / 1e9).toFixed(1) + "G";
  if (n >= 1e6) return (n / 1e6).toFixed(1) + "M";
  return n >= 1e4 ? (n / 1e3).toFixed(1) + "k" : whole(n);
}
// A count in a table: a large one is shown short, and whole where the mouse is.
function counted(n) {
  return n < 1e6 ? whole(n) : el("span", tip(whole(n)), short(n));
}
function seconds(s) {
  if (s === null || s === undefined) return "–";
  if (s < 0.001) return s === 0 ? "0 ms" : "<1 ms";
  if (s < 1) return Math.round(s * 1000) + " ms";
  if (s < 120) return s.toFixed(s < 10 ? 1 : 0) + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  return s < 172800 ? (s / 3600).toFixed(1) + " h" : Math.round(s / 86400) + " d";
}
function moment(text) {
  return text ? text.slice(0, 16).replace("T", " ") : "–";
}
// As much of a moment as tells it from others.
function brief(text, rows) {
  const same = rows[0].start.slice(0, 10) === rows[rows.length - 1].start.slice(0, 10);
  const fine = rows.some((row) => row.start.slice(17, 19) !== "00");
  return text.slice(same ? 11 : 5, fine ? 19 : 16).replace("T", " ");
}
function tip(text) {
  return {
    onmousemove: (event) => {
      const box = $("tip");
      box.textContent = text;
      box.style.opacity = 1;
      box.style.left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8) + "px";
      box.style.top = event.clientY + 16 + "px";
    },
    onmouseleave: () => ($("tip").style.opacity = 0),
  };
}
function legend(series) {
  return el("div", { class: "legend" },
    ...series.map((s) => el("span", {}, el("i", { style: `background:var(--${s.tone})` }), s.name)));
}
function ticks(most) {
  const rough = most / 4, power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) || 1;
  const found = [];
  for (let at = 0; at < most + step; at += step) found.push(at);
  return found;
}
// A chart has as many units as the page has pixels for it, so its texts are as large as others.
function svg(width, height) {
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
}
function draw_in(id, make) {
  $(id).replaceChildren();
  $(id).append(make(Math.max(280, $(id).clientWidth)));
}
// Lines over time: rows have `start`, series have `name`, `tone` and `of`.
function lines(rows, series, tell, width) {
  if (!rows.length) return el("div", { class: "none" }, "Nothing happened.");
  const W = width, H = 260, L = 72, R = 12, T = 10, B = 32;
  const values = rows.flatMap((row) => series.map((s) => s.of(row) || 0));
  const marks = ticks(Math.max(...values, 0) || 1), most = marks[marks.length - 1];
  const x = (at) => (rows.length === 1 ? (L + W - R) / 2 : L + (at * (W - L - R)) / (rows.length - 1));
  const y = (value) => T + (1 - value / most) * (H - T - B);
  const chart = svg(W, H);
  for (const mark of marks) {
    chart.append(shape("line", { class: "grid", x1: L, x2: W - R, y1: y(mark), y2: y(mark) }));
    chart.append(shape("text", { x: L - 8, y: y(mark) + 5, "text-anchor": "end" }, tell(mark)));
  }
  const every = Math.ceil(rows.length / Math.max(1, Math.floor((W - L) / 150)));
  rows.forEach((row, at) => {
    if (at % every || (at && x(at) > W - R - 60)) return;
    const anchor = at === 0 && rows.length > 1 ? "start" : "middle";
    chart.append(shape("text", { x: x(at), y: H - 8, "text-anchor": anchor }, brief(row.start, rows)));
  });
  for (const s of series) {
    const points = rows.map((row, at) => (s.of(row) == null ? null : [x(at), y(s.of(row))])).filter(Boolean);
    const path = points.map((p, at) => `${at ? "L" : "M"}${p[0].toFixed(1)} ${p[1].toFixed(1)}`).join("");
    chart.append(shape("path", { d: path, fill: "none", stroke: `var(--${s.tone})`, "stroke-width": 2,
      "stroke-linejoin": "round" }));
    if (points.length < 60)
      for (const p of points) chart.append(shape("circle", { cx: p[0], cy: p[1], r: 3, fill: `var(--${s.tone})` }));
  }
  const wide = (W - L - R) / Math.max(1, rows.length - 1);
  rows.forEach((row, at) => {
    const told = [row.start.replace("T", " "), ...series.map((s) => `${s.name}: ${tell(s.of(row))}`)].join("\n");
    chart.append(shape("rect", { x: x(at) - wide / 2, y: T, width: wide, height: H - T - B, fill: "transparent",
      ...tip(told) }));
  });
  return el("div", {}, legend(series), chart);
}
function table(columns, rows, pick) {
  if (!rows.length) return el("div", { class: "none" }, "There is nothing to show.");
  const head = el("tr", {}, ...columns.map((c) => el("th", c.text ? { class: "text" } : {}, c.name)));
  const body = rows.map((row) => {
    const cells = columns.map((c) => {
      const found = c.of(row);
      const shown = found instanceof Node ? found : document.createTextNode(found ?? "–");
      return el("td", { class: [c.text ? "text" : "", c.bad && c.bad(row) ? "bad" : ""].join(" ") }, shown);
    });
    return el("tr", pick ? { class: "pick" + (pick.is(row) ? " picked" : ""), onclick: () => pick.on(row) } : {},
      ...cells);
  });
  return el("table", {}, el("thead", {}, head), el("tbody", {}, ...body));
}
function bar(value, most, tone) {
  const width = most ? Math.max(2, (60 * value) / most) : 0;
  return el("span", { class: "bar", style: `width:${width}px;background:var(--${tone})` });
}
