// The rules of the browser's client, without a network: what a frame means, and what a join asks for.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Conversation } from "../../../src/millstream/web/client/conversation.js";
import { MillstreamError } from "../../../src/millstream/web/client/error.js";
import { EventParser, backoff } from "../../../src/millstream/web/client/events.js";
import { RetainedValues } from "../../../src/millstream/web/client/retained.js";

const SETTINGS = { retained: ["shape"], conflated: ["pointer"], tick: 0.05 };
const welcome = (about = {}, retained = undefined) =>
  ({ welcome: { settings: SETTINGS, offset: 10, presence: [], sent: null, ...about }, retained });
const shape = (offset, key, data, more = {}) => ({ offset, type: "shape", key, data, ...more });

function joined(about, retained = []) {
  const talk = new Conversation({ user: "ada", types: null, client: "c1" });
  talk.take(welcome(about, retained));
  return talk;
}

const shown = (talk) => Object.fromEntries(
  [...(talk.retained.shown.get("shape") ?? [])].map(([key, message]) => [key, message.data]));

test("the first join asks for no offset, a later one for what came since", () => {
  const talk = new Conversation({ user: "ada", types: ["chat", "shape"], client: "c1" });
  assert.deepEqual(talk.joining(), { client: "c1", user: "ada", types: "chat,shape" });
  talk.take(welcome());
  talk.take({ messages: [{ offset: 11, type: "chat", data: 1 }], offset: 12 });
  assert.equal(talk.joining().offset, 12);
});

test("a client that received nothing resumes at the offset of its welcome", () => {
  assert.equal(joined().joining().offset, 10);
});

test("a message that came already is not told again", () => {
  const talk = joined();
  const frame = { messages: [{ offset: 10, type: "chat", data: 1 }], offset: 11 };
  assert.deepEqual(talk.take(frame), [["message", frame.messages[0]]]);
  assert.deepEqual(talk.take(frame), []);
});

test("a send is confirmed with its offset", async () => {
  const talk = joined();
  const answer = talk.send([{ type: "chat", data: 1 }]);
  assert.deepEqual(talk.toSend(), [{ send: [{ type: "chat", data: 1 }], n: 1 }]);
  talk.take({ sent: 1, offset: 17 });
  assert.equal(await answer, 17);
  assert.deepEqual(talk.toSend(), []);
  assert.equal(talk.joining().sent, 1);
});

test("a client that hears only itself goes on all the same", () => {
  const talk = joined();
  talk.send([{ type: "chat", data: 1 }]);
  talk.send([{ type: "chat", data: 2 }]);
  talk.toSend();
  talk.take({ sent: 1, offset: 10 });
  assert.equal(talk.offset, 11);
  talk.take({ sent: 2, offset: 12 }); // behind a message of another client, which is still to come
  assert.equal(talk.offset, 11);
});

test("after a lost connection only what is newer than the server knows is sent again", async () => {
  const talk = joined();
  const [first, second] = [talk.send([{ type: "chat", data: 1 }]), talk.send([{ type: "chat", data: 2 }])];
  talk.toSend();
  talk.take(welcome({ sent: 1 }));
  assert.equal(await first, null);
  assert.deepEqual(talk.toSend().map((one) => one.n), [2]);
  talk.take({ sent: 2, offset: 30 });
  assert.equal(await second, 30);
});

test("a send whose refusal was lost is sent again, though later ones are stored", async () => {
  const talk = joined();
  const sends = [1, 2, 3, 4].map((data) => talk.send([{ type: "chat", data }]));
  talk.toSend();
  talk.take({ sent: 1, offset: 20 });
  assert.equal(talk.joining().sent, 1);
  talk.take(welcome({ sent: 4, missing: [2] }));
  assert.deepEqual(await Promise.all([sends[0], sends[2], sends[3]]), [20, null, null]);
  assert.deepEqual(talk.toSend().map((one) => one.n), [2]);
  assert.equal(talk.joining().sent, 1); // of the second it is still to be found out
  talk.take({ error: { title: "TooLarge", status: 413 }, n: 2 });
  await assert.rejects(sends[1], { name: "TooLarge" });
  assert.equal(talk.joining().sent, 4);
});

