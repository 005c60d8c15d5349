// A room, joined: it carries a conversation over one connection after the other, on any of the servers.
import { Conversation } from "./conversation.js";
import { MillstreamError, invalid } from "./error.js";
import { backoff } from "./events.js";
import { EventLine, SocketLine } from "./lines.js";

const WELCOME_MS = 10_000; // a line that has not greeted by then is given up
const PING_MS = 20_000; // a line that was silent for so long is asked whether it still carries
const ANSWER_MS = 10_000; // one that does not answer within that is dead
const STEADY_MS = 5_000; // one that lived for so long ends the backoff
const SOCKETS_ONLY = 3; // where sockets have passed, no other line is tried in so many rounds of all servers
const TICK_S = 0.05; // of conflated types, until the room has said its own
const CONFLATED = ["pointer", "cursor"];

/** `on(event, fn)` tells of `message`, `gap`, `presence`, `retained`, `state` and `error`. */
export class Room {
  #ms;
  #talk;
  #listeners = new Map();
  #line = null;
  #urls;
  #attempt = 0;
  #hadSocket = false;
  #retry = 0;
  #tick = 0;
  #latest = new Map(); // of each conflated type, what the next tick sends

  #hasBegun = false; // a first connection was tried
  #isConnecting = false; // a connection is made, or carries
  #joinsAnew = false; // the connection was ended in order to make another one at once

