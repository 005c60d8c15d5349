// Queues: how each stands; and one queue with its spec, its messages by state, and what an operator does.
//
// All counts are kept by the store: a page never counts messages.
import { html, useRef, useState } from "../vendor/preact.js";
import { PutDialog } from "./compose.js";
import { Listing } from "./listing.js";
import { useAnswer } from "./live.js";
import { Failed } from "./failed.js";
import { InFlight, Messages } from "./messages.js";
import { Act, Ago, Answer, Chart, Confirm, Figures, LinkBar, Outcome, ReadOnly, count, format, plural, useTask } from "./parts.js";
import { onQueue, onSome, path, session } from "./session.js";
import { AlterQueue, NewQueue } from "./specs.js";

export const Queues = () => html`<${Listing} noun=queue table=${QueueTable} make=${NewQueue} need=${onSome("queue", "admin")} />`;

/** What a queue is for that the store makes for itself. */
const OWN = { "jobs.schedules": "schedules of jobs", "jobs.chores": "background work of jobs" };

export function QueueTable({ of }) {
  if (!of.length) return html`<p class=soft>There are no queues yet: “New queue…” on the page of queues makes one.</p>`;
  return html`<div class="card scroll"><table class="folds dense">
    <thead><tr><th>queue</th><th class=number>waiting</th><th class=number>delayed</th><th class=number>in flight</th>
      <th class=number>failed</th><th class=number>done</th><th class=number>oldest waits</th><th class=number>in</th>
      <th class=number>out</th></tr></thead>
    <tbody>${of.map((one) => html`<tr key=${one.name}>
      <td><a href=${`#${path("queues", one.name)}`}>${one.name}</a>
        ${OWN[one.name] && html` <span class="soft small">${OWN[one.name]}</span>`}
        ${one.paused && html` <span class="badge warn">paused</span>`}</td>
      <td class=number data-label=waiting>${count(one.available + one.unrouted)}</td>
      <td class=number data-label=delayed>${count(one.delayed)}</td>
      <td class=number data-label="in flight">${count(one.in_flight)}</td>
      <td class=number data-label=failed>${one.failed ? html`<a class="badge bad" href=${`#${path("queues", one.name)}?tab=failed`}>
        ${count(one.failed)}</a>` : "0"}</td>
      <td class=number data-label=done>${count(one.done)}</td>
      <td class=number data-label="oldest waits">${format(one.oldest_s, "s")}</td>
      <td class=number data-label=in>${format(one.in_per_second, "/s")}</td>
      <td class=number data-label=out>${format(one.done_per_second, "/s")}</td></tr>`)}</tbody></table></div>`;
}

// One queue.

const LISTS = ["failed", "in_flight", "available", "delayed", "done"];
const TABS = [["failed", "Failed"], ["in_flight", "In flight"], ["available", "Waiting"], ["delayed", "Delayed"],
  ["done", "Done"], ["spec", "Settings"]];

export function QueuePage({ name, asked }) {
  const queue = useAnswer(() => session.ms.get(path("queues", name)).then((one) => ({ ...one, at: Date.now() })), [name]);
  const [opened, setOpened] = useState(null); // the dialog that is open
  const chosen = useRef(null); // the tab of a page whose address names none
  const pausing = useTask();
  const need = onQueue("admin", name);
  const tab = TABS.some(([one]) => one === asked.tab) ? asked.tab : null;
  const over = () => { setOpened(null); queue.reload(); };
  const pause = (found) => pausing.run(async () => {
    await session.ms.post(path("queues", name, found.paused ? "resume" : "pause"));
    queue.reload();
  });
  return html`
    <p class=crumb><a href="#/queues">Queues</a></p>
    <${Answer} of=${queue}>${(found) => html`
      <div class=row><h1>${name}</h1>${found.paused && html`<span class="badge warn">paused</span>`}<span class=spread></span>
        <${Act} need=${onQueue("put", name)} onClick=${() => setOpened("put")}>Put a message…<//>
        <${Act} need=${need} onClick=${() => setOpened("alter")}>Settings…<//>
        <${Act} need=${need} disabled=${pausing.busy} onClick=${() => pause(found)}>${found.paused ? "Resume" : "Pause"}<//>
        <${Act} kind=danger need=${need} onClick=${() => setOpened("purge")}>Purge…<//></div>
      ${found.spec.description && html`<p class=lead>${found.spec.description}</p>`}
      <${ReadOnly} need=${need} />
      <${Outcome} task=${pausing} />
      <${Counts} of=${found} />
      <div class=charts>
        <${Chart} id=${`messages/${name}`} title="Messages" at=${found.at} values=${[found.available + found.unrouted, found.in_flight, found.delayed]}
          series=${[{ label: "waiting" }, { label: "in flight" }, { label: "delayed", color: "var(--chart-6)" }]} />
        <${Chart} id=${`rates/${name}`} title="Messages per second, over the last minute" at=${found.at} values=${[found.in_per_second, found.done_per_second]}
          series=${[{ label: "in", unit: "/s" }, { label: "done", unit: "/s" }]} />
      </div>
      <${Tabs} name=${name} of=${found} shown=${tab ?? firstTab(found, chosen)} onChange=${queue.reload} />
      ${opened === "put" && html`<${PutDialog} queue=${found} onClose=${over} />`}
      ${opened === "alter" && html`<${AlterQueue} queue=${found} onClose=${over} />`}
      ${opened === "purge" && html`<${Purge} queue=${found} onClose=${over} />`}`}<//>`;
}

