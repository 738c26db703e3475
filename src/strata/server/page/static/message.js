// One message as an element: reasoning folded, calls shown, what can be done with it.
import { make } from "./dom.js";
import { markdown } from "./markdown.js";

const NAMES = { user: "You", assistant: "Model", tool: "Tool" };

export function messageElement(message, actions) {
  const body = make("div", { class: "body" });
  const footer = make("footer", {}, actions.map(([name, run]) => make("button", { type: "button", onclick: run }, name)));
  const element = make("article", { class: message.role, "aria-label": NAMES[message.role] ?? message.role }, body, footer);
  fill(body, message);
  if (message.figures) footer.append(make("span", { class: "quiet" }, message.figures));
  return element;
}

// Fills anew; whether the reasoning is unfolded stays as it is.
export function fill(body, message, running = false) {
  const unfolded = body.querySelector("details.reasoning")?.open ?? false;
  const parts = [];
  if (message.reasoning_content) parts.push(reasoning(message, unfolded, running));
  if (message.role === "assistant") parts.push(...markdown(message.content ?? ""));
  else parts.push(...(message.role === "tool" ? [make("pre", { tabindex: 0 }, message.content)] : [message.content]));
  for (const call of message.tool_calls ?? []) parts.push(toolCall(call));
  if (message.cut) parts.push(make("p", { class: "quiet" }, "Cut off: the limit of tokens was reached."));
  if (message.error) parts.push(make("p", { class: "error", role: "alert" }, message.error));
  body.replaceChildren(...parts);
}

function reasoning(message, unfolded, running) {
  const words = running && !message.content ? "Thinking…" : "Reasoning";
  return make("details", { class: "reasoning", open: unfolded }, make("summary", {}, words), make("div", {}, message.reasoning_content));
}

function toolCall(call) {
  let given = call.function.arguments;
  try {
    given = JSON.stringify(JSON.parse(given), null, 2);
  } catch { /* still on its way */ }
  return make("details", { class: "call", open: true }, make("summary", {}, `Call of ${call.function.name}`),
    make("pre", { tabindex: 0 }, make("code", {}, given)));
}

// Takes a chunk's delta into the message that it belongs to.
export function absorb(message, delta) {
  if (delta.content) message.content += delta.content;
  const thought = delta.reasoning_content ?? delta.reasoning;
  if (thought) message.reasoning_content = (message.reasoning_content ?? "") + thought;
  for (const part of delta.tool_calls ?? []) {
    message.tool_calls ??= [];
    const call = (message.tool_calls[part.index] ??= { id: part.id, type: "function", function: { name: "", arguments: "" } });
    call.function.name += part.function?.name ?? "";
    call.function.arguments += part.function?.arguments ?? "";
  }
}
