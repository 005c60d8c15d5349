// Messages of a queue in a state: who works on them and for how long yet, and how attempts went.
import { html, useState } from "../vendor/preact.js";
import { Consumers } from "./clients.js";
import { useAnswer, useNow } from "./live.js";
import { Act, Answer, Headers, Outcome, format, toMs, useTask, when } from "./parts.js";
import { Payload, askExact, keyText, preview } from "./payload.js";
import { onQueue, path, query, session } from "./session.js";

const PAGE = 50;

/** A page of messages; `after` is the claim id of the last one before it. */
export function usePage(queue, state, after, more = {}) {
  const address = query(path("queues", queue, "messages"), { state, limit: PAGE, after, ...more });
  return useAnswer(() => askExact(address, "messages"), [address]);
}

/** Back and on through the pages of a state. */
export function Pager({ trail, setTrail, messages }) {
  if (!trail.length && messages.length < PAGE) return null;
  return html`<div class=row>
    <button type=button disabled=${!trail.length} onClick=${() => setTrail(trail.slice(0, -1))}>Back</button>
    <button type=button disabled=${messages.length < PAGE} onClick=${() => setTrail([...trail, messages.at(-1).claim_id])}>Next</button>
  </div>`;
}

export function InFlight({ queue }) {
  const [trail, setTrail] = useState([]);
  const [open, setOpen] = useState(null);
  const now = useNow();
  const found = usePage(queue, "in_flight", trail.at(-1), { attempts: true });
  return html`<${Consumers} queue=${queue} /><${Answer} of=${found}>${({ messages }) => html`
    ${messages.length ? html`<div class="card scroll"><table class=folds>
      <thead><tr><th></th><th>message</th><th>consumer</th><th class=number>attempt</th><th>since</th><th class=number>time left</th>
        <th>value</th></tr></thead>
      <tbody>${messages.map((one) => {
        const latest = one.attempts?.at(-1);
        const left = (toMs(one.until) - now) / 1000;
        const isOpen = open === one.claim_id;
        return html`<tr key=${one.claim_id} class=${isOpen ? "open" : ""}>
          <td class=toggle><${Toggle} isOpen=${isOpen} onClick=${() => setOpen(isOpen ? null : one.claim_id)} of=${one} /></td>
          <td class=mono data-label=message>${place(one)}</td>
          <td data-label=consumer>${latest?.consumer ?? "–"}</td>
          <td class=number data-label=attempt>${one.attempt}</td>
          <td data-label=since>${when(latest?.claimed)}</td>
          <td class="number ${left < 5 ? "late" : ""}" data-label="time left">${left > 0 ? format(Math.ceil(left), "s") : "lease ended"}</td>
          <td class="mono value" data-label=value>${preview(one)}</td></tr>
          ${isOpen && html`<${Detail} columns=7 of=${one} />`}`;
      })}</tbody></table></div>` : html`<p class=soft>No consumer works on anything now.</p>`}
    <${Pager} trail=${trail} setTrail=${setTrail} messages=${messages} />`}<//>`;
}

const TIMES = { available: "can be claimed", delayed: "due", done: "done at" };
const NOTHING = { available: "No message waits.", delayed: "No message waits for its time.", done: "No message is done yet." };

export function Messages({ queue, state, onChange }) {
  const [trail, setTrail] = useState([]);
  const [open, setOpen] = useState(null);
  const found = usePage(queue, state, trail.at(-1), { attempts: true });
  const time = TIMES[state];
  return html`<${Answer} of=${found}>${({ messages }) => html`
    ${messages.length ? html`<div class="card scroll"><table class=folds>
      <thead><tr><th></th><th>message</th><th>key</th><th class=number>attempts</th><th>${time}</th><th>value</th></tr></thead>
      <tbody>${messages.map((one) => {
        const isOpen = open === one.claim_id;
        return html`<tr key=${one.claim_id} class=${isOpen ? "open" : ""}>
          <td class=toggle><${Toggle} isOpen=${isOpen} onClick=${() => setOpen(isOpen ? null : one.claim_id)} of=${one} /></td>
          <td class=mono data-label=message>${place(one)}</td>
          <td class=mono data-label=key>${keyText(one)}</td>
          <td class=number data-label=attempts>${one.attempt}</td>
          <td data-label=${time}>${state === "available" ? "now" : when(one.until)}</td>
          <td class="mono value" data-label=value>${preview(one)}</td></tr>
          ${isOpen && html`<${Detail} columns=6 of=${one}>
            ${state !== "done" && one.id !== undefined && html`<${Cancel} queue=${queue} id=${one.id} onChange=${() => { found.reload(); onChange(); }} />`}<//>`}`;
      })}</tbody></table></div>` : html`<p class=soft>${NOTHING[state]}</p>`}
    <${Pager} trail=${trail} setTrail=${setTrail} messages=${messages} />`}<//>`;
}

/** Takes a message back that no consumer has claimed yet. */
function Cancel({ queue, id, onChange }) {
  const task = useTask();
  const cancel = () => task.run(async () => {
    const { cancelled } = await session.ms.post(path("queues", queue, "messages", String(id), "cancel"));
    if (!cancelled) throw { name: "Too late", message: "A consumer has claimed the message, or it has ended." };
    onChange();
  });
  return html`<${Outcome} task=${task} /><div class=actions>
    <${Act} kind=danger need=${onQueue("write", queue)} disabled=${task.busy} onClick=${cancel}>Cancel the message<//></div>`;
}

/** Opens and closes the details of a message. */
export function Toggle({ isOpen, onClick, of }) {
  return html`<button type=button class=quiet aria-expanded=${isOpen} onClick=${onClick}
    aria-label=${`Message ${place(of)}`}>${isOpen ? "▾" : "▸"}</button>`;
}

/** Where a message lies. */
export function place(one) {
  return `${one.log}/${one.offset}`;
}

/** Everything about a message: headers, value, attempts; `lead` stands above, `children` below. */
export function Detail({ of, columns, lead = null, children }) {
  return html`<tr class=detail><td colspan=${columns}>
    ${lead}
    <dl class=facts>
      <dt>claim id</dt><dd class=mono>${of.claim_id}</dd>
      ${keyText(of) && html`<dt>key</dt><dd class=mono>${keyText(of)}</dd>`}
      <dt>timestamp</dt><dd>${when(of.timestamp)}</dd>
      <dt>headers</dt><dd><${Headers} of=${of.headers} /></dd>
    </dl>
    <${Payload} record=${of} />
    <${History} of=${of.attempts ?? []} />
    ${children}
  </td></tr>`;
}

const ENDINGS = { done: "good", again: "warn", failed: "bad", cancelled: "warn", in_flight: "info" };

/** The attempts at a message. */
export function History({ of }) {
  if (!of.length) return null;
  return html`<h3>Attempts</h3><table class="history folds">
    <thead><tr><th class=number>#</th><th>consumer</th><th>from</th><th class=number>took</th><th>ended</th><th>reason</th></tr></thead>
    <tbody>${of.map((one, i) => html`<tr key=${i}>
      <td class=number data-label="#">${i + 1}</td>
      <td data-label=consumer>${one.consumer}</td>
      <td data-label=from>${when(one.claimed)}</td>
      <td class=number data-label=took>${one.ended ? format((toMs(one.ended) - toMs(one.claimed)) / 1000, "s") : "–"}</td>
      <td data-label=ended><span class="badge ${ENDINGS[one.outcome] ?? ""}">${one.outcome.replace("_", " ")}</span></td>
      <td data-label=reason>${one.reason.split("\n", 1)[0]}</td></tr>`)}</tbody></table>`;
}
