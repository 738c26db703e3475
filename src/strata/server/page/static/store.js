// Conversations, in this browser alone.

const KEY = "strata.conversations";
const MOST = 200;

export function load() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(found) ? found.filter((c) => c && typeof c.id === "string" && Array.isArray(c.messages)) : [];
  } catch {
    return [];
  }
}

// Where the browser's space is used up, the oldest leave. False: nothing could be kept.
export function save(conversations) {
  const kept = conversations.filter((c) => c.messages.length).slice(0, MOST);
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
