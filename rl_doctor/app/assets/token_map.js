// Draws the tokens of a response, coloured, with what is known of the one that is pointed at. Whatever comes from the run is
// set as textContent: it is shown as characters, whatever they are.
const MARGIN = 40;
const STATES = { "-1": "unknown", "-2": "masked" };

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".tokens");
  if (root.drawn !== data.drawing) {
    draw(root, data);
    root.drawn = data.drawing;
  }
  root.pick = (index) => setTriggerValue("token", data.first + index);
  if (data.chosen !== null && data.chosen !== root.chosen) show(root, data, data.chosen - data.first, true);
  root.chosen = data.chosen;
}

function element(name, kind, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
}

function draw(root, data) {
  const map = element("div", data.decoded ? "map words" : "map ids");
  map.setAttribute("role", "listbox");
  map.setAttribute("aria-label", data.label);
  map.tabIndex = 0;
  const spans = data.texts.map((text, index) => token(data, text, index));
  map.append(...spans);
  const told = element("div", "told");
  told.setAttribute("role", "status");
  told.append(element("p", "hint", data.hint));
  root.replaceChildren(legend(data), map, told);
  root.spans = spans;
  root.told = told;
  root.map = map;
  root.at = null;
  map.addEventListener("pointerover", (event) => point(root, data, event));
  map.addEventListener("click", (event) => {
    point(root, data, event);
    if (event.target.index !== undefined) root.pick(event.target.index);
  });
  map.addEventListener("keydown", (event) => key(root, data, event));
}

function token(data, text, index) {
  const level = data.levels[index];
  const span = element("span", STATES[level] ?? "");
  if (data.masked[index]) span.classList.add("masked");
  span.textContent = data.decoded ? visible(text) : text;
  const colour = data.palette[level];
  if (colour) [span.style.backgroundColor, span.style.color] = colour;
  span.setAttribute("role", "option");
  span.id = `token-${index}`;
  span.index = index;
  return span;
}

// White space is what many tokens are: it must be seen.
function visible(text) {
  return text === "" ? "·" : text.replaceAll("\r", "␍").replaceAll("\t", "⇥\t").replaceAll("\n", "⏎\n");
}

function legend(data) {
  const line = element("div", "legend");
  if (data.ends) {
    const bar = element("span", "bar");
    bar.append(...data.palette.map(([background]) => {
      const part = element("span");
      part.style.backgroundColor = background;
      return part;
    }));
    line.append(element("span", "", data.ends[0]), bar, element("span", "", data.ends[1]));
  }
  for (const [level, text] of data.key) {
    const item = element("span", "item");
    const swatch = element("span", `swatch ${STATES[level] ?? ""}`);
    const colour = data.palette[level];
    if (colour) swatch.style.backgroundColor = colour[0];
    item.append(swatch, element("span", "", text));
    line.append(item);
  }
  return line;
}

function point(root, data, event) {
  if (event.target.index !== undefined) show(root, data, event.target.index, false);
}

function show(root, data, index, scroll) {
  const span = root.spans[index];
  if (!span) return;
  root.spans[root.at]?.classList.remove("at");
  span.classList.add("at");
  root.at = index;
  root.map.setAttribute("aria-activedescendant", span.id);
  if (scroll) scrollWithin(root.map, span);
  const list = element("dl");
  const pairs = [[data.words.position, String(data.first + index)], ...(data.decoded ? [[data.words.token, visible(data.texts[index])]] : [])];
  pairs.push(...data.fields.map(([name, values]) => [name, values[index]]));
  if (data.masked[index]) pairs.push([data.words.state, data.words.masked]);
  for (const [name, value] of pairs) list.append(element("dt", "", name), element("dd", "", value));
  root.told.replaceChildren(list);
}

function scrollWithin(map, span) {
  const top = span.offsetTop;
  const bottom = top + span.offsetHeight;
  if (top < map.scrollTop) map.scrollTop = top - MARGIN;
  else if (bottom > map.scrollTop + map.clientHeight) map.scrollTop = bottom - map.clientHeight + MARGIN;
}

function key(root, data, event) {
  const last = root.spans.length - 1;
  const at = root.at ?? -1;
  const moves = {
    ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last, PageDown: at + 50, PageUp: at - 50,
    ArrowDown: below(root, at, 1), ArrowUp: below(root, at, -1),
  };
  if (event.key in moves) {
    show(root, data, Math.min(Math.max(moves[event.key], 0), last), true);
    event.preventDefault();
  } else if ((event.key === "Enter" || event.key === " ") && root.at !== null) {
    root.pick(root.at);
    event.preventDefault();
  }
}

// The token of the next line in that direction that begins nearest to where this one does.
function below(root, at, direction) {
  const from = root.spans[at];
  if (!from) return 0;
  let line = null;
  let best = at;
  for (let index = at + direction; index >= 0 && index < root.spans.length; index += direction) {
    const { offsetTop: top, offsetLeft: left } = root.spans[index];
    if (top === from.offsetTop) continue;
    line ??= top;
    if (top !== line) break;
    if (best === at || Math.abs(left - from.offsetLeft) < Math.abs(root.spans[best].offsetLeft - from.offsetLeft)) best = index;
  }
  return best;
}
