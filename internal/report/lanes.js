// Zooms and pans lanes of boxes and describes the box under the pointer. All panels of a figure
// share one view, also those that are hidden. Zoom widens the track in its panel; panning scrolls the panel.
"use strict";
for (const figure of document.querySelectorAll(".lanes")) {
  const pans = [...figure.querySelectorAll(".pan")];
  const most = 256;
  let zoom = 1;
  const front = () => pans.find(p => p.clientWidth) || pans[0];

  // zoomTo keeps the point at x pixels from the left of the panel in place.
  function zoomTo(to, x = front().clientWidth / 2) {
    to = Math.min(Math.max(to, 1), most);
    const left = (front().scrollLeft + x) * to / zoom - x;
    zoom = to;
    figure.style.setProperty("--zoom", zoom);
    for (const p of pans) {
      drawAxis(p.firstElementChild);
      p.scrollLeft = left;
    }
  }

  function panBy(share) {
    const left = front().scrollLeft + share * front().clientWidth;
    for (const p of pans) p.scrollLeft = left;
  }

  // drawAxis puts a label about every 90 pixels, at round numbers.
  function drawAxis(track) {
    const length = +track.dataset.length;
    const rough = length * 90 / track.clientWidth;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find(d => d * power >= rough) * power;
    const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const labels = [];
    const last = length * (1 - 40 / track.clientWidth); // a later label would be cut
    for (let i = 0; i * step <= last; i++) {
      const label = document.createElement("span");
      label.style.left = 100 * i * step / length + "%";
      label.textContent = (i * step).toFixed(decimals) + (i ? "" : " " + track.dataset.unit);
      labels.push(label);
    }
    track.firstElementChild.replaceChildren(...labels);
  }

  // The tip describes the box under the pointer.
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  figure.append(tip);
  let shown;
  function show(box) {
    if (shown) shown.classList.remove("on");
    shown = box;
    tip.hidden = !box;
    if (!box) return;
    box.classList.add("on");
    tip.textContent = box.dataset.t;
    const inside = figure.getBoundingClientRect(), of = box.getBoundingClientRect();
    const left = Math.max(of.left, inside.left) - inside.left;
    tip.style.left = Math.max(0, Math.min(left, inside.width - tip.offsetWidth)) + "px";
    tip.style.top = of.bottom - inside.top + 6 + "px";
  }

  for (const button of figure.querySelectorAll("button")) {
    const by = +button.dataset.zoom;
    button.addEventListener("click", () => button.dataset.pan ? panBy(button.dataset.pan / 2) : zoomTo(by ? zoom * by : 1));
  }
  for (const pan of pans) {
    const at = x => x - pan.getBoundingClientRect().left;
    pan.addEventListener("scroll", () => {
      for (const p of pans) if (Math.abs(p.scrollLeft - pan.scrollLeft) > 1) p.scrollLeft = pan.scrollLeft;
    });
    // The wheel zooms only in a clicked panel or with Ctrl, which a pinch on a touchpad sends.
    pan.addEventListener("wheel", e => {
      if (!e.ctrlKey && document.activeElement !== pan || e.deltaY === 0) return;
      e.preventDefault();
      zoomTo(zoom * Math.exp(-Math.sign(e.deltaY) * Math.min(Math.abs(e.deltaY), 100) / 250), at(e.clientX));
    }, {passive: false});
    pan.addEventListener("keydown", e => {
      const keys = {"+": () => zoomTo(zoom * 2), "=": () => zoomTo(zoom * 2), "-": () => zoomTo(zoom / 2), "0": () => zoomTo(1),
        ArrowLeft: () => panBy(-0.2), ArrowRight: () => panBy(0.2), Escape: () => show(null)};
      if (e.ctrlKey || e.metaKey || e.altKey || !keys[e.key]) return;
      e.preventDefault();
      keys[e.key]();
    });
    let dragged = null;
    pan.addEventListener("pointerdown", e => { if (e.pointerType === "mouse") dragged = e.clientX + pan.scrollLeft; });
    pan.addEventListener("pointermove", e => { if (dragged !== null && e.buttons) pan.scrollLeft = dragged - e.clientX; });
    addEventListener("pointerup", () => { dragged = null; });
    pan.addEventListener("pointerover", e => show(e.target.closest("b")));
    pan.addEventListener("click", e => show(e.target.closest("b")));
    pan.addEventListener("pointerleave", e => { if (e.pointerType === "mouse") show(null); });
    drawAxis(pan.firstElementChild);
  }
  addEventListener("beforeprint", () => zoomTo(1));
  addEventListener("resize", () => {
    for (const p of pans) {
      drawAxis(p.firstElementChild);
      p.scrollLeft = front().scrollLeft;
    }
  });
}
