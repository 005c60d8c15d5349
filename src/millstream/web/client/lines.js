// Lines: how frames travel. `run(onFrame)` ends when the line does; it raises what the server refused.
import { MillstreamError } from "./error.js";
import { readEvents } from "./events.js";

/** A WebSocket. */
export class SocketLine {
  kind = "socket";
  #address;
  #socket = null;

  constructor({ place, query, ticket }) {
    const asked = new URLSearchParams(ticket ? { ...query, ticket } : query);
    this.#address = `${place.replace(/^http/, "ws")}?${asked}`;
  }

  run(onFrame) {
    return new Promise((done, fail) => {
      this.#socket = new WebSocket(this.#address);
      this.#socket.onmessage = ({ data }) => {
        const frame = JSON.parse(data);
        const error = frame.error && frame.n === undefined && !frame.presence ? new MillstreamError(frame.error) : null;
        if (error?.isFinal) fail(error);
        onFrame(frame);
      };
      // Why a handshake failed is hidden from pages: the other line finds out.
      this.#socket.onclose = done;
    });
  }

  send(frame) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(frame));
  }

  /** Ask whether it still carries. */
  ping() { this.send({ ping: 1 }); }

  close() {
    this.#socket?.close();
    this.#socket?.onclose?.(); // a dead peer would keep us waiting for its part
  }
}

/** Server-sent events one way, requests the other: where a proxy lets no socket pass. */
export class EventLine {
  kind = "events";
  #ms;
  #noun;
  #place;
  #query;
  #ended = new AbortController();
  #onFrame = null;
  #last = Promise.resolve();
  #welcome = {}; // its generation: what is posted after this client came back elsewhere is not stored

  constructor({ ms, place, query, noun }) {
    this.#ms = ms;
    this.#noun = noun;
    this.#place = new URL(place);
    this.#query = query;
  }

  async run(onFrame) {
    this.#onFrame = onFrame;
    const asked = new URLSearchParams({ live: "sse", ...this.#query });
    const headers = { accept: "text/event-stream" };
    const answer = await this.#ms.fetch(`${this.#place}?${asked}`, { headers, signal: this.#ended.signal }, this.#noun);
    await readEvents(answer.body, (text) => this.#take(JSON.parse(text)), () => onFrame({ pong: 1 }));
  }

  #take(frame) {
    this.#welcome = frame.welcome ?? this.#welcome;
    this.#onFrame(frame);
  }

  /** One after the other, so that they are stored in the order in which they were sent. */
  send(frame) {
    this.#last = this.#last.then(() => (frame.presence ? this.#putState(frame.presence) : this.#post(frame)));
  }

  ping() {} // the server gives a sign of life by itself

  close() { this.#ended.abort(); }

  async #putState(state) {
    const { connection, user } = this.#welcome;
    await this.#ask("PUT", "presence", { connection, user, state });
  }

  async #post({ send, n }) {
    const { client, user } = this.#query;
    const body = { messages: send, client, user, n, generation: this.#welcome.generation };
    const answer = await this.#ask("POST", "messages", body, n);
    if (answer) this.#onFrame({ sent: n, offset: answer.offset });
  }

  /** Ask the server, and tell its refusal as a frame; null if there is no answer. */
  async #ask(method, place, body, n) {
    const signal = this.#ended.signal;
    if (signal.aborted) return null;
    const options = { url: this.#place.origin, signal, for: this.#noun };
    try {
      return await this.#ms.request(method, `${this.#place.pathname}/${place}`, body, options);
    } catch (error) {
      if (error.isForNow ?? true) this.close(); // whether it was stored is asked at the next join
      else this.#onFrame({ error: error.problem, n });
      return null;
    }
  }
}
