// The conversation on the screen: sending, streaming, stopping, again.
import { stream } from "./api.js";
import { by, make } from "./dom.js";
import { absorb, fill, messageElement } from "./message.js";
import { fresh, load, save, title } from "./store.js";

const WISHES = { system: "system", temperature: "temperature", "max-tokens": "max_tokens", effort: "reasoning_effort", tools: "tools" };
const NEAR_END = 80; // pixels from the end within which the view follows the text

let conversations = load();
let shown = conversations[0] ?? fresh();
let running = null; // {controller, conversation} of the answer that streams

export function startChat() {
  by("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  by("message").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !event.defaultPrevented) stop(); });
  by("stop").addEventListener("click", stop);
  addEventListener("beforeunload", leave);
  by("new").addEventListener("click", () => { show(fresh()); by("message").focus(); });
  by("menu").addEventListener("click", () => unfold(by("menu").getAttribute("aria-expanded") !== "true"));
  for (const [id, name] of Object.entries(WISHES)) {
    by(id).addEventListener("change", () => { shown.wishes[name] = by(id).value; keep(); });
  }
  show(shown);
}

function unfold(open) {
  by("menu").setAttribute("aria-expanded", String(open));
}

function note(text, fault = false) {
  by("note").textContent = text;
  by("note").className = fault ? "error" : "";
}

function keep() {
  if (!save(conversations)) note("This browser keeps no conversations: its space is used up or closed to pages.", true);
}

function show(conversation) {
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
  conversations = conversations.filter((c) => c !== conversation);
  keep();
  show(shown === conversation ? conversations[0] ?? fresh() : shown);
}

// The first call of the last answer that has no result.
function openCall() {
  const at = shown.messages.findLastIndex((m) => m.role === "assistant");
  const answered = new Set(shown.messages.slice(at + 1).map((m) => m.tool_call_id));
  return at < 0 ? undefined : shown.messages[at].tool_calls?.find((call) => !answered.has(call.id));
}

function send() {
  const text = by("message").value, call = openCall();
  if (running || (!text.trim() && !call)) return;
  shown.messages.push(call ? { role: "tool", tool_call_id: call.id, content: text } : { role: "user", content: text });
  by("message").value = "";
  conversations = [shown, ...conversations.filter((c) => c !== shown)];
  keep();
  draw();
  if (!openCall()) answer();
}

function edit(index) {
  if (running) return;
  by("message").value = shown.messages[index].content;
  shown.messages.length = index;
  keep();
  draw();
  by("message").focus();
}

function regenerate() {
  if (running) return;
  shown.messages.pop();
  answer();
}

function stop() {
  running?.controller.abort();
}

// A reload keeps what came. Not on `pagehide`: by then the browser has cut the stream, which looks like a fault.
function leave() {
  if (!running) return;
  stop();
  dropEmpty(running.conversation);
  keep();
}

function requestOf(conversation) {
  const { system, temperature, max_tokens, reasoning_effort, tools } = conversation.wishes;
  const history = conversation.messages.map(({ figures, error, ...message }) => message);
  const body = { messages: system ? [{ role: "system", content: system }, ...history] : history, stream: true,
    stream_options: { include_usage: true } };
  if (temperature) body.temperature = Number(temperature);
  if (max_tokens) body.max_tokens = Number(max_tokens);
  if (reasoning_effort) body.reasoning_effort = reasoning_effort;
  if (tools?.trim()) body.tools = JSON.parse(tools);
  return body;
}

async function answer() {
  const conversation = shown, message = { role: "assistant", content: "" };
  running = { controller: new AbortController(), conversation };
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
  dropEmpty(conversation);
  keep();
  if (shown === conversation) draw();
  ready();
  note(failed, Boolean(failed));
}

// An answer of which nothing came, not even a fault, leaves no message.
function dropEmpty(conversation) {
  const { role, content, reasoning_content, tool_calls, error } = conversation.messages.at(-1) ?? {};
  if (role === "assistant" && !content && !reasoning_content && !tool_calls && !error) conversation.messages.pop();
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
