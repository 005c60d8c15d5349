// Logs: what there is; and one log, browsed by offset or time, searched by key and headers.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { AppendDialog } from "./compose.js";
import { Listing } from "./listing.js";
import { useAnswer } from "./live.js";
import { Act, Ago, Answer, Confirm, Figures, Headers, Problem, ReadOnly, count, format, plural, when } from "./parts.js";
import { Crumb, Partitions } from "./partitions.js";
import { Payload, askExact, keyText } from "./payload.js";
import { FieldCells, SchemaFacts, columnsOf, useSchemas } from "./schema.js";
import { onLog, onSome, path, query, session } from "./session.js";
import { NewLog, RetentionDialog } from "./specs.js";

const PAGE = 50;
const FOLLOW_S = 20;

export const Logs = () => html`<${Listing} noun=log table=${LogTables} make=${NewLog} need=${onSome("log", "write")} />`;

const OWNED = /^(queue|queue-later|room|millstream):(.*)$/s;

/** What a log is for that belongs to a queue, a room or the store; null for other logs. */
function purpose(name) {
  const [, kind, owner] = OWNED.exec(name) ?? [];
  if (kind === undefined) return null;
  return { queue: `messages put into the queue ${owner}`, "queue-later": `delayed messages of the queue ${owner}`,
    room: `messages of the room ${owner}`, millstream: "kept by the server for itself" }[kind];
}

/** The logs of users, and apart from them the logs that queues, rooms and the store keep for themselves. */
function LogTables({ of, isSearch }) {
  const own = of.filter((one) => purpose(one.name) !== null);
  const others = of.filter((one) => purpose(one.name) === null);
  return html`
    ${(others.length > 0 || !isSearch) && html`<${LogTable} of=${others} />`}
    ${own.length > 0 && html`<details class=internal open=${isSearch}>
      <summary>${plural(own.length, "log")} of queues, rooms and the store</summary>
      <p class="soft small">Millstream keeps these logs itself. Use the pages of their queues and rooms.</p>
      <${LogTable} of=${own} /></details>`}`;
}

function LogTable({ of }) {
  if (!of.length) return html`<p class=soft>There are no logs yet: a log comes to exist with its first record, or by “New log…”.</p>`;
  return html`<div class="card scroll"><table class="folds dense">
    <thead><tr><th>log</th><th class=number>records</th><th class=number>offsets</th><th class=number>size</th><th>last record</th>
      <th>keeps</th></tr></thead>
    <tbody>${of.map((one) => html`<tr key=${one.name}>
      <td><a href=${`#${path("logs", one.name)}`}>${one.name}</a>
        ${one.partitions > 0 && html` <span class="soft small">(${plural(one.partitions, "partition")})</span>`}
        ${purpose(one.name) && html` <span class="soft small">${purpose(one.name)}</span>`}</td>
      <td class=number data-label=records>${count(one.end_offset - one.start_offset)}</td>
      <td class="number soft" data-label=offsets>${one.partitions ? "by partition"
        : `${count(one.start_offset)} – ${count(one.end_offset)}`}</td>
      <td class=number data-label=size>${format(one.bytes, "bytes")}</td>
      <td data-label="last record">${one.end_offset > one.start_offset ? html`<${Ago} at=${one.timestamp} />` : "none"}</td>
      <td class=words data-label=keeps>${kept(one.retention)}</td></tr>`)}</tbody></table></div>`;
}

function kept({ age, bytes, count: most, consumed }) {
  const rules = [age && format(age, "s"), bytes && format(bytes, "bytes"), most && plural(most, "record"),
    consumed && "until consumed"].filter(Boolean);
  return rules.length ? rules.join(", ") : "all records";
}

// One log.

const EMPTY = { from: "", at: "", key: "", where: "", order: "newest" };

