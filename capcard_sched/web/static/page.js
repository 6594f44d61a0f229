// Live updates, the time machine, and forms that submit when they change. Pages work without it.
"use strict";
(() => {
  const parser = new DOMParser();
  let running = 0, playing = null;

  // Replace the content of this page with that of another address; the address bar follows.
  async function show(address, push) {
    const number = ++running;
    let text;
    try {
      const response = await fetch(address, { headers: { accept: "text/html" } });
      text = await response.text();
    } catch {
      return mark("no connection");
    }
    if (number !== running) return;  // a later request is under way
    const page = parser.parseFromString(text, "text/html");
    const focus = document.activeElement && document.activeElement.id;
    const open = [...document.querySelectorAll("details[open]")].map((one) => one.id);
    const main = document.querySelector("main"), next = page.querySelector("main");
    if (!main || !next) return;
    main.replaceWith(document.adoptNode(next));
    for (const selector of ["header nav", "footer"]) {
      const from = page.querySelector(selector), to = document.querySelector(selector);
      if (from && to) to.replaceWith(document.adoptNode(from));
    }
    const live = page.querySelector("#live"), time = page.querySelector("#when time");
    if (live && document.querySelector("#live")) document.querySelector("#live").replaceWith(document.adoptNode(live));
    if (time && document.querySelector("#when time")) document.querySelector("#when time").replaceWith(document.adoptNode(time));
    document.title = page.title;
    for (const id of open) if (id && document.getElementById(id)) document.getElementById(id).open = true;
    if (focus && document.getElementById(focus)) document.getElementById(focus).focus({ preventScroll: true });
    if (push) history.replaceState(null, "", address);
    prepare();
  }

  function mark(text) {
    const live = document.getElementById("live");
    if (!live) return;
    live.textContent = "● " + text;
    live.className = "state bad";
    document.querySelector("main").classList.add("stale");
  }

  // The time machine: the slider moves the page, the button plays the history.
  function machine() {
    const form = document.getElementById("machine");
    if (!form || form.dataset.ready) return;
    form.dataset.ready = "1";
    const slider = form.elements.at, clock = document.getElementById("clock"), play = document.getElementById("play");
    const begin = Number(slider.dataset.begin), length = Number(slider.dataset.length);
    document.getElementById("go").hidden = true;
    play.hidden = false;
    let timer = 0;
    const label = () => {
      const iso = new Date((begin + Number(slider.value)) * 1000).toISOString();
      clock.textContent = length > 36 * 3600 ? iso.slice(5, 16).replace("T", " ") : length < 600 ? iso.slice(11, 19) : iso.slice(11, 16);
      slider.setAttribute("aria-valuetext", clock.textContent);
    };
    const go = () => {
      const address = new URL(location.href);
      address.searchParams.set("at", slider.value);
      return show(address, true);
    };
    slider.addEventListener("input", () => {
      label();
      clearTimeout(timer);
      timer = setTimeout(go, 120);
    });
    form.addEventListener("submit", (event) => { event.preventDefault(); go(); });
    play.addEventListener("click", () => {
      if (playing) { stop(); return; }
      if (Number(slider.value) >= Number(slider.max)) slider.value = 0;
      play.textContent = "❚❚";
      play.setAttribute("aria-label", "Pause");
      playing = { on: true };
      const mine = playing, pace = Math.max(Number(slider.step), length / 96);
      (async () => {
        while (mine.on) {
          const begun = performance.now();
          label();
          await go();
          if (Number(slider.value) >= Number(slider.max)) break;
          slider.value = Math.min(Number(slider.max), Number(slider.value) + pace);
          await new Promise((done) => setTimeout(done, Math.max(0, 350 - (performance.now() - begun))));
        }
        if (playing === mine) stop();
      })();
    });
    const stop = () => {
      if (playing) playing.on = false;
      playing = null;
      play.textContent = "▶";
      play.setAttribute("aria-label", "Play the history");
    };
    label();
  }

  function prepare() {
    machine();
    for (const form of document.querySelectorAll("form.filter")) {
      if (form.dataset.ready) continue;
      form.dataset.ready = "1";
      for (const select of form.querySelectorAll("select")) select.addEventListener("change", () => form.requestSubmit());
    }
  }

  // Live: an event per change of the cluster; pages in use by a form are left alone.
  function follow() {
    if (!document.getElementById("live")) return;
    const events = new EventSource("/api/v1/events");
    let last = Date.now(), waiting = 0;
    events.addEventListener("change", () => {
      last = Date.now();
      const active = document.activeElement;
      if (active && active.closest("main form")) return;
      clearTimeout(waiting);
      waiting = setTimeout(() => show(location.href, false), 50);
    });
    events.addEventListener("beat", () => { last = Date.now(); });
    events.addEventListener("stale", (event) => mark("interrupted for " + event.data + " s"));
    events.addEventListener("error", () => mark("no connection"));
    setInterval(() => {
      const seconds = Math.round((Date.now() - last) / 1000);
      if (seconds > 30) mark("last event " + seconds + " s ago");
    }, 5000);
  }

  prepare();
  follow();
})();
