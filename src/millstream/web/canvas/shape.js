// Rectangles and places as they come from other clients: anything may come, only numbers that fit count.

export const WIDTH = 1600;
export const HEIGHT = 900;
export const SIZE_MIN = 12; // a smaller one was a click
export const TINTS = 8;

const between = (value, low, high) => Math.min(Math.max(value, low), high);
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A rectangle that lies on the canvas; null if the data is none. */
export function readShape(data) {
  if (![data?.x, data?.y, data?.w, data?.h].every(isNumber)) return null;
  const w = between(data.w, SIZE_MIN, WIDTH);
  const h = between(data.h, SIZE_MIN, HEIGHT);
  return { x: between(data.x, 0, WIDTH - w), y: between(data.y, 0, HEIGHT - h), w, h, by: nameOf(data.by) };
}

/** A place on the canvas; null if the data is none. */
export function readPlace(data) {
  if (!isNumber(data?.x) || !isNumber(data?.y)) return null;
  return { x: between(data.x, 0, WIDTH), y: between(data.y, 0, HEIGHT) };
}

/** The rectangle between two corners; null if it is too small to be meant. */
export function spanned(from, to) {
  const [w, h] = [Math.abs(to.x - from.x), Math.abs(to.y - from.y)];
  return w < SIZE_MIN || h < SIZE_MIN ? null : { x: Math.min(from.x, to.x), y: Math.min(from.y, to.y), w, h };
}

/** A rectangle moved by so much, as far as the canvas goes. */
export function moved(shape, dx, dy) {
  return readShape({ ...shape, x: Math.round(shape.x + dx), y: Math.round(shape.y + dy) });
}

/** The colour of a name: the same on every screen, and nothing that anybody sends. */
export function tintOf(name) {
  let sum = 7;
  for (const char of String(name)) sum = (sum * 31 + char.codePointAt(0)) % 1_000_003;
  return `tint-${sum % TINTS}`;
}

function nameOf(value) {
  return typeof value === "string" ? value.slice(0, 80) : "";
}
