// What pages have in common: theme, dialogs, print, boxes that scroll, and figures when they come into view.

/** Runs `draw` once the element is near the window, or at once if the page is printed first. */
function whenNear(element, draw) {
  return new Promise((resolve, reject) => {
    const start = lazily(() => Promise.resolve(draw()).then(resolve, reject));
    const observer = new IntersectionObserver(
      (entries) => entries.some((entry) => entry.isIntersecting) && (observer.disconnect(), start()),
      { rootMargin: "300px" },
    );
    observer.observe(element);
    window.addEventListener("beforeprint", start);
  });
}

function connectTheme(repaint) {
  const button = document.getElementById("theme-toggle");
  const say = () => button.setAttribute("aria-pressed", String(themeName() === "dark"));
  button.addEventListener("click", () => {
    const next = themeName() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("zerotrace-theme", next);
    } catch {
      // The choice then lasts as long as the page.
    }
    say();
    repaint();
  });
  const followSystem = () => document.documentElement.dataset.theme || (say(), repaint());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", followSystem);
  matchMedia("print").addEventListener("change", repaint);
  say();
}

function connectDialogs() {
  for (const button of document.querySelectorAll("[data-dialog]")) {
    button.addEventListener("click", () => document.getElementById(button.dataset.dialog).showModal());
  }
  for (const dialog of document.querySelectorAll("dialog")) {
    // A click beside the dialog closes it.
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  }
}

/**
 * Boxes that scroll: those that hide something say so, by a fade where it goes on and, sideways, by a line above. The
 * fade also tells that a table goes on below, where its last row in sight would look cut off.
 */
function connectScroll() {
  for (const box of document.querySelectorAll(".scroll")) {
    const hint = document.createElement("p");
    hint.className = "scroll-hint";
    hint.textContent = "Wider than the page: scroll it sideways →";
    hint.hidden = true;
    box.before(hint);
    const look = () => {
      const right = box.scrollWidth - box.clientWidth;
      const below = box.scrollHeight - box.clientHeight;
      hint.hidden = right <= 1;
      box.classList.toggle("more-left", box.scrollLeft > 1);
      box.classList.toggle("more-right", right - box.scrollLeft > 1);
      box.classList.toggle("more-below", below - box.scrollTop > 1);
    };
    box.addEventListener("scroll", look, { passive: true });
    const observer = new ResizeObserver(look);
    observer.observe(box);
    for (const child of box.children) observer.observe(child);
  }
}

function connectPrint() {
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("main details:not([open])")];
    for (const element of opened) element.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const element of opened) element.open = false;
  });
}

/** Says, where it is so, that figures cannot be drawn here; their numbers are in the tables. */
function isTooOld() {
  if (typeof DecompressionStream !== "undefined") return false;
  const note = document.createElement("p");
  note.className = "banner";
  note.textContent = "This browser is too old for the figures (it lacks DecompressionStream); their numbers are in the tables.";
  document.querySelector("main").prepend(note);
  // Nothing that would wait for a figure for ever.
  document.documentElement.classList.remove("scripted");
  return true;
}

/** What every page does once it is there. `repaint` draws again what is drawn, in the colours of the theme. */
function connectPage(repaint) {
  connectTheme(repaint);
  connectDialogs();
  connectTables();
  connectPrint();
  connectScroll();
}
