"use strict";
// Draws the figures of a page, and again when the page changes its width or its colours.
window.charts = (() => {
  // Specifications of the figures, and the colours for a light and a dark page.
  const given = JSON.parse(document.getElementById("given").textContent);
  const darkMode = matchMedia("(prefers-color-scheme: dark)");
  const figures = given.figures;
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
    const { data, ...drawing } = figures[name];
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

  function redraw() {
    window.drawn = Promise.all(Object.keys(figures).map(draw));
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
  return { figures, views, draw, redraw };
})();
