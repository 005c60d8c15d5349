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
  if (Math.abs(seconds) < 7200) return `${trimmed(seconds / 60)} min`;
  return Math.abs(seconds) < 172_800 ? `${trimmed(seconds / 3600)} h` : `${trimmed(seconds / 86_400)} d`;
}

function bytes(value) {
  const step = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (Math.abs(value) >= 1024 && i < step.length - 1) { value /= 1024; i += 1; }
  return `${trimmed(value)} ${step[i]}`;
}

/**
 * A chart inside an element. `series` are `{label, unit, color?}`, `color` a CSS colour or variable;
 * `window_s` is how many seconds it shows. `push(time, values)` adds a point: `time` in seconds since
 * 1970, one value per series, null where there is none. `set(times, columns)` replaces all points.
 */
export function chart(element, { title = "", series, window_s = 120 }) {
  const shown = series.map((one, i) => ({ unit: "", color: `var(--chart-${(i % 6) + 1})`, ...one }));
  const data = [[], ...shown.map(() => [])];
  const { figure, plot, values } = framed(title, shown);
  element.append(figure);
  const drawn = new uPlot(options(shown, plot, show), data, plot);
  let frame = 0;

  function show(index) {
    const last = data[0].length - 1;
    shown.forEach((one, i) => { values[i].textContent = format(data[i + 1][index ?? last], one.unit); });
  }

  function draw() {
    frame = 0;
    const to = data[0].at(-1) ?? Date.now() / 1000;
    const from = Number.isFinite(window_s) ? to - window_s : data[0][0] ?? to - 1;
    drawn.batch(() => {
      drawn.setData(data, false);
      drawn.setScale("x", { min: from, max: to });
    });
    show(drawn.cursor.idx);
  }

  const later = () => { frame ||= requestAnimationFrame(draw); };
  const sized = new ResizeObserver(() => drawn.setSize(sizeOf(plot)));
  const recolour = () => drawn.redraw(false);
  sized.observe(plot);
  addEventListener("themechange", recolour);
  later();

  return {
    push(time, given) {
      data[0].push(time);
      given.forEach((value, i) => data[i + 1].push(value ?? null));
      // One point before the window stays, so that the line comes in from the edge.
      while (data[0].length > 2 && data[0][1] < time - window_s) data.forEach((column) => column.shift());
      later();
    },
    set(times, columns) {
      [times, ...columns].forEach((column, i) => { data[i] = [...column]; });
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

function framed(title, shown) {
  const figure = document.createElement("figure");
  figure.className = "chart";
  const caption = document.createElement("figcaption");
  caption.textContent = title;
  const legend = document.createElement("ul");
  legend.className = "legend";
  const values = shown.map((one) => {
    const [item, swatch, value] = ["li", "i", "b"].map((tag) => document.createElement(tag));
    swatch.style.background = one.color;
    item.append(swatch, `${one.label} `, value);
    legend.append(item);
    return value;
  });
  const plot = document.createElement("div");
  plot.className = "plot";
  figure.append(caption, legend, plot);
  return { figure, plot, values };
}

function options(shown, plot, show) {
  const resolved = (color) => color.replace(/^var\((.+)\)$/, (_, name) => styled(plot, name));
  const axis = { stroke: () => styled(plot, "--soft"), font: "11px system-ui, sans-serif",
    ticks: { show: false }, grid: { stroke: () => styled(plot, "--grid"), width: 1 } };
  return {
    ...sizeOf(plot),
    padding: [8, 8, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
    scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.08 : 1] } },
    axes: [
      { ...axis, space: 70, size: 24, values: (_, ticks) => ticks.map(timeOfDay) },
      { ...axis, space: 34, size: 56, values: (_, ticks) => ticks.map((one) => format(one, shown[0].unit)) },
    ],
    series: [{}, ...shown.map((one) => ({ label: one.label, width: 1.75, points: { show: false },
      stroke: () => resolved(one.color), spanGaps: false }))],
    hooks: { setCursor: [(u) => show(u.cursor.idx)] },
  };
}

function sizeOf(plot) {
  return { width: Math.max(plot.clientWidth, 120), height: Math.max(plot.clientHeight, 80) };
}

function styled(element, name) {
  return getComputedStyle(element).getPropertyValue(name).trim() || "#888";
}

function timeOfDay(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hourCycle: "h23" });
}
