const select = document.getElementById("layer");
["all layers, mean", ...data.modules].forEach((name, i) => select.add(new Option(name, i)));
function parts(share) {
  const at = Math.max(0, Math.min(1, share)) * (data.scale.length - 1);
  const i = Math.min(data.scale.length - 2, Math.floor(at));
  return data.scale[i].map((c, k) => Math.round(c + (data.scale[i + 1][k] - c) * (at - i)));
}
function letters(colour) {  // black or white, whichever has the higher contrast
  const linear = colour.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] < data.equal ? "#fff" : "#000";
}
function draw() {
  const layer = Number(select.value), rows = data.texts.map(text => text[layer]);
  const all = rows.flat(), low = Math.min(...all), high = Math.max(...all);
  document.getElementById("low").textContent = `${low.toFixed(1)} %`;
  document.getElementById("high").textContent = `${high.toFixed(1)} %`;
  document.querySelectorAll(".shaded").forEach((text, t) => [...text.children].forEach((span, i) => {
    const colour = parts(high > low ? (rows[t][i] - low) / (high - low) : 0.5);
    span.style.background = `rgb(${colour.join(",")})`;
    span.style.color = letters(colour);
    span.title = `${rows[t][i].toFixed(1)} % of gates nearly off`;
  }));
  show(document.activeElement);
}
// Titles need a mouse: for keyboards and phones the value is also shown at the bottom of the screen.
function show(span) {
  const chosen = span.closest(".shaded span");
  document.getElementById("value").textContent = chosen ? `${chosen.textContent}: ${chosen.title}` : "";
}
document.addEventListener("focusin", event => show(event.target));
select.addEventListener("change", draw);
draw();
