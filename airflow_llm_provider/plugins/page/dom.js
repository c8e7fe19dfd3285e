// Elements are made of text only: nothing that comes from a run is ever read as HTML.

export function element(tag, attributes = {}, ...children) {
  const svg = tag === "svg" || tag === "rect" || tag === "title" && attributes.svg;
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, text] of Object.entries(attributes)) {
    if (name !== "svg" && text !== undefined && text !== null) made.setAttribute(name, text);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export const count = (number) => (number ?? 0).toLocaleString("en");

export function dollars(sum) {
  if (sum === null || sum === undefined) return "unknown";
  if (sum > 0 && sum < 0.01) return `$${sum.toPrecision(2)}`;
  return `$${sum.toFixed(2)}`;
}

export function duration(seconds) {
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const counts = (byName) =>
  Object.entries(byName ?? {}).map(([name, number]) => `${count(number)} ${name}`).join(", ");

export function copied(text) {
  const button = element("button", { type: "button", title: "Copy" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
  });
  return button;
}
