// Buttons of a dialog whose action can first be tried without effect.
import { html } from "../vendor/preact.js";
import { Act, Outcome, useTask } from "./parts.js";

/**
 * `check` tries the action, `doIt` takes it; both answer a sentence. A form gives it a key of what is
 * filled in, so that an old outcome goes once that changes.
 */
export function Rehearsed({ check, doIt, verb, need, onClose }) {
  const dry = useTask();
  const real = useTask();
  return html`
    <${Outcome} task=${real.done === null && !real.error ? dry : real} />
    <div class=actions>
      <button type=button onClick=${onClose}>${real.done === null ? "Cancel" : "Close"}</button>
      ${real.done === null && html`
        <${Act} need=${need} disabled=${dry.busy} onClick=${() => dry.run(check)}>Dry run<//>
        <${Act} kind=primary need=${need} disabled=${real.busy} onClick=${() => real.run(doIt)}>${verb}<//>`}
    </div>`;
}
