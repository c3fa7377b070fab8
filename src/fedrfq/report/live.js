"use strict";
// Follows what is watched: asks this machine for the newest state, and changes what has changed.
(() => {
  const EVERY_MS = 1000;
  const { figures, views } = charts;
  const head = document.getElementById("head");
  const sections = document.getElementById("sections");
  const lost = document.getElementById("lost");
  let last = "";

  function element(tag, text = "") {
    const made = document.createElement(tag);
    made.textContent = text;
    return made;
  }

  // Everything in `body` was escaped where it was made; what else there is goes in as text.
  function show(section) {
    let card = document.getElementById(section.id);
    if (!card) {
      card = element("section");
      card.id = section.id;
      card.append(element("h2", section.title), element("div"));
      sections.append(card);
    }
    const body = card.children[1];
    if (body.innerHTML !== section.body) body.innerHTML = section.body;
    for (const figure of section.figures) showFigure(card, figure, section.title);
  }

  function showFigure(card, figure, title) {
    let frame = document.getElementById(figure.name);
    if (!frame) {
      frame = element("figure");
      frame.id = figure.name;
      const chart = element("div");
      chart.className = "chart";
      if (figure.title !== title) frame.append(element("h3", figure.title));
      frame.append(chart, element("figcaption"));
      card.append(frame);
    }
    frame.lastChild.textContent = figure.caption;
  }

  // A drawing of which only the rows have changed keeps its zoom and what is singled out.
  function change(name, spec) {
    const before = figures[name];
    figures[name] = spec;
    if (!before || !views[name] || drawing(before) !== drawing(spec)) return charts.draw(name);
    if (JSON.stringify(before.data) === JSON.stringify(spec.data)) return null;
    const rows = structuredClone(spec.data.values);
    return views[name].view.data("rows", rows).runAsync();
  }

  function drawing({ data, ...rest }) {
    return JSON.stringify(rest);
  }

  function leave(kept, found) {
    for (const card of [...found]) if (!kept.has(card.id)) card.remove();
  }

  async function take(state) {
    document.title = state.title;
    document.querySelector("h1").textContent = state.title;
    document.querySelector("header p").textContent = state.subtitle;
    head.innerHTML = state.head;
    const named = new Set(Object.keys(state.figures));
    leave(new Set(state.sections.map((section) => section.id)), sections.children);
    leave(named, document.querySelectorAll("figure"));
    for (const name of Object.keys(figures)) {
      if (named.has(name)) continue;
      views[name]?.finalize();
      delete views[name];
      delete figures[name];
    }
    state.sections.forEach(show);
    const cards = state.sections.map((section) => document.getElementById(section.id));
    if (cards.some((card, i) => sections.children[i] !== card)) sections.append(...cards);
    const changes = Object.entries(state.figures).map(([name, spec]) => change(name, spec));
    await Promise.all(changes);
  }

  async function ask() {
    const answer = await fetch(`state${location.search}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    const text = await answer.text();
    if (text !== last) await take(JSON.parse(text));
    last = text;
  }

  async function follow() {
    try {
      await ask();
      lost.hidden = true;
    } catch {
      lost.hidden = false;
    }
    window.drawn ??= Promise.resolve();
    setTimeout(follow, EVERY_MS);
  }

  follow();
})();