export function LogPage({ name, asked }) {
  const log = useAnswer(() => session.ms.get(path("logs", name)), [name]);
  const schemas = useSchemas("logs", name);
  const [opened, setOpened] = useState(null); // the dialog that is open
  const over = () => { setOpened(null); log.reload(); };
  const need = onLog("admin", name);
  const hasRecords = !log.data?.partitions; // one with partitions has them there
  return html`
    <${Crumb} name=${name} />
    <div class=row><h1>${name}</h1><span class=spread></span>
      <${Act} need=${onLog("write", name)} onClick=${() => setOpened("append")}>Append a record…<//>
      <${Act} need=${need} onClick=${() => setOpened("retention")}>Retention…<//>
      ${hasRecords && html`<${Act} kind=danger need=${need} onClick=${() => setOpened("truncate")}>Truncate…<//>`}</div>
    ${hasRecords && html`<${ReadOnly} need=${need} />`}
    <${Answer} of=${log}>${(found) => html`
      ${found.partitions ? html`<${Partitions} log=${found} />` : html`<${LogFigures} log=${found} />`}
      <p class="soft small">Created ${when(found.created)}. ${found.partitions ? "Each partition keeps" : "Keeps"} ${kept(found.retention)}.</p>
      <${SchemaFacts} versions=${schemas.data} />
      ${opened === "append" && html`<${AppendDialog} log=${found} onClose=${over} />`}
      ${opened === "retention" && html`<${RetentionDialog} log=${found} onClose=${over} />`}
      ${opened === "truncate" && html`<${Truncate} log=${found} onClose=${over} />`}
      ${!found.partitions && html`<${Records} name=${name} fields=${columnsOf(schemas.data)} asked=${{ ...EMPTY, ...asked }} /><${Cursors} name=${name} />`}`}<//>`;
}

function LogFigures({ log }) {
  return html`<${Figures} of=${[
    ["records", count(log.end_offset - log.start_offset)],
    ["size", format(log.bytes, "bytes")],
    ["first offset", count(log.start_offset)],
    ["next offset", count(log.end_offset)],
  ]} />`;
}

function Truncate({ log, onClose }) {
  const [before, setBefore] = useState(String(log.end_offset));
  const offset = Number(before);
  const gone = Math.max(0, Math.min(offset, log.end_offset) - log.start_offset);
  const doIt = async () => {
    const { count: went } = await session.ms.post(path("logs", log.name, "truncate"), { before: offset });
    return `${plural(went, "record")} went.`;
  };
  return html`<${Confirm} title="Truncate the log" name=${log.name} verb=${`Forget ${plural(gone, "record")}`}
    need=${onLog("admin", log.name)} onClose=${onClose} doIt=${doIt}>
    <label class=field>Forget the records before offset
      <input type=number min=${log.start_offset} value=${before} onInput=${(event) => setBefore(event.target.value)} required /></label>
    <p>${plural(gone, "record")} of ${count(log.end_offset - log.start_offset)} go, permanently. Queues keep what they have not
      finished.</p>
  <//>`;
}

function Records({ name, fields, asked }) {
  const [form, setForm] = useState(asked);
  useEffect(() => setForm(asked), [JSON.stringify(asked)]); // the address is what counts
  const [stops, setStops] = useState([]); // where the pages before this one began
  const at = stops.at(-1) ?? null;
  const isLatest = asked.order === "newest" && asked.from === "" && !asked.at && at === null;
  const [follows, setFollows] = useState(true);
  const found = useAnswer(() => search(name, asked, at), [name, JSON.stringify(asked), at], { live: false });
  useFollowing(name, follows && isLatest, found);
  const set = (field) => (event) => setForm({ ...form, [field]: event.target.value });
  const go = (event) => {
    event?.preventDefault();
    setStops([]);
    const given = Object.fromEntries(Object.entries(form).filter(([field, value]) => value !== EMPTY[field]));
    location.hash = query(path("logs", name), given);
  };
  const clear = () => { setForm(EMPTY); setStops([]); location.hash = path("logs", name); };
  return html`<section aria-label=Records>
    <h2>Records</h2>
    <form class="card finder" onSubmit=${go}>
      <label class=field>Key<input value=${form.key} onInput=${set("key")} autocomplete=off spellcheck=${false} data-search /></label>
      <label class="field wide">Headers match<input value=${form.where} onInput=${set("where")} class=mono
        placeholder="amount > 100 AND kind = 'card'" autocomplete=off spellcheck=${false} /></label>
      <label class=field>From offset<input type=number min=0 value=${form.from} onInput=${set("from")} /></label>
      <label class=field>From time<input type=datetime-local step=1 value=${form.at} onInput=${set("at")} /></label>
      <label class=field>First<select value=${form.order} onChange=${set("order")} aria-label="Which come first">
        <option value=newest>newest</option><option value=oldest>oldest</option></select></label>
      <div class="row go"><button class=primary>Show</button>
        <button type=button onClick=${clear}>Clear</button>
        <label class=row><input type=checkbox checked=${follows && isLatest} disabled=${!isLatest}
          onChange=${() => setFollows(!follows)} /> Follow the log</label></div>
    </form>
    <${Answer} of=${found}>${(page) => html`
      <${RecordTable} log=${name} fields=${fields} of=${page} onOpen=${() => setFollows(false)} />
      <div class=row>
        <button type=button disabled=${!stops.length} onClick=${() => setStops(stops.slice(0, -1))}>Back</button>
        <button type=button disabled=${page.next === null} onClick=${() => setStops([...stops, page.next])}>
          ${page.records.length < PAGE ? "Search on" : "Next"}</button>
        <span class="soft small" role=status>${plural(page.records.length, "record")}${page.next !== null && page.records.length < PAGE
          ? `, ${count(page.scanned)} looked at so far` : ""}</span>
      </div>`}<//>
  </section>`;
}

