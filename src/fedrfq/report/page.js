"use strict";
(() => {
  const given = JSON.parse(document.getElementById("given").textContent);
  const night = matchMedia("(prefers-color-scheme: dark)");
  const views = {};

  // Legends are made for a picture's width, with an axis beside it.
  function fitted(key, value, width) {
    if (key === "columns") return Math.max(1, Math.floor(value * Math.min(1, width / 800)));
    return key === "legend" && value?.labelLimit ? { ...value, labelLimit: Math.min(value.labelLimit, width - 110) } : value;
  }

  async function draw(name) {
    const place = document.querySelector(`#${name} .chart`);
    const { data, ...rest } = given.figures[name];
    const spec = { data, ...JSON.parse(JSON.stringify(rest), (key, value) => fitted(key, value, place.clientWidth)) };
    const dark = night.matches;
    const options = {
      actions: false,
      renderer: "svg",
      config: { ...(dark ? given.night : given.day), background: null },
      tooltip: { theme: dark ? "dark" : "light" },
    };
    views[name]?.finalize();
    views[name] = await vegaEmbed(place, spec, options);
  }

  function drawAll() {
    return Promise.all(Object.keys(given.figures).map(draw));
  }

  function csv(name) {
    const rows = given.figures[name].data.values;
    const columns = Object.keys(rows[0]);
    const cell = (value) => (value === null ? "" : /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value);
    const lines = [columns, ...rows.map((row) => columns.map((column) => row[column]))];
    return lines.map((line) => line.map(cell).join(",") + "\n").join("");
  }

  async function save(name, kind) {
    const link = document.createElement("a");
    link.download = `${name}.${kind}`;
    link.href = kind === "png" ? await views[name].view.toImageURL("png", 2) : URL.createObjectURL(new Blob([csv(name)]));
    link.click();
  }

  document.addEventListener("click", (event) => {
    const kind = event.target.dataset?.save;
    if (kind) save(event.target.closest("figure").id, kind);
  });

  function redraw() {
    window.drawn = drawAll();
  }

  let width = innerWidth, waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    if (innerWidth !== width) waiting = setTimeout(() => { width = innerWidth; redraw(); }, 200);
  });
  night.addEventListener("change", redraw);
  redraw();
})();
