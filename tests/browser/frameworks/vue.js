import { createApp, h, ref } from "vue";
import { Millstream } from "millstream";
import { useLog, useRoom } from "millstream/vue";

const ms = new Millstream(window.config);

const Chat = {
  setup() {
    const { room, send, setPresence } = useRoom(ms, "lobby", { user: window.config.user, history: 10 });
    const log = useLog(ms, "news", { start: "start" });
    const text = ref("");
    const write = (event) => { text.value = event.target.value; setPresence({ typing: text.value !== "" }); };
    const say = async () => { await send("chat", text.value); text.value = ""; setPresence(null); };
    return () => [
      h("p", { id: "state" }, room.value.state),
      h("ul", { id: "people" }, room.value.presence.map(({ user, state }) => h("li", { key: user }, user + (state.typing ? " is typing" : "")))),
      h("ol", { id: "messages" }, room.value.messages.map(({ offset, from, data }) => h("li", { key: offset }, `${from}: ${data}`))),
      h("ol", { id: "records" }, log.value.records.map(({ offset, value }) => h("li", { key: offset }, value))),
      h("input", { id: "text", value: text.value, onInput: write }),
      h("button", { id: "send", onClick: say }, "Send"),
    ];
  },
};

const app = createApp(Chat);
app.mount("#app");
window.leave = () => app.unmount();
