// Requests to the server that this page came from. The key lives as long as the tab.
import { by } from "./dom.js";

const KEY = "strata.key";
let asking = null;

async function request(path, options) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...(options.body ? { "Content-Type": "application/json" } : {}), ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  return fetch(path, { ...options, headers });
}

// Every caller waits for the same dialog.
function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = by("key-dialog");
    by("key").value = "";
    dialog.addEventListener("close", () => {
      if (by("key").value) sessionStorage.setItem(KEY, by("key").value.trim());
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

export async function ask(path, options = {}) {
  let response = await request(path, options);
  for (let tries = 0; response.status === 401 && tries < 3; tries += 1) {
    await askForKey();
    response = await request(path, options);
  }
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    throw new Error(body?.error?.message ?? `the server answered ${response.status}`);
  }
  return response;
}

// Chunks of a chat answer; comments (signs of life) are given as {note}.
export async function* stream(body, signal) {
  const response = await ask("v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the server broke off");
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event.startsWith(":")) yield { note: event.slice(1).trim() };
      else if (event === "data: [DONE]") return;
      else if (event.startsWith("data: ")) {
        const chunk = JSON.parse(event.slice(6));
        if (chunk.error) throw new Error(chunk.error.message);
        yield chunk;
      }
    }
  }
}
