// The list: what is filtered, what is selected, and what has changed since.
import { asked, byId } from "./page.js";

const form = byId("pick"), filter = byId("filter"), news = byId("news");
const rows = [...document.querySelectorAll("tr[data-run]")];
const boxes = () => [...document.querySelectorAll('input[name="run"]')];

const count = () => {
  const picked = boxes().filter((one) => one.checked).length;
  byId("picked").textContent = picked ? `${picked} selected` : "none selected";
  byId("overlay").disabled = !picked;
};
if (form) {
  form.addEventListener("change", count);
  window.addEventListener("pageshow", count);  // a browser that goes back keeps what was selected
  count();
}
filter?.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
filter?.addEventListener("input", () => {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  rows.forEach((row) => { row.hidden = !words.every((word) => row.dataset.words.toLowerCase().includes(word)); });
});

// Every run of a study is verified before its page is shown.
document.querySelectorAll("tr[data-study] a").forEach((link) => link.addEventListener("click", () => {
  news.textContent = `Reading and verifying the runs in ${link.textContent}.`;
}));

const put = (row, cells) => {
  for (const [name, value] of Object.entries(cells)) {
    const cell = row.querySelector(`[data-cell="${name}"]`);
    if (!cell || cell.textContent === String(value)) continue;
    if (name === "state") { cell.firstElementChild.className = `state ${value}`; cell.firstElementChild.textContent = value; }
    else cell.textContent = value;
  }
};

const look = async () => {
  if (document.hidden) return;
  let found;
  try { found = await asked("/api/list"); } catch { news.textContent = "The server does not answer: was it ended?"; return; }
  if (found.error) { news.textContent = found.error; return; }
  const known = [...document.querySelectorAll("[data-run], [data-study]")];
  const there = new Set([...Object.keys(found.runs).map((name) => `run:${name}`), ...Object.keys(found.studies).map((name) => `study:${name}`)]);
  for (const row of known) {
    const own = "run" in row.dataset ? found.runs[row.dataset.run] : found.studies[row.dataset.study];
    there.delete("run" in row.dataset ? `run:${row.dataset.run}` : `study:${row.dataset.study}`);
    if (own) put(row, own);
  }
  const words = [];
  if (found.running) words.push(`${found.running} run${found.running === 1 ? " is" : "s are"} under way.`);
  if (there.size) words.push(`${there.size} more since this page was loaded: `);
  if (news.dataset.words === words.join(" ")) return;
  news.dataset.words = words.join(" ");
  news.textContent = words.join(" ");
  if (there.size) {
    const link = document.createElement("a");
    link.href = "/";
    link.textContent = "show them";
    news.append(link);
  }
};
if (news) { look(); setInterval(look, 3000); }
