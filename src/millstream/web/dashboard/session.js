// Who is signed in, what it may do, and how the pages ask the server.
//
// The token lies in this tab's sessionStorage and goes to this server alone, as `Authorization`.
// What a token may not do is known before it is tried: controls are disabled, and say why.
import { Millstream } from "../millstream.js";

const KEPT = "millstream-token"; // the page of the HTTP interface knows it too
const INCLUDED = { read: ["read"], put: ["put"], write: ["read", "put", "write"], admin: ["read", "put", "write", "admin"] };

/** The client and what it may do, once signed in: `ms`, `access`. */
export const session = { ms: null, access: null };

/** Come in with a token, or without; raises what the server says to a wrong one. */
export async function signIn(token) {
  const ms = new Millstream({ token });
  const access = await ms.get("/access");
  if (token) sessionStorage.setItem(KEPT, token);
  Object.assign(session, { ms, access });
  return access;
}

/** Come in as this tab did before. */
export function signInAgain() {
  return signIn(sessionStorage.getItem(KEPT) ?? "");
}

/** Forget the token. */
export function signOut() {
  sessionStorage.removeItem(KEPT);
  Object.assign(session, { ms: null, access: null });
}

/** Whether this tab has a token. */
export function hasToken() {
  return sessionStorage.getItem(KEPT) !== null;
}

/** How the server is; critical comes with status 503, and is an answer all the same. */
export async function askHealth() {
  const token = sessionStorage.getItem(KEPT);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  return (await fetch("/health", { headers, cache: "no-store" })).json();
}

/** What is needed to do something to a log: an inbox is its queue's, a room's log the room's. */
export function onLog(action, name) {
  if (name.startsWith("millstream:")) return { noun: "store", action: "admin", name: "", explicit: true };
  const owned = /^(queue|queue-later|room):(.*)$/s.exec(name);
  if (!owned) return { noun: "log", action, name };
  return { noun: owned[1] === "room" ? "room" : "queue", action, name: owned[2] };
}

export const onQueue = (action, name) => ({ noun: "queue", action, name });
export const onJobs = (action, queue) => ({ noun: "job", action, name: queue });
export const onRoom = (action, name) => ({ noun: "room", action, name });
/** What is needed to make a log or a queue whose name is not known yet: the right on any name. */
export const onSome = (noun, action) => ({ noun, action, name: null });
export const onStore = (action) => ({ noun: "store", action, name: "" });

/** Why something cannot be done, as a sentence; empty if it can. */
export function refusal(need) {
  if (!need || session.access === null || session.access.permissions.some((one) => covers(one, need))) return "";
  const wanted = `${need.noun}:${need.action}${need.name ? `:${need.name}` : ""}`; // of a new thing, on any name
  return `This needs the permission ${wanted}, which ${who()} does not have.`;
}

/** Who is signed in, for a sentence. */
export function who() {
  return session.access.tokens || hasToken() ? `the token “${session.access.name}”` : "a client without a token";
}

function covers(permission, need) {
  const [noun, action, ...rest] = permission.split(":");
  if (noun !== need.noun && (noun !== "*" || need.explicit)) return false;
  if (!INCLUDED[action]?.includes(need.action)) return false;
  return need.name === null || matches(rest.join(":") || "*", need.name);
}

/** Whether a name is one that a pattern means: `*` is any text, `?` one character. */
export function matches(pattern, name) {
  const source = pattern.replace(/[\\^$.|+()[\]{}]/g, "\\$&").replace(/\*+/g, ".*").replace(/\?/g, ".");
  return new RegExp(`^${source}$`, "su").test(name);
}

/** A path of the HTTP interface: `path("logs", name)`; names may hold anything. */
export function path(...parts) {
  return `/${parts.map(encodeURIComponent).join("/")}`;
}

/** The same with a query; what is empty is left out. */
export function query(address, given) {
  const kept = Object.entries(given).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return kept.length ? `${address}?${new URLSearchParams(kept)}` : address;
}
