// The server makes every page. This asks for it again, puts what has changed in place, and points at charts.
"use strict";

const EVERY_MS = 2000;
let tag = "";
let timer = 0;

async function refresh() {
  clearTimeout(timer);
  let wait = EVERY_MS;
  try {
    const answer = await fetch(location.href, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    wait = Math.max(wait, 1000 * Number(answer.headers.get("X-Wait-S") || 0));
    if (answer.status === 200) {
      tag = answer.headers.get("ETag") || "";
      replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
    }
  } catch {
    wait = 5 * EVERY_MS; // the server has ended, or the machine sleeps
  }
  timer = setTimeout(refresh, document.hidden ? 5 * wait : wait);
}

// Text of documents comes as nodes that the browser has parsed without running anything.
function replace(page) {
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = page.getElementById(part.id);
    if (!next || part.contains(document.activeElement) || part.querySelector(".chosen")) continue;
    const open = [...part.querySelectorAll("details")].map((each) => each.open);
    next.querySelectorAll("details").forEach((each, place) => { each.open = Boolean(open[place]); });
    if (next.innerHTML !== part.innerHTML) part.replaceWith(document.adoptNode(next));
  }
}

function scaleOf(figure, event) {
  const svg = figure.querySelector("svg");
  const data = JSON.parse(figure.dataset.chart);
  const box = svg.getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
  const share = Math.min(1, Math.max(0, (x - data.left) / (data.right - data.left)));
  return { svg, data, value: data.low + share * (data.high - data.low) };
}

function placeOf(data, value) {
  return data.left + (value - data.low) / (data.high - data.low || 1) * (data.right - data.left);
}

function shape(svg, name, kind, attributes) {
  let one = svg.querySelector(`.${kind}`);
  if (!one) {
    one = document.createElementNS(svg.namespaceURI, name);
    one.setAttribute("class", kind);
    svg.append(one);
  }
  for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
}

const words = (value) => Number(value.toPrecision(5)).toLocaleString("en", { maximumSignificantDigits: 5 });

function point(figure, event) {
  const { svg, data, value } = scaleOf(figure, event);
  const near = data.lines.map((line) => {
    let best = 0;
    line.points.forEach(([x], place) => { if (Math.abs(x - value) < Math.abs(line.points[best][0] - value)) best = place; });
    return { label: line.label, at: line.points[best] };
  });
  if (!near.length) return;
  const step = near.map((each) => each.at[0]).sort((a, b) => Math.abs(a - value) - Math.abs(b - value))[0];
  const x = placeOf(data, step);
  shape(svg, "line", "cursor", { x1: x, x2: x, y1: 40, y2: 222 });
  const said = near.filter((each) => each.at[0] === step).map((each) => `${each.label} ${words(each.at[1])}`);
  figure.querySelector(".at").textContent = `${data.x} ${words(step)}: ${said.join(", ")}`;
}

let drag = null;

function zoom(first, last) {
  const place = new URL(location.href);
  if (first === null) { place.searchParams.delete("from"); place.searchParams.delete("to"); }
  else { place.searchParams.set("from", Math.floor(first)); place.searchParams.set("to", Math.ceil(last)); }
  history.replaceState(null, "", place);
  tag = "";
  refresh();
}

function chartOf(event) {
  return event.target.closest && event.target.closest(".plot svg") && event.target.closest(".plot");
}

document.addEventListener("pointerdown", (event) => {
  const figure = chartOf(event);
  if (figure && event.button === 0) drag = { figure, first: scaleOf(figure, event).value, last: null };
});
document.addEventListener("pointermove", (event) => {
  const figure = chartOf(event);
  if (figure) point(figure, event);
  if (!drag || figure !== drag.figure) return;
  const { svg, data, value } = scaleOf(figure, event);
  const [a, b] = [placeOf(data, drag.first), placeOf(data, value)].sort((one, two) => one - two);
  if (b - a < 6) return;
  drag.last = value;
  shape(svg, "rect", "chosen", { x: a, y: 40, width: b - a, height: 182 });
});
document.addEventListener("pointerup", () => {
  if (!drag) return;
  const { figure, first, last } = drag;
  drag = null;
  figure.querySelectorAll(".chosen").forEach((each) => each.remove());
  if (last !== null) zoom(Math.min(first, last), Math.max(first, last));
});
document.addEventListener("dblclick", (event) => { if (chartOf(event)) zoom(null, null); });

if (document.querySelector("[data-live]")) timer = setTimeout(refresh, EVERY_MS);
