import { StrictMode, useState } from "react";
import { createRoot } from "react-dom/client";
import { Millstream } from "millstream";
import { useLog, useRoom } from "millstream/react";

const ms = new Millstream(window.config);
const options = { user: window.config.user, history: 10 };

function Chat() {
  const { state, messages, presence, send, setPresence } = useRoom(ms, "lobby", options);
  const { records } = useLog(ms, "news", { start: "start" });
  const [text, setText] = useState("");
  const write = (event) => { setText(event.target.value); setPresence({ typing: event.target.value !== "" }); };
  const say = async () => { await send("chat", text); setText(""); setPresence(null); };
  return <>
    <p id="state">{state}</p>
    <ul id="people">{presence.map(({ user, state }) => <li key={user}>{user}{state.typing ? " is typing" : ""}</li>)}</ul>
    <ol id="messages">{messages.map(({ offset, from, data }) => <li key={offset}>{from}: {data}</li>)}</ol>
    <ol id="records">{records.map(({ offset, value }) => <li key={offset}>{value}</li>)}</ol>
    <input id="text" value={text} onChange={write} /><button id="send" onClick={say}>Send</button>
  </>;
}

const root = createRoot(document.querySelector("#app"));
root.render(<StrictMode><Chat /></StrictMode>);
window.leave = () => root.unmount();
