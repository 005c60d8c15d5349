// The client for browsers: rooms, the HTTP interface and the live figures of a Millstream server.
// No dependencies; docs/BROWSER.md explains it, millstream.d.ts has its types.
//
//   import { Millstream } from "/millstream.js";
//
//   const room = new Millstream().room("lobby", { user: "Ada" });
//   room.on("message", ({ type, from, data }) => console.log(type, from, data));
//   await room.send("chat", { text: "Hello" });
export { Millstream, MillstreamError, Room } from "/web/client/client.js";
