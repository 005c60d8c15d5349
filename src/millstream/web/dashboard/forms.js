// Dialogs with fields: what is typed as text becomes the numbers, durations and sizes that the server takes.
import { html, useState } from "../vendor/preact.js";
import { Act, Dialog, Outcome, Problem, useTask } from "./parts.js";

const SECONDS = { ms: 0.001, "": 1, s: 1, m: 60, min: 60, h: 3_600, d: 86_400, w: 604_800 };
const BYTES = { "": 1, B: 1, K: 1024, KB: 1e3, KIB: 1024, M: 1024 ** 2, MB: 1e6, MIB: 1024 ** 2, G: 1024 ** 3, GB: 1e9,
  GIB: 1024 ** 3, T: 1024 ** 4, TB: 1e12, TIB: 1024 ** 4 };

/** A problem with what was typed, as the pages show problems. */
export function mistake(message) {
  return { name: "Check it", message };
}

function measured(text, units, sample, fold = (unit) => unit) {
  const [, number, unit] = /^([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)$/.exec(text.trim()) ?? [];
  const size = units[fold(unit ?? "?")];
  if (number === undefined || size === undefined) throw mistake(`“${text}” is not ${sample}.`);
  return Number(number) * size;
}

/** The seconds of a duration such as “30s”, “15m”, “12h” or “7d”; a number alone is seconds. */
export function seconds(text) {
  return measured(text, SECONDS, "a duration such as 30s, 15m, 12h or 7d");
}

/** The bytes of a size such as “512 KiB” or “10 GiB”; a number alone is bytes. */
export function sizeInBytes(text) {
  return Math.round(measured(text, BYTES, "a size such as 512 KiB or 10 GiB", (unit) => unit.toUpperCase()));
}

/** A whole number. */
export function whole(text) {
  if (!/^[0-9]+$/.test(text.trim())) throw mistake(`“${text}” is not a whole number.`);
  return Number(text);
}

/** A duration as it is typed, without loss: 90 becomes “90s”, 3,600 “1h”. */
export function typedSeconds(value) {
  const [unit, size] = [["d", 86_400], ["h", 3_600], ["m", 60]].find(([, one]) => value && value % one === 0) ?? ["s", 1];
  return `${value / size}${unit}`;
}

/** A size as it is typed, without loss. */
export function typedBytes(value) {
  const [unit, size] = [["GiB", 1024 ** 3], ["MiB", 1024 ** 2], ["KiB", 1024]].find(([, one]) => value && value % one === 0) ?? ["B", 1];
  return `${value / size} ${unit}`;
}

/** A text field of a form; `hint` stands below it. */
export function Field({ label, value, onInput, hint = "", kind = "text", wide = false, ...more }) {
  const typed = (event) => onInput(kind === "checkbox" ? event.target.checked : event.target.value);
  if (kind === "checkbox") {
    return html`<label class="row check-field"><input type=checkbox checked=${value} onChange=${typed} ...${more} /> ${label}
      ${hint && html`<span class="soft small">${hint}</span>`}</label>`;
  }
  const shared = { value, onInput: typed, autocomplete: "off", spellcheck: false, "aria-label": label, ...more };
  return html`<label class="field ${wide ? "wide" : ""}"><span>${label}</span>
    ${kind === "lines" ? html`<textarea ...${shared}></textarea>` : html`<input type=${kind} ...${shared} />`}
    ${hint && html`<span class="soft small">${hint}</span>`}</label>`;
}

/**
 * A dialog that sends a form once: `send` answers the sentence that is shown then, or raises a problem.
 * `need` is the permission; without it the button is disabled and says why.
 */
export function FormDialog({ title, verb, need, send, onClose, wide = false, again = false, children }) {
  const task = useTask();
  const [sent, setSent] = useState(0);
  const isOver = task.done !== null && !again;
  const submit = (event) => {
    event.preventDefault();
    task.run(async () => {
      const told = await send();
      setSent(sent + 1);
      return told;
    });
  };
  return html`<${Dialog} title=${title} wide=${wide} onClose=${onClose}>
    <form onSubmit=${submit}>
      ${!isOver && children}
      ${task.error ? html`<${Problem} error=${task.error} />` : html`<${Outcome} task=${task} />`}
      <div class=actions>
        <button type=button onClick=${onClose}>${sent ? "Close" : "Cancel"}</button>
        ${!isOver && html`<${Act} type=submit kind=primary need=${need} disabled=${task.busy}>${verb}<//>`}
      </div>
    </form><//>`;
}
