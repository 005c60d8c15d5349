// Checked by the TypeScript compiler, and never run.
import { LogView, Millstream, MillstreamError, type RoomValue } from "millstream";
import { useLog, useRoom } from "millstream/react";
import { roomStore } from "millstream/svelte";
import { useRoom as useVueRoom } from "millstream/vue";

interface Types { chat: { text: string }; pointer: { x: number; y: number } }

const ms = new Millstream({ url: "https://a.example", ticket: async (noun) => `${noun?.noun}:${noun?.name}` });

export async function main(): Promise<void> {
  const room = ms.room<Types>("lobby", { user: "ada", history: 50, presence: { typing: false } });
  const joined = await room.join({ since: 5 });
  const offset: number | null = await joined.send("chat", { text: "hello" });
  // @ts-expect-error: a pointer has numbers
  await room.send("pointer", { x: "1", y: 2 });
  room.setPresence({ typing: offset !== null });
  for (const { user, state } of room.presence.values()) console.log(user, state.typing);
  room.on("presence", ({ present }) => console.log(present?.toUpperCase()));
  const stop: () => void = ms.log<{ id: number }>("orders").follow(({ value }) => console.log(value), { start: "start" });
  const id: number = await ms.queue("mail").put({ to: "ada" }, { delay: 5, at: new Date() });
  console.log(id.toFixed(), stop);
  const shown: RoomValue = useRoom(ms, "lobby", { keep: 5 });
  console.log(shown.messages.length, useLog<number>(ms, "a").records[0].value, useVueRoom(ms, "b").room.value.users);
  new LogView<string>(ms, "a").subscribe(({ records }) => console.log(records.length));
  roomStore(ms, "a").subscribe(({ error }) => { if (error instanceof MillstreamError) console.log(error.status); });
}
