"use strict";
// Draws the charts one after the other, so that the page can be read meanwhile.
(() => {
  const told = JSON.parse(document.getElementById("charts").textContent);
  const names = Object.keys(told.figures);
  const config = { ...told.config, responsive: true, showSendToCloud: false };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const colours = (print) => {
    const style = getComputedStyle(document.documentElement);
    const text = print ? "#1d2430" : style.getPropertyValue("--text").trim();
    const back = style.getPropertyValue("--back").trim();
    return { "font.color": text, "hoverlabel.bgcolor": back, "hoverlabel.font.color": text };
  };
  const recolour = (print) => {
    for (const name of names) {
      const place = document.getElementById(name);
      if (place.data) Plotly.relayout(place, colours(print));
    }
  };
  const draw = async (name) => {
    const { data, layout } = told.figures[name];
    const { height, ...rest } = layout;
    const { "font.color": text, "hoverlabel.bgcolor": back } = colours(false);
    const font = { ...rest.font, color: text };
    const hoverlabel = { ...rest.hoverlabel, bgcolor: back, font: { ...(rest.hoverlabel || {}).font, color: text } };
    await Plotly.newPlot(name, data, { ...rest, height, font, hoverlabel, autosize: true }, config);
  };
  const next = async (at) => {
    if (at < names.length) {
      await draw(names[at]);
      setTimeout(next, 0, at + 1);
    } else {
      document.documentElement.dataset.drawn = String(names.length);
    }
  };
  dark.addEventListener("change", () => recolour(false));
  window.addEventListener("beforeprint", () => recolour(true));
  window.addEventListener("afterprint", () => recolour(false));
  next(0);
})();
