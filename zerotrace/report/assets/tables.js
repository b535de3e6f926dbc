// Tables as files: CSV of what a table shows, with exact values, and the analysis as JSON.

/** One cell of CSV. A text that a spreadsheet would run as a formula gets an apostrophe in front. */
function csvCell(text) {
  const formula = /^[=+\-@\t\r\n]/.test(text) && !/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text);
  const safe = formula ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** The table as CSV: names of the columns as the Parquet tables have them, values as `<data>` holds them. */
function tableCsv(table) {
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.dataset.name);
  const rows = [...table.tBodies[0].rows].map((row) =>
    [...row.cells].map((cell) => cell.dataset.value ?? (isWords(cell) ? undefined : cell.querySelector("data")?.value) ?? cell.textContent.trim()),
  );
  return [names, ...rows].map((row) => row.map(csvCell).join(",")).join("\r\n") + "\r\n";
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
    button.addEventListener("click", () => {
      const value = JSON.parse(document.getElementById(button.dataset.json).textContent);
      download(JSON.stringify(value, null, 1), "application/json", button.dataset.file);
    });
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
