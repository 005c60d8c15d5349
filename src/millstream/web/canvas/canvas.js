// The shared canvas: rectangles are retained values of the type `shape`, one per key; pointers are
// conflated. Who draws what, and who is there, is all that a room says.
import { Millstream } from "../millstream.js";
import { HEIGHT, WIDTH, moved, readPlace, readShape, spanned, tintOf } from "./shape.js";
import { focusShape, keyOf, placeOf, showPointers, showShapes, showSketch } from "./stage.js";

const NAME = "millstream-name";
const TOKEN = "millstream-token";
const MOVE_MS = 60; // a rectangle that is dragged is sent so often
const STEP = 10; // of an arrow key
const PEOPLE_MAX = 30; // are named
const POINTER_MS = 8_000; // a pointer that rests for so long is hidden

const at = (id) => document.getElementById(id);
const wanted = new URLSearchParams(location.search);
const roomName = wanted.get("room") || "canvas";
const servers = [location.origin, ...wanted.getAll("server")];

let room = null;
let chosen = null; // the key of the rectangle that is selected
let drag = null; // {key, from, shape} while one is moved, {from} while one is drawn
let moving = 0;
let drawing = 0;
const mine = []; // keys of own rectangles, the last one last
const places = new Map(); // user → {x, y, at}

// Entering.

/** Join, and see to it that the room keeps the latest value of each `shape`. */
async function enter(name) {
  const ms = new Millstream({ url: servers, token: sessionStorage.getItem(TOKEN) ?? "" });
  room = await joined(ms, name);
  const { settings } = room;
  if (!settings.retained.includes("shape")) {
    const path = `/rooms/${encodeURIComponent(roomName)}/settings`;
    room.close(); // a room says its settings when it is joined
    await ms.put(path, { ...settings, retained: [...settings.retained, "shape"] });
    room = await joined(ms, name);
  }
  localStorage.setItem(NAME, name);
}

/** A room that has greeted; raises why it refused. */
function joined(ms, name) {
  const found = ms.room(roomName, { user: name });
  found.on("retained", draw);
  found.on("message", heard);
  found.on("presence", met);
  found.on("error", complain);
  return new Promise((done, fail) => {
    found.on("state", (about) => {
      if (found !== room && about.state === "closed") return;
      showState(about);
      if (about.state === "live") done(found);
      if (about.state === "refused") fail(about.error);
    });
  });
}

function heard({ type, from = "", data }) {
  const place = type === "pointer" ? readPlace(data) : null;
  if (place) places.set(from, { ...place, at: Date.now() });
  draw();
}

function met({ presence, joined: came, left }) {
  if (left !== undefined) places.delete(left);
  if (came ?? left) at("said").textContent = came ? `${came} is here` : `${left} has left`;
  showPeople(presence);
  draw();
}

at("enter").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = at("name").value.trim();
  if (at("token").value.trim()) sessionStorage.setItem(TOKEN, at("token").value.trim());
  at("token").value = "";
  try {
    await enter(name);
    at("entry").close();
    setInterval(draw, POINTER_MS / 4);
  } catch (error) {
    at("entry-trouble").textContent = error.message;
    at("entry-trouble").hidden = false;
    if (error.status !== 401 && error.status !== 403) return;
    sessionStorage.removeItem(TOKEN); // another one may do
    at("token-field").hidden = false;
    at("token").focus();
  }
});

at("name").value = localStorage.getItem(NAME) ?? "";
at("entry").addEventListener("cancel", (event) => event.preventDefault());
at("entry").showModal();

// Showing.

function draw() {
  drawing ||= requestAnimationFrame(() => {
    drawing = 0;
    const found = shapes();
    if (!found.has(chosen)) chosen = null;
    showShapes(found, chosen);
    const since = Date.now() - POINTER_MS;
    for (const [user, place] of places) if (place.at < since) places.delete(user);
    showPointers(places);
    at("remove").disabled = chosen === null;
    at("undo").disabled = !mine.some((key) => found.has(key));
  });
}

/** Every rectangle that can be shown, with the one that is dragged where it is now. */
function shapes() {
  const found = new Map();
  for (const [key, { data }] of room?.retained.get("shape") ?? []) {
    const shape = readShape(data);
    if (shape && key !== null) found.set(key, shape);
  }
  if (drag?.key && found.has(drag.key)) found.set(drag.key, drag.shape);
  return found;
}

