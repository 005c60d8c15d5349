// A queue: pages put work into it, and ask what became of it. Workers elsewhere do the work.

/** A queue of the server, by name. */
export class Queue {
  #ms;

  constructor(ms, name) {
    this.#ms = ms;
    this.name = name;
  }

  get #options() { return { for: { noun: "queue", name: this.name } }; }

  #path(place) { return `/queues/${encodeURIComponent(this.name)}/${place}`; }

  /**
   * Put a message; answers its id once it is durable. `delay` in seconds or `at` (a Date, or milliseconds
   * since 1970) put it off; `dedup` makes a repeat harmless. Needs the right to put.
   */
  async put(value, options = {}) {
    return (await this.#put({ value, ...optionsOf(options) })).id;
  }

  /** Put several messages as one commit, each as `{value, key, …}`; answers their ids. */
  async putMany(messages, { delay, at } = {}) {
    const { id, count } = await this.#put({ messages, ...optionsOf({ delay, at }) });
    return Array.from({ length: count }, (_, index) => id + index);
  }

  /** What became of a message: `{state, attempts, …}`. Needs the right to read. */
  async find(id) {
    return this.#ms.request("GET", this.#path(`messages/${id}`), undefined, this.#options);
  }

  async #put(body) {
    return this.#ms.request("POST", this.#path("messages"), body, this.#options);
  }
}

function optionsOf({ at, ...others }) {
  return at === undefined ? others : { ...others, at: at instanceof Date ? at.getTime() : at };
}
