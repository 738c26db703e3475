// Markdown as models write it, made into elements. No raw markup, no images; links go to http, https and mailto alone.
import { make } from "./dom.js";

const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*(?=\S)([\s\S]*?\S)\*\*|~~(?=\S)([\s\S]*?\S)~~|\*(?=\S)([^*\n]*?[^\s*])\*(?!\*)|(?<![\w])_(?=\S)([^_\n]*?[^\s_])_(?![\w])|\[([^[\]\n]+)\]\(([^()\s]+)\)|\\([!-/:-@[-`{-~])/g;
const SAFE = /^(https?:\/\/|mailto:)/i;
const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const ITEM = /^(\s*)([-*+]|(\d{1,9})[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const DEEPEST = 12; // nested quotes and lists are plain text below this
const LONGEST = 10000; // characters of a line; a longer one is plain text, for patterns that fail may take its square

export function inline(text, depth = 0) {
  if (depth > DEEPEST || text.length > LONGEST) return [text];
  const made = [];
  let end = 0;
  for (const m of text.matchAll(INLINE)) {
    if (m.index > end) made.push(text.slice(end, m.index));
    end = m.index + m[0].length;
    const within = (tag, part) => made.push(make(tag, {}, inline(part, depth + 1)));
    if (m[2] !== undefined) made.push(make("code", {}, m[2].replace(/^ (.*\S.*) $/s, "$1")));
    else if (m[3] !== undefined) within("strong", m[3]);
    else if (m[4] !== undefined) within("s", m[4]);
    else if (m[5] !== undefined) within("em", m[5]);
    else if (m[6] !== undefined) within("em", m[6]);
    else if (m[7] !== undefined) made.push(link(m[7], m[8], m[0], depth));
    else made.push(m[9]);
  }
  if (end < text.length) made.push(text.slice(end));
  return made;
}

function link(words, target, source, depth) {
  if (!SAFE.test(target)) return source;
  return make("a", { href: target, rel: "noopener noreferrer nofollow", target: "_blank" }, inline(words, depth + 1));
}

export function markdown(text) {
  return blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

function blocks(lines, depth) {
  const made = [];
  let at = 0;
  while (at < lines.length) {
    const taken = depth > DEEPEST || lines[at].length > LONGEST ? null : READERS.map((read) => read(lines, at, depth)).find(Boolean);
    if (taken) {
      made.push(taken.element);
      at = taken.end;
    } else if (!lines[at].trim()) at += 1;
    else {
      const begin = at++;
      while (at < lines.length && lines[at].trim() && !starts(lines, at)) at += 1;
      made.push(make("p", {}, lines.slice(begin, at).flatMap((line, i) => [...(i ? [make("br")] : []), ...inline(line.trim())])));
    }
  }
  return made;
}

function starts(lines, at) {
  const line = lines[at];
  if (line.length > LONGEST) return false;
  return FENCE.test(line) || /^ {0,3}(#{1,6}\s|>)/.test(line) || RULE.test(line) || ITEM.test(line) || isTable(lines, at);
}

function fence(lines, at) {
  const m = FENCE.exec(lines[at]);
  if (!m) return null;
  let end = at + 1;
  const closes = (line) => line.trim().startsWith(m[2]) && !line.trim().replaceAll(m[2][0], "");
  while (end < lines.length && !closes(lines[end])) end += 1;
  const code = lines.slice(at + 1, end).map((line) => line.replace(new RegExp(`^ {0,${m[1].length}}`), "")).join("\n");
  const copy = make("button", { type: "button", onclick: () => navigator.clipboard?.writeText(code) }, "Copy");
  const language = m[3] ? { "data-language": m[3] } : {};
  return { element: make("div", { class: "code" }, make("pre", { tabindex: 0 }, make("code", language, code)), copy), end: end + 1 };
}

function heading(lines, at) {
  const m = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/.exec(lines[at]);
  // the page has headings of its own above
  return m && { element: make(`h${Math.min(6, m[1].length + 2)}`, {}, inline(m[2])), end: at + 1 };
}

function rule(lines, at) {
  return RULE.test(lines[at]) ? { element: make("hr"), end: at + 1 } : null;
}

function quote(lines, at, depth) {
  if (!/^ {0,3}>/.test(lines[at])) return null;
  let end = at;
  while (end < lines.length && /^ {0,3}>/.test(lines[end])) end += 1;
  return { element: make("blockquote", {}, blocks(lines.slice(at, end).map((line) => line.replace(/^ {0,3}> ?/, "")), depth + 1)), end };
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  if (!first) return null;
  const ordered = first[3] !== undefined, indent = first[1].length;
  const items = [];
  let end = at;
  while (end < lines.length) {
    const m = ITEM.exec(lines[end]), spaces = lines[end].search(/\S/);
    if (m && m[1].length <= indent + 1 && !RULE.test(lines[end])) {
      if ((m[3] !== undefined) !== ordered || m[1].length < indent) break;
      items.push([m[4]]);
    } else if (spaces > indent) items.at(-1).push(lines[end].slice(Math.min(spaces, indent + (ordered ? 3 : 2))));
    else if (spaces < 0 && lines[end + 1]?.search(/\S/) > indent) items.at(-1).push("");
    else if (spaces < 0 && ITEM.exec(lines[end + 1] ?? "")?.[1].length === indent) { /* a loose list goes on */ }
    else break;
    end += 1;
  }
  const made = items.map((item) => make("li", {}, tight(blocks(item, depth + 1))));
  return { element: make(ordered ? "ol" : "ul", ordered && first[3] !== "1" ? { start: first[3] } : {}, made), end };
}

function tight(made) {
  return made.length && made[0].tagName === "P" ? [...made[0].childNodes, ...made.slice(1)] : made;
}

const isTable = (lines, at) => lines[at].includes("|") && DIVIDER.test(lines[at + 1] ?? "") && lines[at + 1].includes("-");
const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => inline(cell.trim().replaceAll("\\|", "|")));

function table(lines, at) {
  if (!isTable(lines, at)) return null;
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  const row = (tag, line) => make("tr", {}, cells(line).map((cell) => make(tag, {}, cell)));
  return { element: make("table", {}, make("thead", {}, row("th", lines[at])),
    make("tbody", {}, lines.slice(at + 2, end).map((line) => row("td", line)))), end };
}

const READERS = [fence, heading, rule, quote, list, table];