/** A page of records: `at` is where it goes on. With a place to start from, time runs forward. */
function search(name, asked, at) {
  const forward = asked.order === "oldest";
  const start = forward ? at ?? asked.from : "";
  const stop = forward ? "" : at ?? (asked.from === "" ? "" : Number(asked.from) + 1);
  const time = asked.at ? Date.parse(asked.at) : "";
  const times = forward ? { since: time } : { until: time };
  return askExact(query(path("logs", name, "search"), { key: asked.key, where: asked.where, order: asked.order,
    start, stop, ...times, limit: PAGE }), "records");
}

/** Look again as soon as the log has grown. */
function useFollowing(name, follows, found) {
  const latest = useRef(found);
  latest.current = found;
  useEffect(() => {
    if (!follows) return undefined;
    let isOver = false;
    const run = async () => {
      while (!isOver) {
        const end = latest.current.data?.end_offset;
        if (end === undefined) { await new Promise((done) => setTimeout(done, 200)); continue; }
        const wait = { start: end, limit: 1, wait: FOLLOW_S };
        const more = await session.ms.get(query(path("logs", name, "records"), wait)).catch(() => null);
        if (isOver) return;
        if (more?.records.length) latest.current.reload();
        await new Promise((done) => setTimeout(done, more ? 250 : 2_000));
      }
    };
    run();
    return () => { isOver = true; };
  }, [name, follows]);
}

function RecordTable({ log, fields, of, onOpen }) {
  const [open, setOpen] = useState(null);
  const toggle = (offset) => { setOpen(open === offset ? null : offset); onOpen(); }; // it stays where it is
  if (!of.records.length) return html`<p class=soft>${of.next === null ? "No record matches." : "None so far."}</p>`;
  return html`<div class="card scroll"><table class="records folds">
    <thead><tr><th></th><th class=number>offset</th><th>appended</th><th>key</th>
      ${fields.length ? fields.map((field) => html`<th key=${field}>${field}</th>`) : html`<th>value</th>`}</tr></thead>
    <tbody>${of.records.map((one) => html`<${Record} key=${one.offset} log=${log} fields=${fields} record=${one} isOpen=${open === one.offset}
      onToggle=${() => toggle(one.offset)} />`)}</tbody></table></div>`;
}

function Record({ log, fields, record, isOpen, onToggle }) {
  return html`<tr class=${isOpen ? "open" : ""}>
      <td class=toggle><button type=button class=quiet aria-expanded=${isOpen} onClick=${onToggle}
        aria-label=${`Record ${record.offset}`}>${isOpen ? "▾" : "▸"}</button></td>
      <td class=number data-label=offset>${record.offset}</td>
      <td class=time data-label=appended>${when(record.appended)}</td>
      <td class=mono data-label=key>${keyText(record)}</td>
      <${FieldCells} record=${record} fields=${fields} /></tr>
    ${isOpen && html`<tr class=detail><td colspan=${4 + Math.max(1, fields.length)}>
      <dl class=facts><dt>timestamp</dt><dd>${when(record.timestamp)}</dd><dt>headers</dt><dd><${Headers} of=${record.headers} /></dd></dl>
      <${Payload} record=${{ ...record, log }} /></td></tr>`}`;
}

function Cursors({ name }) {
  const of = useAnswer(() => session.ms.get(path("logs", name, "cursors")), [name]);
  if (!of.data?.cursors.length) return of.error ? html`<${Problem} error=${of.error} />` : null;
  return html`<section><h2>Cursors</h2><div class="card scroll"><table class=folds>
    <thead><tr><th>cursor</th><th class=number>acknowledged up to</th><th class=number>behind by</th><th>kept</th></tr></thead>
    <tbody>${of.data.cursors.map((one) => html`<tr key=${one.name}><td>${one.name}</td>
      <td class=number data-label="acknowledged up to">${count(one.floor)}</td>
      <td class=number data-label="behind by">${plural(one.lag, "record")}</td>
      <td data-label=kept>${one.durable ? "in the store" : "in sections"}</td></tr>`)}</tbody></table></div></section>`;
}
