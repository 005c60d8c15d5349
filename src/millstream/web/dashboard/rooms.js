// Rooms: which there are; and one room, who is there and what is said, as it is said.
import { html, useEffect, useReducer, useState } from "../vendor/preact.js";
import { Listing } from "./listing.js";
import { useAnswer, useNow } from "./live.js";
import { Ago, Answer, Figures, Problem, count, format, plural, when } from "./parts.js";
import { onRoom, path, refusal, session } from "./session.js";

const SHOWN = 200;

export const Rooms = () => html`<${Listing} noun=room table=${RoomTable} />`;

function RoomTable({ of }) {
  if (!of.length) return html`<p class=soft>There are no rooms yet: a room comes to exist when a client joins it.</p>`;
  return html`<div class="card scroll"><table class="folds dense">
    <thead><tr><th>room</th><th class=number>users</th><th class=number>connections</th><th class=number>messages kept</th>
      <th class=number>retained values</th><th class=number>remembers</th><th>last message</th></tr></thead>
    <tbody>${of.map((one) => html`<tr key=${one.name}>
      <td><a href=${`#${path("rooms", one.name)}`}>${one.name}</a></td>
      <td class=number data-label=users>${count(one.users)}</td>
      <td class=number data-label=connections>${count(one.connections)}</td>
      <td class=number data-label="messages kept">${count(one.end_offset - one.start_offset)}</td>
      <td class=number data-label="retained values">${count(one.retained)}</td>
      <td class=number data-label=remembers>${one.settings.ttl ? format(one.settings.ttl, "s") : "all"}</td>
      <td data-label="last message">${one.end_offset ? html`<${Ago} at=${one.timestamp} />` : "none"}</td></tr>`)}</tbody></table></div>`;
}

// One room.

export function RoomPage({ name }) {
  const info = useAnswer(() => session.ms.get(path("rooms", name, "info")), [name]);
  const why = refusal(onRoom("read", name));
  return html`
    <p class=crumb><a href="#/rooms">Rooms</a></p>
    <h1>${name}</h1>
    <${Answer} of=${info}>${(found) => html`
      <${Figures} of=${[
        ["users", count(found.users)],
        ["connections", count(found.connections)],
        ["messages kept", count(found.end_offset - found.start_offset)],
        ["retained values", count(found.retained)],
        ["remembers", found.settings.ttl ? format(found.settings.ttl, "s") : "all"],
      ]} />
      ${why ? html`<p class=notice>${why}</p>` : html`<${LiveView} name=${name} />`}
      <${Settings} of=${found.settings} />`}<//>`;
}

/** Follow a room without being in it: no user is announced. */
function useRoom(name) {
  const [view, tell] = useReducer(heard, { messages: [], state: "connecting", presence: [], users: 0, retained: [], error: null });
  useEffect(() => {
    const room = session.ms.room(name);
    const stands = () => tell({ presence: [...room.presence.values()], users: room.users,
      retained: [...room.retained.values()].flatMap((one) => [...one.values()]) });
    room.on("message", (message) => tell({ message }));
    room.on("gap", (gap) => tell({ message: { ...gap, isGap: true } }));
    room.on("presence", ({ joined, left }) => {
      stands();
      if (joined ?? left) tell({ message: { type: joined ? "joined" : "left", from: joined ?? left, time: Date.now(), isMove: true } });
    });
    room.on("retained", stands);
    room.on("state", ({ state, error }) => tell({ state, error: error ?? null }));
    return () => room.close();
  }, [name]);
  return view;
}

let number = 0;

function heard(view, { message, ...more }) {
  if (!message) return { ...view, ...more };
  return { ...view, messages: [{ ...message, id: (number += 1) }, ...view.messages].slice(0, SHOWN) };
}

function LiveView({ name }) {
  const view = useRoom(name);
  const [kind, setKind] = useState("");
  const now = useNow();
  const kinds = [...new Set(view.messages.map((one) => one.type).filter(Boolean))].sort();
  const shown = view.messages.filter((one) => !kind || one.type === kind);
  return html`<div class=split>
    <section aria-label="Live view">
      <div class=row><h2>Live</h2><span class="badge dot ${view.state === "live" ? "good" : "warn"}" role=status>${view.state}</span>
        <span class=spread></span>
        <select value=${kind} onChange=${(event) => setKind(event.target.value)} aria-label="Which types">
          <option value="">all types</option>${kinds.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></div>
      <${Problem} error=${view.state === "refused" ? view.error : null} />
      <ol class="card said" tabindex=0 aria-label="Messages, the newest first">
        ${shown.length ? shown.map((one) => html`<${Said} key=${one.id} of=${one} />`) : html`<li class=soft>Nothing has been said since this page was opened.</li>`}
      </ol>
    </section>
    <section aria-label="Who is there">
      <h2>Here now</h2>
      <div class=card>${view.presence.length ? html`<ul class=people>${view.presence.map((one) => html`<li key=${one.user}>
        <b>${one.user}</b><span class="soft small">${one.connections > 1 ? `${plural(one.connections, "connection")}, ` : ""}
        for ${format(Math.max(0, Math.round((now - one.since) / 1000)), "s")}</span>
        ${Object.keys(one.state).length > 0 && html`<code class="soft small">${oneLine(one.state)}</code>`}</li>`)}</ul>`
        : html`<p class=soft>No user is here.</p>`}
        ${view.users > view.presence.length && html`<p class=soft>and ${view.users - view.presence.length} more</p>`}</div>
      ${view.retained.length > 0 && html`<h2>Retained</h2><div class="card scroll"><table class=kept>
        <thead><tr><th>type</th><th>key</th><th>value</th></tr></thead>
        <tbody>${view.retained.slice(0, SHOWN).map((one) => html`<tr key=${JSON.stringify([one.type, one.key])}>
          <td>${one.type}</td><td class=mono>${one.key ?? ""}</td><td class="mono value">${oneLine(one.data)}</td></tr>`)}</tbody></table></div>`}
    </section>
  </div>`;
}

function Said({ of }) {
  if (of.isGap) return html`<li class=soft>messages ${count(of.from)} to ${count(of.to)} were not seen here</li>`;
  if (of.isMove) return html`<li class=soft><b>${of.from}</b> ${of.type === "joined" ? "came" : "left"}</li>`;
  return html`<li><span class="soft small" title=${when(of.time)}>${when(of.time).slice(11)}</span>
    <b>${of.from ?? ""}</b> <span class=badge>${of.type}</span>${of.deleted && html` <span class="badge warn">deleted</span>`}
    <code>${oneLine(of.data)}</code></li>`;
}

function oneLine(data) {
  const text = JSON.stringify(data) ?? "";
  return text.length > 300 ? `${text.slice(0, 300)}…` : text;
}

function Settings({ of }) {
  return html`<details class=card><summary>Settings</summary><table class=spec><tbody>${Object.entries(of).map(([name, value]) => html`
    <tr key=${name}><th scope=row>${name}</th><td class=mono>${setting(name, value)}</td></tr>`)}</tbody></table></details>`;
}

/** A setting with the unit that its name tells. */
function setting(name, value) {
  if (Array.isArray(value)) return value.join(", ") || "none";
  if (value === 0) return "unlimited";
  if (name.includes("bytes")) return format(value, "bytes");
  if (name === "ttl" || name === "tick") return format(value, "s");
  return typeof value === "number" ? count(value) : String(value);
}
