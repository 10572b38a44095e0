// uPlot charts with the colours of the theme, a box at the pointer, and marks.
import { color, el, faded } from "./dom.js";

const { uPlot } = window;
const drawn = new Set();

// A chart reads its colours when it is made, so a change of theme makes all of them again.
export function redraw() {
  for (const chart of drawn) chart.make();
}
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

export class Chart {
  // options() gives uPlot's, anew each time; rows(u, i) gives [color, label, value] for the box.
  constructor(host, options, rows) {
    this.host = host;
    this.options = options;
    this.rows = rows;
    this.tip = el("div", { class: "tip" });
    this.data = null;
    this.plot = null;
    drawn.add(this);
    this.sight = new ResizeObserver(() => this.fit());
    this.sight.observe(host);
  }

  show(data) {
    const first = this.data === null || data.length !== this.data.length;
    this.data = data;
    if (first || !this.plot) return this.make();
    const zoomed = this.zoom;
    this.plot.setData(data, !zoomed);
    if (zoomed) this.plot.redraw();
  }

  size() {
    return { width: Math.max(120, this.host.clientWidth), height: Math.max(150, this.host.clientHeight) };
  }

  fit() {
    if (this.plot) this.plot.setSize(this.size());
    else if (this.data) this.make();
  }

  make() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
    if (!this.data || !this.host.clientWidth) return;
    const axis = { stroke: color("dim"), grid: { stroke: color("grid"), width: 1 }, size: 50, gap: 6,
      ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const made = this.options();
    made.axes = made.axes.map((one) => ({ ...axis, ...one }));
    const full = {
      ...this.size(), padding: [10, 14, 0, 0], legend: { show: false }, ...made,
      cursor: { points: { size: 6 }, drag: { x: true, y: false }, ...made.cursor },
      hooks: {
        ...made.hooks,
        setCursor: [(u) => this.point(u)],
        setScale: [(u, key) => { if (key === "x") this.zoom = this.isZoomed(u); }],
      },
    };
    this.zoom = false;
    this.plot = new uPlot(full, this.data, this.host);
    this.plot.over.append(this.tip);
    this.host.dataset.points = String(this.data[0].length);
  }

  isZoomed(u) {
    const xs = u.data[0];
    return xs.length > 1 && (u.scales.x.min > xs[0] || u.scales.x.max < xs[xs.length - 1]);
  }

  point(u) {
    this.host.dataset.points = String(u.data[0].length);
    const { left, idx } = u.cursor;
    const rows = left >= 0 && idx !== null && idx !== undefined ? this.rows(u, idx) : [];
    this.tip.style.display = rows.length ? "block" : "none";
    if (!rows.length) return;
    this.tip.replaceChildren(...rows.map(([tone, label, value]) => tone === "words"
      ? el("p", {}, label)
      : el("div", {}, tone && el("i", { style: { background: tone } }), el("span", {}, label), value)));
    const width = u.over.clientWidth;
    const own = this.tip.offsetWidth;
    this.tip.style.left = `${left + own + 24 > width ? Math.max(0, left - own - 12) : left + 12}px`;
  }

  drop() {
    this.sight.disconnect();
    if (this.plot) this.plot.destroy();
    drawn.delete(this);
  }
}

// A running mean that starts unbiased; the longer the curve, the longer its memory.
export function smooth(values) {
  const keep = 1 - 1 / Math.max(1, values.length / 60);
  let sum = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = keep * sum + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return weight ? sum / weight : value;
  });
}

// Curves over different steps as one table: [xs, ...ys], with undefined where a curve has no point.
export function joined(curves) {
  const xs = [...new Set(curves.flatMap((one) => one[0]))].sort((a, b) => a - b);
  const at = new Map(xs.map((x, i) => [x, i]));
  const columns = curves.flatMap((one) => one.slice(1).map((ys) => {
    const column = new Array(xs.length).fill(undefined);
    one[0].forEach((x, i) => { column[at.get(x)] = ys[i]; });
    return column;
  }));
  return [xs, ...columns];
}

export const MARKS = {
  spike: ["▲", "bad", "loss spike"], skip: ["×", "warn", "batch left out"],
  rollback: ["↶", "warn", "went back"], fault: ["●", "bad", "restart"],
  differ: ["≠", "bad", "replicas differed"],
};

// Flags on the curve: a thin line at the step, and a sign at the top.
export function drawMarks(u, marks) {
  const ctx = u.ctx;
  const ratio = window.devicePixelRatio || 1;
  ctx.save();
  ctx.font = `${11 * ratio}px system-ui`;
  ctx.textAlign = "center";
  for (const mark of marks) {
    const x = u.valToPos(mark.step, "x", true);
    if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
    const [sign, tone] = MARKS[mark.kind] ?? MARKS.fault;
    ctx.strokeStyle = faded(tone, 0.55);
    ctx.lineWidth = ratio;
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, u.bbox.top + 12 * ratio);
    ctx.lineTo(x, u.bbox.top + u.bbox.height);
    ctx.stroke();
    ctx.fillStyle = color(tone);
    ctx.fillText(sign, x, u.bbox.top + 8 * ratio);
  }
  ctx.restore();
}

export function marksNear(u, idx, marks) {
  const x = u.data[0][idx];
  const reach = (u.scales.x.max - u.scales.x.min) / 60;
  const near = marks.filter((mark) => Math.abs(mark.step - x) <= reach).slice(-3);
  return near.map((mark) => ["words", `${MARKS[mark.kind]?.[0] ?? "●"} step ${mark.step}: ${mark.words}`]);
}
