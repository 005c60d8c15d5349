// Charts over uPlot: lines along time, in the colours of look.css.
//
//   const rates = chart(element, { title: "Rates", series: [{ label: "appended", unit: "/s" }], window_s: 120 });
//   rates.push(Date.now() / 1000, [41.5]);
//
// A chart draws at most once per frame, takes its width from its element, and follows light and dark.
// A page with charts links look.css and vendor/uplot.css.
import uPlot from "./vendor/uplot.js";

const SIZES = [[1e9, "G"], [1e6, "M"], [1e4, "k", 1e3]];

/** A number as people read it: to three digits, with its unit (`s`, `bytes`, `/s`, `%` or any word). */
export function format(value, unit = "") {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (unit === "s") return duration(value);
  if (unit === "bytes") return bytes(value);
  return `${count(value)}${unit && unit[0] !== "/" && unit !== "%" ? " " : ""}${unit}`;
}

function count(value) {
  for (const [limit, letter, by = limit] of SIZES) {
    if (Math.abs(value) >= limit) return `${trimmed(value / by)}${letter}`;
  }
  return Number.isInteger(value) ? value.toLocaleString("en") : trimmed(value);
}

function trimmed(value) {
  return String(Number(Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3)));
}

function duration(seconds) {
  if (seconds === 0) return "0 s";
  if (Math.abs(seconds) < 1) return `${trimmed(seconds * 1000)} ms`;
  if (Math.abs(seconds) < 120) return `${trimmed(seconds)} s`;
  if (Math.abs(seconds) < 7200) return twoUnits(seconds / 60, "min", 60, "s");
  return Math.abs(seconds) < 172_800 ? twoUnits(seconds / 3600, "h", 60, "min") : twoUnits(seconds / 86_400, "d", 24, "h");
}

/** “5 min 4 s”, “17 min”: the smaller unit only where it tells something. */
function twoUnits(value, unit, parts, smaller) {
  const all = Math.round(value * parts);
  const [whole, rest] = [Math.floor(all / parts), all % parts];
  return rest && whole < 10 ? `${whole} ${unit} ${rest} ${smaller}` : `${Math.round(value)} ${unit}`;
}

function bytes(value) {
  const step = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (Math.abs(value) >= 1024 && i < step.length - 1) { value /= 1024; i += 1; }
  return `${trimmed(value)} ${step[i]}`;
}

/**
 * A chart inside an element.
 *
 * `series` are `{label, unit, color?, bars?}`: `color` is a CSS colour or `var(--name)`; those with `bars`
 * are stacked, the first one lowest. `window_s` is how many seconds show, Infinity: all. `utc`: times are
 * told in UTC. `push(time, values)` adds a point: `time` in seconds since 1970, one value per series, null
 * where there is none. `set(times, columns)` replaces all points.
 */
export function chart(element, { title = "", series, window_s = 120, utc = false }) {
  const shown = series.map((one, i) => ({ unit: "", color: `var(--chart-${(i % 6) + 1})`, ...one }));
  const times = [];
  const columns = shown.map(() => []);
  const { figure, plot, values, moment } = framed(title, shown);
  element.append(figure);
  const order = drawingOrder(shown);
  const drawn = new uPlot(options(order.map((i) => shown[i]), { plot, utc, onMove: tell }), [[]], plot);
  let frame = 0;

  function tell() {
    const { idx } = drawn.cursor;
    shown.forEach((one, i) => { values[i].textContent = format(columns[i][idx ?? times.length - 1], one.unit); });
    moment.textContent = idx === null || idx === undefined ? "" : momentOf(times[idx], 1, utc);
  }

  function draw() {
    frame = 0;
    const last = times.at(-1) ?? Date.now() / 1000;
    // A bar stands around its time, and needs half a step beside it.
    const beside = shown.some((one) => one.bars) ? (times.length > 1 ? times[1] - times[0] : 60) / 2 : 0;
    const first = Number.isFinite(window_s) ? last - window_s : times[0] ?? last - 1;
    drawn.batch(() => {
      drawn.setData([times, ...stacked(shown, columns, order)], false);
      drawn.setScale("x", { min: first - beside, max: Math.max(last, first + 1) + beside });
    });
    tell();
  }

  const later = () => { frame ||= requestAnimationFrame(draw); };
  const sized = new ResizeObserver(() => drawn.setSize(sizeOf(plot)));
  const recolour = () => drawn.redraw(false);
  sized.observe(plot);
  addEventListener("themechange", recolour);
  later();

  return {
    push(time, given) {
      times.push(time);
      given.forEach((value, i) => columns[i].push(value ?? null));
      // One point before the window stays, so that the line comes in from the edge.
      while (times.length > 2 && times[1] < time - window_s) [times, ...columns].forEach((one) => one.shift());
      later();
    },
    set(given, several) {
      [times, ...columns].forEach((one, i) => one.splice(0, Infinity, ...[given, ...several][i]));
      later();
    },
    destroy() {
      cancelAnimationFrame(frame);
      removeEventListener("themechange", recolour);
      sized.disconnect();
      drawn.destroy();
      figure.remove();
    },
  };
}

