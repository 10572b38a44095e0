// Energy, money and carbon, so far and to go, each with its source.
import { el, facts, put, table } from "./dom.js";
import { formatEnergy, formatMass, formatPercent, formatUsd } from "./format.js";

const J_PER_KWH = 3.6e6;
const known = (x) => x !== null && x !== undefined;

// The cost if it is known, else the energy, for the row of big figures.
export function spendingFigure({ energy, costs }, figure) {
  const toGo = (x, say) => (x ? `${say(x)} to go` : "");
  if (known(costs.usd)) return figure("cost", formatUsd(costs.usd), "", toGo(costs.usd_to_go, formatUsd) || "so far");
  if (!energy) return null;
  const [value, name] = formatEnergy((energy.facility_j ?? energy.node_j).joules).split(" ");
  return figure("energy", value, name, toGo(costs.kwh_to_go, (kwh) => formatEnergy(J_PER_KWH * kwh)) || (energy.facility_j ?? energy.node_j).source);
}

export function spending({ body, tools }, { energy, costs }) {
  if (!energy && !known(costs.usd)) {
    return put(body, el("p", { class: "none" }, "The energy of this machine is not known."), how(costs.notes));
  }
  put(tools, energy && el("span", {}, `accelerators ${energy.accelerator_j.source}`));
  const amount = (one) => [formatEnergy(one.joules), el("span", { class: "dim" }, `  ${formatEnergy(one.low)} – ${formatEnergy(one.high)}`)];
  const both = (now, toGo, say) => [say(now), el("span", { class: "dim" }, toGo ? `, ${say(toGo)} to go` : "")];
  put(body,
    facts([
      known(costs.usd) ? ["cost", both(costs.usd, costs.usd_to_go, formatUsd)] : ["cost", el("span", { class: "dim" }, "no price known")],
      known(costs.kwh) && ["energy", both(J_PER_KWH * costs.kwh, known(costs.kwh_to_go) ? J_PER_KWH * costs.kwh_to_go : null, formatEnergy)],
      energy && ["accelerators", amount(energy.accelerator_j)],
      energy && ["machines", amount(energy.node_j)],
      energy?.facility_j && ["with cooling", amount(energy.facility_j)],
      known(energy?.watts_now) && ["draws now", `${Math.round(energy.watts_now).toLocaleString("en")} W`],
    ].filter(Boolean)),
    energy && strip(energy.by_cause_j),
    el("details", { id: "carbon" }, el("summary", {}, "CO₂e"),
      known(costs.gco2e) ? facts([["so far", formatMass(costs.gco2e)], costs.gco2e_to_go && ["to go", formatMass(costs.gco2e_to_go)]])
        : el("p", { class: "dim" }, costs.notes.find((note) => note.startsWith("CO2e")) ?? "not known")),
    energy?.devices.length ? devices(energy.devices) : null,
    how([...costs.notes, ...(energy?.notes ?? [])]));
}

// What the energy went to, in one line of colours.
function strip(joules) {
  const total = Object.values(joules).reduce((sum, one) => sum + one, 0) || 1;
  return el("div", { class: "strip" }, Object.entries(joules).filter(([, j]) => j > 0).map(([cause, j]) =>
    el("i", { title: `${cause} ${formatEnergy(j)}, ${formatPercent(j / total)}`, style: { background: `var(--${cause})`, width: `${(100 * j) / total}%` } })));
}

function devices(found) {
  const or = (x, name) => (known(x) ? `${Math.round(x)} ${name}` : "–");
  return el("details", {}, el("summary", {}, `${found.length} metered`),
    table(["device", ">draws", ">limit", ">clock", ">heat", ">energy"], found.map((one) => [
      one.name, or(one.watts, "W"), or(one.limit_w, "W"), or(one.clock_mhz, "MHz"), or(one.temperature_c, "°C"), formatEnergy(one.joules)])));
}

function how(notes) {
  return el("details", {}, el("summary", {}, "How this is known"), el("ul", { class: "notes" }, [...new Set(notes)].map((note) => el("li", {}, note))));
}
