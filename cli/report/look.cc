// The look of the page: plain, with one accent, in light and dark, on screens and in print.
#include "cli/report/page.h"

namespace dsat::cli {

const char kStyleSheet[] = R"css(
:root {
  color-scheme: light dark;
  --page: #f6f7f8; --card: #ffffff; --text: #1b1f24; --soft: #59626e; --line: #dfe3e8;
  --accent: #08704f; --wash: #e4f3ec; --warn: #b3261e;
  --s0: #5d6673; --s1: #1f5fc4; --s2: #b9560b; --s3: #8437c9;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --card: #1c2026; --text: #e7eaee; --soft: #a2acb8; --line: #333a44;
    --accent: #52cfa0; --wash: #173529; --warn: #ff8f86;
    --s0: #a9b4c2; --s1: #7db2ff; --s2: #f5a35c; --s3: #cda2ff;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body {
  margin: 0 auto; max-width: 1200px; padding: 32px 24px 64px;
  background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
h1, h2, h3, p, dl, dd, ul, figure, pre { margin: 0; }
h1 { font-size: 32px; line-height: 1.2; letter-spacing: -0.02em; overflow-wrap: anywhere; }
h2 { font-size: 22px; line-height: 1.3; letter-spacing: -0.01em; }
h3 { font-size: 15px; }
h1, h2, td, th, dd, pre, li, p { unicode-bidi: isolate; }
a { color: var(--accent); }
a:focus-visible, button:focus-visible, summary:focus-visible, [tabindex]:focus-visible {
  outline: 2px solid var(--accent); outline-offset: 2px;
}
.hero h2::first-letter, .hero p::first-letter, figcaption p::first-letter {
  text-transform: uppercase;
}
.brand { color: var(--accent); font-weight: 650; font-size: 13px; letter-spacing: 0.06em;
  text-transform: uppercase; }
.facts { color: var(--soft); margin-top: 8px; display: flex; flex-wrap: wrap; gap: 2px 18px; }
nav { display: flex; flex-wrap: wrap; gap: 4px 20px; margin-top: 16px; }
section { margin-top: 40px; }
section > h2 { margin-bottom: 14px; }
section > h3 { margin: 28px 0 10px; }
#answer { background: var(--card); border: 1px solid var(--line); border-radius: 14px;
  padding: 28px; margin-top: 24px; }
.hero { display: flex; gap: 28px; align-items: center; }
.hero p { color: var(--soft); margin-top: 6px; max-width: 70ch; }
.hero .factor { color: var(--accent); font-size: 68px; line-height: 1; font-weight: 700;
  letter-spacing: -0.04em; margin: 0; white-space: nowrap; font-variant-numeric: tabular-nums; }
.hero .factor span { font-size: 40px; font-weight: 500; margin-left: 4px; }
.notice { background: var(--wash); border-radius: 8px; padding: 10px 14px; margin-bottom: 18px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(250px, 1fr));
  gap: 20px 28px; margin-top: 26px; border-top: 1px solid var(--line); padding-top: 22px; }
.cards dd { color: var(--soft); overflow-wrap: anywhere; }
.cards strong { color: var(--text); font-weight: 600; }
dt { color: var(--soft); font-size: 12px; font-weight: 600; letter-spacing: 0.05em;
  text-transform: uppercase; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 7px 12px 7px 0; vertical-align: top;
  border-bottom: 1px solid var(--line); }
thead th { color: var(--soft); font-weight: 600; }
.changes td, .changes th { overflow-wrap: anywhere; min-width: 7em; }
.changes tbody th { font-weight: 400; }
.changes td:last-child { color: var(--accent); font-weight: 600; }
pre { background: var(--page); border: 1px solid var(--line); border-radius: 8px;
  padding: 12px 14px; overflow-x: auto; font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas,
  "Liberation Mono", monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin-top: 12px; }
details pre { margin-top: 8px; max-height: 70vh; }
summary { cursor: pointer; color: var(--accent); }
.plots { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 20px; }
figure { background: var(--card); border: 1px solid var(--line); border-radius: 14px;
  padding: 20px; display: flex; flex-direction: column; min-width: 0; break-inside: avoid; }
figcaption p { color: var(--soft); font-size: 13px; margin-top: 2px; overflow-wrap: anywhere; }
figure > svg { width: 100%; height: auto; margin-top: 12px; display: block; }
.legend { list-style: none; padding: 0; margin-top: 10px; display: flex; flex-wrap: wrap;
  gap: 2px 16px; font-size: 13px; color: var(--soft); }
.legend li { display: flex; align-items: center; gap: 6px; }
.legend svg { width: 20px; height: 14px; flex: none; }
.missing { color: var(--soft); padding-left: 20px; overflow-wrap: anywhere; }
svg text { font-family: inherit; font-size: 12px; fill: var(--soft); }
svg .middle { text-anchor: middle; }
svg .end { text-anchor: end; }
svg .row { fill: var(--text); font-size: 13px; }
svg .row, svg .note { paint-order: stroke; stroke: var(--card); stroke-width: 5px;
  stroke-linejoin: round; }