/** Stacked bars are drawn from the highest to the lowest, each over the one before; then the lines. */
function drawingOrder(shown) {
  const all = shown.map((_, i) => i);
  return [...all.filter((i) => shown[i].bars).reverse(), ...all.filter((i) => !shown[i].bars)];
}

/** What is drawn of each series: its numbers, or of a bar their sum with those below. */
function stacked(shown, columns, order) {
  const below = (i) => columns.filter((_, j) => shown[j].bars && j <= i);
  return order.map((i) => (shown[i].bars
    ? columns[i].map((_, at) => below(i).reduce((sum, column) => sum + (column[at] ?? 0), 0))
    : columns[i]));
}

function framed(title, shown) {
  const [figure, caption, legend, moment, plot] = ["figure", "figcaption", "ul", "li", "div"]
    .map((tag) => document.createElement(tag));
  figure.className = "chart";
  caption.textContent = title;
  caption.hidden = !title;
  legend.className = "legend";
  const values = shown.map((one) => {
    const [item, swatch, value] = ["li", "i", "b"].map((tag) => document.createElement(tag));
    swatch.style.background = one.color;
    item.append(swatch, `${one.label} `, value);
    legend.append(item);
    return value;
  });
  legend.append(moment);
  plot.className = "plot";
  figure.append(caption, legend, plot);
  return { figure, plot, values, moment };
}

function options(drawn, { plot, utc, onMove }) {
  const resolved = (color) => color.replace(/^var\((.+)\)$/, (_, name) => styled(plot, name));
  const axis = { stroke: () => styled(plot, "--soft"), font: "11px system-ui, sans-serif",
    ticks: { show: false }, grid: { stroke: () => styled(plot, "--grid"), width: 1 } };
  const unit = drawn.at(-1).unit;
  return {
    ...sizeOf(plot),
    padding: [8, 32, 0, 0], // on the right half a label of the time axis needs its place
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
    tzDate: (seconds) => (utc ? uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC") : new Date(seconds * 1000)),
    scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.08 : 1] } },
    axes: [
      { ...axis, space: 70, size: 24, values: (_, ticks, __, ___, step) => ticks.map((one) => momentOf(one, step, utc)) },
      { ...axis, space: 34, size: widthOf, values: (_, ticks) => ticks.map((one) => format(one, unit)) },
    ],
    series: [{}, ...drawn.map((one) => ({
      label: one.label,
      stroke: () => resolved(one.color),
      ...(one.bars
        ? { width: 0, fill: () => resolved(one.color), paths: uPlot.paths.bars({ size: [0.76, 60] }), points: { show: false } }
        : { width: 1.75, points: { show: true, size: 5, filter: alone } }),
    }))],
    hooks: { setCursor: [onMove] },
  };
}

/** The numbers between two gaps, which no line shows. */
function alone(plotted, series) {
  const column = plotted.data[series];
  const isThere = (i) => column[i] !== null && column[i] !== undefined;
  return [...column.keys()].filter((i) => isThere(i) && !isThere(i - 1) && !isThere(i + 1));
}

/** The place of the labels beside a chart: "9 min 40 s" needs more than "1/s". */
function widthOf(_, labels) {
  return Math.max(56, 16 + 6 * Math.max(...(labels ?? [""]).map((label) => label.length)));
}

function sizeOf(plot) {
  return { width: Math.max(plot.clientWidth, 120), height: Math.max(plot.clientHeight, 80) };
}

function styled(element, name) {
  return getComputedStyle(element).getPropertyValue(name).trim() || "#888";
}

/** A moment as a label: as much of it as steps of that many seconds need. */
function momentOf(seconds, step, utc) {
  const zone = utc ? { timeZone: "UTC" } : {};
  const date = new Date(seconds * 1000);
  if (step >= 86_400) return date.toLocaleDateString("en-GB", { day: "2-digit", month: "short", ...zone });
  const second = step < 60 ? { second: "2-digit" } : {};
  return date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...second, ...zone });
}
