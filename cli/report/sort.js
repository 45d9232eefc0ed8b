"use strict";
(function () {
  const table = document.getElementById("all-trials");
  if (!table) return;
  const body = table.tBodies[0];
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    const number = cell.getAttribute("data-value");
    if (number !== null) return Number(number);
    return cell.textContent === "" ? null : cell.textContent;
  };
  // Rows without a value come last in both directions.
  const compare = (a, b, sign) => {
    if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
    if (a === b) return 0;
    return b > a ? -sign : sign;
  };
  Array.from(table.tHead.rows[0].cells).forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    while (header.firstChild) button.appendChild(header.firstChild);
    header.appendChild(button);
    button.addEventListener("click", () => {
      const up = header.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = Array.from(body.rows);
      rows.sort((a, b) => compare(valueOf(a, column), valueOf(b, column), up ? 1 : -1));
      rows.forEach((row) => body.appendChild(row));
    });
  });
})();
