// The charts of a run: loss, learning rate, gradient norm, speed beside the plan, where time goes.
import { Chart, drawMarks, joined, marksNear, smooth } from "./charts.js";
import { color, el, faded, put } from "./dom.js";
import { clock, formatCount, formatLoss, formatPercent, formatWhole } from "./format.js";

const STEPS = { values: (u, ticks) => ticks.map((t) => (Number.isInteger(t) ? formatCount(t) : "")) };

// As much of a time as the distance between two ticks needs.
function moment(t, step) {
  const date = new Date(1000 * t);
  if (step >= 86400) return date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return date.toLocaleTimeString("en-GB", step >= 60 ? { hour: "2-digit", minute: "2-digit" } : {});
}

export class Loss {
  constructor(host, tools) {
    this.marks = [];
    this.log = false;
    const button = el("button", { type: "button", "aria-pressed": "false", title: "Logarithmic scale" }, "log");
    button.addEventListener("click", () => {
      this.log = !this.log;
      button.setAttribute("aria-pressed", String(this.log));
      this.chart.make();
    });
    put(tools, el("div", { class: "legend" },
      el("span", {}, el("i", { class: "line", style: { background: "var(--accent)" } }), "training"),
      el("span", {}, el("i", { class: "line", style: { background: "var(--data_wait)" } }), "validation")), button);
    this.chart = new Chart(host, () => this.options(), (u, i) => this.rows(u, i));
  }

  options() {
    const line = { spanGaps: true, points: { show: false } };
    return {
      scales: { x: { time: false }, y: { distr: this.log ? 3 : 1 } },
      axes: [{ ...STEPS, size: 30 }, { values: (u, ticks) => ticks.map((t) => (t === null ? "" : formatCount(t))) }],
      series: [{},
        { ...line, stroke: "transparent" }, { ...line, stroke: "transparent" },
        { ...line, stroke: faded("accent", 0.3), width: 1 },
        { ...line, stroke: color("accent"), width: 2 },
        { ...line, stroke: faded("data_wait", 0.55), width: 1.5, points: { show: true, size: 7, fill: color("data_wait"), width: 0 } }],
      bands: [{ series: [1, 2], fill: faded("accent", 0.14) }],
      hooks: { draw: [(u) => drawMarks(u, this.marks)] },
    };
  }

  rows(u, i) {
    const at = (n) => u.data[n][i];
    const rows = [[null, "step", formatWhole(u.data[0][i])]];
    if (Number.isFinite(at(4))) rows.push([color("accent"), "loss, smoothed", formatLoss(at(4))]);
    if (Number.isFinite(at(3))) rows.push([faded("accent", 0.4), "loss", formatLoss(at(3))]);
    if (at(1) > at(2)) rows.push([null, "from – to", `${formatLoss(at(2))} – ${formatLoss(at(1))}`]);
    if (Number.isFinite(at(5))) rows.push([color("data_wait"), "validation", formatLoss(at(5))]);
    return [...rows, ...marksNear(u, i, this.marks)];
  }

  update(curve) {
    this.marks = curve.marks ?? [];
    const own = curve.step?.length ? [curve.step, curve.high, curve.low, curve.loss, smooth(curve.loss)] : [[], [], [], [], []];
    const held = curve.validation ?? [];
    this.chart.show(joined([own, [held.map((v) => v[0]), held.map((v) => v[1])]]));
  }
}

// The learning rate of each step.
export class Rate {
  constructor(host) {
    this.chart = new Chart(host, () => this.options(), (u, i) => [
      [null, "step", formatWhole(u.data[0][i])], [color("checkpoint"), "learning rate", formatCount(u.data[1][i])]]);
  }

  options() {
    return {
      scales: { x: { time: false }, y: { range: (u, low, high) => [0, Math.max(1e-12, high) * 1.12] } },
      axes: [{ ...STEPS, size: 30 }, { size: 58, values: (u, ticks) => ticks.map((t) => (t ? t.toExponential() : "0")) }],
      series: [{}, { stroke: color("checkpoint"), width: 2, points: { show: false } }],
    };
  }

  update(curve) {
    this.chart.show([curve.step, curve.learning_rate ?? []]);
  }
}

// The rewards of both answers of the pairs, and the share of pairs that the model ranks right.
export class Rewards {
  constructor(card) {
    this.made = card.made;
    this.tools = card.tools;
    this.chart = new Chart(card.body, () => this.options(), (u, i) => this.rows(u, i));
  }

