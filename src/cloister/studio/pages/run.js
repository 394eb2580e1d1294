// One run: its figures, and what comes while it goes on.
import { asked, byId } from "./page.js";
import { draw } from "./charts.js";

const place = byId("run"), name = place.dataset.name, fixed = JSON.parse(place.dataset.fixed);
const address = name.split("/").map(encodeURIComponent).join("/");
const SMALLER_IS_BETTER = ["mae", "mse", "rmse", "perplexity", "loss"];
let charged = 0, wrong = false;  // what the ledger says, and whether files contradict each other
let lines = [], measured = [], metric = "accuracy", saidAt = 0;

const pairs = (rows, key) => rows.filter((row) => typeof row[key] === "number").map((row) => [row.round, row[key]]);
const trace = (points, label, color, more = {}) => ({
  x: points.map(([x]) => x), y: points.map(([, y]) => y), name: label, mode: points.length <= 12 ? "lines+markers" : "lines",
  line: { color, width: 2, ...more.line }, marker: { size: 6 }, hovertemplate: `round %{x}: %{y:.4g}<extra>${label}</extra>`,
});
const level = (value, label, color, last) => ({
  x: [0, last], y: [value, value], name: label, mode: "lines", line: { color, width: 1.5, dash: "dash" },
  hovertemplate: `${label} %{y:.4g}<extra></extra>`,
});
const rounds = (last) => ({ title: "round", range: [0, last * 1.02] });
const inWords = (bytes) => {
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) if (bytes >= size) return `${Number((bytes / size).toPrecision(3))} ${unit}`;
  return `${Math.round(bytes)} bytes`;
};
const duration = (seconds) => {
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
};
const upwards = (value) => (Math.ceil(value * 1000 - 1e-9) / 1000).toFixed(3);

const figures = () => {
  if (!lines.length) return;
  byId("waiting").hidden = true;
  const done = lines.at(-1).round, last = state() === "running" ? Math.min(fixed.rounds, Math.max(10, Math.ceil(1.25 * done))) : done;
  const scores = pairs(lines, metric);
  if (scores.length) draw(byId("score"), [trace(scores, `test ${metric}`, "--c0")], { x: rounds(last), y: { title: `test ${metric}` } });
  const spent = pairs(lines, "epsilon");
  if (fixed.private && spent.length) {
    const names = fixed.budgets.length > 1 ? ["smallest budget", "largest budget"] : ["budget"];
    const budgets = fixed.budgets.map((value, n) => level(value, names[n], "--warning", last));
    draw(byId("spent"), [trace(spent, "epsilon spent", "--c1"), ...budgets], { x: rounds(last), y: { title: "epsilon", rangemode: "tozero" } });
  }
  let sum = 0;
  const sent = lines.map((line) => [line.round, sum += line.sent]);
  draw(byId("bytes"), [{ ...trace(sent, "bytes sent", "--c2"), text: sent.map(([, y]) => inWords(y)), hovertemplate: "round %{x}: %{text}<extra></extra>" }],
    { x: rounds(last), y: { title: "bytes", rangemode: "tozero", exponentformat: "SI" } });
  drawMeasured(last);
};

const drawMeasured = (last) => {
  const mean = pairs(measured, "mean"), low = pairs(measured, "low"), high = pairs(measured, "high"), clip = pairs(measured, "clip");
  if (mean.length) {
    const band = { x: [...high.map(([x]) => x), ...low.map(([x]) => x).reverse()], y: [...high.map(([, y]) => y), ...low.map(([, y]) => y).reverse()],
      mode: "lines", line: { width: 0, color: "--c3" }, fill: "toself", fillcolor: "--c3/2e", hoverinfo: "skip", name: "5 % to 95 %", meta: { band: true } };
    const limit = { ...trace(clip, "clip", "--warning"), mode: "lines", line: { color: "--warning", width: 1.5, dash: "dash" } };
    const of = measured.at(-1).of === "gradients" ? "norm of a sample's gradient" : "norm of an update";
    draw(byId("norms"), [band, trace(mean, "mean norm", "--c3"), ...(clip.length ? [limit] : [])], { x: rounds(last), y: { title: of, rangemode: "tozero" } });
  }
  const clipped = pairs(measured, "clipped");
  if (clipped.length) draw(byId("clipped"), [trace(clipped, "fraction clipped", "--c4")], { x: rounds(last), y: { title: "fraction clipped", range: [0, 1.04], tickformat: ".0%" } });
};