test("a join looks for unconfirmed sends from where they were sent", () => {
  const talk = joined();
  talk.send([{ type: "chat", data: 1 }]);
  talk.toSend();
  talk.take({ messages: [{ offset: 11, type: "chat", data: 2 }], offset: 12 });
  assert.equal(talk.joining().offset, 10);
});

test("if the room has forgotten what came between, the outcome of a send is unknown", async () => {
  const talk = joined();
  const sent = talk.send([{ type: "chat", data: 1 }]);
  talk.toSend();
  const waiting = talk.send([{ type: "chat", data: 2 }]);
  talk.take(welcome({ start: 90 }));
  await assert.rejects(sent, { name: "OutcomeUnknown" });
  assert.deepEqual(talk.toSend().map((one) => one.n), [2]);
  talk.take({ sent: 2, offset: 90 });
  assert.equal(await waiting, 90);
});

test("a refusal fails the send that it names, and no other", async () => {
  const talk = joined();
  const [first, second] = [talk.send([{ type: "shape", key: "a", data: 1 }]), talk.send([{ type: "chat", data: 2 }])];
  assert.deepEqual(talk.take({ error: { title: "TooLarge", detail: "too large", status: 413 }, n: 1 }), []);
  await assert.rejects(first, { name: "TooLarge", status: 413 });
  assert.deepEqual(shown(talk), {});
  talk.take({ sent: 2, offset: 11 });
  assert.equal(await second, 11);
});

test("a refusal of nothing in particular is an event", () => {
  const [[event, error]] = joined().take({ error: { title: "Overloaded", retry: true } });
  assert.equal(event, "error");
  assert.ok(error instanceof MillstreamError && error.retry);
});

test("leaving fails every send", async () => {
  const talk = joined();
  const sent = talk.send([{ type: "chat", data: 1 }]);
  talk.fail(new MillstreamError({ title: "Closed" }));
  await assert.rejects(sent, { name: "Closed" });
});

test("too many sends that wait are refused", () => {
  const talk = new Conversation({ user: "", types: null, client: "c1" });
  for (let i = 0; i < 1000; i += 1) talk.send([{ type: "chat", data: i }]);
  assert.throws(() => talk.send([{ type: "chat", data: 0 }]), { name: "Overloaded", retry: true });
});

test("a gap is told once, from where this client is", () => {
  const talk = joined();
  const frame = { gap: { from: 5, to: 20 }, offset: 20, retained: [shape(15, "a", 1)] };
  assert.deepEqual(talk.take(frame), [["gap", { from: 10, to: 20 }]]);
  assert.equal(talk.offset, 20);
  assert.deepEqual(shown(talk), { a: 1 });
  assert.deepEqual(talk.take(frame), []);
});

test("presence follows who joins and who leaves", () => {
  const talk = joined({ presence: [{ user: "ada", since: 1, connections: 2 }] });
  const bob = { offset: 10, type: "joined", data: { user: "bob" }, time: 5 };
  assert.deepEqual(talk.take({ messages: [bob], offset: 11 })[0][1].joined, "bob");
  assert.deepEqual([...talk.presence.keys()], ["ada", "bob"]);
  const ada = { offset: 11, type: "left", data: { user: "ada" } };
  assert.equal(talk.take({ messages: [ada], offset: 12 })[0][1].left, "ada");
  assert.deepEqual([...talk.presence.keys()], ["bob"]);
});

test("of a crowded room the number of users is known, and some of their names", () => {
  const talk = joined({ presence: [{ user: "ada", since: 1, connections: 2 }], users: 300, as_of: 12 });
  const moved = (offset, type, user) => ({ offset, type, data: { user }, time: 5 });
  talk.take({ messages: [moved(10, "joined", "ada"), moved(11, "left", "zoe")], offset: 12 }); // known already
  assert.equal(talk.users, 300);
  const told = talk.take({ messages: [moved(12, "left", "yan"), moved(13, "joined", "bob")], offset: 14 });
  assert.deepEqual(told.map(([, one]) => one.users), [299, 300]);
  assert.deepEqual([...talk.presence.keys()], ["ada", "bob"]);
  assert.equal(talk.meetAll([{ user: "ada" }], 13), false);
  assert.equal(talk.meetAll([{ user: "ada" }, { user: "bob" }, { user: "eve" }], 15), true);
  assert.equal(talk.users, 3);
  talk.take({ messages: [moved(14, "joined", "eve")], offset: 15 });
  talk.take({ messages: [moved(15, "left", "nobody")], offset: 16 });
  assert.equal(talk.users, 3);
});

