// Figures and raw samples are compressed. A figure is drawn when the reader scrolls near it, or when
// the browser is idle, so that all can be printed. The buttons save figures and samples from the
// page, without a network.
const unpacked = {};
function unpack(name) {
  return unpacked[name] ??= (async () => {
    const text = atob(document.getElementById("packed-" + name).textContent);
    const bytes = Uint8Array.from(text, letter => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  })();
}

async function show(figure) {
  const place = figure.querySelector(".drawing"), name = figure.closest("section").id;
  if (place.childElementCount) return;
  try {
    place.innerHTML = (await unpack(name)).figures[figure.dataset.at];
  } catch (error) {
    place.textContent = "This figure needs a browser of 2023 or later: " + error;
  }
}

const near = new IntersectionObserver(all => all.forEach(one => {
  if (one.isIntersecting) show(one.target);
}), {rootMargin: "800px"});
document.querySelectorAll("figure").forEach(figure => near.observe(figure));
addEventListener("load", async () => {
  const idle = self.requestIdleCallback ?? (done => setTimeout(done, 20));
  for (const figure of document.querySelectorAll("figure")) {
    await new Promise(done => idle(done));
    await show(figure);
  }
});

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
}

// Picture of a figure at twice its size, in the current colours of the page.
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

document.querySelectorAll("button[data-figure]").forEach(button => button.onclick = async () => {
  await show(button.parentNode);
  const svg = button.parentNode.querySelector("svg");
  if (svg) save(await png(svg), button.dataset.figure + ".png");
});
document.querySelectorAll("button[data-samples]").forEach(button => button.onclick = async () => {
  const name = button.dataset.samples, text = JSON.stringify((await unpack(name)).raw);
  save(new Blob([text], {type: "application/json"}), name + ".json");
});
