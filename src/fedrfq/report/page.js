"use strict";
(() => {
  // Specifications of the figures, and the colours for a light and a dark page.
  const given = JSON.parse(document.getElementById("given").textContent);
  const darkMode = matchMedia("(prefers-color-scheme: dark)");
  const views = {};

  // Legends are laid out for the width of a picture. On a narrower page they get fewer columns and
  // shorter labels.
  function fitLegend(key, value, width) {
    if (key === "columns") return Math.max(1, Math.floor(value * Math.min(1, width / 800)));
    if (key === "legend" && value?.labelLimit) {
      return { ...value, labelLimit: Math.min(value.labelLimit, width - 110) };
    }
    return value;
  }

  async function draw(name) {
    const chart = document.querySelector(`#${name} .chart`);
    const { data, ...drawing } = given.figures[name];
    const fit = (key, value) => fitLegend(key, value, chart.clientWidth);
    const spec = { data, ...JSON.parse(JSON.stringify(drawing), fit) };
    const dark = darkMode.matches;
    const options = {
      actions: false,
      renderer: "svg",
      config: { ...(dark ? given.night : given.day), background: null },
      tooltip: { theme: dark ? "dark" : "light" },
    };
    views[name]?.finalize();
    views[name] = await vegaEmbed(chart, spec, options);
  }

  function drawAll() {
    return Promise.all(Object.keys(given.figures).map(draw));
  }

  function csvCell(value) {
    if (value === null) return "";
    if (/[",\n]/.test(value)) return `"${String(value).replaceAll('"', '""')}"`;
    return value;
  }

  function csv(name) {
    const rows = given.figures[name].data.values;
    const columns = Object.keys(rows[0]);
    const lines = [columns, ...rows.map((row) => columns.map((column) => row[column]))];
    return lines.map((line) => line.map(csvCell).join(",") + "\n").join("");
  }

  async function save(name, kind) {
    const link = document.createElement("a");
    link.download = `${name}.${kind}`;
    if (kind === "png") link.href = await views[name].view.toImageURL("png", 2);
    else link.href = URL.createObjectURL(new Blob([csv(name)]));
    link.click();
  }

  document.addEventListener("click", (event) => {
    const kind = event.target.dataset?.save;
    if (kind) save(event.target.closest("figure").id, kind);
  });

  function redraw() {
    window.drawn = drawAll();
  }

  // Redraw once the user has stopped dragging. Phones also resize when they hide their address bar,
  // which does not change the width.
  let width = innerWidth;
  let timer;
  addEventListener("resize", () => {
    clearTimeout(timer);
    if (innerWidth === width) return;
    timer = setTimeout(() => {
      width = innerWidth;
      redraw();
    }, 200);
  });
  darkMode.addEventListener("change", redraw);
  redraw();
})();