svg .inside { fill: var(--card); font-size: 11px; }
.grid { stroke: var(--line); stroke-width: 1; }
.frame { stroke: var(--soft); stroke-width: 1; }
.limit { stroke: var(--soft); stroke-width: 1.2; stroke-dasharray: 4 4; }
.s0 { --c: var(--s0); } .s1 { --c: var(--s1); } .s2 { --c: var(--s2); } .s3 { --c: var(--s3); }
.best { --c: var(--accent); } .soft { --c: var(--soft); } .end-state { --c: var(--warn); }
.fill { fill: var(--c); }
g.fill path { stroke: var(--card); stroke-width: 0.8; }
g.stroke path { fill: none; stroke: var(--c); stroke-width: 1.8; }
.line { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; }
.soft.line { stroke-width: 1.2; opacity: 0.75; }
g path.error { stroke: var(--c); stroke-width: 1.2; opacity: 0.6; }
g path.interval { stroke: var(--c); stroke-width: 4; opacity: 0.45; }
.picked, .base { fill: none; stroke: var(--text); stroke-width: 1.6; }
.base { stroke-dasharray: 3 2.4; stroke-width: 1.3; }
.bar { rx: 2px; }
.bar.hollow { fill: none; stroke: var(--c); stroke-width: 1.4; stroke-dasharray: 3 2; }
.hollow + text.inside { fill: var(--text); }
.scroll { overflow-x: auto; }
#trials .scroll { background: var(--card); border: 1px solid var(--line); border-radius: 14px;
  padding: 8px 0 8px 20px; }
#trials p { margin-bottom: 10px; color: var(--soft); }
#all-trials { font-size: 13px; min-width: 100%; }
#all-trials td, #all-trials thead th { white-space: nowrap; }
#all-trials thead small { display: block; }
#all-trials small, thead small { color: var(--soft); font-size: inherit; font-weight: 400; }
#all-trials tr .config { min-width: 290px; max-width: 560px; white-space: normal;
  overflow-wrap: anywhere; }
#all-trials .reason { color: var(--warn); margin: 2px 0 0; }
#all-trials tbody tr:last-child > * { border-bottom: 0; }
#all-trials .pick > * { background: var(--wash); }
#all-trials thead button { all: unset; cursor: pointer; display: inline-block; position: relative;
  padding-right: 16px; }
#all-trials thead button::after { content: "\2195"; color: var(--line); position: absolute;
  right: 0; top: 0; }
#all-trials [aria-sort="ascending"] button::after { content: "\2191"; color: var(--accent); }
#all-trials [aria-sort="descending"] button::after { content: "\2193"; color: var(--accent); }
#all-trials thead button:focus-visible { outline: 2px solid var(--accent); }
td .state.failed, td .state.infeasible { color: var(--warn); }
.about { display: grid; grid-template-columns: repeat(auto-fill, minmax(260px, 1fr));
  gap: 16px 28px; }
.about .wide { grid-column: 1 / -1; }
.about dd { overflow-wrap: anywhere; white-space: pre-wrap; }
footer { margin-top: 48px; color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
@media screen and (max-width: 820px) {
  body { padding: 20px 14px 48px; }
  .plots { grid-template-columns: minmax(0, 1fr); }
}
@media screen and (max-width: 560px) {
  h1 { font-size: 26px; }
  #answer, figure { padding: 16px; border-radius: 12px; }
  .hero { flex-direction: column; align-items: flex-start; gap: 12px; }
  .hero .factor { font-size: 56px; }
  svg text, svg .row { font-size: 19px; }
  svg .inside { display: none; }
  .legend svg text { font-size: 12px; }
}
@media print {
  :root { --page: #fff; --card: #fff; --text: #000; --soft: #444; --line: #bbb; --accent: #064;
    --wash: #eee; --s0: #5d6673; --s1: #1f5fc4; --s2: #b9560b; --s3: #8437c9;
    --warn: #b3261e; }
  body { max-width: none; padding: 0; font-size: 11px; }
  nav, #all-trials thead button::after { display: none; }
  #answer, figure { border-radius: 0; padding: 12px; }
  .scroll { overflow: visible; }
  #all-trials { font-size: 7px; }
  #all-trials tr .config { min-width: 0; }
  th, td { padding: 3px 6px 3px 0; }
  tr { break-inside: avoid; }
  * { print-color-adjust: exact; }
}
)css";

const char kScript[] = R"js(
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
)js";

const char kScriptHash[] = "2+7W+Y4Ep2RvgOpM4cLpM625aDeos2XUG+n/YFgodgo=";

}  // namespace dsat::cli