  options() {
    const line = { width: 2, spanGaps: true, points: { show: false } };
    return {
      scales: { x: { time: false } },
      axes: [{ ...STEPS, size: 30 }, { values: (u, ticks) => ticks.map((t) => (t === null ? "" : formatCount(t))) }],
      series: [{}, { ...line, stroke: color("compute") }, { ...line, stroke: color("down") }, { ...line, stroke: color("accent") }],
    };
  }

  rows(u, i) {
    const rows = [[null, "step", formatWhole(u.data[0][i])]];
    ["chosen", "rejected", "margin"].forEach((name, n) => rows.push([color(["compute", "down", "accent"][n]), name, formatLoss(u.data[n + 1][i])]));
    rows.push([null, "accuracy", formatPercent(this.accuracy[i])]);
    return rows;
  }

  update({ rewards }) {
    this.made.hidden = !rewards;
    if (!rewards) return;
    this.accuracy = rewards.accuracy;
    const held = rewards.held_out.at(-1);
    put(this.tools, el("div", { class: "legend" },
      ...[["compute", "chosen"], ["down", "rejected"], ["accent", "margin"]].map(([name, words]) =>
        el("span", {}, el("i", { class: "line", style: { background: `var(--${name})` } }), words)),
      el("span", {}, `accuracy ${formatPercent(rewards.accuracy.at(-1))}`),
      held && el("span", {}, `held out: margin ${formatLoss(held[1])}, accuracy ${formatPercent(held[2])}`)));
    this.chart.show([rewards.step, rewards.chosen, rewards.rejected, rewards.margin]);
  }
}

// The norm of the gradient before it is clipped: the mean of the steps under a point, up to the
// largest of them, and the norm that it is clipped to.
export class Gradient {
  constructor(host, tools) {
    this.tools = tools;
    this.chart = new Chart(host, () => this.options(), (u, i) => this.rows(u, i));
  }

  options() {
    const line = { points: { show: false } };
    return {
      scales: { x: { time: false }, y: { distr: 3 } },
      axes: [{ ...STEPS, size: 30 }, { values: (u, ticks) => ticks.map((t) => (t === null ? "" : formatCount(t))) }],
      series: [{},
        { ...line, stroke: color("dim"), width: 1.5, dash: [6, 4] },
        { ...line, stroke: faded("communicate", 0.45), width: 1 }, { ...line, stroke: color("communicate"), width: 2 }],
      bands: [{ series: [2, 3], fill: faded("communicate", 0.14) }],
    };
  }

  rows(u, i) {
    const [clip, high, mean] = [1, 2, 3].map((n) => u.data[n][i]);
    const rows = [[null, "step", formatWhole(u.data[0][i])], [color("communicate"), "gradient norm", formatCount(mean)]];
    if (high > mean) rows.push([null, "up to", formatCount(high)]);
    if (clip) rows.push([color("dim"), "clipped to", formatCount(clip)]);
    return rows;
  }

  update(curve) {
    const above = (values) => (values ?? []).map((value) => (value > 0 ? value : null)); // the scale is logarithmic
    put(this.tools, curve.clip && el("div", { class: "legend" },
      el("span", {}, el("i", { class: "line", style: { background: "var(--dim)" } }), `clipped to ${formatCount(curve.clip)}`)));
    this.chart.show([curve.step, curve.step.map(() => curve.clip || null), above(curve.grad_norm_high), above(curve.grad_norm)]);
  }
}

export class Speed {
  constructor(host, tools) {
    this.tools = tools;
    this.perToken = null;
    this.chart = new Chart(host, () => this.options(), (u, i) => this.rows(u, i));
  }

  options() {
    const line = { points: { show: false } };
    const axes = [{ ...STEPS, size: 30 }, { values: (u, ticks) => ticks.map((t) => formatCount(t)) }];
    if (this.perToken) {
      axes.push({ side: 1, grid: { show: false }, size: 44, values: (u, ticks) => ticks.map((t) => `${(100 * t * this.perToken).toFixed(0)}%`) });
    }
    return {
      // From zero: half the height is half the speed.
      scales: { x: { time: false }, y: { range: (u, low, high) => [0, Math.max(1e-9, high) * 1.12] } },
      axes,
      series: [{},
        { ...line, stroke: "transparent" }, { ...line, stroke: "transparent" },
        { ...line, stroke: color("dim"), width: 1.5, dash: [6, 4] },
        { ...line, stroke: faded("compute", 0.3), width: 1 },
        { ...line, stroke: color("compute"), width: 2 }],
      bands: [{ series: [1, 2], fill: faded("dim", 0.14) }],
    };
  }

