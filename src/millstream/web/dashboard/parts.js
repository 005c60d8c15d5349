// What several pages show: problems, dialogs, controls that need a permission, times, charts.
import { Fragment, html, useEffect, useRef, useState } from "../vendor/preact.js";
import { chart, format } from "../charts.js";
import { onPulse, pulses } from "./live.js";
import { refusal } from "./session.js";

export { format };

const WINDOW_S = 120;

/** A number with separators. */
export const count = (value) => (value ?? 0).toLocaleString("en");

/** “1 message”, “2 messages”. */
export const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** A time of the server, milliseconds or text, as milliseconds. */
export const toMs = (time) => (typeof time === "number" ? time : Date.parse(time));

/** A time as people read it, in their own zone. */
export function when(time) {
  if (time === null || time === undefined) return "–";
  const date = new Date(toMs(time));
  const pad = (value, digits = 2) => String(value).padStart(digits, "0");
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

/** How long ago a time is. */
export function Ago({ at, now = Date.now() }) {
  const seconds = Math.max(0, (now - toMs(at)) / 1000);
  return html`<time title=${when(at)} datetime=${new Date(toMs(at)).toISOString()}>
    ${seconds < 1 ? "now" : `${rounded(seconds)} ago`}</time>`;
}

/** A duration in one unit, without a fraction. */
function rounded(seconds) {
  const [unit, size] = [["d", 86_400], ["h", 3_600], ["min", 60]].find(([, one]) => seconds >= 2 * one) ?? ["s", 1];
  return `${Math.round(seconds / size)} ${unit}`;
}

/** What went wrong, in the server's own sentence. */
export function Problem({ error }) {
  if (!error) return null;
  return html`<p class="notice bad" role=alert><b>${error.name}</b>${" "}${error.message}</p>`;
}

/** A page's answer: what went wrong, or that it is on its way, or what it holds. */
export function Answer({ of, children }) {
  if (of.error && !of.data) return html`<${Problem} error=${of.error} />`;
  if (!of.data) return html`<p class=soft role=status aria-busy=true>Loading…</p>`;
  return html`<${Fragment}><${Problem} error=${of.error} />${children(of.data)}<//>`;
}

/** A button for what needs a permission: without it, it is disabled and says why. */
export function Act({ need, kind = "", disabled = false, onClick, children, ...more }) {
  const why = refusal(need);
  return html`<button type=button class=${kind} disabled=${disabled || Boolean(why)} title=${why || null}
    data-refused=${why ? "" : null} onClick=${onClick} ...${more}>${children}</button>`;
}

/** Why the controls of a page are disabled; nothing if they are not. */
export function ReadOnly({ need }) {
  const why = refusal(need);
  return why ? html`<p class="notice readonly"><b>Read only.</b> ${why}</p>` : null;
}

/** A dialog, open for as long as it is shown. Escape and the first button close it. */
export function Dialog({ title, wide = false, onClose, children }) {
  const element = useRef(null);
  useEffect(() => element.current.showModal(), []);
  return html`<dialog ref=${element} class=${wide ? "wide" : ""} aria-label=${title} onClose=${onClose}>
    <h2>${title}</h2>${children}</dialog>`;
}

/** Asks for the name of what is lost before it is. `doIt` answers the sentence that is shown then. */
export function Confirm({ title, name, verb, need, onClose, doIt, children }) {
  const [typed, setTyped] = useState("");
  const task = useTask();
  const run = (event) => {
    event.preventDefault();
    if (typed === name) task.run(doIt);
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form onSubmit=${run}>
      ${children}
      ${task.done === null && html`<label class=field>Type <b class=mono>${name}</b> to confirm
        <input value=${typed} onInput=${(event) => setTyped(event.target.value)} autocomplete=off
          spellcheck=${false} autofocus aria-label="The name, to confirm" /></label>`}
      <${Outcome} task=${task} />
      <div class=actions>
        <button type=button onClick=${onClose}>${task.done === null ? "Cancel" : "Close"}</button>
        ${task.done === null && html`<${Act} type=submit kind=danger need=${need}
          disabled=${typed !== name || task.busy}>${verb}<//>`}
      </div>
    </form>
  <//>`;
}

/** Something that takes a while, may fail, and is done once: `run`, `busy`, `error`, `done`. */
export function useTask() {
  const [found, setFound] = useState({ busy: false, error: null, done: null });
  const run = async (task) => {
    setFound({ busy: true, error: null, done: null });
    try {
      setFound({ busy: false, error: null, done: (await task()) ?? true });
    } catch (error) {
      setFound({ busy: false, error, done: null });
    }
  };
  return { ...found, run, reset: () => setFound({ busy: false, error: null, done: null }) };
}

/** How a task went. */
export function Outcome({ task }) {
  if (task.error) return html`<${Problem} error=${task.error} />`;
  if (typeof task.done !== "string") return null;
  return html`<p class="notice good" role=status>${task.done}</p>`;
}

/** A bar of links that is scrolled, where it is too long for the screen, so that the present one is seen. */
export function LinkBar({ label, kind = "", current, children }) {
  const element = useRef(null);
  useEffect(() => {
    const bar = element.current;
    const link = bar.querySelector("[aria-current=page]");
    if (link) bar.scrollLeft = link.offsetLeft - (bar.clientWidth - link.offsetWidth) / 2;
  }, [current]);
  return html`<nav ref=${element} class="linkbar ${kind}" aria-label=${label}>${children}</nav>`;
}

/** Figures side by side: `[label, value, {kind, title, href}]`. */
export function Figures({ of }) {
  return html`<div class=figures>${of.map(([label, value, more = {}]) => html`
    <div class="card figure ${more.kind ?? ""}" title=${more.title ?? null}><b>${value}</b><span>${label}</span></div>`)}</div>`;
}

/** Headers as pairs: an object has each name once, an array of pairs may repeat them. */
export function pairsOf(headers) {
  return Array.isArray(headers) ? headers : Object.entries(headers ?? {});
}

/** Headers of a record as chips. */
export function Headers({ of }) {
  const pairs = pairsOf(of);
  if (!pairs.length) return html`<span class=soft>none</span>`;
  return html`<ul class=chips>${pairs.map(([name, value], at) => html`
    <li key=${at}><b>${name}</b> ${value?.base64 === undefined ? String(value) : `base64 ${value.base64}`}</li>`)}</ul>`;
}

/** A chart of what the server pushes: `of` takes a pulse and answers a value per series. */
export function LiveChart({ title, series, of }) {
  const element = useRef(null);
  useEffect(() => {
    const drawn = chart(element.current, { title, series, window_s: WINDOW_S });
    const columns = series.map((_, i) => pulses.map((pulse) => of(pulse)[i] ?? null));
    drawn.set(pulses.map((pulse) => pulse.time / 1000), columns);
    const end = onPulse((pulse) => drawn.push(pulse.time / 1000, of(pulse)));
    return () => { end(); drawn.destroy(); };
  }, []);
  return html`<div class=card ref=${element}></div>`;
}

const histories = new Map(); // of the charts of pages: they go on where they were when one comes back
const POINTS_MAX = 300;

/** A chart of what a page has asked for, known by its `id`: a point is added whenever `at` changes. */
export function Chart({ id, title, series, at, values }) {
  const element = useRef(null);
  const drawn = useRef(null);
  useEffect(() => {
    drawn.current = chart(element.current, { title, series, window_s: WINDOW_S });
    const past = histories.get(id) ?? [];
    histories.set(id, past);
    past.forEach(([time, found]) => drawn.current.push(time, found));
    return () => drawn.current.destroy();
  }, []);
  useEffect(() => {
    histories.get(id).push([at / 1000, values]);
    if (histories.get(id).length > POINTS_MAX) histories.get(id).shift();
    drawn.current.push(at / 1000, values);
  }, [at]);
  return html`<div class=card ref=${element}></div>`;
}

/** Which names of a list are shown: a box to type in, focused by the key “/”. */
export function Search({ value, onInput, label }) {
  return html`<input type=search class=search value=${value} placeholder=${`${label}  /`} aria-label=${label}
    onInput=${(event) => onInput(event.target.value)} autocomplete=off spellcheck=${false} data-search />`;
}
