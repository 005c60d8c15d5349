// A message or a record that an operator writes: to try a queue, or to see a consumer work.
import { html, useState } from "../vendor/preact.js";
import { Field, FormDialog, mistake, seconds } from "./forms.js";
import { isJson } from "./payload.js";
import { onLog, onQueue, path, session } from "./session.js";

const EMPTY = { value: '{"test": true}', key: "", headers: "{}", delay: "", priority: "", group: "", dedup: "" };

/** What the server is sent: JSON byte for byte as it was typed, so that no number is rounded; else text. */
function bodyOf({ value, key, headers: typed }) {
  const headers = headersOf(typed);
  const shared = { ...(key === "" ? {} : { key }) };
  if (!isJson(value)) return { ...shared, value, headers };
  return { ...shared, base64: toBase64(value), headers: { "content-type": "application/json", ...headers } };
}

function headersOf(typed) {
  let found = null;
  try { found = JSON.parse(typed.trim() || "{}"); } catch { /* told below */ }
  if (found === null || typeof found !== "object" || Array.isArray(found)) {
    throw mistake('Headers are a JSON object, such as {"kind": "card"}.');
  }
  return found;
}

function toBase64(text) {
  const bytes = new TextEncoder().encode(text);
  let binary = "";
  for (let at = 0; at < bytes.length; at += 32_768) binary += String.fromCharCode(...bytes.subarray(at, at + 32_768));
  return btoa(binary);
}

/** The fields that a message and a record share. */
function Content({ form, set }) {
  return html`
    <${Field} kind=lines label=Value rows=6 autofocus value=${form.value} onInput=${set("value")}
      hint=${isJson(form.value) ? "Stored as JSON, as it is typed." : "Stored as text: it is not JSON."} />
    <div class=fields>
      <${Field} label=Key value=${form.key} onInput=${set("key")} placeholder=none class=mono />
      <${Field} label="Headers, as JSON" value=${form.headers} onInput=${set("headers")} class=mono />
    </div>`;
}

function useForm() {
  const [form, setForm] = useState(EMPTY);
  return [form, (field) => (value) => setForm((before) => ({ ...before, [field]: value }))];
}

/** Put a message into a queue; the dialog stays open for more. */
export function PutDialog({ queue, onClose }) {
  const [form, set] = useForm();
  const { priority_by, group_by, dedup_by } = queue.spec;
  const send = async () => {
    const body = bodyOf(form);
    if (form.delay) body.delay = seconds(form.delay);
    if (priority_by && form.priority !== "") body.priority = Number(form.priority);
    if (group_by && form.group !== "") body.group = form.group;
    if (dedup_by && form.dedup !== "") body.dedup = form.dedup;
    const { id } = await session.ms.post(path("queues", queue.name, "messages"), body);
    return form.delay ? `Message ${id} is stored, and waits for ${form.delay}.` : `Message ${id} is stored, and can be claimed.`;
  };
  return html`<${FormDialog} title=${`Put a message into ${queue.name}`} verb=Put need=${onQueue("put", queue.name)} send=${send}
    onClose=${onClose} again>
    <${Content} form=${form} set=${set} />
    <div class=fields>
      <${Field} label=Delay value=${form.delay} onInput=${set("delay")} placeholder="none, or 30s, 15m, 1h" />
      ${priority_by && html`<${Field} label=Priority kind=number min=0 max=9 value=${form.priority} onInput=${set("priority")} placeholder="0 to 9" />`}
      ${group_by && html`<${Field} label=Group value=${form.group} onInput=${set("group")} placeholder=none />`}
      ${dedup_by && html`<${Field} label="Id against repeats" value=${form.dedup} onInput=${set("dedup")} placeholder=none />`}
    </div><//>`;
}

/** Append a record to a log; the dialog stays open for more. */
export function AppendDialog({ log, onClose }) {
  const [form, set] = useForm();
  const send = async () => {
    const answer = await session.ms.post(path("logs", log.name, "records"), { records: [bodyOf(form)] });
    return answer.places ? "The record is stored." : `The record is stored at offset ${answer.offset}.`;
  };
  return html`<${FormDialog} title=${`Append a record to ${log.name}`} verb=Append need=${onLog("write", log.name)} send=${send}
    onClose=${onClose} again><${Content} form=${form} set=${set} /><//>`;
}
