// Jobs: how many each task has in each state; lists by task and state; and the schedules that put jobs.
import { html, useState } from "../vendor/preact.js";
import { useAnswer } from "./live.js";
import { Answer, LinkBar, count, when } from "./parts.js";
import { askExactly, preview } from "./payload.js";
import { JobActs, TaskName } from "./job.js";
import { Schedules } from "./schedules.js";
import { path, query, session } from "./session.js";

const PAGE = 50;
const STATES = ["failed", "running", "waiting", "scheduled", "done", "cancelled"];
const TABS = [["tasks", "Tasks"], ["failed", "Failed"], ["running", "Running"], ["waiting", "Waiting"], ["scheduled", "Scheduled"],
  ["done", "Done"], ["cancelled", "Cancelled"], ["schedules", "Schedules"]];

export function Jobs({ asked }) {
  const tab = TABS.some(([one]) => one === asked.tab) ? asked.tab : "tasks";
  return html`
    <h1>Jobs</h1>
    <${LinkBar} kind=tabs label="Jobs by state" current=${tab}>${TABS.map(([one, title]) => html`<a key=${one}
      href=${query("#/jobs", { tab: one, task: STATES.includes(one) ? asked.task : "" })}
      aria-current=${one === tab ? "page" : null}>${title}</a>`)}<//>
    ${tab === "tasks" && html`<${Tasks} />`}
    ${tab === "schedules" && html`<${Schedules} />`}
    ${STATES.includes(tab) && html`<${JobList} key=${`${tab}/${asked.task ?? ""}`} state=${tab} task=${asked.task ?? ""} />`}`;
}

/** How many jobs each task has, by state. */
function Tasks() {
  const found = useAnswer(() => session.ms.get("/jobs/tasks"));
  return html`<${Answer} of=${found}>${({ tasks }) => (tasks.length ? html`<div class="card scroll"><table class="folds dense">
    <thead><tr><th>task</th><th>queue</th>${STATES.map((state) => html`<th class=number key=${state}>${state}</th>`)}</tr></thead>
    <tbody>${tasks.map((one) => html`<tr key=${`${one.task}/${one.queue}`}>
      <td class=mono>${one.task}</td>
      <td data-label=queue><a href=${`#${path("queues", one.queue)}`}>${one.queue}</a></td>
      ${STATES.map((state) => html`<td class=number key=${state} data-label=${state}><${Counted} of=${one} state=${state} /></td>`)}
    </tr>`)}</tbody></table></div>
    ${tasks.some((one) => one.is_estimated) && html`<p class="soft small">Numbers above 1,000 in a queue are estimated.</p>`}`
    : html`<p class=soft>There are no jobs yet, or none that may be read here.</p>`)}<//>`;
}

function Counted({ of, state }) {
  if (!of[state]) return "0";
  const kind = state === "failed" ? "badge bad" : "";
  return html`<a class=${kind} href=${query("#/jobs", { tab: state, task: of.task })}>${count(of[state])}</a>`;
}

const TIMES = { failed: "failed", running: "lease ends", waiting: "put", scheduled: "due", done: "done", cancelled: "cancelled" };
const NOTHING = { failed: "No job has failed.", running: "No job runs now.", waiting: "No job waits.",
  scheduled: "No job waits for its time.", done: "No job is done yet, or its result has expired.",
  cancelled: "No job was cancelled, or it is forgotten." };

/** The jobs in a state, page by page. */
function JobList({ state, task }) {
  const [trail, setTrail] = useState([]);
  const address = query("/jobs", { state, task, limit: PAGE, after: trail.at(-1) });
  const found = useAnswer(() => askExactly(address), [address]);
  return html`
    ${task && html`<p class=row>Task <b class=mono>${task}</b> <a href=${query("#/jobs", { tab: state })}>All tasks</a></p>`}
    <${Answer} of=${found}>${({ jobs, next }) => html`
      ${jobs.length ? html`<div class="card scroll"><table class="folds jobs">
        <thead><tr><th>job</th><th>task</th><th>arguments</th><th class=number>attempts</th><th>${TIMES[state]}</th>
          ${state === "failed" && html`<th>reason</th>`}<th></th></tr></thead>
        <tbody>${jobs.map((one) => html`<tr key=${one.id}>
          <td class="mono whole"><a href=${`#${path("jobs", one.id)}`}>${one.id}</a></td>
          <td class="mono task" data-label=task><span><${TaskName} of=${one.task} /></span></td>
          <td class="mono value" data-label=arguments>${preview({ value: one.arguments })}</td>
          <td class=number data-label=attempts>${count(one.attempts)}</td>
          <td class=whole data-label=${TIMES[state]}>${when(state === "waiting" ? one.put : one.until)}</td>
          ${state === "failed" && html`<td class=reason data-label=reason><span>${one.reason || "no reason was given"}</span></td>`}
          <td class=acts><${JobActs} of=${one} onChange=${found.reload} /></td></tr>`)}</tbody></table></div>`
      : html`<p class=soft>${next ? "None among the jobs looked at so far; “Next” looks further." : NOTHING[state]}</p>`}
      ${(trail.length > 0 || next) && html`<div class=row>
        <button type=button disabled=${!trail.length} onClick=${() => setTrail(trail.slice(0, -1))}>Back</button>
        <button type=button disabled=${!next} onClick=${() => setTrail([...trail, next])}>Next</button></div>`}`}<//>`;
}