test("what a gap retains is newer than the messages that follow it", () => {
  const talk = joined();
  const frame = { gap: { from: 10, to: 20 }, offset: 20, as_of: 25, retained: [shape(24, "b", 2)] };
  talk.take(frame);
  talk.take({ messages: [shape(21, "a", 1), shape(22, "b", 1)], offset: 23 }); // `a` was deleted by this client
  assert.deepEqual(shown(talk), { b: 2 });
  talk.take({ messages: [shape(25, "a", 3)], offset: 26 });
  assert.deepEqual(shown(talk), { a: 3, b: 2 });
});

test("behind a gap it is known who is there", () => {
  const talk = joined({ presence: [{ user: "ada" }], as_of: 10 });
  const frame = { gap: { from: 10, to: 20 }, offset: 20, retained: [], users: 1, presence: [{ user: "bob" }], as_of: 22 };
  assert.deepEqual(talk.take(frame).map(([name]) => name), ["gap", "presence"]);
  assert.deepEqual([...talk.presence.keys()], ["bob"]);
});

test("what only looks like presence is a message, and what follows it is heard", () => {
  const talk = joined();
  const odd = [null, 7, "ada", {}, { user: null }, { user: ["ada"] }];
  const messages = odd.map((data, i) => ({ offset: 10 + i, type: i % 2 ? "joined" : "left", data }));
  const events = talk.take({ messages, offset: 16 });
  assert.deepEqual(events.map(([event]) => event), odd.map(() => "message"));
  assert.equal(talk.presence.size, 0);
  assert.equal(talk.offset, 16);
});

test("a user named like a property of objects is a user", () => {
  const talk = joined({ presence: [{ user: "__proto__" }, { user: "constructor" }] });
  assert.deepEqual([...talk.presence.keys()], ["__proto__", "constructor"]);
});

test("an own value shows at once, and a later one of another client replaces it", () => {
  const talk = joined({}, [shape(3, "a", "old")]);
  talk.send([shape(undefined, "a", "mine")]);
  assert.deepEqual(shown(talk), { a: "mine" });
  talk.take({ sent: 1, offset: 10 });
  talk.take({ messages: [shape(11, "a", "theirs")], offset: 12 });
  assert.deepEqual(shown(talk), { a: "theirs" });
});

test("an earlier value of another client that comes late does not replace an own one", () => {
  const talk = joined();
  talk.send([shape(undefined, "a", "mine")]);
  talk.take({ sent: 1, offset: 11 });
  talk.take({ messages: [shape(10, "a", "theirs")], offset: 12 });
  assert.deepEqual(shown(talk), { a: "mine" });
});

test("a deletion of one's own is not undone by an earlier value that comes late", () => {
  const talk = joined({}, [shape(3, "a", "old")]);
  talk.send([{ type: "shape", key: "a", data: null, deleted: true }]);
  assert.deepEqual(shown(talk), {});
  talk.take({ sent: 1, offset: 11 });
  talk.take({ messages: [shape(10, "a", "theirs")], offset: 12 });
  assert.deepEqual(shown(talk), {});
  talk.take({ messages: [shape(12, "a", "again")], offset: 13 });
  assert.deepEqual(shown(talk), { a: "again" });
});

test("a deletion that came before the answer to an earlier own value counts", () => {
  const talk = joined();
  talk.send([shape(undefined, "a", "mine")]);
  talk.take({ messages: [shape(11, "a", null, { deleted: true })], offset: 15 });
  talk.take({ sent: 1, offset: 10 });
  assert.deepEqual(shown(talk), {});
});

test("a snapshot that comes late undoes nothing that came behind it", () => {
  const talk = joined();
  talk.send([shape(undefined, "a", "mine")]);
  talk.toSend();
  talk.take(welcome({ sent: 1 }));
  talk.take({ messages: [shape(11, "a", null, { deleted: true })], offset: 12 });
  talk.retained.replace([shape(10, "a", "mine")], 11);
  assert.deepEqual(shown(talk), {});
});

