// A record's value as JSON, text or hex: always text to the page, whatever it holds.
//
// JSON is shown as it was written, digit for digit: it is cut into pieces and indented, never parsed
// and written anew, so that no large number is rounded.
import { html, useEffect, useState } from "../vendor/preact.js";
import { format } from "./parts.js";
import { path, session } from "./session.js";

const SHOWN_BYTES = 65_536;
const HEX_BYTES = 8_192;
const PREVIEW_CHARS = 160;
const PIECE = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/gs;

/**
 * Ask for a page of records or messages, `list` of the answer, with the numbers in their values as they
 * were written: JSON.stringify has them digit for digit. A browser without JSON.rawJSON rounds them.
 */
export async function askExact(address, list) {
  const text = await askText(address);
  const page = JSON.parse(text);
  if (!JSON.rawJSON) return page;
  const exact = parseExactly(text);
  page[list].forEach((one, i) => { if (one.value !== undefined) one.value = exact[list][i].value; });
  return page;
}

/** Ask for an answer with all its numbers as they were written. */
export async function askExactly(address) {
  return parseExactly(await askText(address));
}

async function askText(address) {
  return (await session.ms.fetch(session.ms.urls[0] + address)).text();
}

function parseExactly(text) {
  if (!JSON.rawJSON) return JSON.parse(text);
  return JSON.parse(text, (_, value, { source }) => (
    typeof value === "number" && JSON.stringify(value) !== source ? JSON.rawJSON(source) : value));
}

/** A value of JSON, indented; its numbers as they were written. */
export function Json({ of, label }) {
  return html`<div class=payload><pre tabindex=0 aria-label=${label}>${shown("json", JSON.stringify(of) ?? "", null, Infinity)}</pre></div>`;
}

/** The bytes of what a listing shows of a value: JSON under `value`, or `base64`. */
export function bytesOf(record) {
  if (record.base64 === null) return new Uint8Array();
  if (record.base64 !== undefined) return Uint8Array.from(atob(record.base64), (char) => char.charCodeAt(0));
  const text = typeof record.value === "string" ? record.value : JSON.stringify(record.value);
  return new TextEncoder().encode(text ?? "");
}

/** A value in one line, cut. */
export function preview(record) {
  if (record.damage) return "(damaged)";
  if (record.base64 === null) return "(null)";
  if (record.base64 !== undefined) {
    const text = decoded(bytesOf(record));
    if (text !== null && !/[\0-\x08\x0e-\x1f]/.test(text)) return cut(text);
    return cut(Array.from(bytesOf(record).slice(0, 40), hexByte).join(" "));
  }
  return cut(typeof record.value === "string" ? record.value : JSON.stringify(record.value) ?? "");
}

function cut(text) {
  const line = text.slice(0, 2 * PREVIEW_CHARS).replace(/\s+/g, " ");
  return line.length > PREVIEW_CHARS ? `${line.slice(0, PREVIEW_CHARS)}…` : line;
}

/** Bytes as text; null if they are not UTF-8. */
export function decoded(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

/** The text of a key, or its bytes in hex. */
export function keyText(record) {
  if (record.key !== undefined) return record.key;
  if (record.key_base64 === undefined) return "";
  return `0x${Array.from(atob(record.key_base64), (char) => hexByte(char.charCodeAt(0))).join("")}`;
}

/** Whether a text is JSON. */
export function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** JSON as pieces with their kind, indented: `[text, kind]`. */
export function jsonPieces(text) {
  const found = text.match(PIECE) ?? [];
  const pieces = [];
  let depth = 0;
  const line = () => pieces.push([`\n${"  ".repeat(depth)}`, ""]);
  found.forEach((one, i) => {
    const [before, after] = [found[i - 1], found[i + 1]];
    if (one === "}" || one === "]") {
      depth -= 1;
      if (before !== "{" && before !== "[") line();
    }
    pieces.push([one === ":" ? ": " : one, kindOf(one, after)]);
    if (one === "{" || one === "[") {
      depth += 1;
      if (after !== "}" && after !== "]") line();
    }
    if (one === ",") line();
  });
  return pieces;
}

/** JSON, indented; no digit of it changes. */
export function indentedJson(text) {
  return jsonPieces(text).map(([piece]) => piece).join("");
}

function kindOf(piece, after) {
  if (piece[0] === '"') return after === ":" ? "name" : "text";
  if (/^[{}[\],:]$/.test(piece)) return "";
  return /^[-\d]/.test(piece) ? "figure" : "word";
}

/** Bytes as people read memory: offset, sixteen bytes, what they are as letters. */
export function hexLines(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = Array.from(bytes.slice(at, at + 16));
    const hex = row.map(hexByte).join(" ").padEnd(47);
    const letters = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex}  ${letters}`);
  }
  return lines.join("\n");
}

const hexByte = (byte) => byte.toString(16).padStart(2, "0");

/**
 * The value of a record: `bytes`, null until they have come, and whether they are `exact`. A record that
 * cannot be read from its log any more is shown as the listing told it, its large numbers rounded.
 */
export function useStored(record) {
  const [found, setFound] = useState({ bytes: null, exact: false });
  useEffect(() => {
    let isOver = false;
    const tell = (bytes, exact) => { if (!isOver) setFound({ bytes, exact }); };
    const address = session.ms.urls[0] + path("logs", record.log, "records", String(record.offset));
    session.ms.fetch(address, { headers: { accept: "*/*" } })
      .then((answer) => answer.arrayBuffer())
      .then((stored) => tell(new Uint8Array(stored), true), () => tell(bytesOf(record), record.base64 !== undefined));
    return () => { isOver = true; };
  }, [record.log, record.offset]);
  return found;
}

/** A value in three ways; the first that fits is shown first. */
export function Payload({ record }) {
  const { bytes } = useStored(record);
  const [all, setAll] = useState(false);
  const [chosen, choose] = useState(null);
  if (bytes === null) return html`<p class=soft aria-busy=true>Loading…</p>`;
  const text = decoded(bytes);
  const fits = { json: text !== null && isJson(text), text: text !== null, hex: true };
  const way = chosen && fits[chosen] ? chosen : Object.keys(fits).find((one) => fits[one]);
  const most = all ? Infinity : way === "hex" ? HEX_BYTES : SHOWN_BYTES;
  const label = { json: "JSON", text: "Text", hex: "Hex" };
  return html`<div class=payload>
    <div class=row role=group aria-label="Show the value as">
      ${Object.keys(fits).map((one) => html`<button type=button key=${one} class=quiet aria-pressed=${one === way}
        disabled=${!fits[one]} onClick=${() => choose(one)}>${label[one]}</button>`)}
      <span class="soft small">${format(bytes.length, "bytes")}</span>
    </div>
    <pre tabindex=0 aria-label="The value">${shown(way, text, bytes, most)}</pre>
    ${bytes.length > most && html`<button type=button onClick=${() => setAll(true)}>Show all</button>`}
  </div>`;
}

function shown(way, text, bytes, most) {
  if (way === "hex") return hexLines(bytes.slice(0, most));
  if (way === "text" || text.length > SHOWN_BYTES) return text.slice(0, most);
  return jsonPieces(text).map(([piece, kind]) => (kind ? html`<span class=${kind}>${piece}</span>` : piece));
}
