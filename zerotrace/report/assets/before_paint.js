// Runs before the first paint: the reader's stored choice wins over the system's, and the page never flashes.
(function () {
  var root = document.documentElement;
  root.classList.add("scripted");
  try {
    var stored = localStorage.getItem("zerotrace-theme");
    if (stored === "light" || stored === "dark") root.dataset.theme = stored;
  } catch (error) {
    // Some browsers refuse storage to pages from disk: the system's choice stands.
  }
})();
