// Puts the comparison to work: its charts, and a small interface for tests and the console.

async function startPage() {
  if (isTooOld()) return [];
  connectPage(repaintCharts);
  const drawn = connectCharts();
  document.documentElement.classList.add("ready");
  return drawn;
}

const started = startPage();

window.zerotrace = {
  /** Resolves when the page answers. */
  ready: started.then(() => true),
  /** Resolves when every chart has come into view and is drawn. */
  drawn: async () => Promise.all(await started),
  tableCsv,
};