function showPeople(presence) {
  const own = at("name").value.trim();
  const users = [...presence.keys()].sort();
  const more = document.createElement("li");
  more.textContent = `and ${users.length - PEOPLE_MAX} more`;
  more.hidden = users.length <= PEOPLE_MAX;
  at("people").replaceChildren(...users.slice(0, PEOPLE_MAX).map((user) => {
    const [item, dot, name] = ["li", "i", "span"].map((tag) => document.createElement(tag));
    item.className = `${tintOf(user)}${user === own ? " me" : ""}`;
    name.textContent = user === own ? `${user} (you)` : user;
    name.title = user;
    item.append(dot, name);
    return item;
  }), more);
}

function showState({ state, via, error }) {
  const badge = at("state");
  badge.className = `badge dot ${{ live: "good", refused: "bad", closed: "bad" }[state] ?? "warn"}`;
  badge.textContent = via === "events" ? `${state} (without sockets)` : state;
  if (state === "live") at("trouble").hidden = true;
  if (state === "refused") complain(error);
}

function complain(error) {
  at("trouble").textContent = error.message;
  at("trouble").hidden = false;
}

// Drawing, moving, deleting.

function put(key, shape) {
  return room.send("shape", shape, { key }).catch(complain);
}

function add(shape) {
  const key = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
  mine.push(key);
  chosen = key;
  put(key, { ...shape, by: room.user });
  return key;
}

function remove(key) {
  if (key === null || !shapes().has(key)) return;
  room.delete("shape", key).catch(complain);
}

function undo() {
  while (mine.length) {
    const key = mine.pop();
    if (shapes().has(key)) { remove(key); break; }
  }
  draw();
}

function addInTheMiddle() {
  const [w, h] = [220, 140];
  const spread = () => Math.round((Math.random() - 0.5) * 300);
  const key = add(readShape({ x: (WIDTH - w) / 2 + spread(), y: (HEIGHT - h) / 2 + spread(), w, h }));
  requestAnimationFrame(() => requestAnimationFrame(() => focusShape(key)));
}

const stage = at("stage");
stage.addEventListener("pointerdown", (event) => {
  if (!room || event.button || drag) return;
  stage.setPointerCapture(event.pointerId);
  const [from, key] = [placeOf(event), keyOf(event)];
  const shape = shapes().get(key);
  drag = shape ? { key, from, start: shape, shape } : { from };
  chosen = shape ? key : null;
  draw();
});

stage.addEventListener("pointermove", (event) => {
  if (!room) return;
  const place = placeOf(event);
  room.send("pointer", place).catch(complain);
  if (!drag) return;
  if (!drag.key) {
    showSketch(spanned(drag.from, place), room.user);
    return;
  }
  drag.shape = moved(drag.start, place.x - drag.from.x, place.y - drag.from.y);
  moving ||= setTimeout(sendMove, MOVE_MS);
  draw();
});

function sendMove() {
  clearTimeout(moving);
  moving = 0;
  if (drag?.key && (drag.shape.x !== drag.start.x || drag.shape.y !== drag.start.y)) put(drag.key, drag.shape);
}

stage.addEventListener("pointerup", (event) => {
  if (!drag) return;
  const shape = drag.key ? null : readShape(spanned(drag.from, placeOf(event)) ?? {});
  if (moving) sendMove();
  drag = null;
  showSketch(null);
  if (shape) add(shape);
  draw();
});

stage.addEventListener("pointercancel", () => {
  drag = null;
  showSketch(null);
  draw();
});

stage.addEventListener("focusin", (event) => { chosen = keyOf(event) ?? chosen; draw(); });

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

document.addEventListener("keydown", (event) => {
  if (!room || at("entry").open) return;
  const shape = shapes().get(chosen);
  const arrow = ARROWS[event.key];
  if (event.key === "z" && (event.ctrlKey || event.metaKey)) undo();
  else if (event.ctrlKey || event.metaKey || event.altKey) return;
  else if (event.key === "n") addInTheMiddle();
  else if ((event.key === "Delete" || event.key === "Backspace") && shape) remove(chosen);
  else if (event.key === "Escape") { chosen = null; document.activeElement?.blur(); draw(); }
  else if (arrow && shape) put(chosen, moved(shape, arrow[0] * STEP, arrow[1] * STEP));
  else return;
  event.preventDefault();
});

at("add").addEventListener("click", addInTheMiddle);
at("undo").addEventListener("click", undo);
at("remove").addEventListener("click", () => remove(chosen));
