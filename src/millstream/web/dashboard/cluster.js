// The cluster: which node leads, how far each has come, and how this one stands.
import { html } from "../vendor/preact.js";
import { useAnswer } from "./live.js";
import { Answer, Figures, count, format } from "./parts.js";
import { onStore, refusal, session } from "./session.js";

const KINDS = { leader: "good", follower: "", joining: "warn", halted: "bad" };
const SILENT_S = 10;

export function Cluster() {
  const why = refusal(onStore("read"));
  const status = useAnswer(async () => {
    return why || !session.access.cluster ? { alone: true, why } : session.ms.get("/cluster/status");
  });
  return html`<h1>Cluster</h1>
    <${Answer} of=${status}>${(found) => (found.alone ? html`<${Alone} why=${found.why} />` : html`<${Nodes} of=${found} />`)}<//>`;
}

function Alone({ why }) {
  if (why) return html`<p class=notice>${why}</p>`;
  return html`<p class=soft>This server is no node of a cluster. <code>millstream serve --node</code> starts a
    node, <code>--standby-of</code> a standby.</p>`;
}

function Nodes({ of }) {
  return html`
    ${of.role === "halted" && html`<p class="notice bad" role=alert><b>This node has halted.</b> ${of.reason}</p>`}
    ${!of.leader && html`<p class="notice warn" role=status>No node is known to lead: writes wait until one does.</p>`}
    <${Figures} of=${[
      ["leader", of.leader ?? "none", { kind: of.leader ? "" : "warn" }],
      ["epoch: one more with every new leader", count(of.epoch)],
      ["entries behind, this node", count(of.lag)],
      ["proof of a strong read", of.barrier_s ? `${(of.barrier_s * 1000).toFixed(1)} ms` : "–",
        { title: "How long the last one took that this node made as the leader" }],
    ]} />
    <h2>Nodes</h2>
    <div class="card scroll"><table class=folds>
      <thead><tr><th>node</th><th>role</th><th class=number title="One more with every new leader">epoch</th><th class=number title="The last entry of the shared log that the node has applied">entry</th>
        <th class=number>behind</th><th>heard of</th><th>address</th></tr></thead>
      <tbody>${of.nodes.map((one) => html`<tr key=${one.node}>
        <td><b>${one.node}</b>${one.node === of.node ? html` <span class=soft>this one</span>` : ""}</td>
        <td data-label=role><span class="badge dot ${KINDS[one.role]}" title=${one.reason || null}>${one.role}</span></td>
        <td class=number data-label=epoch>${count(one.epoch)}</td>
        <td class=number data-label=entry>${count(one.sequence)}</td>
        <td class=number data-label=behind>${count(one.lag)}</td>
        <td data-label="heard of" class=${one.heard_s > SILENT_S ? "bad" : ""}>${heard(one)}</td>
        <td class=mono data-label=address><a href=${one.address}>${one.address}</a></td></tr>`)}</tbody></table></div>
    <h2>This node</h2>
    <div class="card scroll"><table class=spec><tbody>${facts(of).map(([name, value]) => html`
      <tr key=${name}><th scope=row>${name}</th><td class=mono>${value}</td></tr>`)}</tbody></table></div>`;
}

const heard = (one) => (one.heard_s < 1 ? "now" : `${format(Math.round(one.heard_s), "s")} ago`);

const facts = (of) => [
  ["name", of.node],
  ["role", of.role],
  ["elections seen", count(of.elections)],
  ["commits of others applied", count(of.replays)],
  ["copies taken of another node", count(of.snapshots)],
  ["requests handed on to the leader", count(of.handed_on)],
  ["reason", of.reason || "–"],
];
