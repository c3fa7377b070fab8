"use strict";
(() => {
  const { figures, views } = charts;

  function csvCell(value) {
    if (value === null) return "";
    if (/[",\n]/.test(value)) return `"${String(value).replaceAll('"', '""')}"`;
    return value;
  }

  function csv(name) {
    const rows = figures[name].data.values;
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

  charts.redraw();
})();
