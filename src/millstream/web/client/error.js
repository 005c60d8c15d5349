// Errors: what a server refused, or what went wrong on the way.

const FINAL = new Set([400, 401, 403, 404, 405, 409, 413, 422]);
const FOR_NOW = new Set([0, 502, 503, 504]); // 0: there was no answer; 502 and 504 are said by proxies

/** `name` is the error's name as in the documentation; `data` are its facts; `retry`: it may work later. */
export class MillstreamError extends Error {
  constructor({ title = "Failed", detail = "", status = 0, data = {}, retry = false }) {
    super(detail || title);
    Object.assign(this, { name: title, status, data, retry });
  }

  /** Whether asking again, of this server or of another, changes nothing. */
  get isFinal() { return FINAL.has(this.status) && !this.retry; }

  /** Whether nobody knows what became of it, or the store does not answer now: ask what is stored. */
  get isForNow() { return FOR_NOW.has(this.status) || this.name === "OutcomeUnknown"; }

  /** As a frame of a room tells it. */
  get problem() {
    return { title: this.name, detail: this.message, status: this.status, data: this.data, retry: this.retry };
  }
}

/** An argument that cannot be right: what was expected, and what was given. */
export function invalid(detail) {
  return new MillstreamError({ title: "InvalidInput", detail, status: 422 });
}

/** The error that an answer tells: a problem document, or whatever a proxy has to say. */
export async function problemOf(answer) {
  const text = await answer.text();
  try {
    return new MillstreamError({ ...JSON.parse(text), status: answer.status });
  } catch {
    return new MillstreamError({ detail: `${answer.status} ${text.slice(0, 200)}`, status: answer.status });
  }
}
