// Elements and numbers. Everything from a run becomes a text node: nothing is ever parsed as HTML.

export function el(tag, about = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(about)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return made;
}

export function svg(tag, about = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(about)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// New contents; what was scrolled or unfolded stays so.
export function put(host, ...children) {
  const scrolled = [...host.children].map((one) => one.scrollTop);
  const open = [...host.querySelectorAll("details")].map((one) => one.open);
  host.replaceChildren(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  [...host.children].forEach((one, i) => { if (scrolled[i]) one.scrollTop = scrolled[i]; });
  host.querySelectorAll("details").forEach((one, i) => { if (open[i]) one.open = true; });
}

export function color(name) {
  // light-dark() is resolved by the element that uses it, not by the variable.
  const probe = document.getElementById("top");
  const before = probe.style.accentColor;
  probe.style.accentColor = `var(--${name})`;
  const found = getComputedStyle(probe).accentColor;
  probe.style.accentColor = before;
  return found;
}

export function faded(name, alpha) {
  return color(name).replace(/^rgba?\(([^)]+)\)$/, (_, inside) => {
    const [r, g, b] = inside.split(/[ ,/]+/);
    return `rgb(${r} ${g} ${b} / ${alpha})`;
  });
}

const known = (x) => x !== null && x !== undefined && Number.isFinite(x);

export function spoken(seconds) {
  if (!known(seconds)) return "–";
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const s = Math.round(seconds);
  const two = (x) => String(x).padStart(2, "0");
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${two(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor((s % 3600) / 60))} min`;
  return `${Math.floor(s / 86400)} d ${two(Math.floor((s % 86400) / 3600))} h`;
}

export function compact(x, digits = 3) {
  if (!known(x)) return "–";
  for (const [unit, size] of [["T", 1e12], ["B", 1e9], ["M", 1e6], ["K", 1e3]]) {
    if (Math.abs(x) >= size * 0.9995) return Number((x / size).toPrecision(digits)) + unit;
  }
  return String(Number(x.toPrecision(digits)));
}

export const whole = (x) => (known(x) ? Math.round(x).toLocaleString("en") : "–");
export const lossy = (x) => (known(x) ? x.toFixed(3) : "–");
export const percent = (x, digits = 1) => (known(x) ? `${(100 * x).toFixed(digits)} %` : "–");
export const signed = (x) => `${x >= 0 ? "+" : "−"}${Math.abs(100 * x).toFixed(0)} %`;

export function bytes(x) {
  if (!known(x)) return "–";
  for (const [unit, power] of [["TiB", 4], ["GiB", 3], ["MiB", 2], ["KiB", 1]]) {
    if (x >= 1024 ** power) return `${(x / 1024 ** power).toFixed(1)} ${unit}`;
  }
  return `${x} B`;
}

export function clock(t, withDay = false) {
  const date = new Date(1000 * t);
  const time = date.toLocaleTimeString("en-GB");
  return withDay || Date.now() / 1000 - t > 86400
    ? `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`
    : time;
}

export function ago(t) {
  return `${spoken(Math.max(0, Date.now() / 1000 - t))} ago`;
}

export function table(heads, rows, about = {}) {
  // A head that begins with ">" is of a column of numbers.
  const right = heads.map((head) => head.startsWith(">"));
  const cell = (tag, c, i) => el(tag, { class: right[i] ? "n" : null }, c);
  return el("table", about,
    el("thead", {}, el("tr", {}, heads.map((head, i) => cell("th", head.replace(/^>/, ""), i)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((c, i) => cell("td", c, i))))));
}

export function facts(pairs) {
  return el("dl", { class: "facts" },
    pairs.filter(Boolean).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}
