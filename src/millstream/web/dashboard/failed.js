// Failed messages: why, after what, and how they are tried again. Each way has a dry run first.
import { html, useState } from "../vendor/preact.js";
import { Failures, reasonText } from "./failures.js";
import { Act, Answer, Dialog, Problem, pairsOf, plural, when } from "./parts.js";
import { Detail, Pager, Toggle, place, usePage } from "./messages.js";
import { decoded, indentedJson, isJson, preview, useStored } from "./payload.js";
import { Rehearsed } from "./rehearsed.js";
import { onQueue, path, session } from "./session.js";

const TYPE = "content-type";

export function Failed({ queue, total, onChange }) {
  const [trail, setTrail] = useState([]);
  const [open, setOpen] = useState(null);
  const [asking, setAsking] = useState(null); // {kind, message}
  const found = usePage(queue, "failed", trail.at(-1), { attempts: true });
  const need = onQueue("admin", queue);
  const over = () => { setAsking(null); found.reload(); onChange(); };
  const Asked = asking && { one: RetryOne, all: RetryAll, edit: Edit }[asking.kind];
  return html`
    <${Failures} queue=${queue} total=${total} onChange=${over} />
    <div class="row controls"><${Act} need=${need} disabled=${!total} onClick=${() => setAsking({ kind: "all" })}>Retry all that match…<//></div>
    <${Answer} of=${found}>${({ messages }) => html`
      ${messages.length ? html`<div class="card scroll"><table class=folds>
        <thead><tr><th></th><th>message</th><th>failed</th><th class=number>attempts</th><th>reason</th><th>value</th><th></th></tr></thead>
        <tbody>${messages.map((one) => {
          const isOpen = open === one.claim_id;
          return html`<tr key=${one.claim_id} class=${isOpen ? "open" : ""}>
            <td class=toggle><${Toggle} isOpen=${isOpen} onClick=${() => setOpen(isOpen ? null : one.claim_id)} of=${one} /></td>
            <td class=mono data-label=message>${place(one)}</td>
            <td class=time data-label=failed>${when(one.until)}</td>
            <td class=number data-label=attempts>${one.attempts?.length ?? one.attempt}</td>
            <td class=reason data-label=reason><span>${reasonText(one.reason.trim()).split("\n", 1)[0]}</span></td>
            <td class="mono value" data-label=value>${preview(one)}</td>
            <td class=acts><${Act} need=${need} onClick=${() => setAsking({ kind: "one", message: one })}>Retry<//></td></tr>
            ${isOpen && html`<${Detail} columns=7 of=${one} lead=${html`<${Trace} of=${one.reason} />`}>
              <div class=actions>
                <${Act} need=${need} onClick=${() => setAsking({ kind: "edit", message: one })}>Edit and retry…<//>
                <${Act} kind=primary need=${need} onClick=${() => setAsking({ kind: "one", message: one })}>Retry<//>
              </div><//>`}`;
        })}</tbody></table></div>` : html`<p class=soft>Nothing has failed.</p>`}
      <${Pager} trail=${trail} setTrail=${setTrail} messages=${messages} />`}<//>
    ${Asked && html`<${Asked} queue=${queue} message=${asking.message} need=${need} onClose=${over} />`}`;
}

/** The reason in full; the lines that say where the handler was stand before it, as Python has them. */
function Trace({ of }) {
  if (!of) return null;
  const lines = of.split("\n");
  const where = lines.filter((line) => line.startsWith("  File "));
  const told = lines.filter((line) => !line.startsWith("  File "));
  return html`<pre class=trace tabindex=0 aria-label="Why it failed">${[...where, ...told].join("\n")}</pre>`;
}

const again = (found, isDry) => `${plural(found.count, "message")} ${isDry ? "would be" : found.count === 1 ? "is" : "are"} available again.`;

function RetryOne({ queue, message, need, onClose }) {
  const ask = async (dry_run) => again(await session.ms.post(path("queues", queue, "redrive"), { claims: [message.claim_id], dry_run }), dry_run);
  return html`<${Dialog} title="Retry the message" onClose=${onClose}>
    <p>Message <b class=mono>${place(message)}</b> is tried again, under a new claim id and with no attempts counted.</p>
    <${Rehearsed} check=${() => ask(true)} doIt=${() => ask(false)} verb=Retry need=${need} onClose=${onClose} />
  <//>`;
}