test("what is older than a snapshot changes nothing, also if the snapshot has no such key", () => {
  const values = new RetainedValues();
  values.replace([], 9);
  values.apply(shape(5, "a", "old"));
  assert.equal(values.shown.get("shape").size, 0);
  values.replace([shape(3, "b", 1)], 12);
  assert.deepEqual([...values.shown.get("shape").keys()], ["b"]);
  values.replace([shape(5, "a", "old")], 9);
  assert.deepEqual([...values.shown.get("shape").keys()], ["b"]);
});

test("of several values of a key in one send, the last shows", () => {
  const talk = joined();
  talk.send([shape(undefined, "a", 1), shape(undefined, "a", 2), shape(undefined, "b", 3)]);
  assert.deepEqual(shown(talk), { a: 2, b: 3 });
  talk.take({ sent: 1, offset: 20 });
  assert.deepEqual(shown(talk), { a: 2, b: 3 });
});

test("an own value that was stored nobody knows where asks to be settled", () => {
  const talk = joined();
  talk.send([shape(undefined, "a", "mine")]);
  talk.toSend();
  talk.take(welcome({ sent: 1 }));
  assert.ok(talk.retained.isDoubtful);
  talk.retained.replace([shape(12, "a", "theirs")], 13);
  assert.deepEqual(shown(talk), { a: "theirs" });
  assert.ok(!talk.retained.isDoubtful);
});

test("what a snapshot lacks is gone, unless it was stored later", () => {
  const values = new RetainedValues();
  values.replace([shape(1, "a", 1), shape(2, "b", 2)], 5);
  values.apply(shape(9, "c", 3));
  values.takeChanges();
  values.replace([shape(2, "b", 2)], 9);
  assert.deepEqual([...values.shown.get("shape").keys()].sort(), ["b", "c"]);
  assert.ok(values.takeChanges().some((one) => one.key === "a" && one.message === null));
});

test("which types are retained is known at the first welcome, also for what was sent before", () => {
  const talk = new Conversation({ user: "ada", types: null, client: "c1" });
  talk.send([shape(undefined, "a", 1)]);
  assert.deepEqual(shown(talk), {});
  talk.take(welcome({}, []));
  assert.deepEqual(shown(talk), { a: 1 });
});

test("a room that was made anew is joined anew", () => {
  const talk = joined({}, [shape(3, "a", "old")]);
  talk.forget();
  assert.equal(talk.joining().offset, undefined);
  talk.take(welcome({ offset: 1 }, [shape(0, "b", 1)]));
  assert.equal(talk.offset, 1);
  assert.deepEqual(shown(talk), { b: 1 });
});

test("events are cut from text however it comes", () => {
  const text = ': here\nid: 7\ndata: {"a":\ndata: 1}\n\ndata:x\r\n\r\nevent: y\n\ndata: z\n\n';
  for (let size = 1; size <= text.length; size += 1) {
    const parser = new EventParser();
    const found = [];
    for (let i = 0; i < text.length; i += size) found.push(...parser.feed(text.slice(i, i + size)));
    assert.deepEqual(found, ['{"a":\n1}', "x", "z"], `in pieces of ${size}`);
  }
});

test("the backoff doubles up to its bound, and is never the same for all", () => {
  assert.deepEqual([0, 1, 2].map((i) => backoff(i, 1)), [250, 500, 1000]);
  assert.equal(backoff(0, 0), 125);
  assert.equal(backoff(1000, 1), 15_000);
});

test("a late joiner asks for a history once: a later connection continues where the last one ended", () => {
  const talk = new Conversation({ user: "", types: null, client: "c1", history: 50 });
  assert.deepEqual(talk.joining(), { client: "c1", history: 50 });
  assert.deepEqual(talk.joining(), { client: "c1", history: 50 }, "the first connection failed");
  talk.take(welcome({ offset: 10, as_of: 60 }));
  assert.deepEqual(talk.joining(), { client: "c1", offset: 10 }, "lost right after the welcome");
  talk.take({ messages: [{ offset: 10, type: "chat", data: 1 }], offset: 11 });
  assert.deepEqual(talk.joining(), { client: "c1", offset: 11 });
  talk.forget();
  assert.deepEqual(talk.joining(), { client: "c1" }, "the room was made anew: it has no such history");
});

test("an offset to begin at is asked for until a join succeeds", () => {
  const talk = new Conversation({ user: "", types: null, client: "c1", since: 0 });
  assert.deepEqual(talk.joining(), { client: "c1", since: 0 });
  talk.take(welcome({ offset: 0, as_of: 5 }));
  assert.deepEqual(talk.joining(), { client: "c1", offset: 0 });
});

