"""Tabs that use `/millstream.js` as an application would, and note everything that it tells."""

from __future__ import annotations

from typing import Any

BEGIN = """async ([options, name, about]) => {
  const { Millstream } = await import("/millstream.js");
  window.ms = new Millstream(options);
  window.room = ms.room(name, about);
  window.noted = { message: [], gap: [], presence: [], retained: [], state: [], error: [] };
  for (const event of Object.keys(noted)) room.on(event, (value) => noted[event].push(value));
}"""


class Tab:
    """One tab at a server's origin, with a room once `join` was called."""

    def __init__(self, browser: Any, url: str, *, scripts: tuple[str, ...] = ()) -> None:
        self.context = browser.new_context()
        self.page = self.context.new_page()
        for script in scripts:
            self.page.add_init_script(script)
        self.page.goto(f"{url}/web/vendor/README.md")  # any page of the server's own

    def join(self, room: str, *, wait: bool = True, options: Any = None, **about: Any) -> Tab:
        """Join a room, and wait for its greeting."""
        self.page.evaluate(BEGIN, [options or {}, room, about])
        if wait:
            self.until("room.state === 'live'")
        return self

    def run(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)

    def until(self, condition: str, argument: Any = None) -> None:
        """Wait until an expression is true, of the argument `it`; a function, as the policy lets none
        be made of text."""
        self.page.wait_for_function(f"(it) => {condition}", arg=argument)

    def send(self, type: str, data: Any, key: str | None = None) -> Any:
        """Send, and wait until it is stored."""
        more = {} if key is None else {"key": key}
        return self.run("([type, data, more]) => room.send(type, data, more)", [type, data, more])

    def heard(self) -> list[Any]:
        """The data of all messages, in the order in which they came."""
        found: list[Any] = self.run("noted.message.map((one) => one.data)")
        return found

    def until_heard(self, *data: Any) -> None:
        """Wait for exactly these."""
        self.until("noted.message.length >= it", len(data))
        assert self.heard() == list(data)

    def values(self, type: str) -> dict[str, Any]:
        """The retained values of a type."""
        found: dict[str, Any] = self.run(
            "(type) => Object.fromEntries([...room.retained.get(type) ?? []]"
            ".map(([key, one]) => [key, one.data]))",
            type,
        )
        return found

    def leave(self) -> None:
        self.context.close()