const state = () => place.dataset.state;
const words = () => {
  const line = lines.at(-1), scores = pairs(lines, metric);
  byId("rounds").textContent = line.round;
  byId("progress").value = line.round;
  const digits = SMALLER_IS_BETTER.includes(metric) ? (value) => Number(value.toPrecision(4)).toString() : (value) => value.toFixed(3);
  byId("metric-name").textContent = metric;
  if (scores.length) byId("metric").textContent = digits(scores.at(-1)[1]);
  if (fixed.private && typeof line.epsilon === "number" && state() !== "ended" && !wrong) byId("epsilon").textContent = upwards(Math.max(line.epsilon, charged));
  const seconds = lines.map((one) => one.seconds).filter((one) => typeof one === "number");
  const total = seconds.reduce((one, other) => one + other, 0), recent = seconds.slice(-20);
  byId("time").textContent = duration(total);
  const each = recent.reduce((one, other) => one + other, 0) / recent.length, left = fixed.rounds - line.round;
  byId("left").textContent = state() === "running" && left > 0 ? `about ${duration(each * left)} left` : "";
  if (state() === "running" && Date.now() - saidAt > 5000) {
    saidAt = Date.now();
    const score = scores.length ? `, ${metric} ${digits(scores.at(-1)[1])}` : "";
    byId("live").textContent = `Round ${line.round} of ${fixed.rounds}${score}${fixed.private && line.epsilon ? `, epsilon ${upwards(line.epsilon)}` : ""}`;
  }
};

const problem = (text) => { byId("problem").textContent = text; byId("problem").hidden = !text; };
const showState = (found) => {
  if (found.state === state()) return;
  const was = state();
  place.dataset.state = found.state;
  const mark = byId("state").firstElementChild;
  mark.className = `state ${found.state}`;
  mark.textContent = found.state;
  if (was !== "ended" && found.state === "ended") {
    byId("ended").hidden = false;
    byId("live").textContent = "This run has ended.";
  }
};

let frame = 0;
const stream = new EventSource(`/api/follow/${address}`);
stream.addEventListener("news", (event) => {
  const news = JSON.parse(event.data);
  problem("");
  showState(news);
  if (news.lines) {
    lines = (news.anew ? [] : lines).concat(news.lines);
    measured = (news.measured_anew ? [] : measured).concat(news.measured);
    metric = news.metric;
    if (news.upload) byId("upload").textContent = news.upload.replace("upload: ", "");
  }
  if (lines.length) words();
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(figures);
});
stream.addEventListener("end", () => { stream.close(); agree(); });
stream.addEventListener("problem", (event) => { stream.close(); problem(JSON.parse(event.data).words); });
stream.addEventListener("open", () => { lines = []; measured = []; });
stream.addEventListener("error", () => problem("The server does not answer: was it ended? This page goes on when it does."));
window.addEventListener("pagehide", () => stream.close());

const agree = async () => {
  const found = await asked(`/api/agreement/${address}`).catch(() => ({ error: "The server does not answer." }));
  byId("agreement").textContent = found.error || found.words;
  byId("agreement").classList.toggle("wrong", found.agree === false);
  if (found.agree === false) {
    wrong = true;
    problem(found.words);
    byId("epsilon").textContent = "not verified";
  } else if (fixed.private && found.epsilon) {  // a round is charged before it has a line
    charged = found.epsilon;
    byId("epsilon").textContent = upwards(Math.max(charged, state() === "ended" ? 0 : lines.at(-1)?.epsilon || 0));
  }
};
if (state() !== "ended") agree();

const certificate = byId("certificate");
certificate?.addEventListener("toggle", () => {
  if (!certificate.open || certificate.querySelector("iframe")) return;
  const page = document.createElement("iframe");
  page.sandbox = "";
  page.title = "Certificate";
  page.src = certificate.dataset.source;
  certificate.append(page);
});
