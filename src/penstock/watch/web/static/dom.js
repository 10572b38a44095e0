// DOM elements. Everything from a run becomes a text node: nothing is ever parsed as HTML.

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
