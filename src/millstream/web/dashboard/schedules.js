// Schedules: which task each one puts, when it fires next; pause, resume and trigger.
import { html } from "../vendor/preact.js";
import { TaskName } from "./job.js";
import { useAnswer } from "./live.js";
import { Act, Answer, Outcome, format, useTask, when } from "./parts.js";
import { preview } from "./payload.js";
import { onJobs, path, query, refusal, session } from "./session.js";

const TICKS = 3; // next ticks of each schedule
const STORED = "jobs.schedules"; // the queue that holds the schedules

export function Schedules() {
  const found = useAnswer(() => session.ms.get(query("/schedules", { upcoming: TICKS })));
  return html`<${Answer} of=${found}>${({ schedules }) => (schedules.length ? html`<div class="card scroll"><table class="folds jobs">
    <thead><tr><th>schedule</th><th>task</th><th>arguments</th><th>every</th><th>next ticks</th><th>last tick</th><th></th></tr></thead>
    <tbody>${schedules.map((one) => html`<tr key=${one.name}>
      <td class=task><b><${TaskName} of=${one.name} /></b>${one.paused && html` <span class="badge warn">paused</span>`}
        ${one.failure && html`<p class="bad small">${one.failure}</p>`}</td>
      <td class="mono task" data-label=task><span><${TaskName} of=${one.task} /></span></td>
      <td class="mono value" data-label=arguments>${preview({ value: one.arguments })}</td>
      <td data-label=every>${typeof one.every === "number" ? format(one.every, "s") : html`<span><code>${one.every}</code> ${one.tz}</span>`}</td>
      <td data-label="next ticks"><${Ticks} of=${one} /></td>
      <td class=whole data-label="last tick">${when(one.last)}</td>
      <td class=acts><${ScheduleActs} of=${one} onChange=${found.reload} /></td></tr>`)}</tbody></table></div>`
    : html`<p class=soft>There are no schedules yet.</p>`)}<//>`;
}

function Ticks({ of }) {
  if (of.paused) return html`<span class=soft>none while it is paused</span>`;
  if (!of.upcoming.length) return when(of.next);
  return html`<ul class=held>${of.upcoming.map((tick) => html`<li key=${tick} class=whole>${when(tick)}</li>`)}</ul>`;
}

/** What an operator does to a schedule; nothing without the permission. */
function ScheduleActs({ of, onChange }) {
  const task = useTask();
  const need = onJobs("write", STORED);
  if (refusal(need)) return null;
  const ask = (verb) => task.run(async () => {
    const answer = await session.ms.post(path("schedules", of.name, verb));
    onChange();
    return verb === "trigger" ? `Put job ${answer.job}.` : true;
  });
  return html`
    ${!refusal(onJobs("write", of.queue)) && html`<${Act} need=${need} disabled=${task.busy} onClick=${() => ask("trigger")}>Trigger<//>`}
    <${Act} need=${need} disabled=${task.busy} onClick=${() => ask(of.paused ? "resume" : "pause")}>${of.paused ? "Resume" : "Pause"}<//>
    <${Outcome} task=${task} />`;
}
