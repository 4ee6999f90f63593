// Draws the map of memory at the moment of a slider. Each figure with maps has a template with the maps
// of its run, as moments.go encodes them.
"use strict";
for (const bar of document.querySelectorAll(".moments")) {
  const figures = [...document.querySelectorAll("#map figure[data-moments]")];
  const field = name => bar.querySelector(`[name=${name}]`);
  const [range, first, second] = ["at", "first", "second"].map(field);
  const filters = {stream: field("stream"), pool: field("pool")};

  async function unpack(figure) {
    const packed = atob(figure.querySelector("template").content.textContent);
    const bytes = Uint8Array.from(packed, c => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return new Response(stream).json();
  }

  // boxesOf returns the boxes of a lane, with their places.
  function boxesOf(lane, kinds) {
    const numbers = (lane.boxes || []).values(), boxes = [];
    let at = 0, addr = 0;
    for (const id of numbers) {
      if (id % 2) {
        at += numbers.next().value;
        addr += numbers.next().value;
      }
      const kind = kinds[Math.floor(id / 2)];
      boxes.push({kind, at, addr});
      at += kind.length;
      addr += kind.length;
    }
    return boxes;
  }

  const element = (name, className, text = "") => {
    const e = document.createElement(name);
    e.className = className;
    e.textContent = text;
    return e;
  };
  const tip = b => b.kind.stream ? `${b.kind.text}\n0x${b.addr.toString(16)}, ${[b.kind.stream, b.kind.pool].filter(s => s).join(", ")}` : b.kind.text;

  function draw(figure, moment, kinds) {
    const track = figure.querySelector(".track");
    const whole = track.dataset.length * 2 ** 20;
    const part = (bytes, of) => Math.max(100 * bytes / of, 0) + "%";
    const rows = [];
    for (const l of moment.lanes) {
      const name = element("div", "name");
      name.append(element("span", "", l.name));
      const row = element("div", "lane");
      const back = element("s", "");
      back.style.width = part(l.used, whole);
      row.append(back);
      if (l.ticks) {
        const marks = element("u", "");
        marks.style.width = back.style.width;
        marks.style.backgroundSize = part(l.ticks, l.used) + " 100%";
        row.append(marks);
      }
      for (const b of boxesOf(l, kinds)) {
        const off = Object.keys(filters).some(f => filters[f].value && filters[f].value !== b.kind[f]);
        const e = element("b", b.kind.class + (off ? " off" : ""), b.kind.label);
        e.style.left = part(b.at, whole);
        e.style.width = part(b.kind.length, whole);
        e.dataset.t = tip(b);
        row.append(e);
      }
      rows.push(name, row);
    }
    track.replaceChildren(track.firstElementChild, ...rows);
    track.parentElement.setAttribute("aria-label", `${moment.when}: ${moment.gap}`);
    figure.closest(".lanes").querySelector(".tip").hidden = true;
    figure.querySelector(".when").textContent = `${moment.when}: ${moment.gap}`;
    figure.querySelector(".whole").textContent = moment.segments;
    figure.querySelector(".note").textContent = moment.note;
    figure.querySelector(".same").textContent = "";
    figure.querySelector(".shares").replaceChildren(...moment.legend.map(([kind, text, amount]) => {
      const item = element("li", ""), name = element("span", "");
      name.append(element("i", "key " + kind), text);
      item.append(name, " ", element("span", "", amount));
      return item;
    }));
  }

  const runs = new Map(); // unpacked, by figure
  const run = async figure => {
    if (!runs.has(figure)) runs.set(figure, unpack(figure));
    return runs.get(figure);
  };

  // offer fills a filter with what occurs in the runs.
  function offer(filter, found) {
    const kept = filters[filter].value;
    const values = [...new Set(found)].filter(v => v).sort();
    filters[filter].replaceChildren(new Option("all " + filter + "s", ""), ...values.map(v => new Option(v, v)));
    filters[filter].value = values.includes(kept) ? kept : "";
    filters[filter].parentElement.hidden = values.length < 2;
  }

  // show draws the chosen runs at the place of the slider. Of calls that overlap, the last one counts.
  let calls = 0;
  async function show() {
    const call = ++calls;
    const chosen = [figures[first.value]];
    if (second.value && second.value !== first.value) chosen.push(figures[second.value]);
    const all = await Promise.all(chosen.map(run));
    if (call !== calls) return;
    for (const f of figures) f.hidden = !chosen.includes(f);
    figures[0].parentElement.classList.toggle("two", chosen.length > 1);
    range.max = all[0].moments.length - 1;
    for (const f in filters) offer(f, all.flatMap(r => r.kinds.map(k => k[f])));
    const ms = all[0].moments[range.value].ms;
    for (const [i, r] of all.entries()) {
      const at = i ? Math.max(0, r.moments.findLastIndex(m => m.ms <= ms)) : +range.value;
      const moment = r.moments[at];
      draw(chosen[i], moment, r.kinds);
      if (i) continue;
      range.setAttribute("aria-valuetext", moment.when + ", " + moment.gap);
      bar.querySelector("output").textContent = moment.when;
    }
    dispatchEvent(new Event("resize")); // for the axes
    bar.dataset.ready = calls;
  }
  const peak = () => {
    range.max = figures[first.value].dataset.moments - 1;
    range.value = figures[first.value].dataset.peak;
  };
  if (!window.DecompressionStream) {
    bar.replaceChildren("This browser cannot unpack the other moments. The maps are those at the peak.");
    bar.hidden = false;
    continue;
  }
  first.addEventListener("change", () => { peak(); show(); });
  for (const e of [range, second, ...Object.values(filters)]) e.addEventListener("input", show);
  bar.querySelector("button").addEventListener("click", () => { peak(); show(); });
  addEventListener("beforeprint", () => {
    for (const f in filters) filters[f].value = "";
    peak();
    show();
  });
  bar.hidden = false;
  peak();
  show();
}
