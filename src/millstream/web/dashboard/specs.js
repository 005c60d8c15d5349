// The settings of queues and logs as forms: a new queue, other settings, a new log, its retention.
import { html, useState } from "../vendor/preact.js";
import { Field, FormDialog, mistake, seconds, sizeInBytes, typedBytes, typedSeconds, whole } from "./forms.js";
import { onLog, onQueue, path, session } from "./session.js";

const TEXT = { read: (text) => text, show: (value) => value ?? "" };
const NUMBER = { read: Number, show: String, kind: "number", step: "any", min: 0 };
const WHOLE = { read: whole, show: String, kind: "number", min: 0 };
const DURATION = { read: seconds, show: typedSeconds };
const FLAG = { read: Boolean, show: Boolean, kind: "checkbox" };
const NAMES = { read: (text) => text.split(/[,\n]/).map((one) => one.trim()).filter(Boolean), show: (value) => value.join(", ") };
const BACKOFF = { read: readBackoff, show: showBackoff };

/** The settings that forms show: label, type, default, hint. Settings that are not here are shown by their names. */
const SETTINGS = {
  description: ["Description", TEXT, ""],
  sources: ["Takes records of these logs", NAMES, [], "names or patterns such as orders.*, with commas between; empty: only what is put"],
  filter: ["Only records whose headers match", TEXT, "", "such as amount > 100; empty: all"],
  start: ["Begins in these logs at", TEXT, "latest", "latest, earliest, or an offset; cannot be changed later"],
  max_attempts: ["Attempts until a message fails", WHOLE, 5],
  lease: ["Lease", DURATION, 30, "how long a consumer may hold a message without a sign of life"],
  backoff: ["Wait before a retry", BACKOFF, { kind: "exponential", first: 1, factor: 2 }, "5s, or 1s,10s,1m in turn, or 1s*2: twice as long each time"],
  delay: ["Delay of every message", DURATION, 0],
  rate: ["Most claims per second", NUMBER, 0, "0: any number"],
  burst: ["Most claims at once, after a pause", WHOLE, 0, "0: the claims of one second"],
  max_in_flight: ["Most messages in flight", WHOLE, 0, "0: any number"],
  group_by: ["Header that names the group", TEXT, "", "messages of a group keep their order; _key: the record's key"],
  group_in_flight: ["Messages of a group in flight", WHOLE, 1],
  priority_by: ["Header that holds the priority", TEXT, ""],
  dedup_by: ["Header by which repeats are known", TEXT, "", "or _key: the record's key"],
  dedup_window: ["Repeats are dropped for", DURATION, 300],
  dedup_while: ["Repeats are dropped while the message is", TEXT, "", "waiting or running; empty: for the time above"],
  done_retention: ["Done messages are remembered for", DURATION, 604_800, "0s: without limit"],
  dead_letter: ["Log for failed messages", TEXT, "", "failed messages are published there as well"],
  changes: ["Log of changes", TEXT, "", "each change of a message's state is appended there"],
};
const DURATIONS = new Set(["lease_max", "priority_step"]);
const FIXED = new Set(["start", "start_ms", "bucket_exponent", "router"]); // decided when a queue is made

function readBackoff(text) {
  const [waits, factor] = text.split("*");
  const found = waits.split(",").map(seconds);
  if (factor !== undefined) {
    if (!(Number(factor) >= 1)) throw mistake("A growing wait looks like 1s*2.");
    return { kind: "exponential", first: found[0], factor: Number(factor) };
  }
  return found.length === 1 ? found[0] : found;
}

function showBackoff({ kind = "exponential", first = 1, factor = 2, waits = [] }) {
  if (kind === "list") return waits.map(typedSeconds).join(",");
  return kind === "fixed" ? typedSeconds(first) : `${typedSeconds(first)}*${factor}`;
}

/** Label, type, default and hint of a setting; of one that this page does not know, by its value. */
function settingOf(name, value) {
  if (SETTINGS[name]) return SETTINGS[name];
  const type = DURATIONS.has(name) ? DURATION : typeof value === "boolean" ? FLAG : typeof value === "number" ? NUMBER : TEXT;
  return [name.replaceAll("_", " "), type, value, ""];
}

/** What was changed in a form, as the server takes it. */
function changes(form, before) {
  const found = {};
  for (const [name, typed] of Object.entries(form)) {
    const [label, type] = settingOf(name, before[name]);
    if (typed === type.show(before[name])) continue;
    try {
      found[name] = type.read(typed);
    } catch (error) {
      throw mistake(`${label}: ${error.message}`);
    }
    if (name === "start" && /^[0-9]+$/.test(typed)) found[name] = Number(typed);
  }
  return found;
}

function SettingFields({ before, form, setForm }) {
  return html`<div class=fields>${Object.keys(form).map((name) => {
    const [label, { read, show, ...type }, , hint] = settingOf(name, before[name]);
    return html`<${Field} key=${name} label=${label} hint=${hint} value=${form[name]} ...${type} data-setting=${name}
      onInput=${(value) => setForm((all) => ({ ...all, [name]: value }))} />`;
  })}</div>`;
}

const shownAs = (spec, names) => Object.fromEntries(names.map((name) => [name, settingOf(name, spec[name])[1].show(spec[name])]));
const MAIN = ["description", "sources", "filter", "max_attempts", "lease", "backoff"];