function RetryAll({ queue, need, onClose }) {
  const [form, setForm] = useState({ where: "", limit: "", rate: "" });
  const set = (field) => (event) => setForm({ ...form, [field]: event.target.value });
  const ask = async (dry_run) => {
    const body = { where: form.where || null, limit: form.limit === "" ? null : Number(form.limit),
      rate: form.rate === "" ? null : Number(form.rate), dry_run };
    return again(await session.ms.post(path("queues", queue, "redrive"), body), dry_run);
  };
  return html`<${Dialog} title="Retry all that match" onClose=${onClose}>
    <label class=field>Headers match
      <input class=mono value=${form.where} onInput=${set("where")} placeholder="empty: all that failed" autocomplete=off
        spellcheck=${false} autofocus /></label>
    <div class=row>
      <label class=field>At most<input type=number min=1 value=${form.limit} onInput=${set("limit")} placeholder=all /></label>
      <label class=field>Per second<input type=number min=0 step=any value=${form.rate} onInput=${set("rate")} placeholder="all at once" /></label>
    </div>
    <${Rehearsed} key=${JSON.stringify(form)} check=${() => ask(true)} doIt=${() => ask(false)} verb="Retry them" need=${need}
      onClose=${onClose} />
  <//>`;
}

function Edit({ queue, message, need, onClose }) {
  const { bytes, exact } = useStored(message);
  if (message.damage) {
    return html`<${Dialog} title="Edit and retry" onClose=${onClose}>
      <p>The value is damaged and cannot be read, so that it cannot be edited here. Replace the message
        with <code>millstream queue replace</code> if you know its value.</p>
      <div class=actions><button type=button onClick=${onClose}>Close</button></div><//>`;
  }
  if (bytes === null) return null;
  const text = decoded(bytes);
  if (text === null) {
    return html`<${Dialog} title="Edit and retry" onClose=${onClose}>
      <p>The value is not text, so that it cannot be edited here.</p>
      <div class=actions><button type=button onClick=${onClose}>Close</button></div><//>`;
  }
  return html`<${EditText} queue=${queue} message=${message} text=${text} exact=${exact} need=${need} onClose=${onClose} />`;
}

function EditText({ queue, message, text, exact, need, onClose }) {
  const every = pairsOf(message.headers);
  const type = every.findLast(([name]) => name === TYPE)?.[1];
  const kind = typeof type === "string" ? type : "";
  const others = every.filter(([name]) => name !== TYPE);
  const headers = Array.isArray(message.headers) ? others : Object.fromEntries(others);
  const isJsonText = isJson(text) && (kind === "" || kind.includes("json"));
  const [value, setValue] = useState(isJsonText && text.length < 65_536 ? indentedJson(text) : text);
  const [key, setKey] = useState(message.key ?? "");
  const [told, setTold] = useState(JSON.stringify(headers, null, 2));
  const set = (setter) => (event) => setter(event.target.value);
  const problem = headersProblem(told) || (isJsonText && !isJson(value) ? "The value is not JSON." : "");
  const ask = async (dry_run) => {
    if (problem) throw { name: "InvalidInput", message: problem };
    await session.ms.request("POST", path("queues", queue, "messages", message.claim_id, "replace"), {
      ...body(value, kind), ...(key === "" ? keyOf(message) : { key }), headers: withType(JSON.parse(told), kind),
      dry_run });
    return dry_run ? "It would take the place of the failed message." : "The edited message is available; the failed one is gone.";
  };
  return html`<${Dialog} wide title="Edit and retry" onClose=${onClose}>
    ${!exact && html`<p class="notice warn">Its log does not hold the value any more, or may not be read: very large numbers
      in it are rounded here.</p>`}
    <label class=field>Value<textarea rows=12 value=${value} onInput=${set(setValue)} spellcheck=${false}></textarea></label>
    <div class=row>
      <label class=field>Key<input class=mono value=${key} onInput=${set(setKey)} autocomplete=off spellcheck=${false} /></label>
    </div>
    <label class=field>Headers, as JSON<textarea rows=4 value=${told} onInput=${set(setTold)} spellcheck=${false}></textarea></label>
    ${problem && html`<${Problem} error=${{ name: "Check it", message: problem }} />`}
    <${Rehearsed} key=${JSON.stringify([value, key, told])} check=${() => ask(true)} doIt=${() => ask(false)}
      verb="Replace and retry" need=${need} onClose=${onClose} />
  <//>`;
}

/** The bytes as they were typed: JSON is not written anew, so that no number is rounded. */
function body(value, kind) {
  if (kind.startsWith("text/plain")) return { value };
  const bytes = new TextEncoder().encode(value);
  let binary = "";
  for (let at = 0; at < bytes.length; at += 32_768) binary += String.fromCharCode(...bytes.subarray(at, at + 32_768));
  return { base64: btoa(binary) };
}

/** The key of a message that is not text stays as it is. */
function keyOf(message) {
  return message.key_base64 === undefined ? {} : { key_base64: message.key_base64 };
}

function withType(headers, kind) {
  if (!kind) return headers;
  return Array.isArray(headers) ? [...headers, [TYPE, kind]] : { ...headers, [TYPE]: kind };
}

function headersProblem(told) {
  const problem = "Headers are a JSON object, or an array of pairs of a name and a value.";
  try {
    const found = JSON.parse(told);
    return found !== null && typeof found === "object" ? "" : problem;
  } catch {
    return problem;
  }
}
