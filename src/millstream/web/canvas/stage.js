// The stage: rectangles and pointers as SVG. It shows what it is given, and says where things are.
import { tintOf } from "./shape.js";

const SVG = "http://www.w3.org/2000/svg";
const svg = document.getElementById("stage");
const [shapes, pointers, sketch] = ["shapes", "pointers", "sketch"].map((id) => document.getElementById(id));
const drawn = new Map(); // key → the group that shows a rectangle
const shown = new Map(); // user → the group that shows a pointer

/** Where on the canvas an event happened. */
export function placeOf(event) {
  const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  return { x: Math.round(point.x), y: Math.round(point.y) };
}

/** The key of the rectangle that an event happened on. */
export function keyOf(event) {
  return event.target.closest?.(".shape")?.dataset.key ?? null;
}

/** Show these rectangles and no others: a Map from key to rectangle. */
export function showShapes(found, chosen) {
  for (const [key, group] of drawn) {
    if (found.has(key)) continue;
    group.remove();
    drawn.delete(key);
  }
  for (const [key, shape] of found) {
    const group = drawn.get(key) ?? begin(key);
    const [box, label] = group.children;
    set(box, { x: shape.x, y: shape.y, width: shape.w, height: shape.h });
    set(label, { x: shape.x + 12, y: shape.y + 28 });
    label.textContent = shape.by;
    set(group, { class: `shape ${tintOf(shape.by)}${key === chosen ? " chosen" : ""}`,
      "aria-label": `Rectangle by ${shape.by || "somebody"} at ${shape.x}, ${shape.y}` });
  }
}

function begin(key) {
  const group = make("g", { tabindex: 0, role: "img" }, make("rect"), make("text"));
  group.dataset.key = key;
  drawn.set(key, group);
  shapes.append(group);
  return group;
}

/** Put the keyboard on a rectangle. */
export function focusShape(key) { drawn.get(key)?.focus({ preventScroll: true }); }

/** Show the rectangle that is being drawn; null: none is. */
export function showSketch(shape, user) {
  sketch.toggleAttribute("hidden", !shape);
  if (shape) set(sketch, { x: shape.x, y: shape.y, width: shape.w, height: shape.h, class: tintOf(user) });
}

/** Show these pointers and no others: a Map from user to place. */
export function showPointers(found) {
  for (const [user, group] of shown) {
    if (found.has(user)) continue;
    group.remove();
    shown.delete(user);
  }
  for (const [user, place] of found) {
    const group = shown.get(user) ?? beginPointer(user);
    group.style.transform = `translate(${place.x}px, ${place.y}px)`;
  }
}

function beginPointer(user) {
  const label = make("text", { x: 22, y: 34 });
  label.textContent = user;
  const group = make("g", { class: `pointer ${tintOf(user)}` }, make("path", { d: "M0 0 L7 26 L13 16 L25 14 Z" }), label);
  shown.set(user, group);
  pointers.append(group);
  return group;
}

function make(tag, attributes = {}, ...children) {
  const made = set(document.createElementNS(SVG, tag), attributes);
  made.append(...children);
  return made;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
