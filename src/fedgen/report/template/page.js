"use strict";
(() => {
  const { charts, colours: COLOURS, dashes: DASHES, labels: LABELS } = JSON.parse(document.getElementById("data").textContent);

  const INKS = {
    light: { ink: "#1d2126", soft: "#5d6671", line: "#dfe2e6", card: "#ffffff", bubble: "#c4402f", heat: "#2459a6" },
    dark: { ink: "#e6e9ed", soft: "#9aa4b0", line: "#333a43", card: "#1b1f25", bubble: "#ff8a7a", heat: "#7fb2ff" },
  };
  const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

  const system = matchMedia("(prefers-color-scheme: dark)");
  const printing = matchMedia("print");
  let chosen = "auto";
  const theme = () => (printing.matches ? "light" : chosen === "auto" ? (system.matches ? "dark" : "light") : chosen);
  const colour = (style, name) => COLOURS[name][style[0] % COLOURS[name].length];

  const roomIn = (plot) => (printing.matches ? 680 : Math.max(280, plot.clientWidth));

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }
  function shape(tag, attributes = {}, ...children) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }
  const label = (x, y, text, fill, more = {}) =>
    shape("text", { x, y, fill, "font-size": 12, "font-family": FONT, ...more }, text);

  // ---- numbers ----
  function ticks(low, high, count, whole) {
    const step0 = Math.max((high - low) / Math.max(1, count), whole ? 1 : 0);
    const power = 10 ** Math.floor(Math.log10(step0));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= step0 * 0.999);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step || 0); // never −0
    return { values: found, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
  }
  const plain = (value, digits) =>
    value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace("-", "−");
  // Four significant digits, but always the two decimals that the tables show.
  const shown = (value) => plain(value, Math.abs(value) >= 10 || value === 0 ? 2 : Math.abs(value) >= 0.01 ? 3 : 5);

  // ---- saving ----
  function save(blob, name) {
    const link = make("a", { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  const asText = (drawing) => '<?xml version="1.0" encoding="UTF-8"?>\n' + new XMLSerializer().serializeToString(drawing);
  function savePng(drawing, name) {
    const [width, height] = [drawing.getAttribute("width") * 3, drawing.getAttribute("height") * 3];
    const url = URL.createObjectURL(new Blob([asText(drawing)], { type: "image/svg+xml" }));
    const image = new Image();
    image.onload = () => {
      const canvas = make("canvas", { width, height });
      canvas.getContext("2d").drawImage(image, 0, 0, width, height);
      URL.revokeObjectURL(url);
      canvas.toBlob((blob) => save(blob, name), "image/png");
    };
    image.src = url;
  }
  function saveButtons(name, draw) {
    const svg = make("button", { type: "button", title: "as a vector graphic, as it is shown now" }, "SVG");
    const png = make("button", { type: "button", title: "as an image, as it is shown now" }, "PNG");
    svg.onclick = () => save(new Blob([asText(draw())], { type: "image/svg+xml" }), `${name()}.svg`);
    png.onclick = () => savePng(draw(), `${name()}.png`);
    return make("span", { class: "push" }, svg, " ", png);
  }

  function chooser(entries, first, what, changed) {
    const select = make("select", { "aria-label": what });
    for (const [key, title] of Object.entries(entries)) select.append(make("option", { value: key }, title));
    select.value = first;
    select.onchange = () => changed(select.value);
    return select;
  }

  const titles = (entries) => Object.fromEntries(Object.entries(entries).map(([key, { title }]) => [key, title]));

  function swatch(svg, style) {
    svg.replaceChildren(
      shape("line", { x1: 0, x2: 22, y1: 5, y2: 5, stroke: colour(style, theme()), "stroke-width": 3, "stroke-dasharray": DASHES[style[1]] }),
    );
  }

  // ---- a frame with axes, that lines and bubbles share ----
  function frame(options) {
    const { width, height, ink, xs, ys, xTitle, yTitle, legend = [] } = options;
    const legendRows = legend.length ? layLegend(legend, width - 70) : [];
    const bottom = 46 + legendRows.length * 20;
    const box = { left: options.left || 52, top: options.heading ? 36 : 12, right: width - 14, bottom: height - 46 };
    const total = height - 46 + bottom;
    const svg = shape("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${width} ${total}`, width, height: total, role: "img" });
    if (options.title) svg.append(shape("title", {}, options.title));
    if (options.paper) svg.append(shape("rect", { width, height: total, fill: ink.card }));
    if (options.heading) svg.append(label(box.left, 20, options.heading, ink.ink, { "font-weight": 600 }));
    const along = xs.log ? Math.log10 : (v) => v;
    const x = (v) => box.left + ((along(v) - along(xs.low)) / (along(xs.high) - along(xs.low) || 1)) * (box.right - box.left);
    const y = (v) => box.bottom - ((v - ys.low) / (ys.high - ys.low || 1)) * (box.bottom - box.top);
    for (const [value, text] of ys.marks) {
      svg.append(shape("line", { x1: box.left, x2: box.right, y1: y(value), y2: y(value), stroke: ink.line }));
      svg.append(label(box.left - 8, y(value) + 4, text, ink.soft, { "text-anchor": "end" }));
    }
    for (const [value, text] of xs.marks) {
      if (xs.grid) svg.append(shape("line", { x1: x(value), x2: x(value), y1: box.top, y2: box.bottom, stroke: ink.line }));
      svg.append(label(x(value), box.bottom + 18, text, ink.soft, { "text-anchor": "middle" }));
    }
    svg.append(shape("line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, stroke: ink.soft }));
    svg.append(label((box.left + box.right) / 2, box.bottom + 37, xTitle, ink.ink, { "text-anchor": "middle" }));
    const middle = (box.top + box.bottom) / 2;
    svg.append(label(13, middle, yTitle, ink.ink, { "text-anchor": "middle", transform: `rotate(-90 13 ${middle})` }));
    legendRows.forEach((row, i) => row.forEach(({ entry, at }) => {
      const level = box.bottom + 58 + i * 20;
      svg.append(shape("line", { x1: at + 52, x2: at + 74, y1: level - 4, y2: level - 4, stroke: entry.colour, "stroke-width": 2.5, "stroke-dasharray": entry.dash }));
      svg.append(label(at + 80, level, entry.name, ink.ink));
    }));
    return { svg, box, x, y };
  }
  function layLegend(entries, room) {
    const rows = [[]];
    let at = 0;
    for (const entry of entries) {
      const width = 46 + entry.name.length * 7;
      if (at && at + width > room) { rows.push([]); at = 0; }
      rows[rows.length - 1].push({ entry, at });
      at += width;
    }
    return rows;
  }
  function span(values, count, whole) {
    let [low, high] = [Math.min(...values), Math.max(...values)];
    if (low === high) { low -= Math.abs(low) * 0.05 || 0.5; high += Math.abs(high) * 0.05 || 0.5; }
    const room = (high - low) * 0.04;
    [low, high] = [low - room, high + room];
    const { values: at, digits } = ticks(low, high, count, whole);
    return { low, high, marks: at.map((v) => [v, plain(v, digits)]) };
  }

  const decades = (low, high) => {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) found.push(...[1, 2, 5].map((m) => m * 10 ** power));
    return found.filter((v) => v >= low && v <= high);
  };
  function across(values, width, log, each) {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    if (each) { // few settings: every one is a mark
      const all = [...new Set(values)].sort((a, b) => a - b);
      const marks = (all.length <= 12 ? all : log ? decades(low, high) : ticks(low, high, width / 90).values).map((v) => [v, String(+v.toPrecision(6))]);
      const room = log ? (high / low) ** 0.06 : (high - low || 1) * 0.06;
      return { low: log ? low / room : low - room, high: log ? high * room : high + room, log, marks };
    }
    const made = span(values, width / 90, values.every(Number.isInteger));
    if (low === high) return made;
    const start = low > 0 && low < high / 4 ? 0 : low; // rounds begin at none
    return { low: start, high, marks: made.marks.filter(([v]) => v >= start && v <= high) };
  }

  // ---- the tip beside the pointer ----
  function tipIn(plot) {
    const tip = make("div", { class: "tip", role: "status" });
    tip.hidden = true;
    plot.append(tip);
    return {
      hide: () => { tip.hidden = true; },
      show: (px, py, ...content) => {
        tip.replaceChildren(...content);
        tip.hidden = false;
        const [room, own] = [plot.clientWidth, tip.offsetWidth];
        const right = px + 14 + own <= room;
        tip.style.left = `${Math.max(0, right ? px + 14 : px - 14 - own)}px`;
        tip.style.top = `${Math.max(0, Math.min(py - 10, plot.clientHeight - tip.offsetHeight))}px`;
      },
    };
  }

  // ---- lines ----
  function lines(figure, chart) {
    const { data } = chart;
    const hidden = new Set();
    let metric = data.first in data.y ? data.first : Object.keys(data.y)[0];
    let ending = Object.keys(data.metrics)[0]; // to the name of what is shown, for another metric of it
    let axis = Object.keys(data.x)[0];
    let late = false; // only what the second half of the axis needs
    const usable = Object.entries(data.x).filter(([key]) => data.series.some((s) => key in s.scale));

    const pointsOf = (s) => (axis in s.scale ? (s.points[metric + ending] || []).map(([x, ...rest]) => [x * s.scale[axis], ...rest]) : []);
    const publishedOf = (s) => s.published[metric + ending] || [];
    const several = (choices) => Object.keys(choices).length > 1;
    // What is chosen, in words: for a saved figure and for print, where there are no choosers.
    const chosenNow = () => [several(data.y) ? data.y[metric].title : "", several(data.metrics) ? data.metrics[ending] : ""].filter(Boolean).join(" · ");
    const fileName = () => [chart.name, ...(several(data.y) || several(data.metrics) ? [(metric + ending).replaceAll("/", ".")] : [])].join(".");
    const visible = () => data.series.filter((s) => !hidden.has(s.name) && pointsOf(s).length);

    function draw(width, height, name, forPaper) {
      const ink = INKS[name];
      const series = visible();
      const all = series.flatMap((s) => [...pointsOf(s), ...publishedOf(s).map(([x, y]) => [x, y, y, y])]);
      const legend = forPaper ? series.map((s) => ({ name: s.name, colour: colour(s.style, name), dash: DASHES[s.style[1]] })) : [];
      if (!all.length) all.push([0, 0, 0, 0], [1, 1, 1, 1]);
      const xs = across(all.map((p) => p[0]), width, data.log, data.markers);
      const from = late ? (xs.low + xs.high) / 2 : -Infinity;
      const ys = span(all.filter((p) => p[0] >= from).flatMap((p) => [p[2], p[3]]), height / 60);
      const yTitle = ending ? `${data.metrics[ending]}, %` : data.y[metric].axis;
      const made = frame({ width, height, ink, xs, ys, xTitle: data.x[axis], yTitle, title: chart.title, paper: forPaper, heading: forPaper && chosenNow(), legend });
      if (!data.series.some((s) => pointsOf(s).length)) made.svg.append(label(width / 2, height / 2, "not recorded", ink.soft, { "text-anchor": "middle", "font-size": 16 }));
      const inside = `inside-${chart.name}${forPaper ? "-saved" : ""}`;
      const { box } = made;
      made.svg.append(shape("clipPath", { id: inside }, shape("rect", { x: box.left - 6, y: box.top - 6, width: box.right - box.left + 12, height: box.bottom - box.top + 6 })));
      const drawn = shape("g", { "clip-path": `url(#${inside})` });
      made.svg.append(drawn);
      for (const s of series) {
        const points = pointsOf(s);
        const stroke = colour(s.style, name);
        if (points.some((p) => p[2] < p[3])) {
          const there = points.map((p) => `${made.x(p[0]).toFixed(1)},${made.y(p[3]).toFixed(1)}`);
          const back = points.map((p) => `${made.x(p[0]).toFixed(1)},${made.y(p[2]).toFixed(1)}`).reverse();
          drawn.append(shape("polygon", { points: [...there, ...back].join(" "), fill: stroke, "fill-opacity": 0.1, "data-band": s.name }));
        }
      }
      for (const s of series) {
        const points = pointsOf(s);
        const stroke = colour(s.style, name);
        const path = points.map((p, i) => `${i ? "L" : "M"}${made.x(p[0]).toFixed(1)} ${made.y(p[1]).toFixed(1)}`).join("");
        if (!data.scatter) drawn.append(shape("path", { d: path, fill: "none", stroke, "stroke-width": 2, "stroke-linejoin": "round", "stroke-dasharray": DASHES[s.style[1]], "data-curve": s.name }));
        for (const [x, y] of publishedOf(s)) drawn.append(shape("circle", { cx: made.x(x), cy: made.y(y), r: 4.5, fill: "none", stroke, "stroke-width": 1.5, "data-published": s.name }));
        if (points.length === 1 || data.markers) {
          for (const p of points) drawn.append(shape("circle", { cx: made.x(p[0]), cy: made.y(p[1]), r: 3.5, fill: stroke, "data-curve": s.name }));
        }
      }
      return made;
    }

    const plot = make("div", { class: "plot", tabindex: 0, "aria-label": `${chart.title}; arrow keys read values` });
    const tip = tipIn(plot);
    let current = null;
    let at = null; // index into the x values while the values are read off
    function redraw() {
      tip.hide();
      const width = roomIn(plot);
      current = draw(width, Math.round(Math.min(440, Math.max(270, width * 0.52))), theme(), false);
      plot.querySelector("svg")?.remove();
      plot.prepend(current.svg);
      for (const button of legend.children) {
        const s = data.series.find((one) => one.name === button.dataset.name);
        swatch(button.querySelector("svg"), s.style);
        button.classList.toggle("absent", !pointsOf(s).length);
      }
      choice.textContent = chosenNow();
    }
    const values = () => [...new Set(visible().flatMap((s) => pointsOf(s).map((p) => p[0])))].sort((a, b) => a - b);
    function read(index, py) {
      const xs = values();
      if (!xs.length) return;
      at = Math.max(0, Math.min(xs.length - 1, index));
      const value = xs[at];
      const px = current.x(value);
      current.svg.querySelector(".cross")?.remove();
      const cross = shape("g", { class: "cross", "pointer-events": "none" });
      cross.append(shape("line", { x1: px, x2: px, y1: current.box.top, y2: current.box.bottom, stroke: INKS[theme()].soft, "stroke-dasharray": "3 3" }));
      const rows = [];
      for (const s of visible()) {
        const point = pointsOf(s).find((p) => p[0] === value);
        if (!point) continue;
        cross.append(shape("circle", { cx: px, cy: current.y(point[1]), r: 4, fill: colour(s.style, theme()), stroke: INKS[theme()].card }));
        rows.push([point, s]);
      }
      current.svg.append(cross);
      rows.sort((a, b) => b[0][1] - a[0][1]);
      const body = make("tbody");
      for (const [point, s] of rows) {
        const mark = shape("svg", { width: 22, height: 10 });
        swatch(mark, s.style);
        const printed = publishedOf(s).find(([x]) => x === value);
        const range = point[2] < point[3] ? `${shown(point[2])} … ${shown(point[3])}` : "";
        body.append(make("tr", { "data-tip": s.name }, make("td", {}, mark), make("td", {}, s.name), make("td", {}, make("strong", {}, shown(point[1]))), make("td", {}, range), ...(printed ? [make("td", {}, `published ${shown(printed[1])}`)] : [])));
      }
      const where = { round: `round ${plain(value, 0)}`, MB: `${plain(value, value < 100 ? 2 : 0)} MB` }[axis];
      tip.show(px, py, make("b", {}, where || `${data.x[axis]} = ${value}`), make("table", {}, body));
    }
    function clear() {
      at = null;
      tip.hide();
      current?.svg.querySelector(".cross")?.remove();
    }
    plot.addEventListener("pointermove", (event) => {
      const where = plot.getBoundingClientRect();
      const px = event.clientX - where.left;
      const xs = values();
      let nearest = 0;
      xs.forEach((v, i) => { if (Math.abs(current.x(v) - px) < Math.abs(current.x(xs[nearest]) - px)) nearest = i; });
      read(nearest, event.clientY - where.top);
    });
    plot.addEventListener("pointerleave", clear);
    plot.addEventListener("blur", clear);
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      read(at === null ? (step > 0 ? 0 : 1e9) : at + step, 20);
    });

    const legend = make("div", { class: "legend", role: "group", "aria-label": "curves" });
    for (const s of data.series) {
      const button = make("button", { type: "button", "aria-pressed": "true", "data-name": s.name }, shape("svg", { width: 22, height: 10 }), s.name);
      const press = () => {
        for (const other of legend.children) other.setAttribute("aria-pressed", String(!hidden.has(other.dataset.name)));
        redraw();
      };
      button.onclick = () => { hidden.has(s.name) ? hidden.delete(s.name) : hidden.add(s.name); press(); };
      button.ondblclick = () => {
        hidden.clear();
        for (const other of data.series) if (other !== s) hidden.add(other.name);
        press();
      };
      legend.append(button);
    }
    const choice = make("p", { class: "choice" });
    const controls = make("div", { class: "controls" });
    if (several(data.y)) controls.append(chooser(titles(data.y), metric, "what is shown", (v) => { metric = v; redraw(); }));
    if (several(data.metrics)) controls.append(chooser(data.metrics, ending, "which metric", (v) => { ending = v; redraw(); }));
    if (usable.length > 1) controls.append(chooser(Object.fromEntries(usable.map(([k, v]) => [k, `by ${v}`])), axis, "horizontal axis", (v) => { axis = v; redraw(); }));
    if (!data.markers) {
      const zoom = make("button", { type: "button", "aria-pressed": "false", title: "fit the vertical axis to the second half" }, "zoom on the end");
      zoom.onclick = () => { late = !late; zoom.setAttribute("aria-pressed", String(late)); redraw(); };
      controls.append(zoom);
    }
    controls.append(saveButtons(fileName, () => draw(760, 400, "light", true).svg));
    figure.append(controls, choice, plot, legend);
    return redraw;
  }

  // ---- bubbles ----
  function bubbles(figure, chart) {
    const { panels, names: classes = [] } = chart.data;
    const called = (held) => classes[held] ?? String(held);
    const short = (text) => (text.length > 18 ? `${text.slice(0, 17)}…` : text);
    const left = Math.max(52, 34 + 7 * Math.max(0, ...classes.map((text) => short(text).length)));
    let panel = Object.keys(panels)[0];
    const plot = make("div", { class: "plot" });
    const tip = tipIn(plot);
    const caption = make("p", { class: "note" });
    function draw(width, name, forPaper) {
      const { counts } = panels[panel];
      const ink = INKS[name];
      const [users, labels] = [counts.length, counts[0].length];
      const height = Math.max(200, Math.min(620, 58 + labels * Math.max(15, Math.min(26, 300 / labels))));
      const most = Math.max(...counts.flat());
      const every = Math.ceil(users / (width / 34));
      const marks = (n, step, name = String) => [...Array(n).keys()].filter((i) => i % step === 0).map((i) => [i, name(i)]);
      const made = frame({
        width, height, ink, left, title: chart.title, paper: forPaper, xTitle: "user", yTitle: "label",
        xs: { low: -0.8, high: users - 0.2, grid: true, marks: marks(users, every) },
        ys: { low: -0.8, high: labels - 0.2, marks: marks(labels, labels > 30 ? 5 : labels > 15 ? 2 : 1, (i) => short(called(i))) },
      });
      const room = Math.min((made.x(1) - made.x(0)) * 0.62, (made.y(0) - made.y(1)) * 0.62);
      counts.forEach((own, user) => own.forEach((count, held) => {
        if (!count) return;
        made.svg.append(shape("circle", {
          cx: made.x(user).toFixed(1), cy: made.y(held).toFixed(1), r: Math.max(0.8, room * Math.sqrt(count / most)).toFixed(2),
          fill: ink.bubble, "fill-opacity": 0.75, "data-user": user, "data-label": held, "data-count": count,
        }));
      }));
      return made.svg;
    }
    function redraw() {
      tip.hide();
      plot.querySelector("svg")?.remove();
      plot.prepend(draw(roomIn(plot), theme(), false));
      caption.textContent = panels[panel].caption;
    }
    plot.addEventListener("pointermove", (event) => {
      const circle = event.target.closest("circle");
      if (!circle) return tip.hide();
      const where = plot.getBoundingClientRect();
      const { user, label: held, count } = circle.dataset;
      tip.show(event.clientX - where.left, event.clientY - where.top, make("b", {}, `user ${user}, label ${called(Number(held))}`), `${plain(Number(count), 0)} samples`);
    });
    plot.addEventListener("pointerleave", () => tip.hide());
    const controls = make("div", { class: "controls" });
    const names = Object.keys(panels);
    if (names.length > 1) controls.append(chooser(Object.fromEntries(names.map((n) => [n, n])), panel, "which partition", (v) => { panel = v; redraw(); }));
    controls.append(saveButtons(() => chart.name, () => draw(760, "light", true)));
    figure.append(controls, plot, caption);
    return redraw;
  }

  // ---- matrix: true against predicted labels ----
  function matrix(figure, chart) {
    const { panels, names } = chart.data;
    let panel = Object.keys(panels)[0];
    const plot = make("div", { class: "plot" });
    const tip = tipIn(plot);
    const size = names.length;
    function draw(width, name, forPaper) {
      const counts = panels[panel];
      const ink = INKS[name];
      const height = Math.max(220, Math.min(640, 70 + size * 34));
      const shortened = (n, most) => (n.length > most ? n.slice(0, most - 1) + "…" : n);
      const marks = (flip, every, most) => names.map((n, i) => [flip ? size - 1 - i : i, shortened(n, most)]).filter((_, i) => i % every === 0);
      const made = frame({
        width, height, ink, title: chart.title, paper: forPaper, xTitle: "predicted", yTitle: "true",
        xs: { low: -0.5, high: size - 0.5, marks: marks(false, Math.ceil(size / (width / 30)), Math.max(3, Math.floor(width / size / 8))) },
        ys: { low: -0.5, high: size - 0.5, marks: marks(true, Math.ceil((size * 16) / height), 7) },
      });
      const { left, top, right, bottom } = made.box;
      made.svg.append(shape("rect", { x: left, y: top, width: right - left, height: bottom - top, fill: ink.card })); // over the grid
      const [wide, high] = [made.x(1) - made.x(0), made.y(0) - made.y(1)];
      counts.forEach((row, truth) => {
        const total = Math.max(1, row.reduce((a, b) => a + b, 0));
        row.forEach((count, found) => {
          const share = count / total;
          const [x, y] = [made.x(found - 0.5), made.y(size - 1 - truth + 0.5)];
          made.svg.append(shape("rect", {
            x: x.toFixed(1), y: y.toFixed(1), width: wide.toFixed(1), height: high.toFixed(1), fill: ink.heat,
            "fill-opacity": share.toFixed(3), "data-true": truth, "data-found": found, "data-count": count,
          }));
          if (count && wide > 26 && size <= 25) {
            made.svg.append(label((x + wide / 2).toFixed(1), (y + high / 2 + 4).toFixed(1), String(count), share > 0.55 ? ink.card : ink.ink,
              { "text-anchor": "middle", "font-size": 10, "pointer-events": "none" }));
          }
        });
      });
      return made.svg;
    }
    function redraw() {
      tip.hide();
      plot.querySelector("svg")?.remove();
      plot.prepend(draw(roomIn(plot), theme(), false));
    }
    plot.addEventListener("pointermove", (event) => {
      const cell = event.target.closest("rect[data-count]");
      if (!cell) return tip.hide();
      const where = plot.getBoundingClientRect();
      const text = `true ${names[cell.dataset.true]}, predicted ${names[cell.dataset.found]}`;
      tip.show(event.clientX - where.left, event.clientY - where.top, make("b", {}, text), `${plain(Number(cell.dataset.count), 0)} samples`);
    });
    plot.addEventListener("pointerleave", () => tip.hide());
    const controls = make("div", { class: "controls" });
    const models = Object.keys(panels);
    if (models.length > 1) controls.append(chooser(Object.fromEntries(models.map((n) => [n, n])), panel, "which model", (v) => { panel = v; redraw(); }));
    controls.append(saveButtons(() => chart.name, () => draw(760, "light", true)));
    figure.append(controls, plot);
    return redraw;
  }

  // ---- panels: what a model predicts where, and points ----
  const MARKS = [
    (x, y, r, a) => shape("circle", { cx: x, cy: y, r, ...a }),
    (x, y, r, a) => shape("rect", { x: x - r * 0.9, y: y - r * 0.9, width: r * 1.8, height: r * 1.8, ...a }),
    (x, y, r, a) => shape("path", { d: `M${x} ${y - r * 1.3}l${r * 1.3} ${r * 1.3}l${-r * 1.3} ${r * 1.3}l${-r * 1.3} ${-r * 1.3}Z`, ...a }),
    (x, y, r, a) => shape("path", { d: `M${x} ${y - r * 1.2}l${r * 1.2} ${r * 2.1}h${-r * 2.4}Z`, ...a }),
    (x, y, r, a) => shape("path", { d: `M${x} ${y + r * 1.2}l${r * 1.2} ${-r * 2.1}h${-r * 2.4}Z`, ...a }),
  ];
  function panels(figure, chart) {
    const { groups } = chart.data;
    const most = Math.max(...groups.map((g) => g.panels.length));
    const classes = 1 + Math.max(...groups.flatMap((g) => g.panels.flatMap((p) => p.y)));
    const labelColour = (i) => LABELS[i % LABELS.length];

    function drawPanel(svg, panel, left, top, side, ink) {
      const [x0, x1, y0, y1] = panel.extent;
      const x = (v) => left + ((v - x0) / (x1 - x0)) * side;
      const y = (v) => top + side - ((v - y0) / (y1 - y0)) * side;
      const rows = panel.regions.length;
      panel.regions.forEach((row, i) => { // from the bottom; equal neighbours are one rectangle
        const [cell, height] = [side / row.length, side / rows];
        for (let from = 0, to = 0; from < row.length; from = to) {
          while (to < row.length && row[to] === row[from]) to++;
          svg.append(shape("rect", {
            x: (left + from * cell).toFixed(2), y: (top + side - (i + 1) * height).toFixed(2),
            width: ((to - from) * cell).toFixed(2), height: height.toFixed(2), fill: labelColour(Number(row[from])), "fill-opacity": 0.28, "shape-rendering": "crispEdges",
          }));
        }
      });
      panel.x.forEach(([px, py], i) => {
        if (px < x0 || px > x1 || py < y0 || py > y1) return;
        const mark = MARKS[panel.y[i] % MARKS.length](+x(px).toFixed(1), +y(py).toFixed(1), side / 80, { fill: labelColour(panel.y[i]), stroke: ink.card, "stroke-width": 0.5 });
        svg.append(mark);
      });
      if (panel.frame) {
        const [fx0, fx1, fy0, fy1] = panel.frame;
        svg.append(shape("rect", { x: x(fx0), y: y(fy1), width: x(fx1) - x(fx0), height: y(fy0) - y(fy1), fill: "none", stroke: ink.ink, "stroke-dasharray": "4 3", "data-frame": panel.title }));
      }
      svg.append(shape("rect", { x: left, y: top, width: side, height: side, fill: "none", stroke: ink.line, "data-panel": panel.title }));
      svg.append(label(left, top - 8, panel.title, ink.ink, { "font-weight": 600 }));
      svg.append(label(left + side, top - 8, panel.note, ink.soft, { "text-anchor": "end", "font-size": 11 }));
    }
    function draw(width, name, forPaper) {
      const ink = INKS[name];
      const columns = Math.min(most, Math.max(width < 460 ? 1 : 2, Math.floor(width / 220)));
      const gap = 18;
      const side = Math.min(260, (width - gap * (columns - 1)) / columns);
      const placed = [];
      let top = 0;
      for (const group of groups) {
        placed.push({ title: group.title, top: top + 16 });
        group.panels.forEach((panel, i) => placed.push({ panel, left: (i % columns) * (side + gap), top: top + 48 + Math.floor(i / columns) * (side + 36) }));
        top += 48 + Math.ceil(group.panels.length / columns) * (side + 36) - 12;
      }
      const svg = shape("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${width} ${top + 28}`, width, height: top + 28, role: "img" });
      svg.append(shape("title", {}, chart.title));
      if (forPaper) svg.append(shape("rect", { width, height: top + 28, fill: ink.card }));
      for (const item of placed) {
        if (item.panel) drawPanel(svg, item.panel, item.left, item.top, side, ink);
        else svg.append(label(0, item.top, item.title, ink.ink, { "font-size": 14, "font-weight": 600 }));
      }
      for (let i = 0; i < classes; i++) {
        svg.append(MARKS[i % MARKS.length](8 + i * 70, top + 14, 5, { fill: labelColour(i) }));
        svg.append(label(18 + i * 70, top + 18, `label ${i + 1}`, ink.ink));
      }
      return { svg, placed, side };
    }
    const plot = make("div", { class: "plot" });
    const tip = tipIn(plot);
    let current = null;
    function redraw() {
      tip.hide();
      plot.querySelector("svg")?.remove();
      current = draw(roomIn(plot), theme(), false);
      plot.prepend(current.svg);
    }
    plot.addEventListener("pointermove", (event) => {
      const where = plot.getBoundingClientRect();
      const [px, py] = [event.clientX - where.left, event.clientY - where.top];
      const { side } = current;
      const at = current.placed.find((p) => p.panel && px >= p.left && px < p.left + side && py >= p.top && py < p.top + side);
      if (!at) return tip.hide();
      const rows = at.panel.regions;
      const row = rows[Math.floor((1 - (py - at.top) / side) * rows.length - 1e-9)];
      const predicted = row && row[Math.floor(((px - at.left) / side) * row.length)];
      if (predicted === undefined) return tip.hide();
      tip.show(px, py, make("b", {}, at.panel.title), `label ${Number(predicted) + 1} is predicted here`);
    });
    plot.addEventListener("pointerleave", () => tip.hide());
    figure.append(make("div", { class: "controls" }, saveButtons(() => chart.name, () => draw(960, "light", true).svg)), plot);
    return redraw;
  }

  // ---- tables ----
  function sortable(table) {
    const headers = [...table.tHead.rows[0].cells];
    headers.forEach((header, column) => {
      header.querySelector("button").onclick = () => {
        const numeric = header.classList.contains("number");
        const now = header.getAttribute("aria-sort");
        // Numbers begin with the largest, names with the first.
        const order = now === "none" ? (numeric ? "descending" : "ascending") : now === "descending" ? "ascending" : "descending";
        headers.forEach((other) => other.setAttribute("aria-sort", other === header ? order : "none"));
        const sign = order === "ascending" ? 1 : -1;
        const key = (row) => row.cells[column].dataset.sort;
        const compare = (a, b) => {
          const [x, y] = [key(a), key(b)];
          if (x === undefined || y === undefined) return (x === undefined) - (y === undefined); // absent ones last, always
          return sign * (numeric ? Number(x) - Number(y) : x.localeCompare(y, "en", { numeric: true }));
        };
        const body = table.tBodies[0];
        body.append(...[...body.rows].sort(compare));
      };
    });
  }

  // A table that is wider than its place says so, until its last column is in sight.
  function scrollable(place) {
    const more = place.nextElementSibling;
    const tell = () => {
      more.hidden = place.scrollWidth - place.clientWidth - place.scrollLeft < 2;
      place.classList.toggle("hides", !more.hidden);
    };
    place.addEventListener("scroll", tell);
    new ResizeObserver(tell).observe(place);
  }

  // Tables of one grid: one is looked at at a time.
  function choosable(views) {
    const all = [...views.querySelectorAll(":scope > .view")];
    if (all.length < 2) return;
    const choose = (title) => all.forEach((view) => { view.hidden = view.dataset.title !== title; });
    const names = all.map((view) => view.dataset.title);
    views.prepend(make("div", { class: "controls" }, chooser(Object.fromEntries(names.map((n) => [n, n])), names[0], "which numbers", choose)));
    choose(names[0]);
    views.classList.add("chosen");
  }

  // ---- all of it ----
  const kinds = { lines, bubbles, panels, matrix };
  const redraws = [];
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const chart = charts[figure.dataset.chart];
    const redraw = kinds[chart.kind](figure, chart);
    let width = 0;
    new ResizeObserver(() => {
      if (Math.round(figure.clientWidth) !== width) {
        width = Math.round(figure.clientWidth);
        redraw();
      }
    }).observe(figure);
    redraws.push(redraw);
  }
  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll(".scroll").forEach(scrollable);
  document.querySelectorAll(".views").forEach(choosable);
  function paint() {
    for (const mark of document.querySelectorAll("svg.swatch")) swatch(mark, [Number(mark.dataset.colour), Number(mark.dataset.dash)]);
    redraws.forEach((redraw) => redraw());
  }
  const button = document.getElementById("theme");
  button.onclick = () => {
    chosen = { auto: "light", light: "dark", dark: "auto" }[chosen];
    if (chosen === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    button.querySelector("span").textContent = chosen;
    paint();
  };
  system.addEventListener("change", paint);
  printing.addEventListener("change", paint);
  paint();
})();
