// The buttons of a report: they save what the page holds, without a network.
function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
}

// A picture of a figure, twice its size, in the colours that the page has now.
async function png(svg) {
  const copy = svg.cloneNode(true), {width, height} = svg.viewBox.baseVal;
  const css = document.querySelector("style").textContent, now = getComputedStyle(document.documentElement);
  const style = document.createElementNS(svg.namespaceURI, "style");
  style.textContent = css;
  copy.prepend(style);
  for (const name of new Set(css.match(/--\w+/g))) copy.style.setProperty(name, now.getPropertyValue(name));
  copy.setAttribute("width", 2 * width);
  copy.setAttribute("height", 2 * height);
  const image = new Image();
  image.src = "data:image/svg+xml," + encodeURIComponent(new XMLSerializer().serializeToString(copy));
  await image.decode();
  const canvas = document.createElement("canvas"), frame = 24;
  canvas.width = image.width + 2 * frame;
  canvas.height = image.height + 2 * frame;
  const context = canvas.getContext("2d");
  context.fillStyle = now.getPropertyValue("--bg");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(image, frame, frame);
  return new Promise(done => canvas.toBlob(done, "image/png"));
}

document.querySelectorAll("button[data-figure]").forEach(button => button.onclick = async () =>
  save(await png(button.parentNode.querySelector("svg")), button.dataset.figure + ".png"));
document.querySelectorAll("button[data-samples]").forEach(button => button.onclick = () => {
  const name = button.dataset.samples, text = document.getElementById("raw-" + name).textContent;
  save(new Blob([text], {type: "application/json"}), name + ".json");
});
