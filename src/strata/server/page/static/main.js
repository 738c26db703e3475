// Views, and what the server says of itself.
import { ask } from "./api.js";
import { startChat } from "./chat.js";
import { by, facts, rows } from "./dom.js";
import { watchServer } from "./monitor.js";

const tabs = [...document.querySelectorAll("[role=tab]")];

function select(tab, focus = false) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    by(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (focus) tab.focus();
  watchServer(tab.id === "tab-monitor");
  if (tab.id === "tab-about") about().catch((error) => facts(by("facts"), [["Server", error.message]]));
}

tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -i, End: tabs.length - 1 - i }[event.key];
    if (step !== undefined) { event.preventDefault(); select(tabs[(i + step + tabs.length) % tabs.length], true); }
  });
});

async function about() {
  const found = await (await ask("page/settings")).json();
  facts(by("facts"), Object.entries(found.facts));
  by("settings").replaceChildren(rows(["Setting", "Value", "What it does"], found.settings.map((s) => [s.flag, s.value, s.help])));
}

startChat();
ask("v1/models").then((response) => response.json()).then((found) => { by("model").textContent = found.data[0].id; })
  .catch((error) => { by("note").textContent = error.message; });
