// Several runs on one page: curves over each other, key numbers and what differs side by side.
import { Chart, joined, smooth } from "./charts.js";
import { color, el, faded, put } from "./dom.js";
import { formatCount, formatDuration, formatEnergy, formatLoss, formatPercent, formatUsd, formatWhole } from "./format.js";
import { pill } from "./list.js";

const J_PER_KWH = 3.6e6;
const TONES = ["accent", "data_wait", "checkpoint", "good", "bad", "communicate", "peer_wait", "evaluate", "redo", "startup", "bubble", "dim"];
const ROWS = [
  ["step", (h) => `${formatWhole(h.step)} of ${formatWhole(h.steps)}`],
  ["loss", (h) => formatLoss(h.loss), (h) => -h.loss, true],
  ["validation", (h) => formatLoss(h.val_loss), (h) => -h.val_loss, true],
  ["tokens/s", (h) => formatCount(h.tokens_per_s), (h) => h.tokens_per_s],
  ["MFU", (h) => formatPercent(h.mfu), (h) => h.mfu],
  ["useful", (h) => formatPercent(h.useful), (h) => h.useful],
  ["effective", (h) => formatPercent(h.effective), (h) => h.effective],
  ["wall-clock", (h) => formatDuration(h.wall_s)],
  ["tokens", (h) => formatCount(h.tokens)],
  ["cost", (h) => (h.usd === null || h.usd === undefined ? "–" : formatUsd(h.usd))],
  ["energy", (h) => (h.kwh === null || h.kwh === undefined ? "–" : formatEnergy(J_PER_KWH * h.kwh))],
  ["faults", (h) => formatWhole(h.faults)],
  ["ranks", (h) => formatWhole(h.ranks)],
  ["machine", (h) => h.machine ?? "–"],
];

// As `watch/report/sweep.py`: a loss is per token, and the plan of an earlier version names no tokenizer.
const alike = (one, other) => (one.tokenizer && other.tokenizer ? one.tokenizer === other.tokenizer : one.dataset === other.dataset);
const NOTE_KIND = "The runs have different objectives, or other values of them, so their losses are other numbers: they cannot be compared, and none is marked as the best.";
const ACCURACY = ["accuracy", (h) => formatPercent(h.accuracy), (h) => h.accuracy, true]; // of pairs
const NOTE = "The runs have different tokenizers, and a loss is per token: the losses cannot be compared, so none is marked as the best.";

export class Compare {
  constructor(host, runs) {
    this.runs = runs;
    this.known = Object.fromEntries(runs.map((run) => [run, {}]));
    const card = (id, title, width, body) => [body, el("section", { class: `card ${width}`, id }, el("header", {}, el("h2", {}, title), el("div", { class: "legend" })), body)];
    const [loss, lossCard] = card("curve", "Loss", "w6", el("div", { class: "chart" }));
    const [speed, speedCard] = card("speed", "Tokens per second", "w6", el("div", { class: "chart" }));
    const [numbers, numbersCard] = card("numbers", "Key numbers", "", el("div", { class: "scroll" }));
    const [fields, fieldsCard] = card("fields", "What differs in their run files", "", el("div", { class: "scroll" }));
    Object.assign(this, { numbers, fields });
    put(lossCard.querySelector(".legend"), el("span", {}, "line: training"), el("span", {}, "dots: validation"));
    const chips = runs.map((run, n) => el("span", { class: "chip" }, el("i", { style: { background: `var(--${TONES[n]})` } }),
      el("a", { href: this.link([run]) }, run),
      el("button", { type: "button", title: "Leave out", onclick: () => location.assign(this.link(runs.filter((_, m) => m !== n))) }, "×")));
    put(host, el("div", { class: "title" }, el("h1", {}, `${runs.length} runs`), el("div", { class: "chips" }, chips)),
      el("div", { class: "grid" }, lossCard, speedCard, numbersCard, fieldsCard));
    this.loss = new Chart(loss, () => this.losses(), (u, i) => this.rows(u, i, formatLoss));
    this.speed = new Chart(speed, () => this.options(true), (u, i) => this.rows(u, i, (v) => formatCount(v, 4)));
    document.title = `${runs.length} runs · Penstock`;
  }

  link(runs) {
    return `/?${runs.map((run) => `run=${encodeURIComponent(run)}`).join("&")}`;
  }

