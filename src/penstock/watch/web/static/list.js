// The list of all runs, newest first; ticked runs can be compared.
import { el, put, svg } from "./dom.js";
import { ago, formatCount, formatDuration, formatLoss, formatPercent, formatWhole } from "./format.js";

export const TONES = { running: "running", done: "done", stopped: "stopped", "stopped early": "done", left: "stopped",
  failed: "bad", killed: "bad", unreadable: "bad", starting: "starting", down: "bad" };

export const pill = (status) => el("span", { class: "pill", "data-tone": TONES[status] ?? "" }, status);

export function spark(values) {
  const points = values.filter((v) => v !== null);
  if (points.length < 2) return el("span", { class: "dim" }, "–");
  const low = Math.min(...points);
  const span = Math.max(...points) - low || 1;
  const path = points.map((v, i) => `${i ? "L" : "M"}${(100 * i) / (points.length - 1)} ${28 - (26 * (v - low)) / span}`);
  return svg("svg", { class: "spark", viewBox: "0 0 100 30", preserveAspectRatio: "none" }, svg("path", { d: path.join("") }));
}

export class RunList {
  constructor(host) {
    this.chosen = new Set();
    this.go = el("a", { class: "go", hidden: "" });
    this.more = el("span", { class: "about" });
    this.body = el("div");
    put(host,
      el("div", { class: "title" }, el("h1", {}, "Runs"), this.more, this.go),
      el("section", { class: "card" }, this.body));
  }

  update(changes) {
    const { lines, more, root } = changes[""].runs;
    this.more.textContent = [root, more > 0 && `${more} older ones not shown`].filter(Boolean).join(" · ");
    const live = lines.filter((line) => line.status === "running").length;
    document.title = live ? `${live} running · Penstock` : "Penstock";
    if (!lines.length) {
      return put(this.body, el("p", { class: "none" },
        "No runs here yet. `penstock init` writes a run file, `penstock train` runs it."));
    }
    const heads = ["", "run", "status", "loss", "", "tokens/s", "useful", "ranks", "started"];
    put(this.body, el("table", { class: "runs" },
      el("thead", {}, el("tr", {}, heads.map((head) => el("th", {}, head)))),
      el("tbody", {}, lines.map((line) => this.row(line)))));
    this.offer();
  }

  row(line) {
    const tick = el("input", { type: "checkbox", "aria-label": `compare ${line.name}` });
    tick.checked = this.chosen.has(line.key);
    tick.addEventListener("change", () => {
      if (tick.checked) this.chosen.add(line.key);
      else this.chosen.delete(line.key);
      this.offer();
    });
    const share = line.steps ? line.step / line.steps : 0;
    const left = line.left_s === null || line.left_s === undefined ? "" : ` · ${formatDuration(line.left_s)} left`;
    return el("tr", {},
      el("td", {}, tick),
      el("td", {}, el("a", { class: "name", href: `/?run=${encodeURIComponent(line.key)}` }, line.name)),
      el("td", {}, pill(line.status)),
      el("td", { class: "wide" },
        el("b", {}, formatLoss(line.loss)),
        line.val_loss === null || line.val_loss === undefined ? null : el("span", { class: "dim" }, `  val ${formatLoss(line.val_loss)}`),
        line.problem && el("div", { class: "dim" }, line.problem)),
      el("td", { class: "wide" }, line.spark?.length > 1 ? spark(line.spark) : "",
        line.status === "running" && el("div", { class: "progress" }, el("i", { style: { width: `${100 * share}%` } })),
        el("div", { class: "dim" }, `step ${formatWhole(line.step)} of ${formatWhole(line.steps)}${left}`)),
      el("td", { class: "extra" }, formatCount(line.tokens_per_s)),
      el("td", { class: "extra" }, formatPercent(line.useful, 0)),
      el("td", { class: "extra" }, line.ranks ? formatWhole(line.ranks) : "–"),
      el("td", { class: "wide dim" }, line.began ? ago(line.began) : "–"));
  }

  offer() {
    this.go.hidden = this.chosen.size < 2;
    this.go.textContent = `Compare ${this.chosen.size}`;
    this.go.href = `/?${[...this.chosen].map((key) => `run=${encodeURIComponent(key)}`).join("&")}`;
  }
}
