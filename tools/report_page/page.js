// SPDX-License-Identifier: Apache-2.0
// Shows the values of all curves of a panel at the step under the pointer, or under the arrow keys. Shows the attention of a
// word over its image while the pointer or the focus is on the word. Loads a page of a running job again, and keeps its place.
"use strict";
(() => {
  const LEFT = 46, RIGHT = 372, TOP = 8, BOTTOM = 202;  // as in charts.py
  const panels = JSON.parse(document.getElementById("numbers").textContent);
  const tip = document.getElementById("tip");
  const draw = (tag, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const name in attributes) node.setAttribute(name, attributes[name]);
    return node;
  };
  const number = (value) => Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(6)));

  // Returns the index of the value that is nearest to `wanted`, of numbers in ascending order.
  const nearest = (values, wanted) => {
    let low = 0, high = values.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (values[middle] < wanted) low = middle; else high = middle;
    }
    return Math.abs(values[low] - wanted) <= Math.abs(values[high] - wanted) ? low : high;
  };

  document.querySelectorAll("figure[data-panel]").forEach((figure) => {
    const panel = panels[figure.dataset.panel], svg = figure.querySelector(":scope > svg"), marks = svg.querySelector(".marks");
    const [x0, x1] = panel.x, scale = panel.log ? Math.log : (v) => v, [y0, y1] = panel.y.map(scale);
    const toX = (step) => LEFT + (RIGHT - LEFT) * (step - x0) / (x1 - x0);
    const toY = (value) => Math.min(BOTTOM, Math.max(TOP, BOTTOM - (BOTTOM - TOP) * (scale(value) - y0) / (y1 - y0)));
    let step = null;

    const hide = () => {
      marks.replaceChildren();
      tip.hidden = true;
    };
    // Shows the rows that are nearest to a step of this panel.
    const show = (wanted) => {
      const found = panel.c.map((curve) => nearest(curve.x, wanted));
      step = panel.c.map((curve, i) => curve.x[found[i]]).reduce((a, b) => Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a);
      marks.replaceChildren(draw("path", { class: "cross", d: `M${toX(step)} ${TOP}V${BOTTOM}` }));
      tip.replaceChildren();
      const head = document.createElement("b");
      head.textContent = `step ${step.toLocaleString("en")}`;
      tip.append(head);
      panel.c.forEach((curve, i) => {
        const at = curve.x[found[i]], value = curve.y[found[i]], mean = curve.m ? curve.m[found[i]] : value;
        marks.append(draw("circle", { class: `dot c${curve.c}`, cx: toX(at), cy: toY(mean), r: 3 }));
        const row = document.createElement("div"), swatch = document.createElement("i");
        swatch.className = `swatch f${curve.c}`;
        const more = curve.m ? ` (${panel.s} ${number(mean)})` : "", where = at === step ? "" : ` at ${at.toLocaleString("en")}`;
        row.append(swatch, `${curve.n} ${number(value)}${more}${where}`);
        tip.append(row);
      });
      tip.hidden = false;
      const box = svg.getBoundingClientRect(), unit = box.width / svg.viewBox.baseVal.width, x = box.left + toX(step) * unit;
      const right = x + 14 + tip.offsetWidth < document.documentElement.clientWidth;
      tip.style.left = `${Math.max(4, right ? x + 14 : x - 14 - tip.offsetWidth) + scrollX}px`;
      tip.style.top = `${box.top + 10 + scrollY}px`;
    };
    const under = (event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
      show(x0 + (x1 - x0) * (x - LEFT) / (RIGHT - LEFT));
    };
    svg.addEventListener("pointermove", under);
    svg.addEventListener("pointerdown", under);
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      const steps = panel.c[0].x, last = steps.length - 1;
      show(steps[step === null ? last : Math.min(last, Math.max(0, nearest(steps, step) + move))]);
    });
  });

  document.querySelectorAll(".shot").forEach((shot) => {
    const thumb = shot.querySelector(".thumb"), words = [...shot.querySelectorAll(".attention li")];
    const look = (word) => {
      words.forEach((other) => other.classList.toggle("on", other === word));
      if (word) thumb.style.setProperty("--veil", word.querySelector("i").style.getPropertyValue("--veil"));
      else thumb.style.removeProperty("--veil");
    };
    words.forEach((word) => {
      word.addEventListener("pointerenter", () => look(word));
      word.addEventListener("pointerleave", () => look(words.find((other) => other === document.activeElement)));
      word.addEventListener("focus", () => look(word));
      word.addEventListener("blur", () => look(null));
    });
  });

  // Where a reader is, and what is open: the details of each section by their number.
  const place = () => ({
    y: scrollY, open: [...document.querySelectorAll("details")].map((one) => [nameOf(one), one.open]),
    across: [...document.querySelectorAll(".scroll")].map((one) => one.scrollLeft) });
  const nameOf = (details) => {
    const inside = details.closest("section"), all = [...inside.querySelectorAll("details")];
    return `${inside.id} ${all.indexOf(details)}`;
  };
  const key = `place ${location.pathname}`, every = Number(document.documentElement.dataset.every);
  const restore = () => {
    const kept = JSON.parse(sessionStorage.getItem(key) || "null");
    sessionStorage.removeItem(key);
    if (!kept) return;
    const open = new Map(kept.open);
    document.querySelectorAll("details").forEach((one) => { one.open = open.get(nameOf(one)) ?? one.open; });
    document.querySelectorAll(".scroll").forEach((one, i) => { one.scrollLeft = kept.across[i] ?? 0; });
    scrollTo(0, kept.y);
  };
  const renew = () => {
    if (!tip.hidden) return void setTimeout(renew, 1000);   // someone reads a value
    sessionStorage.setItem(key, JSON.stringify(place()));
    location.reload();
  };
  restore();
  if (every) setTimeout(renew, 1000 * every);
  document.documentElement.dataset.ready = panels.length;
})();