  options(fromZero = false) {
    return {
      scales: { x: { time: false }, ...(fromZero ? { y: { range: (u, low, high) => [0, high * 1.12] } } : {}) },
      axes: [{ size: 30, values: (u, ticks) => ticks.map((t) => (Number.isInteger(t) ? formatCount(t) : "")) },
        { values: (u, ticks) => ticks.map((t) => formatCount(t)) }],
      series: [{}, ...this.runs.map((_, n) => ({ stroke: color(TONES[n]), width: 2, spanGaps: true, points: { show: false } }))],
    };
  }

  // Training and, in the same colours, validation.
  losses() {
    const options = this.options();
    const held = this.runs.map((_, n) => ({ stroke: faded(TONES[n], 0.55), width: 1.5, dash: [5, 4], spanGaps: true,
      points: { show: true, size: 7, fill: color(TONES[n]), width: 0 } }));
    return { ...options, series: [...options.series, ...held] };
  }

  rows(u, i, say) {
    const named = [...this.runs, ...this.runs.map((run) => `${run}, validation`)].slice(0, u.data.length - 1);
    const found = named.map((name, n) => [color(TONES[n % this.runs.length]), name, u.data[n + 1][i]]).filter((row) => Number.isFinite(row[2]));
    return found.length ? [[null, "step", formatWhole(u.data[0][i])], ...found.map(([tone, run, v]) => [tone, run, say(v)])] : [];
  }

  update(changes) {
    for (const [run, changed] of Object.entries(changes)) Object.assign(this.known[run] ?? {}, changed);
    const all = this.runs.map((run) => this.known[run]);
    const curve = (section, name) => [section?.step ?? [], smooth(section?.[name] ?? [])];
    const held = all.map((one) => one.curve?.validation ?? []).map((points) => [points.map((v) => v[0]), points.map((v) => v[1])]);
    this.loss.show(joined([...all.map((one) => curve(one.curve, "loss")), ...held]));
    this.speed.show(joined(all.map((one) => curve(one.speed, "tokens_per_s"))));
    this.compare(all.map((one) => ({ ...one.headline, ...one.energy?.costs })));
    this.differ(all.map((one) => one.fields?.values ?? {}));
  }

  compare(heads) {
    const known = heads.filter((h) => h.name && !h.problem);
    const sameTokens = known.every((h) => alike(known[0], h));
    const sameKind = new Set(known.map((h) => h.loss_kind ?? null)).size < 2;
    const comparable = sameTokens && sameKind;
    const rows = known.some((h) => Number.isFinite(h.accuracy)) ? [...ROWS.slice(0, 3), ACCURACY, ...ROWS.slice(3)] : ROWS;
    const best = (rank) => {
      const values = heads.map((h) => (rank && !h.problem ? rank(h) : NaN)).map((v) => (v === null ? NaN : v));
      const found = new Set(values.filter(Number.isFinite)); // equal ones: none is the best
      return values.map((v) => found.size > 1 && v === Math.max(...found));
    };
    put(this.numbers, !comparable && el("p", { class: "says" }, sameTokens ? NOTE_KIND : NOTE), el("table", {},
      el("thead", {}, el("tr", {}, el("th", {}, ""), this.runs.map((run, n) => el("th", { class: "n" },
        el("span", { class: "cause" }, el("i", { style: { background: `var(--${TONES[n]})` } }), run))))),
      el("tbody", {}, el("tr", {}, el("td", { class: "dim" }, "status"), heads.map((h) => el("td", { class: "n" }, pill(h.status ?? "?")))),
        rows.map(([name, say, rank, ofLoss]) => {
          const top = best(ofLoss && !comparable ? null : rank);
          return el("tr", {}, el("td", { class: "dim" }, name), heads.map((h, n) =>
            el("td", { class: `n ${top[n] ? "best" : ""}` }, h.problem ? "–" : say(h))));
        }))));
  }

  differ(values) {
    const names = [...new Set(values.flatMap((one) => Object.keys(one)))].sort();
    const differing = names.filter((name) => name !== "name" && name !== "dir" && new Set(values.map((one) => one[name])).size > 1);
    if (!differing.length) return put(this.fields, el("p", { class: "none" }, "Their run files say the same."));
    put(this.fields, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, ""), this.runs.map((run) => el("th", { class: "n" }, run)))), el("tbody", {}, differing.map((name) =>
      el("tr", {}, el("td", { class: "dim" }, name), values.map((one) => el("td", { class: "n" }, (one[name] ?? "–").replace(/^"(.*)"$/, "$1"))))))));
  }
}
