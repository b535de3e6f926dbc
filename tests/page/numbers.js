// What a page shows: marked numbers, the numbers of tiles, texts with a digit outside of both, and the texts of charts.
(ownPlaces) => {
  const own = ownPlaces.join(", ");
  const shown = JSON.parse(document.getElementById("page-data").textContent);
  const place = (element) => element.closest("[id]")?.id ?? element.tagName;
  const found = { data: [], tiles: [], texts: [], charts: [] };

  for (const element of document.querySelectorAll("data")) {
    if (element.closest(own)) continue;
    found.data.push([element.value, element.textContent, element.classList.contains("counted"), place(element)]);
  }
  for (const tile of document.querySelectorAll("[data-tile]")) {
    for (const [name, value] of Object.entries(tile.dataset)) if (name !== "tile") found.tiles.push([name, value]);
  }

  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    if (!/\d/.test(walker.currentNode.data) || parent.closest("script, style, noscript, svg, data")) continue;
    if (parent.closest(own)) continue;
    const around = [walker.currentNode.data];
    for (let outer = parent; outer !== document.body && around.length < 6; outer = outer.parentElement) {
      around.push(outer.textContent);
    }
    const kind = parent.closest("pre") ? "pre" : parent.closest("bdi, code") ? "name" : "words";
    found.texts.push([around.map((text) => text.trim().replace(/\s+/g, " ")), place(parent), kind]);
  }

  const charts = { ...shown.charts, ...(shown.stepFigure ? { "step-bars": shown.stepFigure } : {}) };
  for (const [id, figure] of Object.entries(charts)) {
    const element = document.getElementById(id);
    if (element === null) continue;
    const isDrawn = element.classList.contains("js-plotly-plot");
    // The numbers at an axis are its scale; but for those of columns, which stand beneath their names.
    const scale = figure.layout.meta.figures.length ? ".ytick" : ".xtick, .ytick";
    const drawn = [...element.querySelectorAll("svg text")].filter((text) => !text.closest(scale));
    // What shows when the pointer is on it, or where there is room, stands in the traces.
    const given = figure.data.flatMap((trace) => [trace.hovertext ?? [], trace.text ?? []].flat(3));
    const figures = [figure.layout, ...figure.data].flatMap((part) => part.meta.figures);
    const guides = figure.data.flatMap((trace) => (trace.meta.role === "guide" ? trace.text.filter(Boolean) : []));
    found.charts.push([id, { isDrawn, texts: [...drawn.map((text) => text.textContent), ...given], figures, guides }]);
  }
  return found;
}