const listed = (of) => ({ failed: of.failed, in_flight: of.in_flight, available: of.available + of.unrouted, delayed: of.delayed,
  done: of.done });

/** The first list that has messages, else the settings. A list that is shown stays, even if it becomes empty. */
function firstTab(of, chosen) {
  const counts = listed(of);
  chosen.current ??= LISTS.find((tab) => counts[tab] > 0) ?? null;
  return chosen.current ?? "spec";
}

function Counts({ of }) {
  const odd = [["duplicates", "repeats dropped"], ["lost", "lost"], ["damaged", "damaged"], ["withdrawn", "withdrawn"],
    ["letters", "letters owed"]].filter(([field]) => of[field]).map(([field, label]) => [label, count(of[field]), { kind: "warn" }]);
  return html`<${Figures} of=${[
    ["waiting", count(of.available + of.unrouted), { title: `${count(of.available)} messages, ${count(of.unrouted)} records of source logs that the queue has not looked at` }],
    ["delayed", count(of.delayed)],
    ["in flight", count(of.in_flight)],
    ["failed", count(of.failed), { kind: of.failed ? "bad" : "" }],
    ["done", count(of.done)],
    ["oldest waits", format(of.oldest_s, "s")],
    ...odd,
  ]} />`;
}

function Tabs({ name, of, shown, onChange }) {
  const counts = listed(of);
  return html`<section>
    <${LinkBar} kind=tabs label="Messages of the queue" current=${shown}>${TABS.map(([tab, title]) => html`<a key=${tab}
      href=${`#${path("queues", name)}?tab=${tab}`} aria-current=${tab === shown ? "page" : null}>${title}
      ${tab in counts && html` <span class=soft>${count(counts[tab])}</span>`}</a>`)}<//>
    ${shown === "failed" && html`<${Failed} queue=${name} total=${of.failed} onChange=${onChange} />`}
    ${shown === "in_flight" && html`<${InFlight} queue=${name} />`}
    ${["available", "delayed", "done"].includes(shown) && html`<${Messages} key=${shown} queue=${name} state=${shown} onChange=${onChange} />`}
    ${shown === "spec" && html`<${Spec} of=${of} />`}
  </section>`;
}

const SECONDS = new Set(["lease", "lease_max", "delay", "done_retention", "dedup_window", "priority_step"]);

const UNLIMITED = new Set(["rate", "group_rate", "max_in_flight", "group_in_flight", "done_retention"]); // if they are 0

/** The whole spec; what has its default too. */
function Spec({ of }) {
  const entries = Object.entries(of.spec).filter(([name]) => name !== "description");
  return html`<div class="card scroll"><table class=spec><tbody>
    ${entries.map(([name, value]) => html`<tr key=${name}><th scope=row>${name}</th><td class=mono>${told(name, value)}</td></tr>`)}
    <tr><th scope=row>created</th><td><${Ago} at=${of.created} /></td></tr>
  </tbody></table></div>`;
}

function told(name, value) {
  if (value === null || value === "" || (Array.isArray(value) && !value.length)) return html`<span class=soft>none</span>`;
  if (name === "backoff") return backoff(value);
  if (value === 0 && UNLIMITED.has(name)) return html`<span class=soft>unlimited</span>`;
  if (SECONDS.has(name) && typeof value === "number") return format(value, "s");
  if (typeof value === "number") return count(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** The waits between attempts, in words. */
function backoff({ kind, first, factor, most, waits }) {
  if (kind === "list") return waits.map((one) => format(one, "s")).join(", then ");
  if (kind === "fixed") return format(first, "s");
  return `${format(first, "s")}, then ${format(factor)} times as long after each attempt, up to ${format(most, "s")}`;
}

function Purge({ queue, onClose }) {
  const [state, setState] = useState("available");
  const total = state === "failed" ? queue.failed : queue.available + queue.unrouted + queue.delayed;
  const doIt = async () => {
    const { count: went } = await session.ms.post(path("queues", queue.name, "purge"), { state });
    return `${plural(went, "message")} went.`;
  };
  return html`<${Confirm} title="Purge the queue" name=${queue.name} verb=${`Forget ${plural(total, "message")}`}
    need=${onQueue("admin", queue.name)} onClose=${onClose} doIt=${doIt}>
    <label class=field>Forget all messages that are
      <select value=${state} onChange=${(event) => setState(event.target.value)}>
        <option value=available>waiting or delayed</option><option value=failed>failed</option></select></label>
    <p>${plural(total, "message")} go, permanently; the records stay in their logs. What is in flight is left alone.</p>
  <//>`;
}
