// Clients against a model of a room: connections are lost at any moment, and answers and messages come
// in any order. In the end every send is stored once, every message of others was heard once and in
// order, and every client shows the values that the room retains.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Conversation } from "../../../src/millstream/web/client/conversation.js";

const RUNS = Number(process.env.MILLSTREAM_RUNS ?? 1000);
const SEED = Number(process.env.MILLSTREAM_SEED ?? 1);
const SETTINGS = { retained: ["shape"], conflated: [], tick: 0.05 };

function randomFrom(seed) { // mulberry32
  let state = seed;
  return (below) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % below;
  };
}

class ModelRoom {
  log = [];

  retained() {
    const values = new Map();
    for (const one of this.log) {
      if (one.type !== "shape") continue;
      if (one.deleted) values.delete(one.key);
      else values.set(one.key, one);
    }
    return [...values.values()];
  }

  welcome({ offset, client }) {
    const since = this.log.slice(offset ?? this.log.length).filter((one) => one.origin === client);
    const about = { settings: SETTINGS, presence: [], sent: since.at(-1)?.n ?? null, offset: offset ?? this.log.length };
    return { welcome: about, ...(offset === undefined ? { retained: this.retained() } : {}) };
  }

  store({ send, n }, origin) {
    const first = this.log.length;
    for (const one of send) this.log.push({ ...one, offset: this.log.length, origin, n });
    return { sent: n, offset: first };
  }
}

class ModelClient {
  heard = [];
  joinedAt = null;
  line = null; // {up, answers, position, snapshot}

  constructor(room, name) {
    this.room = room;
    this.talk = new Conversation({ user: name, types: null, client: name });
  }

  connect() {
    const query = this.talk.joining();
    this.take(this.room.welcome(query));
    this.joinedAt ??= this.talk.offset;
    this.line = { up: this.talk.toSend(), answers: [], position: query.offset ?? this.talk.offset };
    if (this.talk.retained.isDoubtful) this.line.snapshot = [this.room.retained(), this.room.log.length];
  }

  settle() { // what was asked for at the welcome comes late
    if (this.line?.snapshot) this.talk.retained.replace(...this.line.snapshot);
    if (this.line) this.line.snapshot = null;
  }

  send(messages) {
    this.talk.send(messages).catch(() => {});
    if (this.line) this.line.up.push(...this.talk.toSend(this.talk.lastNumber));
  }

  arrive() { // the server takes a frame
    const frame = this.line?.up.shift();
    if (frame) this.line.answers.push(this.room.store(frame, this.talk.client));
  }

  answer() {
    const frame = this.line?.answers.shift();
    if (frame) this.take(frame);
  }

  deliver(count) {
    if (!this.line || this.line.position >= this.room.log.length) return;
    const to = Math.min(this.line.position + count, this.room.log.length);
    const others = this.room.log.slice(this.line.position, to).filter((one) => one.origin !== this.talk.client);
    this.line.position = to;
    this.take({ messages: others, offset: to });
  }

  take(frame) {
    for (const [event, value] of this.talk.take(frame)) if (event === "message") this.heard.push(value.offset);
  }
}

function play(seed) {
  const random = randomFrom(seed);
  const room = new ModelRoom();
  const clients = ["a", "b", "c"].map((name) => new ModelClient(room, name));
  const steps = 10 + random(60);
  let made = 0;
  const message = () => {
    const key = `k${random(2)}`;
    if (random(4) === 0) return { type: "shape", key, data: null, deleted: true };
    return random(3) ? { type: "shape", key, data: (made += 1) } : { type: "chat", data: (made += 1) };
  };
  for (let step = 0; step < steps; step += 1) {
    const client = clients[random(clients.length)];
    const action = random(11);
    if (action === 0) client.line = null;
    else if (!client.line && action < 5) client.connect();
    else if (action < 5) client.send(Array.from({ length: 1 + random(2) }, message));
    else if (action < 7) client.arrive();
    else if (action < 8) client.answer();
    else if (action < 10) client.deliver(1 + random(3));
    else client.settle();
  }
  for (const client of clients) if (!client.line) client.connect();
  for (let i = 0; i < 100; i += 1) for (const client of clients) { client.arrive(); client.answer(); }
  for (const client of clients) client.settle();
  for (const client of clients) client.deliver(Infinity);
  return { room, clients };
}

test("nothing is lost, doubled or shown wrongly, wherever connections break", () => {
  for (let seed = SEED; seed < SEED + RUNS; seed += 1) {
    const { room, clients } = play(seed);
    const replay = `MILLSTREAM_SEED=${seed} MILLSTREAM_RUNS=1 node --test tests/unit/web/model.test.mjs`;
    const values = Object.fromEntries(room.retained().map((one) => [one.key, one.data]));
    for (const client of clients) {
      const own = room.log.filter((one) => one.origin === client.talk.client);
      const numbers = [...new Set(own.map((one) => one.n))];
      assert.deepEqual(numbers, Array.from({ length: client.talk.lastNumber }, (_, i) => i + 1), replay);
      const others = room.log.filter((one) => one.origin !== client.talk.client && one.offset >= client.joinedAt);
      assert.deepEqual(client.heard, others.map((one) => one.offset), replay);
      const seen = [...(client.talk.retained.shown.get("shape") ?? [])].map(([key, one]) => [key, one.data]);
      assert.deepEqual(Object.fromEntries(seen), values, replay);
    }
    const contents = room.log.filter((one) => one.data !== null).map((one) => one.data);
    assert.equal(new Set(contents).size, contents.length, replay);
  }
});
