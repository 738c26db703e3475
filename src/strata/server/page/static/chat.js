// The conversation on the screen: sending, streaming, stopping, again.
import { stream } from "./api.js";
import { by, make } from "./dom.js";
import { absorb, fill, messageElement } from "./message.js";
import { fresh, keep, load, title, watch } from "./store.js";

const WISHES = { system: "system", temperature: "temperature", "max-tokens": "max_tokens", effort: "reasoning_effort", tools: "tools" };
const BUSY = "Another answer is still coming.";
const NEAR_END = 80; // pixels from the end within which the view follows the text

let conversations = load();
let shown = conversations[0] ?? fresh();
let running = null; // {controller, conversation, message, replaced} of the answer that streams
let editing = null; // {index, draft}: the message that the composer's text will replace, and what it held before

export function startChat() {
  by("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  by("message").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !event.defaultPrevented) escape(); });
  by("stop").addEventListener("click", stop);
  addEventListener("beforeunload", leave);
  by("new").addEventListener("click", () => { show(fresh()); by("message").focus(); });
  by("menu").addEventListener("click", () => unfold(by("menu").getAttribute("aria-expanded") !== "true"));
  for (const [id, name] of Object.entries(WISHES)) {
    by(id).addEventListener("change", () => { shown.wishes[name] = by(id).value; save(shown); });
  }
  watch(refresh);
  show(shown);
}

function unfold(open) {
  by("menu").setAttribute("aria-expanded", String(open));
}

function note(text, fault = false) {
  by("note").textContent = text;
  by("note").className = fault ? "error" : "";
}

function save(conversation, first = false) {
  if (!keep(conversation, first)) note("This browser keeps no conversations: its space is used up or closed to pages.", true);
  list();
}

// The kept conversations, those that are held here as they are here.
function list() {
  const own = new Map([shown, running?.conversation].filter(Boolean).map((c) => [c.id, c]));
  conversations = load().map((c) => own.get(c.id) ?? c);
}

// Another tab has kept something: it is shown as it is there, but for an answer that streams here.
function refresh() {
  const free = running?.conversation !== shown && !editing, known = conversations.includes(shown);
  const there = load().find((c) => c.id === shown.id);
  if (free && there) shown = there;
  list();
  if (free && known && !there) show(conversations[0] ?? fresh());
  else draw();
}

function show(conversation) {
  endEditing();
  shown = conversation;
  for (const [id, name] of Object.entries(WISHES)) by(id).value = shown.wishes[name] ?? "";
  note("");
  unfold(false);
  draw();
}

function draw() {
  by("conversations").replaceChildren(...conversations.map((c) => make("li", {},
    make("button", { class: "open", "aria-current": c === shown ? "true" : null, onclick: () => show(c) }, title(c)),
    make("button", { "aria-label": `Delete: ${title(c)}`, onclick: () => remove(c) }, "×"))));
  by("messages").replaceChildren(...shown.messages.map((m, i) => messageElement(m, actions(m, i))));
  by("messages").scrollTop = by("messages").scrollHeight;
  ready();
}

function ready() {
  const busy = running !== null, call = openCall();
  by("send").disabled = busy;
  by("stop").hidden = !busy;
  by("message-label").textContent = call ? `Result of ${call.function.name}` : "Message";
  by("message").placeholder = by("message-label").textContent;
}

function actions(message, index) {
  const found = [["Copy", () => navigator.clipboard?.writeText(message.content)]];
  if (message.role === "user") found.push(["Edit", () => edit(index)]);
  const ended = running?.conversation !== shown;
  if (message.role === "assistant" && index === shown.messages.length - 1 && ended) found.push(["Regenerate", regenerate]);
  return found;
}

function remove(conversation) {
  if (running?.conversation === conversation) stop();
  conversation.messages = [];
  save(conversation);
  show(shown === conversation ? conversations[0] ?? fresh() : shown);
}

// The first call of the last answer that has no result.
function openCall() {
  const at = shown.messages.findLastIndex((m) => m.role === "assistant");
  const answered = new Set(shown.messages.slice(at + 1).map((m) => m.tool_call_id));
  return at < 0 ? undefined : shown.messages[at].tool_calls?.find((call) => !answered.has(call.id));
}

function send() {
  const text = by("message").value;
  if (running || (!text.trim() && (editing || !openCall()))) return;
  if (editing) shown.messages.length = editing.index;
  editing = null;
  const call = openCall();
  shown.messages.push(call ? { role: "tool", tool_call_id: call.id, content: text } : { role: "user", content: text });
  by("message").value = "";
  save(shown, true);
  draw();
  if (!openCall()) answer();
}

// What follows the message goes when the new text is sent, not before.
function edit(index) {
  if (running) return note(BUSY);
  editing = { index, draft: editing?.draft ?? by("message").value };
  by("message").value = shown.messages[index].content;
  note("Sending replaces this message and what follows it; Escape leaves all as it is.");
  by("message").focus();
}

function endEditing() {
  if (!editing) return;
  by("message").value = editing.draft;
  editing = null;
  note("");
}

function regenerate() {
  if (running) return note(BUSY);
  answer(shown.messages.pop());
}

function escape() {
  if (editing) endEditing();
  else if (running?.conversation === shown) stop();
}

function stop() {
  running?.controller.abort();
}

// A reload keeps what came. Not on `pagehide`: by then the browser has cut the stream, which looks like a fault.
function leave() {
  if (!running) return;
  stop();
  settle(running);
  keep(running.conversation);
}

function requestOf(conversation) {
  const { system, temperature, max_tokens, reasoning_effort, tools } = conversation.wishes;
  const history = conversation.messages.filter((m) => m.role !== "assistant" || said(m))
    .map(({ figures, error, cut, ...message }) => message);
  const body = { messages: system ? [{ role: "system", content: system }, ...history] : history, stream: true,
    stream_options: { include_usage: true } };
  if (temperature) body.temperature = Number(temperature);
  if (max_tokens) body.max_tokens = Number(max_tokens);
  if (reasoning_effort) body.reasoning_effort = reasoning_effort;
  if (tools?.trim()) body.tools = JSON.parse(tools);
  return body;
}

// `replaced`: the answer in whose place the new one comes, which stays where nothing comes.
async function answer(replaced = null) {
  const conversation = shown, message = { role: "assistant", content: "" };
  const mine = running = { controller: new AbortController(), conversation, message, replaced };
  note("Waiting for the model…");
  const view = viewOf(message);
  let failed = "";
  try {
    const body = requestOf(conversation);
    conversation.messages.push(message);
    draw();
    view.attach();
    for await (const chunk of stream(body, running.controller.signal)) {
      if (chunk.note !== undefined) { note(chunk.note); continue; }
      if (chunk.choices?.[0]?.delta) absorb(message, chunk.choices[0].delta);
      if (chunk.choices?.[0]?.finish_reason === "length") message.cut = true;
      if (chunk.usage) message.figures = figures(chunk.usage, chunk.timings);
      if (message.content || message.reasoning_content) note("");
      view.update();
    }
  } catch (error) {
    if (error.name !== "AbortError") failed = error instanceof SyntaxError ? `Tools: ${error.message}` : error.message;
  }
  view.end();
  running = null;
  if (failed) message.error = failed;
  settle(mine);
  save(conversation);
  if (shown === conversation) draw();
  ready();
  note(failed, Boolean(failed));
}

function said(message) {
  return Boolean(message.content || message.reasoning_content || message.tool_calls);
}

// An answer of which nothing came makes room for the one that it should have replaced; without one, a fault or a cut stays.
function settle({ conversation, message, replaced }) {
  if (said(message) || !conversation.messages.length) return;
  const kept = replaced ?? (message.error || message.cut ? message : null);
  conversation.messages = [...conversation.messages.filter((m) => m !== message), ...(kept ? [kept] : [])];
}

function figures(usage, timings) {
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const speed = timings?.predicted_per_second ? `, ${timings.predicted_per_second.toFixed(1)} tok/s` : "";
  return `${usage.prompt_tokens} prompt tokens (${cached} cached), ${usage.completion_tokens} generated${speed}`;
}

// Draws a growing answer, so seldom that drawing takes at most a quarter of the time.
function viewOf(message) {
  let body = null, timer = null, pause = 30;
  const paint = () => {
    timer = null;
    if (!body?.isConnected) body = shown.messages.at(-1) === message ? by("messages").lastElementChild?.querySelector(".body") : null;
    if (!body) return;
    const box = by("messages"), follow = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END;
    const begin = performance.now();
    fill(body, message, true);
    if (follow) box.scrollTop = box.scrollHeight;
    pause = Math.max(30, 3 * (performance.now() - begin));
  };
  return {
    attach: () => { body = by("messages").lastElementChild.querySelector(".body"); },
    update: () => { timer ??= setTimeout(paint, pause); },
    end: () => clearTimeout(timer),
  };
}
