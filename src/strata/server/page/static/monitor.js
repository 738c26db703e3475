// What the server does now: asked once a second while somebody looks.
import { ask } from "./api.js";
import { bar, by, facts, make, rows } from "./dom.js";

const EVERY = 1000;
let timer = null, before = null, round = 0;

export function watchServer(open) {
  clearTimeout(timer);
  round += 1;
  before = null;
  if (open) look(round);
}

async function look(mine) {
  if (!document.hidden) {
    try {
      const now = await (await ask("page/status")).json();
      if (mine !== round) return;
      draw(now, before);
      before = now;
    } catch (error) {
      facts(by("figures"), [["Server", error.message]]);
    }
  }
  if (mine === round) timer = setTimeout(() => look(mine), EVERY);
}

const gib = (bytes) => (bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(2)} GiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`);
const percent = (share) => (share === null ? "nothing yet" : `${(share * 100).toFixed(1)} %`);
const nothing = (text) => make("p", { class: "quiet" }, text);

// Rates come from two looks; the first has none.
function rate(now, last, name) {
  return last && now.now > last.now ? `${(Math.max(0, now[name] - last[name]) / (now.now - last.now)).toFixed(1)} tok/s` : "–";
}

function draw(now, last) {
  facts(by("figures"), [
    ["Generation", rate(now, last, "generated_tokens")],
    ["Prompts", rate(now, last, "read_tokens")],
    ["Running", now.running], ["In the queue", now.waiting],
    ["Time to first token, mean", now.first_token_seconds === null ? "–" : `${now.first_token_seconds.toFixed(2)} s`],
    ["Decode share of the time of steps", percent(now.decode_share)],
    ["Model", now.loaded ? "in memory" : "not in memory"],
  ]);
  by("tiers").replaceChildren(...now.tiers.map((t) => bar(`${t.tier}: ${t.name}`, t.total ? t.used / t.total : null,
    t.total ? `${gib(t.used)} of ${gib(t.total)}` : gib(t.used))));
  const most = Math.max(1, ...now.plan.map((p) => p.bytes));
  by("plan").replaceChildren(...now.plan.map((p) => bar(`${p.tier}: ${p.name}`, p.bytes / most, gib(p.bytes))));
  by("rates").replaceChildren(...now.hit_rates.map((r) => bar(r.name, r.share, percent(r.share))));
  by("requests").replaceChildren(now.requests.length
    ? rows(["Request", "State", "Prompt read", "Cached", "Generated", "Seconds"],
      now.requests.map((r) => [r.id, r.state, `${r.read} of ${r.prompt}`, r.cached, r.generated, r.seconds.toFixed(1)]))
    : nothing("None are open."));
  by("gpus").replaceChildren(...(now.gpus.length ? now.gpus.flatMap(gpu) : [nothing("No GPU is used.")]));
}

function gpu(g) {
  return [
    bar(`${g.name}: memory`, g.memory_used / g.memory_total, `${gib(g.memory_used)} of ${gib(g.memory_total)}`),
    bar(`${g.name}: busy`, g.busy, `${percent(g.busy)}, ${g.celsius} °C, ${g.watts.toFixed(0)} W`),
  ];
}
