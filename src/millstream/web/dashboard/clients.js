// Clients: who is connected to this server, which messages each client holds, and where it waits for more.
import { html } from "../vendor/preact.js";
import { PAGE, firstOf } from "./listing.js";
import { useAnswer } from "./live.js";
import { Ago, Answer, count, plural, when } from "./parts.js";
import { onStore, path, refusal, session } from "./session.js";

const QUEUES_ASKED = 20; // queues with messages in flight whose consumers are shown
const KINDS = { socket: "streaming socket", room: "room", http: "HTTP requests" };

export function Clients() {
  const why = refusal(onStore("admin"));
  const clients = useAnswer(async () => (why ? null : session.ms.get("/clients")));
  return html`<h1>Clients</h1>
    <h2>Connected to this server</h2>
    ${why ? html`<p class=notice>${why} Without it the connections are not shown.</p>`
      : html`<${Answer} of=${clients}>${(found) => html`<${ClientTable} of=${found.clients} />
        <p class="soft small">${plural(found.connections, "open connection")} in all, with requests of HTTP clients and of this page.</p>`}<//>`}
    <h2>Workers</h2>
    <p class="soft small">Consumers that hold messages now, through any server and in programs that open the store themselves.</p>
    <${Workers} />`;
}

function ClientTable({ of }) {
  if (!of.length) return html`<p class=soft>No worker or other client is connected.</p>`;
  return html`<div class="card scroll"><table class=folds>
    <thead><tr><th>client</th><th>by</th><th>address</th><th>connected</th><th>holds</th></tr></thead>
    <tbody>${of.map((one, at) => html`<tr key=${`${one.address}/${at}`}>
      <td data-label=client>${one.name}</td>
      <td data-label=by>${KINDS[one.kind]}</td>
      <td class=mono data-label=address>${one.address || "–"}</td>
      <td data-label=connected>${one.since ? html`<${Ago} at=${one.since} />` : "–"}</td>
      <td data-label=holds><${Held} of=${one} /></td></tr>`)}</tbody></table></div>`;
}

/** What a client holds, and where it waits. */
function Held({ of }) {
  if (of.kind === "room") {
    return html`<span>in <a href=${`#${path("rooms", of.room)}`}>${of.room}</a>${of.user ? ` as ${of.user}` : ", only listens"}</span>`;
  }
  if (!of.queues.length) return html`<span class=soft>nothing</span>`;
  return html`<ul class=held>${of.queues.map((one) => html`<li key=${one.queue}>
    <a href=${`#${path("queues", one.queue)}?tab=in_flight`}>${one.queue}</a>${": "}
    ${one.messages ? plural(one.messages, "message") : "waits for messages"}${one.messages && one.waiting ? ", and waits for more" : ""}
    ${one.consumer && html` <span class="soft small">as ${one.consumer}</span>`}</li>`)}</ul>`;
}

/** The consumers of the queues with messages in flight. */
function Workers() {
  const found = useAnswer(async () => {
    const { found: queues } = await firstOf("/queues", "queues", PAGE);
    const busy = queues.filter((one) => one.in_flight).slice(0, QUEUES_ASKED);
    const pages = await Promise.all(busy.map((one) => session.ms.get(path("queues", one.name, "consumers"))));
    return busy.flatMap((queue, at) => pages[at].consumers.map((one) => ({ ...one, queue: queue.name })));
  });
  return html`<${Answer} of=${found}>${(consumers) => html`<${ConsumerTable} of=${consumers} withQueue />`}<//>`;
}

/** The consumers of one queue, above its messages in flight. */
export function Consumers({ queue }) {
  const found = useAnswer(() => session.ms.get(path("queues", queue, "consumers")), [queue]);
  if (!found.data?.consumers.length) return null;
  return html`<section aria-label=Consumers><h3>Consumers</h3><${ConsumerTable} of=${found.data.consumers} />
    ${!found.data.is_complete && html`<p class="soft small">Of the first 1,000 messages in flight; there are more.</p>`}</section>`;
}

function ConsumerTable({ of, withQueue = false }) {
  if (!of.length) return html`<p class=soft>No consumer holds a message now.</p>`;
  return html`<div class="card scroll"><table class="folds consumers">
    <thead><tr><th>worker</th>${withQueue && html`<th>queue</th>`}<th class=number>messages</th><th>oldest claim</th>
      <th>first lease ends</th></tr></thead>
    <tbody>${of.map((one) => html`<tr key=${`${one.queue}/${one.consumer}`}>
      <td class=mono data-label=worker>${one.consumer || "without a name"}</td>
      ${withQueue && html`<td data-label=queue><a href=${`#${path("queues", one.queue)}?tab=in_flight`}>${one.queue}</a></td>`}
      <td class=number data-label=messages>${count(one.messages)}</td>
      <td data-label="oldest claim"><${Ago} at=${one.since} /></td>
      <td data-label="first lease ends">${when(one.until)}</td></tr>`)}</tbody></table></div>`;
}
