// The schema of a log or a queue: what its fields are, and records as fields instead of a value.
import { html } from "../vendor/preact.js";
import { useAnswer } from "./live.js";
import { plural, when } from "./parts.js";
import { preview } from "./payload.js";
import { path, session } from "./session.js";

const COLUMNS_MAX = 6; // more do not fit beside offset and time; an opened record shows all fields
const TYPES_MAX = 40;

/** The versions of a schema, the oldest first: an answer whose `data` is null until they have come. */
export function useSchemas(noun, name) {
  return useAnswer(() => session.ms.get(path(noun, name, "schemas")).then(({ versions }) => versions), [noun, name], { live: false });
}

/** The names of the fields that have a column each; none without a schema. */
export function columnsOf(versions) {
  return Object.keys(versions?.at(-1)?.schema.properties ?? {}).slice(0, COLUMNS_MAX);
}

/** The cells of a record: one for each field, or one for a value that is no object. */
export function FieldCells({ record, fields }) {
  const { value } = record;
  const isObject = typeof value === "object" && value !== null && !Array.isArray(value) && !record.damage;
  if (!fields.length || !isObject) {
    return html`<td class="mono value" data-label=value colspan=${Math.max(1, fields.length)}>${preview(record)}</td>`;
  }
  return fields.map((field) => html`<td key=${field} class="mono value" data-label=${field}>${
    Object.hasOwn(value, field) ? preview({ value: value[field] }) : ""}</td>`);
}

/** What the newest version says of each field, folded away. */
export function SchemaFacts({ versions }) {
  const newest = versions?.at(-1);
  if (!newest) return null;
  const { properties = {}, required = [] } = newest.schema;
  return html`<details class=schema><summary>Schema: ${plural(Object.keys(properties).length, "field")}, version ${newest.version}</summary>
    <p class="soft small">Since ${when(newest.created)}. Records that do not fit are ${
      newest.mode === "enforce" ? "refused" : "stored, and the server logs a warning"}.</p>
    <div class="card scroll"><table class=folds>
      <thead><tr><th>field</th><th>type</th><th>required</th><th>description</th></tr></thead>
      <tbody>${Object.entries(properties).map(([name, field]) => html`<tr key=${name}>
        <td class=mono data-label=field>${name}</td><td data-label=type>${typeText(field)}</td>
        <td data-label=required>${required.includes(name) ? "yes" : "no"}</td>
        <td data-label=description>${field.description ?? ""}</td></tr>`)}</tbody></table></div></details>`;
}

function typeText(field) {
  if (field.enum) return field.enum.map((one) => JSON.stringify(one)).join(", ").slice(0, TYPES_MAX);
  const kinds = [field.type ?? field.anyOf?.map((one) => one.type) ?? "any value"].flat().filter(Boolean).join(" or ");
  const inner = field.items?.type ? ` of ${[field.items.type].flat().join(" or ")}` : "";
  return `${kinds}${inner}${field.format ? ` (${field.format})` : ""}`;
}
