// The figures that the server pushes once per second, kept for the charts of every page.
//
// Pages look again when the figures say that something happened, so that a silent store is not asked.
// A token that may not see the figures gets a look every few seconds instead.
import { useEffect, useRef, useState } from "../vendor/preact.js";
import { session } from "./session.js";

const KEPT = 300;
const LOOK_MS = 3_000;
const SILENT_MS = 4_000; // figures come once per second: if none do, the page says that nobody answers

export const pulses = [];
let state = "closed";
let heardAt = 0;
let wasSilent = false;
let end = () => {};
const listeners = new Set();
const lookers = new Set();

/** Begin to follow the server; `onShutOut` is called with the refusal if the token counts no more. */
export function follow(onShutOut) {
  let timer = 0;
  const watch = setInterval(tellSilence, 1_000);
  const stop = session.ms.live(take, (found, error) => {
    state = found;
    heardAt = Date.now();
    if (error?.status === 401) onShutOut(error);
    else if (found === "refused") timer ||= setInterval(look, LOOK_MS);
    listeners.forEach((fn) => fn());
  });
  end = () => { clearInterval(timer); clearInterval(watch); stop(); pulses.length = 0; };
}

/** Follow no more. */
export function leave() {
  end();
  end = () => {};
}

/** Whether a server that is connected has said nothing for too long: it has stopped, or the way to it. */
function isSilent() {
  return state === "live" && Date.now() - heardAt > SILENT_MS;
}

function tellSilence() {
  if (isSilent() === wasSilent) return;
  wasSilent = !wasSilent;
  listeners.forEach((fn) => fn());
}

function take(pulse) {
  heardAt = Date.now();
  const before = pulses.at(-1);
  pulses.push(pulse);
  if (pulses.length > KEPT) pulses.shift();
  listeners.forEach((fn) => fn(pulse));
  if (!before || happened(before, pulse)) look();
}

/** Whether there is anything new to look at. */
function happened(before, now) {
  const { published, claimed, acked } = now.rates;
  const counts = ["depth", "logs", "queues", "rooms", "connections", "health"];
  return published + claimed + acked > 0 || counts.some((one) => before[one] !== now[one]);
}

function look() {
  if (!document.hidden) lookers.forEach((fn) => fn());
}

document.addEventListener("visibilitychange", look);

/** The latest figures, null if there are none, and how the connection is: “silent” if nothing comes. */
export function usePulse() {
  const [, again] = useState(0);
  useEffect(() => {
    const fn = () => again((n) => n + 1);
    listeners.add(fn);
    fn(); // the state may have changed between the first rendering and this effect
    return () => listeners.delete(fn);
  }, []);
  return { pulse: pulses.at(-1) ?? null, state: isSilent() ? "silent" : state };
}

/** Call `fn` with each new pulse. */
export function onPulse(fn) {
  const told = (pulse) => { if (pulse) fn(pulse); };
  listeners.add(told);
  return () => listeners.delete(told);
}

/**
 * What `ask` answers: `{data, error, reload}`, asked anew when `keys` change and when something has
 * happened in the store. An answer that was overtaken is dropped; `ask` is given a function that says
 * whether it is still wanted, and one of many requests need not go on if it is not.
 */
export function useAnswer(ask, keys = [], { live = true } = {}) {
  const [found, setFound] = useState({ data: null, error: null });
  const turn = useRef({ latest: 0, busy: false, again: false });
  const load = async (isNew) => {
    const own = turn.current;
    if (own.busy && !isNew) { own.again = true; return; }
    const mine = (own.latest += 1);
    own.busy = true;
    const answer = await ask(() => mine === own.latest).then((data) => ({ data, error: null }), (error) => ({ error }));
    if (mine !== own.latest) return;
    own.busy = false;
    setFound((before) => (isNew || answer.data !== undefined ? { data: null, ...answer } : { ...before, ...answer }));
    if (own.again) { own.again = false; load(false); }
  };
  const latest = useRef(load);
  latest.current = load;
  useEffect(() => {
    latest.current(true);
    if (!live) return () => { turn.current.latest += 1; };
    const fn = () => latest.current(false);
    lookers.add(fn);
    return () => { lookers.delete(fn); turn.current.latest += 1; };
  }, keys);
  return { ...found, reload: () => latest.current(true) };
}

/** The time now, in milliseconds, anew every second. */
export function useNow() {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1_000);
    return () => clearInterval(timer);
  }, []);
  return now;
}
