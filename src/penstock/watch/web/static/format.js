// Numbers for people. The same formats as `penstock/style.py`: a browser test compares the two.

const known = (x) => x !== null && x !== undefined && Number.isFinite(x);
// toFixed rounds the exact value as Python does; toLocaleString alone would round its shortest text.
const grouped = (x, digits = 0) => Number(x.toFixed(digits)).toLocaleString("en", { minimumFractionDigits: digits });
const threeDigits = (x) => grouped(x, x >= 100 ? 0 : x >= 10 ? 1 : 2);

export function formatDuration(seconds) {
  if (!known(seconds)) return "–";
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const s = Math.round(seconds);
  const two = (x) => String(x).padStart(2, "0");
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${two(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor((s % 3600) / 60))} min`;
  return `${Math.floor(s / 86400)} d ${two(Math.floor((s % 86400) / 3600))} h`;
}

export function formatCount(x, digits = 3) {
  if (!known(x)) return "–";
  for (const [unit, size] of [["T", 1e12], ["B", 1e9], ["M", 1e6], ["K", 1e3]]) {
    const scaled = Math.abs(x) / size;
    if (scaled >= 999.5) return grouped(x / size) + unit;
    if (scaled >= 0.9995) return Number((x / size).toPrecision(digits)) + unit;
  }
  return String(Number(x.toPrecision(digits)));
}

export function formatBytes(x) {
  if (!known(x)) return "–";
  for (const [unit, power] of [["TiB", 4], ["GiB", 3], ["MiB", 2], ["KiB", 1]]) {
    if (x >= 1024 ** power) return `${(x / 1024 ** power).toFixed(1)} ${unit}`;
  }
  return `${grouped(x)} B`;
}

export function formatEnergy(joules) {
  for (const [unit, size] of [["MWh", 3.6e9], ["kWh", 3.6e6], ["Wh", 3.6e3]]) {
    if (joules >= size) return `${threeDigits(joules / size)} ${unit}`;
  }
  return `${joules.toFixed(0)} J`;
}

export function formatMass(grams) {
  for (const [unit, size] of [["t", 1e6], ["kg", 1e3], ["g", 1]]) {
    if (grams >= size) return `${threeDigits(grams / size)} ${unit}`;
  }
  return `${threeDigits(grams * 1e3)} mg`;
}

export function formatUsd(usd) {
  if (usd >= 1000) return `$${grouped(usd)}`;
  return `$${usd.toFixed(usd >= 0.095 || usd < 1e-6 ? 2 : 1 - Math.floor(Math.log10(usd)))}`;
}

export const formatLoss = (x) => (known(x) ? x.toFixed(3) : "–");
export const formatWhole = (x) => (known(x) ? Math.round(x).toLocaleString("en") : "–");
export const formatPercent = (x, digits = 1) => (known(x) ? `${(100 * x).toFixed(digits)}%` : "–");
export const formatSigned = (x) => `${x >= 0 ? "+" : "−"}${Math.abs(100 * x).toFixed(0)}%`;

export function clock(t, withDay = false) {
  const date = new Date(1000 * t);
  const time = date.toLocaleTimeString("en-GB");
  return withDay || Date.now() / 1000 - t > 86400
    ? `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`
    : time;
}

export function ago(t) {
  return `${formatDuration(Math.max(0, Date.now() / 1000 - t))} ago`;
}