  constructor(ms, name, { user = "", types = null, client = randomId(), history, since, presence } = {}) {
    this.name = name;
    this.state = "connecting";
    this.url = "";
    this.#ms = ms;
    this.#talk = new Conversation({ user, types, client, history, since });
    if (presence) this.#talk.setState(presence);
    this.#urls = [...ms.urls];
    globalThis.addEventListener?.("online", this.#atOnce);
    queueMicrotask(() => this.#connect());
  }

  get #noun() { return { noun: "room", name: this.name }; }
  get user() { return this.#talk.user; }
  get client() { return this.#talk.client; }
  get settings() { return this.#talk.settings; }
  /** Of the next message. */
  get offset() { return this.#talk.offset; }
  /** Who is here: a Map from user to `{user, since, connections, state}`; of a crowded room, some of them. */
  get presence() { return this.#talk.presence; }
  /** How many users are here. */
  get users() { return this.#talk.users; }
  /** The latest value of each key: a Map from type to a Map from key to message. */
  get retained() { return this.#talk.retained.shown; }

  /**
   * Wait until the room is joined; answers the room. Late joiners say where they begin: `history` asks
   * for so many of the last messages, `since` for all from an offset on. A room that was joined before is
   * joined anew then. Later connections continue where the last one ended, whatever was asked here.
   */
  async join(options) {
    this.#check();
    if (options) this.#begin(options);
    if (this.state === "live") return this;
    await new Promise((done, fail) => {
      const off = this.on("state", ({ state, error }) => {
        if (state === "live") done();
        else if (this.#isOver) fail(error);
        else return;
        off();
      });
    });
    return this;
  }

  /** Call `fn` at each such event; answers a function that ends it. */
  on(event, fn) {
    if (!this.#listeners.has(event)) this.#listeners.set(event, new Set());
    this.#listeners.get(event).add(fn);
    return () => this.#listeners.get(event).delete(fn);
  }

  /**
   * Send to all others in the room. Answers the offset once it is stored, null if the server found
   * it stored after a lost connection. Of conflated types the latest goes with the next tick, unnumbered:
   * the answer is null, at once.
   */
  async send(type, data, { key } = {}) {
    const message = key === undefined ? { type, data } : { type, data, key };
    if (!this.#isConflated(type)) return this.sendMany([message]);
    this.#check();
    this.#latest.set(type, message);
    this.#tick ||= setTimeout(() => this.#flush(), 1000 * (this.settings?.tick ?? TICK_S));
    return null;
  }

  /** Send several messages as one commit; answers the offset of the first. */
  async sendMany(messages) {
    this.#check();
    const answer = this.#talk.send(messages);
    if (this.state === "live") this.#sendFrom(this.#talk.lastNumber);
    this.#tellChanges();
    return answer;
  }

  /** Delete the retained value of a key. */
  async delete(type, key) {
    return this.sendMany([{ type, key, data: null, deleted: true }]);
  }

  /**
   * Set the state of this client's presence, a small object such as `{typing: true}`, without a rejoin. All
   * are shown it beside the user, also those who join later. It ends with the connection; this client sets it
   * again after a lost one. A refusal of the server is told as the event `error`.
   */
  setPresence(state) {
    this.#check();
    if (this.#talk.hasJoined && !this.user) throw invalid("a client without a user has no presence: join with a user");
    const frame = this.#talk.setState(state);
    if (frame && this.state === "live") this.#line.send(frame);
  }

  /** Have all users in `presence`, also those of a crowded room; answers it. */
  async everyone() {
    while (this.#talk.presence.size < this.#talk.users) {
      this.#check();
      const path = `/rooms/${encodeURIComponent(this.name)}/presence`;
      const { presence, offset } = await this.#ms.request("GET", path, undefined, { url: this.url, for: this.#noun });
      if (this.#talk.meetAll(presence, offset)) break; // else the room has gone on meanwhile
    }
    return this.presence;
  }

  /** Leave. Sends that were not confirmed fail. */
  close() {
    this.#end("closed", new MillstreamError({ title: "Closed", detail: "the room was left" }));
  }

  #begin(options) {
    this.#talk.begin(options);
    if (!this.#hasBegun) return; // the first connection is yet to be made
    if (!this.#line) {
      this.#atOnce();
      return;
    }
    const line = this.#line;
    this.#line = null; // what it still brings is not heard
    this.#joinsAnew = true;
    this.#tell("reconnecting", { error: null, retry_ms: 0 });
    line.close();
  }

  get #isOver() { return this.state === "closed" || this.state === "refused"; }

  #check() {
    if (this.#isOver) throw new MillstreamError({ title: "Closed", detail: `this room is ${this.state}` });
  }

  // Connecting.

  #atOnce = () => { // the network is back: do not wait for the backoff
    if (this.#isConnecting || this.#isOver) return;
    clearTimeout(this.#retry);
    this.#connect();
  };

  async #connect() {
    const url = this.#urls[0];
    let failure = null;
    this.#hasBegun = this.#isConnecting = true;
    try {
      const ticket = await this.#ms.ticketFor(this.name, url);
      const place = `${url}/rooms/${encodeURIComponent(this.name)}`;
      for (const Line of this.#lines()) {
        if (this.#isOver) return;
        const line = new Line({ ms: this.#ms, place, ticket, query: this.#talk.joining(), noun: this.#noun });
        const ended = await this.#carry(line, url);
        failure = ended.failure;
        if (ended.wasGreeted || failure?.isFinal || this.#joinsAnew) break;
      }
    } catch (error) {
      failure = error;
    }
    this.#isConnecting = false;
    this.#lost(failure);
  }

  /** A server without a store to ask refuses sockets for a while; that is no proxy to be got around. */
  #lines() {
    const isEarly = this.#attempt < SOCKETS_ONLY * this.#urls.length;
    return this.#hadSocket && isEarly ? [SocketLine] : [SocketLine, EventLine];
  }

  /** Use a line until it ends: whether it greeted, and what it failed with. */
  async #carry(line, url) {
    let greetedAt = 0;
    let heardAt = Date.now();
    let askedAt = 0;
    const watch = setInterval(() => { // in a hidden tab it is called once per minute only
      const now = Date.now();
      if (!greetedAt ? now - heardAt > WELCOME_MS : askedAt > heardAt && now - askedAt > ANSWER_MS) line.close();
      else if (now - heardAt > PING_MS && askedAt <= heardAt) { askedAt = now; line.ping(); }
    }, PING_MS / 8);
    this.#line = line;
    const failure = await line.run((frame) => {
      if (this.#line !== line) return;
      heardAt = Date.now();
      this.#take(frame);
      if (!frame.welcome) return;
      greetedAt = heardAt;
      this.url = url;
      this.#hadSocket ||= line.kind === "socket";
      this.#live(line.kind);
    }).then(() => null, (error) => error);
    clearInterval(watch);
    line.close();
    this.#line = null;
    if (greetedAt && Date.now() - greetedAt > STEADY_MS) this.#attempt = 0;
    return { wasGreeted: greetedAt > 0, failure };
  }

  #live(via) {
    this.state = "live"; // told below: what a listener then sends comes after what waits
    const state = this.#talk.stateFrame();
    if (state && this.user) this.#line.send(state);
    this.#sendFrom(1);
    this.#flush();
    this.#tell("live", { via });
    if (this.#talk.retained.isDoubtful) this.#settle();
  }

  /** A connection is gone: try the next address; later, once each of them has failed. */
  #lost(error) {
    if (this.#isOver) return;
    // Beyond the end of the room: what the page asked for is wrong, or the room was made anew.
    const isBeyond = error?.status === 416;
    if (error?.isFinal || (isBeyond && this.#talk.offset === null)) {
      this.#end("refused", error);
      return;
    }
    if (isBeyond) this.#talk.forget();
    if (this.#joinsAnew) {
      this.#joinsAnew = false;
      this.#connect();
      return;
    }
    this.#urls.push(this.#urls.shift());
    const wait = backoff(Math.floor(this.#attempt / this.#urls.length));
    this.#attempt += 1;
    this.#tell(this.#talk.hasJoined ? "reconnecting" : "connecting", { error, retry_ms: wait });
    this.#retry = setTimeout(() => this.#connect(), wait);
  }

  #end(state, error) {
    if (this.state === "closed") return;
    globalThis.removeEventListener?.("online", this.#atOnce);
    clearTimeout(this.#retry);
    clearTimeout(this.#tick);
    this.#tell(state, { error });
    this.#line?.close();
    this.#talk.fail(error);
    this.#tellChanges();
  }

  // What comes and goes.

  #take(frame) {
    for (const [event, value] of this.#talk.take(frame)) this.#emit(event, value);
    this.#tellChanges();
  }

  #sendFrom(number) {
    for (const frame of this.#talk.toSend(number)) this.#line.send(frame);
  }

  #tell(state, about = {}) {
    this.state = state;
    this.#emit("state", { state, url: this.url, ...about });
  }

  #tellChanges() {
    const changed = this.#talk.retained.takeChanges();
    if (changed.length) this.#emit("retained", changed);
  }

  #emit(event, value) {
    for (const fn of this.#listeners.get(event) ?? []) {
      try {
        fn(value);
      } catch (error) {
        reportError(error); // one listener's mistake does not silence the others
      }
    }
  }

  /** Own values were stored at offsets that nobody told: ask for all values as they stand. */
  async #settle() {
    try {
      const path = `/rooms/${encodeURIComponent(this.name)}/retained`;
      const { retained, offset } = await this.#ms.request("GET", path, undefined, { url: this.url, for: this.#noun });
      this.#talk.retained.replace(retained, offset);
      this.#tellChanges();
    } catch (error) {
      this.#emit("error", error);
    }
  }

  // Conflated types: the latest of each, once per tick.

  #isConflated(type) {
    return (this.settings?.conflated ?? CONFLATED).includes(type);
  }

  #flush() {
    clearTimeout(this.#tick);
    this.#tick = 0;
    if (this.state !== "live" || !this.#latest.size) return; // kept for the next welcome
    this.#line.send({ send: [...this.#latest.values()] });
    this.#latest.clear();
  }
}

function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
