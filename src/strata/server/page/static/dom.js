// Elements are made here and nowhere else. Text only ever becomes text nodes: what a model writes cannot become markup.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") element.addEventListener("click", value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat());
  return element;
}

export const by = (id) => document.getElementById(id);

export function rows(heads, lines) {
  const cells = (tag, line) => line.map((cell) => make(tag, tag === "th" ? { scope: "col" } : {}, String(cell)));
  return make("table", {}, make("thead", {}, make("tr", {}, cells("th", heads))),
    make("tbody", {}, lines.map((line) => make("tr", {}, cells("td", line)))));
}

export function facts(list, pairs) {
  list.replaceChildren(...pairs.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, String(value)))));
}

// A share between 0 and 1 with its name and its value in words; null: not known.
export function bar(name, share, words) {
  const width = Math.max(0, Math.min(1, share ?? 0));
  const filled = make("span");
  filled.style.width = `${width * 100}%`;
  const meter = make("div", { role: "meter", "aria-label": name, "aria-valuemin": 0, "aria-valuemax": 1,
    "aria-valuenow": width.toFixed(3), "aria-valuetext": words }, filled);
  return make("div", { class: "bar" }, make("span", {}, name), meter, make("span", {}, words));
}