  rows(u, i) {
    const value = u.data[5][i];
    const mfu = this.perToken ? `, ${formatPercent(value * this.perToken, 1)} MFU` : "";
    const rows = [[null, "step", formatWhole(u.data[0][i])], [color("compute"), "tokens/s", formatCount(value, 4) + mfu]];
    const [high, low, plan] = [1, 2, 3].map((n) => u.data[n][i]);
    if (Number.isFinite(plan)) rows.push([color("dim"), "planned", formatCount(plan, 4)]);
    if (Number.isFinite(low)) rows.push([null, "its band", `${formatCount(low)} – ${formatCount(high)}`]);
    return rows;
  }

  update(speed) {
    const plan = speed.plan;
    put(this.tools, el("div", { class: "legend" },
      el("span", {}, el("i", { class: "line", style: { background: "var(--compute)" } }), "measured"),
      plan && el("span", {}, el("i", { class: "line", style: { background: "var(--dim)" } }),
        plan.low ? "plan and its band" : "plan"),
      speed.mfu_per_token && el("span", {}, "right: MFU")));
    const same = (value) => speed.step.map(() => value ?? null);
    const changed = this.perToken !== speed.mfu_per_token;
    this.perToken = speed.mfu_per_token;
    this.chart.show([speed.step, same(plan?.high), same(plan?.low), same(plan?.tokens_per_s), speed.tokens_per_s, smooth(speed.tokens_per_s)]);
    if (changed) this.chart.make();
  }
}

export class Where {
  constructor(host, tools) {
    this.tools = tools;
    this.causes = [];
    this.chart = new Chart(host, () => this.options(), (u, i) => this.rows(i));
  }

  options() {
    return {
      scales: { x: { time: true }, y: { range: [0, 1] } },
      axes: [{ size: 30, space: 80, values: (u, ticks, axis, space, step) => ticks.map((t) => moment(t, step)) }, { values: (u, ticks) => ticks.map((t) => `${Math.round(100 * t)}%`) }],
      // Each area reaches down to zero; the next one, which is lower, is drawn over it.
      series: [{}, ...this.causes.map((cause) => ({ fill: color(cause), stroke: color(cause), width: 0.5,
        points: { show: false }, paths: window.uPlot.paths.stepped({ align: 1 }) }))],
    };
  }

  rows(i) {
    const total = this.totals[i];
    if (!total) return [];
    const shares = this.causes.map((cause, n) => [cause, this.seconds[n][i] / total]);
    const rows = shares.filter((one) => one[1] >= 0.0005).sort((a, b) => b[1] - a[1]);
    return [[null, "at", clock(this.edges[i])], ...rows.map(([cause, share]) => [color(cause), cause, formatPercent(share)])];
  }

  update(where) {
    const used = where.causes.map((cause, n) => [cause, n]).filter(([, n]) => where.seconds[n].some((s) => s > 0));
    const order = used.reverse(); // the highest first: it is drawn first
    const before = this.causes.join();
    this.causes = order.map(([cause]) => cause);
    this.seconds = order.map(([, n]) => where.seconds[n]);
    this.edges = where.edges;
    this.totals = where.edges.slice(1).map((_, i) => this.seconds.reduce((sum, one) => sum + one[i], 0));
    const stacked = order.map((_, n) => this.totals.map((total, i) => total > 0
      ? this.seconds.slice(n).reduce((sum, one) => sum + one[i], 0) / total : null));
    const whole = this.totals.reduce((sum, one) => sum + one, 0);
    const seen = this.causes.filter((_, n) => this.seconds[n].reduce((sum, one) => sum + one, 0) > 0.0005 * whole);
    put(this.tools, el("div", { class: "legend" }, seen.reverse().map((cause) =>
      el("span", {}, el("i", { style: { background: `var(--${cause})` } }), cause))));
    const changed = before !== this.causes.join();
    this.chart.show([where.edges, ...stacked.map((one) => [...one, one[one.length - 1] ?? null])]);
    if (changed) this.chart.make();
  }
}
