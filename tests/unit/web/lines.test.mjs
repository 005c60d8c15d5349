// Lines, without a network: what becomes of a message whose request is refused.
import assert from "node:assert/strict";
import { test } from "node:test";
import { MillstreamError } from "../../../src/millstream/web/client/error.js";
import { EventLine } from "../../../src/millstream/web/client/lines.js";

const stream = (signal) => new ReadableStream({
  start(controller) {
    controller.enqueue(new TextEncoder().encode('data: {"welcome": {"generation": 3}}\n\n'));
    signal.addEventListener("abort", () => controller.error(new DOMException("over", "AbortError")));
  },
});

/** A line whose server answers requests in turn: an offset, or an error that it raises. */
async function talked(...answers) {
  const frames = [];
  const asked = [];
  const ms = {
    fetch: async (address, { signal }) => ({ body: stream(signal) }),
    request: async (method, path, body) => {
      asked.push(body);
      const answer = answers.shift();
      if (answer instanceof Error) throw answer;
      return { offset: answer };
    },
  };
  const line = new EventLine({ ms, place: "http://here/rooms/lobby", query: { client: "c1" } });
  const sending = answers.map((_, index) => ({ send: [{ type: "chat", data: index }], n: index + 1 }));
  const outcome = await new Promise((done) => {
    line.run((frame) => {
      if (frame.welcome) sending.forEach((one) => line.send(one));
      else if (!frame.pong) frames.push(frame);
      if (frames.length === sending.length) done("goes on");
    }).then(() => done("ended"), (error) => done(error.name));
  });
  line.close();
  return { frames, asked, outcome };
}

for (const [title, status] of [["NotLeader", 503], ["OutcomeUnknown", 500], ["Failed", 502], ["Failed", 504], ["Unreachable", 0]]) {
  test(`${title} (${status}) ends the line, and what comes behind is not sent: the next join asks what is stored`, async () => {
    const { frames, asked, outcome } = await talked(7, new MillstreamError({ title, status }), 9);
    assert.deepEqual(frames, [{ sent: 1, offset: 7 }]);
    assert.deepEqual(asked.map((one) => [one.n, one.generation]), [[1, 3], [2, 3]]);
    assert.equal(outcome, "AbortError");
  });
}

for (const [title, status] of [["TooLarge", 413], ["Overloaded", 429], ["DiskFull", 507], ["InternalError", 500]]) {
  test(`${title} (${status}) refuses one message, and the next is sent`, async () => {
    const { frames, outcome } = await talked(new MillstreamError({ title, status }), 8);
    assert.deepEqual(frames.map((one) => [one.n ?? one.sent, one.error?.title]), [[1, title], [2, undefined]]);
    assert.equal(outcome, "goes on");
  });
}
