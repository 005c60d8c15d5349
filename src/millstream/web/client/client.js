// A server, or several that share a store: who asks, the HTTP interface, server-sent events, rooms.
//
// The rules of a room are in conversation.js and retained.js, which know no network, clock or page.
import { MillstreamError, problemOf } from "./error.js";
import { backoff, pause, readEvents } from "./events.js";
import { Log } from "./log.js";
import { Queue } from "./queue.js";
import { Room } from "./room.js";
import { LogView, RoomView, reactHooks, vueHooks } from "./views.js";

export { Log, LogView, MillstreamError, Queue, Room, RoomView, reactHooks, vueHooks };

const TICKET_S = 3600; // then the server ends the connection, and the next one shows a new ticket

/** One server, or several that share a store: `url` is an address or a list of them. */
export class Millstream {
  #token;
  #ticket;
  #made = new Map(); // room → the last ticket that was made from the token
  #held = new Map(); // noun → the last ticket that the page gave for it

  constructor({ url, token = "", ticket = "" } = {}) {
    this.urls = [url ?? location.origin].flat().map((one) => String(one).replace(/\/+$/, ""));
    this.#token = token;
    this.#ticket = ticket;
  }

  /** Join a room. It connects at once, and stays until `close`. */
  room(name, options = {}) {
    return new Room(this, name, options);
  }

  /** A log: `append`, `read`, `follow`. */
  log(name) {
    return new Log(this, name);
  }

  /** A queue: `put`, `putMany`, `find`. */
  queue(name) {
    return new Queue(this, name);
  }

  get(path) { return this.request("GET", path); }
  post(path, body = {}) { return this.request("POST", path, body); }
  put(path, body = {}) { return this.request("PUT", path, body); }
  patch(path, body = {}) { return this.request("PATCH", path, body); }
  delete(path) { return this.request("DELETE", path); }

  /** Ask the HTTP interface: answers what its JSON holds, its text, or null. Raises `MillstreamError`. */
  async request(method, path, body, { url = this.urls[0], signal, for: noun } = {}) {
    const given = body === undefined ? {} : { body: JSON.stringify(body), headers: { "content-type": "application/json" } };
    const answer = await this.fetch(url + path, { method, signal, ...given }, noun);
    const text = await answer.text();
    if (!text) return null;
    return answer.headers.get("content-type")?.includes("json") ? JSON.parse(text) : text;
  }

  /**
   * `fetch` with the token, or with a ticket for a noun; a refusal is raised as `MillstreamError`. A ticket is
   * used until the server refuses it: then the page is asked for another one.
   */
  async fetch(address, options = {}, noun = null) {
    const id = JSON.stringify(noun);
    const held = this.#held.get(id);
    const shown = this.#token || (held ?? (await this.#given(noun)));
    const isFromFunction = !this.#token && typeof this.#ticket === "function";
    if (isFromFunction) this.#held.set(id, shown);
    try {
      return await this.#fetch(address, options, shown);
    } catch (error) {
      if (!isFromFunction || error.status !== 401) throw error;
      this.#held.delete(id);
      if (held === undefined) throw error; // it is new, and refused all the same
      return this.fetch(address, options, noun);
    }
  }

  async #fetch(address, options, shown) {
    const headers = { ...options.headers };
    if (shown) headers.authorization = `Bearer ${shown}`;
    let answer;
    try {
      answer = await fetch(address, { ...options, headers, credentials: "omit", cache: "no-store" });
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new MillstreamError({ title: "Unreachable", detail: `${address}: ${error.message}`, retry: true });
    }
    if (!answer.ok) throw await problemOf(answer);
    return answer;
  }

  /** Call `onFigures` with the server's figures, once per second; answers a function that ends it. */
  live(onFigures, onState) {
    return this.events("/live", onFigures, onState);
  }

  /** Call `onEvent` with the JSON of each server-sent event of a path, over lost connections. */
  events(path, onEvent, onState = () => {}) {
    const ended = new AbortController();
    this.#follow(path, ended.signal, onEvent, onState);
    return () => { ended.abort(); onState("closed"); };
  }

  async #follow(path, signal, onEvent, onState) {
    let attempt = 0;
    while (!signal.aborted) {
      const url = this.urls[attempt % this.urls.length];
      try {
        const answer = await this.fetch(url + path, { headers: { accept: "text/event-stream" }, signal });
        onState("live");
        await readEvents(answer.body, (text) => { attempt = 0; onEvent(JSON.parse(text)); });
      } catch (error) {
        if (signal.aborted) return;
        if (error.isFinal) { onState("refused", error); return; }
      }
      onState("reconnecting");
      await pause(backoff(attempt), signal);
      attempt += 1;
    }
  }

  /** A ticket, by which a socket shows who asks: browsers cannot show a token there. */
  async ticketFor(room, url) {
    if (!this.#token) return this.#given({ noun: "room", name: room });
    try {
      this.#made.set(room, await this.#make(room, url));
    } catch (error) {
      // A page can ask no server of another origin for one; but those of its store take the last one.
      if (error.status || !this.#made.has(room)) throw error;
    }
    return this.#made.get(room);
  }

  async #make(room, url) {
    const ticket = async (action) => {
      const wanted = { permissions: [`room:${action}:${room}`], seconds: TICKET_S };
      return (await this.request("POST", "/tickets", wanted, { url })).ticket;
    };
    try {
      return await ticket("write");
    } catch (error) {
      if (error.status !== 403) throw error;
      return ticket("read"); // a token that may only listen
    }
  }

  async #given(noun) {
    return typeof this.#ticket === "function" ? this.#ticket(noun) : this.#ticket;
  }
}
