// The planner: sliders and numbers, answers as they come, and none that nobody asked for any more.
import { asked, byId } from "./page.js";
import { draw } from "./charts.js";

const form = byId("plan"), keys = [...form.querySelectorAll(".key")];
const WAIT = 60;  // milliseconds without a change before anything is asked
const SLOW = 400;  // milliseconds without an answer before a quick bound is asked for
let asking = null, waiting = 0;

const range = (key) => key.querySelector('input[type="range"]');
const box = (key) => key.querySelector('input[type="text"]');
const limits = (slider) => [Math.log(Number(slider.dataset.least)), Math.log(Number(slider.dataset.most))];
const number = (text) => { const [over, under] = text.split("/"); return under === undefined ? Number(over) : Number(over) / Number(under); };

// Two digits are enough for a slider; any value can be typed.
const rounded = (slider) => {
  const [low, high] = limits(slider), value = Math.exp(low + (high - low) * Number(slider.value) / 1000);
  const short = Number(value.toPrecision(2));
  return slider.dataset.whole === "1" ? Math.max(1, Math.round(short)) : short;
};
const shown = (value) => (value < 1e-4 ? value.toExponential().replace("e-", "e-") : String(value));
const slide = (key) => {
  const slider = range(key), [low, high] = limits(slider), value = number(box(key).value);
  if (value > 0) slider.value = String(Math.round(1000 * (Math.log(value) - low) / (high - low)));
  slider.setAttribute("aria-valuetext", box(key).value);
};

const method = () => form.elements.method.value;
const question = () => {
  const query = new URLSearchParams({ method: method() });
  keys.filter((key) => !key.hidden).forEach((key) => query.set(key.dataset.key, box(key).value.trim()));
  return query;
};

const short = (value) => Number(value.toPrecision(3)).toString();
const show = (found, quick) => {
  const plan = found.plan;
  byId("error").hidden = true;
  byId("noise").textContent = (quick ? "at most " : "") + plan.noise_multiplier.toFixed(plan.noise_multiplier < 10 ? 3 : 2);
  byId("signal-round").textContent = (quick ? "at least " : "") + short(plan.signal_round);
  byId("signal-run").textContent = (quick ? "at least " : "") + short(plan.signal_run);
  document.querySelector(".answer").classList.toggle("quick", quick);
  byId("command").textContent = found.command;
  const target = number(box(keys.find((key) => key.dataset.key === "epsilon")).value), last = plan.curve.round.at(-1);
  draw(byId("curve"), [
    { x: plan.curve.round, y: plan.curve.epsilon, name: "epsilon", mode: "lines+markers", line: { color: "--c0", width: 2 }, marker: { size: 5 }, hovertemplate: "round %{x}: epsilon %{y:.4g}<extra></extra>" },
    { x: [0, last], y: [target, target], name: "target", mode: "lines", line: { color: "--warning", width: 1.5, dash: "dash" }, hovertemplate: "target %{y:.4g}<extra></extra>" },
  ], { x: { title: "round", range: [0, last * 1.02] }, y: { title: "epsilon", rangemode: "tozero" } });
  if (quick) {
    byId("accountant").textContent = "A quick bound by Renyi's accountant at few orders. The exact answer (PLD) takes longer here, and will replace it.";
    return;
  }
  byId("accountant").textContent = `Epsilon ${plan.epsilon_words} by ${plan.accountant}, the accountant that certifies. ${short(plan.expected)} clients take part in a round, on average.`;
  byId("needed").textContent = plan.needed === null ? "no number" : plan.needed.toLocaleString("en");
  byId("needed-of").textContent = plan.needed_of === "clients" ? "clients needed" : "samples needed, each client";
  byId("warning").textContent = plan.warning || "";
  byId("warning").hidden = !plan.warning;
  byId("summary").replaceChildren(...plan.summary.map(([name, words]) => {
    const line = document.createElement("div");
    line.append(Object.assign(document.createElement("dt"), { textContent: name }), Object.assign(document.createElement("dd"), { textContent: words }));
    return line;
  }));
  history.replaceState(null, "", `?${question()}`);
  byId("plan").dataset.answered = String(Number(byId("plan").dataset.answered || 0) + 1);
};

const fail = (words) => {
  byId("error").textContent = words;
  byId("error").hidden = false;
  byId("warning").hidden = true;
  byId("accountant").textContent = "";
  ["noise", "signal-round", "signal-run", "needed"].forEach((id) => { byId(id).textContent = "-"; });
};

const ask = async () => {
  asking?.abort();
  const own = asking = new AbortController(), query = question();
  const address = `/api/plan?${query}`;
  const slow = setTimeout(async () => {
    byId("accountant").textContent = "Computing.";
    try {
      const found = await asked(`${address}&quick=1`, own.signal);
      if (found?.plan && own === asking && !own.done) show(found, true);
    } catch { /* a newer question was asked, or the server has ended: the other request tells */ }
  }, SLOW);
  try {
    const found = await asked(address, own.signal);
    own.done = true;
    if (own === asking && found) found.error ? fail(found.error) : show(found, false);
  } catch (error) {
    if (error.name !== "AbortError") fail("The server does not answer: was it ended?");
  } finally {
    clearTimeout(slow);
  }
};
const soon = () => { clearTimeout(waiting); waiting = setTimeout(ask, WAIT); };

const choose = () => {
  keys.forEach((key) => { key.hidden = Boolean(key.dataset.only) && key.dataset.only !== method(); });
};
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("change", (event) => { if (event.target.name === "method") { choose(); soon(); } });
keys.forEach((key) => {
  range(key).addEventListener("input", () => {
    box(key).value = shown(rounded(range(key)));
    range(key).setAttribute("aria-valuetext", box(key).value);
    soon();
  });
  box(key).addEventListener("input", () => { slide(key); soon(); });
});

byId("copy").addEventListener("click", async () => {
  try { await navigator.clipboard.writeText(byId("command").textContent); byId("copy").textContent = "Copied"; }
  catch { getSelection().selectAllChildren(byId("command")); byId("copy").textContent = "Selected"; }
  setTimeout(() => { byId("copy").textContent = "Copy"; }, 2000);
});

// An address can hold a question.
for (const [name, value] of new URLSearchParams(location.search)) {
  if (name === "method") [...form.elements.method].forEach((one) => { one.checked = one.value === value; });
  const key = keys.find((one) => one.dataset.key === name);
  if (key) box(key).value = value;
}
if (!method()) form.elements.method[0].checked = true;
choose();
keys.forEach(slide);
ask();
