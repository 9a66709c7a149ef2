// Tables sort by the header that is clicked on: up, down, and back to how they came.
(() => {
  const NUMBER = /^[^\d.∞\p{L}]*?(-?)(∞|\d+\.?\d*(?:e[+-]?\d+)?|\.\d+)/iu;
  // What a cell is ranked by: "+1.1 [+0.4, +1.7]", "56 ± 2", "−3,210 nats" and "<0.001" begin with a number.
  function number(text) {
    const found = NUMBER.exec(text.replace(/[−–](?=[\d.∞])/g, "-").replace(/(\d),(?=\d{3})/g, "$1"));
    return found ? Number(`${found[1]}1`) * (found[2] === "∞" ? Infinity : Number(found[2])) : NaN;
  }
  const words = new Intl.Collator("en", {numeric: true}).compare;
  const empty = text => ["", "–", "NaN"].includes(text);
  function sorted(rows, column, sign) {
    const cells = new Map(rows.map(row => [row, row.cells[column]?.textContent.trim() ?? ""]));
    const told = [...cells.values()].filter(text => !empty(text));
    const numeric = 2 * told.filter(text => !Number.isNaN(number(text))).length > told.length;
    const value = text => empty(text) ? NaN : numeric ? number(text) : text;
    return [...rows].sort((one, other) => {
      const [a, b] = [value(cells.get(one)), value(cells.get(other))];
      const last = Number.isNaN(a) - Number.isNaN(b);  // without a value, whichever way
      return last || (a === b || Number.isNaN(a) ? 0 : sign * (numeric ? (a < b ? -1 : 1) : words(a, b)));
    });
  }
  for (const table of document.querySelectorAll("table:not([class])")) {
    const body = table.tBodies[0], heads = [...table.tHead?.rows[0]?.cells ?? []];
    if (!body || body.rows.length < 2) continue;
    const given = [...body.rows];
    heads.filter(head => head.textContent.trim()).forEach(head => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const next = {ascending: "descending", descending: null}[head.getAttribute("aria-sort")];
        const way = next === undefined ? "ascending" : next;
        heads.forEach(other => other.removeAttribute("aria-sort"));
        if (way) head.setAttribute("aria-sort", way);
        body.append(...(way ? sorted(given, head.cellIndex, way === "ascending" ? 1 : -1) : given));
      });
    });
  }
})();