/** Make a queue: the settings that most queues need, and the others on request. */
export function NewQueue({ onClose }) {
  const before = Object.fromEntries(Object.entries(SETTINGS).map(([name, [, , value]]) => [name, value]));
  const [name, setName] = useState("");
  const [main, setMain] = useState(shownAs(before, MAIN));
  const [more, setMore] = useState(shownAs(before, Object.keys(before).filter((one) => !MAIN.includes(one))));
  const send = async () => {
    const there = await session.ms.get(path("queues", name)).catch((error) => { if (error.status !== 404) throw error; return null; });
    if (there) throw mistake(`There is a queue “${name}” already; its page has “Settings…”.`);
    await session.ms.put(path("queues", name), changes({ ...main, ...more }, before));
    location.hash = path("queues", name);
    return `The queue “${name}” is there.`;
  };
  return html`<${FormDialog} wide title="New queue" verb=Create need=${name ? onQueue("admin", name) : null} send=${send} onClose=${onClose}>
    <${Field} label=Name value=${name} onInput=${setName} required autofocus />
    <${SettingFields} before=${before} form=${main} setForm=${setMain} />
    <details><summary>More settings</summary><${SettingFields} before=${before} form=${more} setForm=${setMore} /></details><//>`;
}

/** Change the settings of a queue. */
export function AlterQueue({ queue, onClose }) {
  const names = [...Object.keys(SETTINGS), ...Object.keys(queue.spec)].filter((name, at, all) => (
    all.indexOf(name) === at && name in queue.spec && !FIXED.has(name)));
  const main = names.filter((name) => MAIN.includes(name));
  const [form, setForm] = useState(shownAs(queue.spec, main));
  const [more, setMore] = useState(shownAs(queue.spec, names.filter((name) => !MAIN.includes(name))));
  const send = async () => {
    const changed = changes({ ...form, ...more }, queue.spec);
    const count = Object.keys(changed).length;
    if (!count) throw mistake("Nothing was changed.");
    await session.ms.request("PATCH", path("queues", queue.name), changed);
    return `The queue has ${count === 1 ? "the new setting" : `${count} new settings`}.`;
  };
  return html`<${FormDialog} wide title=${`Settings of ${queue.name}`} verb=Save need=${onQueue("admin", queue.name)} send=${send} onClose=${onClose}>
    <${SettingFields} before=${queue.spec} form=${form} setForm=${setForm} />
    <details><summary>More settings</summary><${SettingFields} before=${queue.spec} form=${more} setForm=${setMore} /></details><//>`;
}

/** The rules by which a log deletes records, as they are typed. */
function useRules({ age = null, bytes = null, count = null, consumed = false } = {}) {
  const [rules, setRules] = useState({ age: age === null ? "" : typedSeconds(age), bytes: bytes === null ? "" : typedBytes(bytes),
    count: count === null ? "" : String(count), consumed });
  const set = (field) => (value) => setRules((all) => ({ ...all, [field]: value }));
  const read = () => ({ age: rules.age === "" ? null : seconds(rules.age), bytes: rules.bytes === "" ? null : sizeInBytes(rules.bytes),
    count: rules.count === "" ? null : whole(rules.count), consumed: rules.consumed });
  const fields = html`<p class=soft>A record is deleted as soon as one of these rules allows it. Without a rule every record stays.</p>
    <div class=fields>
      <${Field} label="Delete records older than" value=${rules.age} onInput=${set("age")} placeholder="keep all, or 7d, 12h" />
      <${Field} label="Keep at most this size" value=${rules.bytes} onInput=${set("bytes")} placeholder="keep all, or 10 GiB" />
      <${Field} label="Keep at most this many records" value=${rules.count} onInput=${set("count")} placeholder="keep all" inputmode=numeric />
    </div>
    <${Field} kind=checkbox label="Delete records that every cursor and queue has passed" value=${rules.consumed} onInput=${set("consumed")} />`;
  return { fields, read, isEmpty: () => !rules.age && !rules.bytes && !rules.count && !rules.consumed };
}

const partitionsOf = ({ name, partitions }) => Array.from({ length: partitions }, (_, at) => `${name}-partition-${at}`);

async function setRetention(log, rules) {
  const names = log.partitions ? partitionsOf(log) : [log.name];
  for (const name of names) await session.ms.put(path("logs", name, "retention"), rules);
}

/** Make an empty log. */
export function NewLog({ onClose }) {
  const [name, setName] = useState("");
  const [partitions, setPartitions] = useState("");
  const rules = useRules();
  const send = async () => {
    const retention = rules.read();
    const there = await session.ms.get(path("logs", name)).catch((error) => { if (error.status !== 404) throw error; return null; });
    if (there) throw mistake(`There is a log “${name}” already.`);
    const query = partitions ? `?partitions=${whole(partitions)}` : "";
    const made = await session.ms.put(path("logs", name) + query);
    if (!rules.isEmpty()) await setRetention(made, retention);
    location.hash = path("logs", name);
    return `The log “${name}” is there.`;
  };
  const need = name ? onLog(rules.isEmpty() ? "write" : "admin", name) : null;
  return html`<${FormDialog} title="New log" verb=Create need=${need} send=${send} onClose=${onClose}>
    <${Field} label=Name value=${name} onInput=${setName} required autofocus />
    <${Field} label=Partitions value=${partitions} onInput=${setPartitions} placeholder="none: a single log" inputmode=numeric />
    ${rules.fields}<//>`;
}

/** Change the retention of a log. */
export function RetentionDialog({ log, onClose }) {
  const rules = useRules(log.retention);
  const send = async () => {
    await setRetention(log, rules.read());
    return "The log has the new rules. Old records go in the background.";
  };
  return html`<${FormDialog} title=${`Retention of ${log.name}`} verb=Save need=${onLog("admin", log.name)} send=${send} onClose=${onClose}>
    ${rules.fields}<//>`;
}
