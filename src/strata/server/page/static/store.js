// Conversations, in this browser alone.

const KEY = "strata.conversations";
const MOST = 200;

export function load() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(found) ? found.filter(whole).map((c) => ({ ...c, wishes: c.wishes ?? {} })) : [];
  } catch {
    return [];
  }
}

function whole(c) {
  return typeof c?.id === "string" && Array.isArray(c.messages)
    && c.messages.every((m) => typeof m?.role === "string" && typeof m.content === "string");
}

// Keeps a conversation where it is in the list, or as the first of it; without messages it leaves. What other tabs have
// kept meanwhile stays. False: nothing could be kept.
export function keep(conversation, first = false) {
  const kept = load(), at = kept.findIndex((c) => c.id === conversation.id);
  if (at >= 0) kept.splice(at, 1);
  if (conversation.messages.length) kept.splice(first ? 0 : Math.max(at, 0), 0, conversation);
  return write(kept.slice(0, MOST));
}

// `changed` is called when another tab kept something.
export function watch(changed) {
  addEventListener("storage", (event) => { if (event.key === KEY || event.key === null) changed(); });
}

// Where the browser's space is used up, the oldest leave.
function write(kept) {
  for (;;) {
    try {
      localStorage.setItem(KEY, JSON.stringify(kept));
      return true;
    } catch {
      if (kept.length < 2) return false;
      kept.length -= Math.max(1, kept.length >> 2);
    }
  }
}

export function fresh() {
  return { id: `${Date.now()}-${Math.random().toString(36).slice(2)}`, messages: [], wishes: {} };
}

export function title(conversation) {
  const first = conversation.messages.find((m) => m.role === "user");
  return first ? first.content.trim().slice(0, 60) || "(no text)" : "New conversation";
}