for (const [options, reason] of [
  [{ history: -1 }, /from 0 to 1000, not -1/],
  [{ history: 1001 }, /not 1001/],
  [{ history: 1.5 }, /not 1.5/],
  [{ history: "50" }, /history is a number/],
  [{ since: -1 }, /since is an offset/],
  [{ since: NaN }, /not NaN/],
  [{ since: 2 ** 53 }, /since is an offset/],
  [{ since: 5, history: 5 }, /history or since/],
]) {
  test(`a join with ${JSON.stringify(options)} is refused`, () => {
    assert.throws(() => new Conversation({ user: "", types: null, client: "c", ...options }),
      (error) => error.name === "InvalidInput" && reason.test(error.message));
  });
}

test("who came and went before the join is no news, and a history does not undo what is retained", () => {
  const talk = new Conversation({ user: "", types: null, client: "c1", history: 50 });
  const present = [{ user: "bob", since: 1, connections: 1 }];
  talk.take(welcome({ offset: 0, as_of: 4, presence: present, users: 1 }, [shape(2, "a", "new")]));
  const events = talk.take({ messages: [
    shape(0, "a", "old"),
    { offset: 1, type: "joined", data: { user: "bob" }, time: 1 },
    shape(2, "a", "new"),
    { offset: 4, type: "joined", data: { user: "eve" }, time: 2 },
  ], offset: 5 });
  assert.deepEqual(events.map(([name, value]) => [name, value.offset ?? value.joined]),
    [["message", 0], ["message", 2], ["presence", "eve"]]);
  assert.deepEqual(shown(talk), { a: "new" });
  assert.deepEqual([...talk.presence.keys()], ["bob", "eve"]);
});

test("a room is joined anew only without sends on their way", () => {
  const talk = joined();
  const answer = talk.send([{ type: "chat", data: 1 }]);
  assert.throws(() => talk.begin({ history: 5 }), (error) => error.name === "Conflict");
  talk.take({ sent: 1, offset: 10 });
  talk.begin({ history: 5 });
  assert.equal(talk.joining().history, 5);
  return answer;
});

test("a state of presence is shown beside its user, and is set again on a new connection", () => {
  const talk = joined({ presence: [{ user: "bob", since: 1, connections: 1, state: { typing: true } }], users: 1, as_of: 10 });
  assert.deepEqual(talk.presence.get("bob").state, { typing: true });
  const [[name, value]] = talk.take({ messages: [{ offset: 10, type: "present", data: { user: "bob", state: {} } }], offset: 11 });
  assert.deepEqual([name, value.present], ["presence", "bob"]);
  assert.deepEqual(talk.presence.get("bob"), { user: "bob", since: 1, connections: 1, state: {} });
  assert.equal(talk.stateFrame(), null);
  assert.deepEqual(talk.setState({ typing: true }), { presence: { typing: true } });
  assert.equal(talk.setState({ typing: true }), null, "it is set so already");
  assert.deepEqual(talk.stateFrame(), { presence: { typing: true } });
  assert.deepEqual(talk.setState(null), { presence: {} });
});

test("a state that was overtaken by a later one, or by the end of its user, is not shown", () => {
  const talk = joined({ presence: [{ user: "bob", since: 1, connections: 1 }], users: 1 });
  const present = (offset, state) => ({ offset, type: "present", data: { user: "bob", state } });
  talk.take({ messages: [present(14, { n: 2 }), present(13, { n: 1 })], offset: 11 });
  assert.deepEqual(talk.presence.get("bob").state, { n: 2 });
  talk.take({ messages: [{ offset: 16, type: "left", data: { user: "bob" } }, present(15, { n: 3 })], offset: 17 });
  assert.equal(talk.presence.has("bob"), false);
  assert.equal(talk.users, 0);
});

test("a state is a small object", () => {
  const talk = joined();
  for (const wrong of [1, "typing", [1], true]) {
    assert.throws(() => talk.setState(wrong), (error) => error.name === "InvalidInput");
  }
  assert.throws(() => talk.setState({ a: "ä".repeat(600) }), (error) => error.name === "TooLarge" && error.data.limit === 1024);
  assert.deepEqual(talk.setState({ a: "ä".repeat(500) }).presence.a.length, 500);
});
