// A cell for each rank, coloured by its state. Above 2,048 ranks a cell stands for several.
import { el, put } from "./dom.js";
import { formatWhole } from "./format.js";

const STATES = { f: "fine", s: "slow", d: "down", u: "starting", e: "ended", n: "not started" };
const WORST = "dusnfe"; // what a cell of several ranks shows
const CAUSES = ["compute", "communicate", "bubble", "peer_wait", "data_wait", "checkpoint", "evaluate", "startup",
  "down", "redo", "unexplained"];
const MOST_CELLS = 2048;

export class Ranks {
  constructor(host, tools) {
    this.tools = tools;
    this.grid = el("div", { class: "ranks", role: "img" });
    this.told = el("div", { class: "told" });
    this.cells = [];
    this.grid.addEventListener("pointerover", (event) => this.tell(event.target.closest(".rank")?.dataset.rank));
    this.grid.addEventListener("pointerleave", () => this.tell(undefined));
    put(host, this.grid, this.told);
  }

  update(ranks) {
    this.ranks = ranks;
    const count = ranks.letters.length;
    this.each = Math.max(1, Math.ceil(count / MOST_CELLS));
    const cells = Math.ceil(count / this.each);
    if (cells !== this.cells.length) this.lay(cells);
    this.cells.forEach((cell, n) => this.paint(cell, n));
    put(this.tools, el("div", { class: "legend" }, Object.entries(ranks.counts).map(([state, many]) =>
      el("span", {}, el("i", { class: "dot rank", "data-state": state }), `${formatWhole(many)} ${state}`))));
    const counted = Object.entries(ranks.counts).map(([state, many]) => `${many} ${state}`).join(", ");
    this.grid.setAttribute("aria-label", `${count} ranks: ${counted}`);
    this.tell(this.over);
  }

  lay(cells) {
    this.grid.dataset.size = cells <= 8 ? "xl" : cells <= 64 ? "l" : cells <= 320 ? "m" : "s";
    this.cells = Array.from({ length: cells }, (_, n) =>
      el("div", { class: "rank", "data-rank": n }, cells <= 8 ? `rank ${n}` : cells <= 64 ? String(n * this.each) : "",
        cells <= 8 && [el("small"), el("div", { class: "strip" })]));
    this.grid.replaceChildren(...this.cells);
  }

  paint(cell, n) {
    const part = this.ranks.letters.slice(n * this.each, (n + 1) * this.each);
    const letter = [...WORST].find((one) => part.includes(one)) ?? "n";
    const state = STATES[letter];
    if (cell.dataset.state !== state) cell.dataset.state = state;
    if (this.each === 1 && this.ranks.fell?.[n]) cell.dataset.fell = "";
    else delete cell.dataset.fell;
    if (!cell.firstElementChild) return;
    const [more, strip] = cell.children;
    const working = state === "fine" || state === "slow";
    more.textContent = `${state}${working ? `, computes ${this.ranks.compute[n] ?? 0}%` : ""}`;
    strip.replaceChildren(...(this.ranks.causes[n] ?? []).map((share, i) => [CAUSES[i], share]).filter((one) => one[1])
      .map(([cause, share]) => el("i", { title: `${cause} ${share}%`, style: { background: `var(--${cause})`, width: `${share}%` } })));
  }

  tell(over) {
    this.over = over;
    const { ranks } = this;
    if (over !== undefined && ranks) {
      const n = Number(over) * this.each;
      const last = Math.min(n + this.each, ranks.letters.length) - 1;
      const name = last > n ? `ranks ${n}–${last}` : `rank ${n}`;
      const parts = [`${name}: ${this.cells[over]?.dataset.state}`, ranks.why[n]];
      if (ranks.compute[n] !== undefined && ranks.compute[n] !== null) {
        parts.push(`computes ${ranks.compute[n]}%, waits for others ${ranks.waits[n]}%`);
      }
      if (ranks.fell?.[n]) parts.push(`fell ${ranks.fell[n]} ×`);
      this.told.textContent = parts.filter(Boolean).join(" · ");
      return;
    }
    const why = Object.entries(ranks?.why ?? {}).slice(0, 3).map(([rank, words]) => `rank ${rank}: ${words}`);
    this.told.textContent = why.join(" · ");
  }
}
