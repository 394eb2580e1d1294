"use strict";
// Draws the figures that stand in this page as JSON, in the colors of the page, and lets readers choose what is drawn.
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("figures"), palettes = read("palettes");
  const root = document.documentElement;
  const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
  const touch = window.matchMedia("(pointer: coarse)");
  const plots = [...document.querySelectorAll(".plot")];
  const drawn = new Set();
  root.dataset.drawn = "0";
  let printing = false;

  const isDark = () => !printing && (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);
  const merged = (one, other) => {
    const found = { ...one };
    for (const [key, value] of Object.entries(other)) {
      const both = value && typeof value === "object" && !Array.isArray(value) && found[key];
      found[key] = both ? merged(found[key], value) : value;
    }
    return found;
  };

  // Figures come in the light palette, at times with two digits of opacity behind a color.
  const dark = Object.fromEntries(palettes.light.map((color, place) => [color, palettes.dark[place]]));
  const recolored = (value) => {
    if (typeof value === "string" && value[0] === "#") return (dark[value.slice(0, 7)] || value.slice(0, 7)) + value.slice(7);
    if (Array.isArray(value)) return value.some((item) => typeof item !== "number") ? value.map(recolored) : value;
    if (!value || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, recolored(item)]));
  };

  const pageLayout = (plot) => {
    const style = getComputedStyle(root), color = (name) => style.getPropertyValue(name).trim();
    const narrow = plot.clientWidth < 420;
    const axis = {
      gridcolor: color("--grid"), zerolinecolor: color("--grid"), linecolor: color("--line"), tickcolor: color("--line"),
      tickfont: { size: narrow ? 11 : 12 }, title: { standoff: 8 }, nticks: narrow ? 5 : 8,
    };
    const space = { ...axis, backgroundcolor: "rgba(0,0,0,0)", showspikes: false, nticks: 5 };
    const found = {
      autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: color("--text") },
      margin: { l: narrow ? 40 : 52, r: 10, t: 10, b: 42 },
      hoverlabel: { bgcolor: color("--surface"), bordercolor: color("--line"), font: { color: color("--text") } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: color("--muted"), activecolor: color("--text") },
      dragmode: touch.matches ? false : "zoom",
    };
    const own = figures[plot.dataset.figure].layout;
    if (own.scene) {
      return { ...found, margin: { l: 0, r: 0, t: 0, b: 0 }, dragmode: "turntable", scene: { xaxis: space, yaxis: space, zaxis: space } };
    }
    return { ...found, margin: own.margin || found.margin, xaxis: { ...axis, showline: true }, yaxis: axis };
  };

  // Nothing that would leave this page; where nothing can hover, the buttons would always lie over the plot.
  const buttons = (plot) => figures[plot.dataset.figure].layout.scene ? ["toImage", "resetCameraDefault3d"] : ["toImage", "zoom2d", "pan2d", "resetScale2d"];
  const config = (plot) => ({
    responsive: true, displaylogo: false, showSendToCloud: false, modeBarButtons: [buttons(plot)],
    displayModeBar: window.matchMedia("(hover: hover)").matches && "hover",
  });

  // What readers chose in a figure: which labels and epsilons are hidden, and the frame.
  const choices = new Map();
  const choice = (figure) => {
    if (!choices.has(figure)) choices.set(figure, { label: new Set(), level: new Set(), frame: null });
    return choices.get(figure);
  };

  const traces = (plot) => {
    const chosen = choice(plot.closest("figure")), own = figures[plot.dataset.figure];
    const frame = chosen.frame === null ? {} : own.frames[chosen.frame] || {};
    return own.data.map((trace, number) => {
      const meta = trace.meta || {};
      const visible = !chosen.label.has(meta.label) && !chosen.level.has(meta.level);
      const found = { ...trace, ...(frame[number] || {}), visible };
      return isDark() ? recolored(found) : found;
    });
  };

  // On a narrow screen a surface is seen from farther away, and without its color bar.
  const fitted = (plot, data, layout) => {
    if (!layout.scene || plot.clientWidth >= 420) return [data, layout];
    const { eye } = layout.scene.camera, away = { x: eye.x * 1.35, y: eye.y * 1.35, z: eye.z * 1.35 };
    return [data.map((trace) => ({ ...trace, showscale: false })), merged(layout, { scene: { camera: { eye: away } } })];
  };

  const draw = (plot) => {
    drawn.add(plot);
    const layout = merged(pageLayout(plot), figures[plot.dataset.figure].layout);
    if (printing) layout.width = plot.clientWidth;
    Plotly.react(plot, ...fitted(plot, traces(plot), layout), config(plot));
    root.dataset.drawn = String(drawn.size);
  };
  const drawAgain = (within) => plots.filter((plot) => drawn.has(plot) && within.contains(plot)).forEach(draw);

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) { near.unobserve(entry.target); draw(entry.target); }
    }
  }, { rootMargin: "800px 0px" });
  plots.forEach((plot) => near.observe(plot));

  // The theme: the system's, until somebody chooses.
  const button = document.getElementById("theme");
  const remember = (theme) => { try { localStorage.setItem("cloister-theme", theme); } catch { /* a page without storage */ } };
  const remembered = () => { try { return localStorage.getItem("cloister-theme"); } catch { return null; } };
  const showTheme = () => { button.textContent = isDark() ? "Light" : "Dark"; drawAgain(document); };
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; remember(root.dataset.theme); showTheme(); });
  systemDark.addEventListener("change", showTheme);
  showTheme();

  // Legends, sliders and menus.
  document.querySelectorAll(".legend button").forEach((one) => one.addEventListener("click", () => {
    const figure = one.closest("figure"), hidden = choice(figure)[one.dataset.kind], place = Number(one.dataset.place);
    if (!hidden.delete(place)) hidden.add(place);
    one.setAttribute("aria-pressed", String(!hidden.has(place)));
    drawAgain(figure);
  }));
  document.querySelectorAll(".slider input").forEach((one) => one.addEventListener("input", () => {
    const figure = one.closest("figure"), name = one.dataset.names.split("|")[Number(one.value)];
    choice(figure).frame = Number(one.value);
    figure.querySelector(".shown").textContent = name;
    one.setAttribute("aria-valuetext", name);
    drawAgain(figure);
  }));
  document.querySelectorAll(".choice select").forEach((one) => one.addEventListener("change", () => {
    choice(one.closest("figure")).frame = Number(one.value);
    drawAgain(one.closest("figure"));
  }));

  // The numbers behind a figure, for those who cannot see it, or want to copy them.
  const numbers = (details) => {
    const place = details.querySelector(".scroll"), table = document.createElement("table");
    const row = (cells, kind) => {
      const line = table.insertRow();
      cells.forEach((cell) => line.appendChild(document.createElement(kind)).textContent = cell);
    };
    const unescaped = (text) => new DOMParser().parseFromString(text, "text/html").documentElement.textContent;
    for (const plot of details.closest("figure").querySelectorAll(".plot")) {
      const title = plot.parentElement.querySelector("h4")?.textContent || "";
      for (const trace of traces(plot)) {
        if ((trace.meta || {}).band || !trace.visible) continue;
        row([[title, unescaped(trace.name || "")].filter(Boolean).join(", ")], "th");
        if (trace.z) trace.z.forEach((line, n) => row([trace.y[n], ...line], "td"));
        else trace.x.forEach((x, n) => row([x, trace.y[n]], "td"));
      }
    }
    place.replaceChildren(table);
  };
  document.querySelectorAll(".numbers").forEach((one) => one.addEventListener("toggle", () => one.open && numbers(one)));

  // Paper is white, narrow, and shows everything. When this is called, the style of paper does not hold yet.
  let chosenTheme;
  const forPrint = (on) => {
    if (on) chosenTheme = root.dataset.theme;
    printing = on;
    if (on) root.dataset.theme = "light";
    else if (chosenTheme) root.dataset.theme = chosenTheme;
    else delete root.dataset.theme;
    root.classList.toggle("paper", on);
    plots.forEach(draw);
  };
  window.addEventListener("beforeprint", () => forPrint(true));
  window.addEventListener("afterprint", () => forPrint(false));
})();
