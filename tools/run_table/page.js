// SPDX-License-Identifier: Apache-2.0
// Draws the chosen measure of all chosen runs, shows their values under the pointer or the arrow keys, and sorts the table.
"use strict";
(() => {
  const LEFT = 62, RIGHT = 14, TOP = 10, BOTTOM = 26, MOST_IN_TIP = 12;
  const { runs, measures } = JSON.parse(document.getElementById("numbers").textContent);
  const get = (id) => document.getElementById(id), tip = get("tip"), svg = get("chart");
  const lines = [...document.querySelectorAll("table.runs tbody tr")];
  const hidden = new Set();
  let series = [], view = null;
  const draw = (tag, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const name in attributes) node.setAttribute(name, attributes[name]);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const number = (value) => Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(6)));

  // Returns the value of an axis at a step, between the rows of training that are beside it.
  const along = (train, axis, step) => {
    const at = train.step, to = train[axis];
    if (axis === "step") return step;
    if (!to || !at.length) return null;
    let i = at.findIndex((s) => s >= step);
    if (i < 0) i = at.length - 1;
    if (i === 0 || at[i] <= step || to[i] === null || to[i - 1] === null) return to[i];
    return to[i - 1] + (to[i] - to[i - 1]) * (step - at[i - 1]) / (at[i] - at[i - 1]);
  };
  // Returns the values with the mean over `count` neighbours in place of each.
  const meaned = (values, count) => count < 2 ? values : values.map((_, i) => {
    const near = values.slice(Math.max(0, i - (count >> 1)), i + (count >> 1) + 1);
    return near.reduce((a, b) => a + b, 0) / near.length;
  });
  // Returns the points [x, y] of a run's curve, by x.
  const points = (run, measure, axis, count) => {
    const part = measure.split("/"), train = part[0] === "train", group = train ? run.train : run.eval[part[1]];
    const column = group && group[part.slice(train ? 1 : 2).join("/")];
    if (!column) return [];
    const kept = column.map((y, i) => [train ? (group[axis] || [])[i] : along(run.train, axis, group.step[i]), y])
      .filter(([x, y]) => y !== null && x !== null && x !== undefined);
    const means = meaned(kept.map((point) => point[1]), count);
    return kept.map(([x], i) => [x, means[i]]).sort((a, b) => a[0] - b[0]);
  };

  const ticks = (low, high, count) => {
    const raw = (high - low) / count, unit = 10 ** Math.floor(Math.log10(raw));
    const width = unit * [1, 2, 2.5, 5, 10].find((k) => unit * k >= raw * 0.999), out = [];
    for (let i = Math.ceil(low / width - 1e-9); i <= high / width + 1e-9; ++i) out.push(width * i);
    return out;
  };
  const logTicks = (low, high) => {
    const out = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high) + 1; ++e)
      for (const k of [1, 2, 5]) if (k * 10 ** e >= low && k * 10 ** e <= high) out.push(k * 10 ** e);
    return out.filter((_, i) => i % Math.ceil(out.length / 8) === 0);
  };
  const short = (value) => Math.abs(value) >= 1e6 ? `${Number((value / 1e6).toPrecision(4))}M` :
    Math.abs(value) >= 1e4 ? `${Number((value / 1e3).toPrecision(4))}k` : String(Number(value.toPrecision(4)));

  const scaleOf = (all, log, width, height) => {
    const span = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
    let [x0, x1] = span(all.map((p) => p[0])), [y0, y1] = span(all.map((p) => p[1]));
    if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1];
    log = log && y0 > 0;
    const pad = log ? 0 : 0.04 * (y1 - y0) || 0.05 * Math.abs(y1) || 1;
    [y0, y1] = log ? [y0 / 1.05, y1 * 1.05] : [y0 - pad, y1 + pad];
    const map = log ? Math.log : (v) => v;
    return { x0, x1, y0, y1, log, width, height,
      x: (v) => LEFT + (width - LEFT - RIGHT) * (v - x0) / (x1 - x0),
      back: (px) => x0 + (x1 - x0) * (px - LEFT) / (width - LEFT - RIGHT),
      y: (v) => height - BOTTOM - (height - TOP - BOTTOM) * (map(v) - map(y0)) / (map(y1) - map(y0)) };
  };
  const axes = (s) => {
    for (const v of s.log ? logTicks(s.y0, s.y1) : ticks(s.y0, s.y1, 6))
      svg.append(draw("path", { class: "grid", d: `M${LEFT} ${s.y(v)}H${s.width - RIGHT}` }),
        draw("text", { class: "y", x: LEFT - 6, y: s.y(v) + 4 }, short(v)));
    for (const v of ticks(s.x0, s.x1, Math.max(3, s.width / 130)))
      svg.append(draw("path", { class: "grid", d: `M${s.x(v)} ${s.height - BOTTOM}v4` }),
        draw("text", { class: "x", x: Math.min(s.x(v), s.width - 4 * short(v).length), y: s.height - 8 }, short(v)));
    svg.append(draw("path", { class: "axis", d: `M${LEFT} ${s.height - BOTTOM}H${s.width - RIGHT}` }));
  };

  const show = () => {
    const measure = get("measure").value, axis = get("axis").value, box = svg.getBoundingClientRect();
    series = runs.map((run, index) => ({ run, index, points: hidden.has(index) ? [] : points(run, measure, axis, +get("mean").value) }))
      .filter((one) => one.points.length);
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
    get("title").textContent = `${get("measure").selectedOptions[0].text}, ${series.length} of ${runs.length} runs`;
    view = series.length ? scaleOf(series.flatMap((one) => one.points), get("log").checked, box.width, box.height) : null;
    if (!view) return;
    axes(view);
    for (const one of series) {
      const looks = `c${one.index % 8} d${(one.index >> 3) % 4}`;
      const at = one.points.map(([x, y]) => [view.x(x).toFixed(1), view.y(y).toFixed(1)]);
      one.path = draw("path", { class: `line ${looks}`, "data-run": one.index, d: "M" + at.map((p) => p.join(" ")).join("L") });
      svg.append(one.path);
      if (at.length < 30) for (const [cx, cy] of at) svg.append(draw("circle", { class: `dot c${one.index % 8}`, cx, cy, r: 2 }));
    }
    svg.append(draw("g", { class: "marks" }));
  };

  const nearest = (list, x) => {
    let low = 0, high = list.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (list[middle][0] < x) low = middle; else high = middle;
    }
    return Math.abs(list[low][0] - x) <= Math.abs(list[high][0] - x) ? list[low] : list[high];
  };
  const mark = (index) => {
    svg.classList.toggle("pointed", index !== null);
    for (const one of series) one.path.classList.toggle("near", one.index === index);
  };
  const hide = () => {
    tip.hidden = true;
    mark(null);
    if (view) svg.querySelector(".marks").replaceChildren();
  };
  let last = null;    // x of the pointer, for the arrow keys
  // Shows the runs that have a row near x, those nearest to the height y first.
  const point = (px, py) => {
    if (!view) return;
    last = px;
    const wanted = view.back(px);
    const near = series.map((one) => ({ one, at: nearest(one.points, wanted) }))
      .sort((a, b) => Math.hypot(view.x(a.at[0]) - px, view.y(a.at[1]) - py) - Math.hypot(view.x(b.at[0]) - px, view.y(b.at[1]) - py));
    const first = near[0], marks = svg.querySelector(".marks");
    marks.replaceChildren(draw("path", { class: "cross", d: `M${view.x(first.at[0])} ${TOP}V${view.height - BOTTOM}` }));
    tip.replaceChildren();
    const head = document.createElement("b");
    head.textContent = `${get("axis").selectedOptions[0].text} ${number(first.at[0])}`;
    tip.append(head);
    for (const { one, at } of near.slice(0, MOST_IN_TIP)) {
      const row = document.createElement("div"), swatch = document.createElement("i");
      swatch.className = `swatch f${one.index % 8}`;
      row.className = one === first.one ? "near" : "";
      row.append(swatch, `${one.run.n} ${number(at[1])}${at[0] === first.at[0] ? "" : ` at ${number(at[0])}`}`);
      tip.append(row);
      marks.append(draw("circle", { class: `dot c${one.index % 8}`, cx: view.x(at[0]), cy: view.y(at[1]), r: 3 }));
    }
    if (near.length > MOST_IN_TIP) tip.append(`and ${near.length - MOST_IN_TIP} more runs`);
    mark(first.one.index);
    tip.hidden = false;
    const box = svg.getBoundingClientRect(), x = box.left + px;
    const right = x + 16 + tip.offsetWidth < document.documentElement.clientWidth;
    tip.style.left = `${Math.max(4, right ? x + 16 : x - 16 - tip.offsetWidth) + scrollX}px`;
    tip.style.top = `${box.top + 12 + scrollY}px`;
  };

  if (svg) {
    const under = (event) => {
      const box = svg.getBoundingClientRect();
      point(event.clientX - box.left, event.clientY - box.top);
    };
    svg.addEventListener("pointermove", under);
    svg.addEventListener("pointerdown", under);
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move || !view) return;
      event.preventDefault();
      const from = last === null ? view.width - RIGHT - move : last;
      point(Math.min(view.width - RIGHT, Math.max(LEFT, from + move * view.width / 60)), view.height / 2);
    });
    for (const id of ["measure", "axis", "mean", "log"]) get(id).addEventListener("change", show);
    addEventListener("resize", show);
    show();
  }

  lines.forEach((line) => {
    const index = +line.dataset.run, box = line.querySelector("input");
    box.addEventListener("change", () => {
      line.classList.toggle("off", !box.checked);
      if (box.checked) hidden.delete(index); else hidden.add(index);
      if (svg) show();
    });
    line.addEventListener("pointerenter", () => svg && mark(hidden.has(index) ? null : index));
    line.addEventListener("pointerleave", () => svg && mark(null));
  });
  get("all").addEventListener("change", (event) => lines.forEach((line) => {
    const box = line.querySelector("input");
    if (box.checked !== event.target.checked) box.click();
  }));

  // Sorts by a column: numbers before texts, nothing at the end; the second click turns the order round.
  document.querySelectorAll("table.runs thead th").forEach((title, column) => {
    const button = title.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const down = title.getAttribute("aria-sort") === "ascending";
      document.querySelectorAll("table.runs thead th").forEach((other) => other.removeAttribute("aria-sort"));
      title.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (line) => line.children[column].dataset.v ?? line.children[column].textContent;
      const compare = (a, b) => isNaN(a) || isNaN(b) ? a.localeCompare(b, "en", { numeric: true }) : a - b;
      const order = (a, b) => {
        const [one, two] = [value(a), value(b)];
        if (one === "" || two === "") return (one === "") - (two === "");
        return down ? compare(two, one) : compare(one, two);
      };
      lines[0].parentNode.append(...[...lines].sort(order));
    });
  });
  document.documentElement.dataset.ready = measures.length;
})();
