"use strict";
// The timeline: a canvas per run, all on one time axis, redrawn from the data at every move.
(() => {
  const { colours, runs } = JSON.parse(document.getElementById("timeline-data").textContent);
  const TOP = 22, STRIP = 60, GAP = 8, AXIS = 22, LEFT = 64, LEAST_LABEL = 11;
  const end = Math.max(...runs.map((run) => run.end_s));
  let view = { from: 0, to: end };

  const range = document.getElementById("range");
  const pointed = document.getElementById("pointed");
  const panels = runs.map((run) => {
    const seat = Math.max(3, Math.min(18, 480 / run.seats));
    const lane = run.lanes ? Math.max(1, Math.min(9, 160 / run.lanes)) : 0;
    const seatsTop = TOP + STRIP + GAP, waitsTop = seatsTop + run.seats * seat + GAP;
    const height = waitsTop + run.lanes * lane + AXIS;
    const most = Math.max(1, ...run.iterations.map((one) => one[2] + one[3] + one[4]));
    const canvas = document.createElement("canvas");
    canvas.style.height = `${height}px`;
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Timeline of ${run.label}: ${run.iterations.length} ` +
      `iterations on ${run.seats} seats. Plus and minus zoom, arrows move, 0 shows all.`);
    document.getElementById("canvases").append(canvas);
    return { run, canvas, seat, lane, seatsTop, waitsTop, height, most };
  });

  const width = (panel) => panel.canvas.clientWidth - LEFT;
  const x = (panel, time) => LEFT + (time - view.from) / (view.to - view.from) * width(panel);
  const time = (panel, px) => view.from + (px - LEFT) / width(panel) * (view.to - view.from);
  const seconds = (value) => view.to - view.from < 1
    ? `${(1000 * value).toFixed(view.to - view.from < 0.05 ? 2 : 0)} ms`
    : `${value.toFixed(view.to - view.from < 20 ? 2 : 0)} s`;

  function draw(panel) {
    const { run, canvas } = panel, scale = window.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * scale;
    canvas.height = panel.height * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.fillStyle = "#222";
    const cut = run.cut_s === null ? "" : ` (the first ${run.cut_s.toPrecision(4)} s of it)`;
    pen.fillText(run.label + cut, 0, TOP / 2);
    pen.fillStyle = colours.edge;
    pen.fillText("tokens", 0, TOP + STRIP / 2);
    pen.fillText("seats", 0, panel.seatsTop + run.seats * panel.seat / 2);
    if (run.lanes) pen.fillText("waiting", 0, panel.waitsTop + run.lanes * panel.lane / 2);
    drawAxis(pen, panel);

    pen.save();
    pen.beginPath();
    pen.rect(LEFT, TOP, width(panel), panel.height);
    pen.clip();
    const bar = (from, to, top, height, colour) => {
      const left = x(panel, from);
      pen.fillStyle = colour;
      pen.fillRect(left, top, Math.max(x(panel, to) - left - 0.5, 0.5), height);
    };
    const seen = (from, to) => to >= view.from && from <= view.to;
    for (const [start, length, prefill, decode, padded] of run.iterations) {
      if (!seen(start, start + length)) continue;
      let bottom = TOP + STRIP;
      for (const [tokens, kind] of [[decode, "decode"], [prefill, "prefill"], [padded, "padding"]]) {
        const high = tokens / panel.most * STRIP;
        bottom -= high;
        if (high) bar(start, start + length, bottom, high, colours[kind]);
      }
    }
    for (const [from, to, seat, kind, name, , preempted] of run.spans) {
      if (!seen(from, to)) continue;
      const top = panel.seatsTop + seat * panel.seat, high = panel.seat - 1;
      bar(from, to, top, high, colours[kind]);
      if (kind !== "held") label(pen, panel, from, to, top + high / 2, name);
      if (preempted) bar(to, to + 3 / width(panel) * (view.to - view.from), top, high, colours.preempted);
    }
    for (const [from, to, lane, kind] of run.waits) {
      if (seen(from, to)) bar(from, to, panel.waitsTop + lane * panel.lane, Math.max(panel.lane - 1, 0.5), colours[kind]);
    }
    pen.restore();
  }

  function label(pen, panel, from, to, middle, name) {
    if (panel.seat < LEAST_LABEL) return;
    const left = Math.max(x(panel, from), LEFT), right = Math.min(x(panel, to), panel.canvas.clientWidth);
    const wide = pen.measureText(name).width;
    if (wide + 4 > right - left) return;
    pen.fillStyle = "#000";
    pen.fillText(name, (left + right - wide) / 2, middle);
  }

  function drawAxis(pen, panel) {
    const rough = (view.to - view.from) / Math.max(2, width(panel) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
    pen.strokeStyle = "#e3e3e3";
    for (let n = Math.ceil(view.from / step); n * step <= view.to; n += 1) {
      const at = x(panel, n * step);
      pen.beginPath();
      pen.moveTo(at, TOP);
      pen.lineTo(at, panel.height - AXIS + 4);
      pen.stroke();
      pen.fillText(seconds(n * step), at + 2, panel.height - AXIS / 2);
    }
  }

  function show(from, to) {
    const least = 1e-6, span = Math.min(Math.max(to - from, least), end);
    const start = Math.min(Math.max(from, 0), end - span);
    view = { from: start, to: start + span };
    range.value = `${seconds(view.from)} to ${seconds(view.to)}`;
    panels.forEach(draw);
  }

  function zoom(factor, at = (view.from + view.to) / 2) {
    if (factor === 0) show(0, end);
    else show(at - (at - view.from) * factor, at + (view.to - at) * factor);
  }

  function move(share) {
    const shift = share * (view.to - view.from);
    show(view.from + shift, view.to + shift);
  }

  /** What lies under a point of a canvas, in words; "" for nothing. */
  function found(panel, px, py) {
    const { run } = panel, at = time(panel, px);
    if (px < LEFT) return "";
    if (py >= TOP && py < TOP + STRIP) {
      const number = run.iterations.findIndex(([start, length]) => start <= at && at < start + length);
      if (number < 0) return "";
      const [start, length, prefill, decode, padded, running, waiting, limited] = run.iterations[number];
      return `iteration ${number}, ${seconds(start)}, ${(1000 * length).toPrecision(3)} ms: ` +
        `${prefill} prefill and ${decode} decode tokens, ${padded} padded; ` +
        `${running} running, ${waiting} waiting` + (limited ? `; limited by ${limited}` : "");
    }
    const seat = Math.floor((py - panel.seatsTop) / panel.seat);
    const lane = panel.lane ? Math.floor((py - panel.waitsTop) / panel.lane) : -1;
    const here = ([from, to, place], wanted) => place === wanted && from <= at && at < to;
    const words = { held: "holds the seat, computes nothing", queued: "queued",
      again: "waits after a preemption" };
    const span = run.spans.findLast((one) => here(one, seat)) || run.waits.find((one) => here(one, lane));
    if (!span) return "";
    const [from, to, , kind, name, tokens] = span;
    return `request ${name}: ${words[kind] || kind}` + (tokens ? `, ${tokens} tokens` : "") +
      `, ${seconds(from)} to ${seconds(to)}`;
  }

  for (const panel of panels) {
    const { canvas } = panel;
    let dragged = null;
    canvas.addEventListener("pointerdown", (event) => {
      dragged = event.offsetX;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => { dragged = null; });
    canvas.addEventListener("pointercancel", () => { dragged = null; });
    canvas.addEventListener("pointermove", (event) => {
      if (dragged !== null) {
        move((dragged - event.offsetX) / width(panel));
        dragged = event.offsetX;
      }
      const text = found(panel, event.offsetX, event.offsetY);
      pointed.textContent = text && `${panel.run.label}, ${text}`;
      canvas.title = text;
    });
    canvas.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) zoom(2 ** (event.deltaY / 200), time(panel, event.offsetX));
      else if (event.deltaX) move(event.deltaX / width(panel));
      else return;
      event.preventDefault();
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const act = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => zoom(0),
        ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2) }[event.key];
      if (!act || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      act();
    });
  }
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => zoom(Number(button.dataset.zoom)));
  }
  const names = { prefill: "prefill", decode: "decode", padding: "padding, queued",
    held: "seat held, not computed", again: "waiting after preemption", preempted: "preempted" };
  for (const [kind, text] of Object.entries(names)) {
    const box = document.createElement("i");
    box.style.background = colours[kind];
    const entry = document.createElement("span");
    entry.append(box, text);
    document.getElementById("legend").append(entry);
  }
  window.addEventListener("resize", () => panels.forEach(draw));
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((one) => { one.open = true; });
    panels.forEach(draw);
  });
  show(0, end);
})();
