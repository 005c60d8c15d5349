import { mount, unmount } from "svelte";
import Chat from "./Chat.svelte";

const chat = mount(Chat, { target: document.querySelector("#app") });
window.leave = () => unmount(chat);
