// Tables as files: CSV of what a table shows, with exact values, and the analysis as JSON.

/** One cell of CSV. A text that a spreadsheet would run as a formula gets an apostrophe in front. */
function csvCell(text) {
  const formula = /^[=+\-@\t\r\n]/.test(text) && !/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text);
  const safe = formula ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Rows under names of their columns as CSV. */
function csvText(names, rows) {
  return [names, ...rows].map((row) => row.map((value) => csvCell(String(value))).join(",")).join("\r\n") + "\r\n";
}

/** The table as CSV: names of the columns as the Parquet tables have them, values as `<data>` holds them, if there is one. */
function tableCsv(table) {
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.dataset.name);
  const rows = [...table.tBodies[0].rows].map((row) =>
    [...row.cells].map((cell) => cell.dataset.value ?? (isWords(cell) ? undefined : cell.querySelector("data")?.value) ?? cell.textContent.trim()),
  );
  return csvText(names, rows);
}

/** Whether a cell is read as words, though figures stand in them. */
function isWords(cell) {
  return cell.matches("[data-text], .prose");
}

function download(text, type, file) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = file;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function connectTables() {
  for (const button of document.querySelectorAll("[data-csv]")) {
    button.addEventListener("click", () => download(tableCsv(document.getElementById(button.dataset.csv)), "text/csv", button.dataset.file));
  }
  for (const button of document.querySelectorAll("[data-json]")) {
    const packed = document.getElementById(button.dataset.json).type === "text/plain";
    const text = lazily(async () => (packed ? new TextDecoder().decode(await inflate(button.dataset.json)) : document.getElementById(button.dataset.json).textContent));
    // As it stands: read and written again it would lose nanoseconds, which a double does not hold since 1970.
    button.addEventListener("click", async () => download(await text(), "application/json", button.dataset.file));
  }
  for (const button of document.querySelectorAll("[data-text]")) {
    button.addEventListener("click", () => {
      download(JSON.parse(document.getElementById(button.dataset.text).textContent), "text/csv", button.dataset.file);
    });
  }
  for (const select of document.querySelectorAll("[data-filter]")) {
    const rows = document.getElementById(select.dataset.filter).tBodies[0].rows;
    const apply = () => {
      for (const row of rows) row.hidden = select.value !== "" && row.dataset.key !== select.value;
    };
    select.addEventListener("change", apply);
    apply();
  }
}
