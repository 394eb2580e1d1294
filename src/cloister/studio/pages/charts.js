// Plots in the colors of the page, as the report draws them, and their numbers as a table.
import { onTheme } from "./page.js";

const drawn = new Map();
const touch = window.matchMedia("(pointer: coarse)");

const layout = (plot, own) => {
  const style = getComputedStyle(document.documentElement), color = (name) => style.getPropertyValue(name).trim();
  const narrow = plot.clientWidth < 420;
  const axis = {
    gridcolor: color("--grid"), zerolinecolor: color("--grid"), linecolor: color("--line"), tickcolor: color("--line"),
    tickfont: { size: narrow ? 11 : 12 }, nticks: narrow ? 5 : 8, automargin: true,
  };
  return {
    autosize: true, showlegend: false, hovermode: "closest", paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: color("--text") },
    margin: { l: narrow ? 40 : 52, r: 10, t: 10, b: 42 },
    hoverlabel: { bgcolor: color("--surface"), bordercolor: color("--line"), font: { color: color("--text") } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: color("--muted"), activecolor: color("--text") },
    dragmode: touch.matches ? false : "zoom",
    xaxis: { ...axis, showline: true, ...own.x, title: { text: own.x.title, standoff: 8 } },
    yaxis: { ...axis, ...own.y, title: { text: own.y.title, standoff: 8 } },
  };
};

const config = {
  responsive: true, displaylogo: false, showSendToCloud: false,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  displayModeBar: window.matchMedia("(hover: hover)").matches && "hover",
};

// Colors are names of the page's, such as --c0, with two digits of opacity behind where there are some.
const colored = (value) => {
  if (typeof value === "string" && value.startsWith("--")) {
    const [name, opacity = ""] = value.split("/");
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim() + opacity;
  }
  if (Array.isArray(value) || !value || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, colored(item)]));
};

export const draw = (figure, traces, axes) => {
  const plot = figure.querySelector(".plot");
  figure.hidden = false;
  drawn.set(figure, { traces, axes });
  Plotly.react(plot, traces.map(colored), layout(plot, axes), config);
  const details = figure.querySelector("details.numbers");
  if (!details.dataset.ready) {
    details.dataset.ready = "1";
    details.addEventListener("toggle", () => details.open && numbers(figure, details));
  }
  if (details.open) numbers(figure, details);
};

const numbers = (figure, details) => {
  const { traces, axes } = drawn.get(figure), table = document.createElement("table");
  const shown = traces.filter((trace) => !trace.meta?.band && trace.x.length);
  const rows = new Map();
  shown.forEach((trace, place) => trace.x.forEach((x, n) => {
    if (!rows.has(x)) rows.set(x, Array(shown.length).fill(""));
    rows.get(x)[place] = trace.y[n] === null ? "" : Number(trace.y[n].toPrecision(5));
  }));
  const line = (cells, kind, parent) => {
    const row = parent.insertRow();
    cells.forEach((cell) => { row.appendChild(document.createElement(kind)).textContent = cell; });
  };
  line([axes.x.title, ...shown.map((trace) => trace.name)], "th", table.createTHead());
  const body = table.createTBody();
  [...rows.keys()].sort((one, other) => one - other).forEach((x) => line([x, ...rows.get(x)], "td", body));
  details.querySelector(".scroll").replaceChildren(table);
};

onTheme(() => drawn.forEach(({ traces, axes }, figure) => draw(figure, traces, axes)));
